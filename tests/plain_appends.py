"""Plain appends in both lanes, and decided both ways: by a look, and by all checks."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from google.protobuf.message import DecodeError

from commitlog.core import draft
from commitlog.core.decisions import Decision, Need, Observed
from commitlog.core.lance.plain_commits import decide_plainly
from commitlog.core.manifest.fragments import features
from commitlog.core.manifest.plain_appends import read_in_python
from commitlog.core.partition import machine as deciding
from commitlog.core.partition.machine import Machine
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Submitted

ReadPlainAppend = Callable[[bytes], Any]
_NUMBERS = (0, 1, 2, 127, 128, 300, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_IDS = (0, 1, 2, -1, -2, 300, 2**31 - 1, -(2**31))
_PATHS = ("a.lance", "b" * 200, "c", "é.lance", "x/y.lance", "..", ".", "a\\b", "a\0b", "")
_UUIDS = ("0192-ab", "A", "-", "", "a_b", "é")


def a_message(chance: random.Random) -> bytes:
    """Return the message of an append, a plain one mostly."""

    def rarely(odd: Any, plain: Any) -> Any:
        return chance.choice(odd) if chance.random() < 0.03 else plain

    message = Transaction(
        read_version=rarely(_NUMBERS, chance.randrange(1, 400)), uuid=rarely(_UUIDS, "0192-ab")
    )
    message.append.SetInParent()
    for _ in range(rarely((0, 3), 1)):
        fragment = message.append.fragments.add(physical_rows=rarely(_NUMBERS, 1000))
        for _ in range(rarely((0, 2, 12), 1)):
            ids = [chance.choice(_IDS) for _ in range(chance.choice((1, 3, 0)))]
            fragment.files.add(
                path=rarely(_PATHS, "a.lance"),
                fields=ids,
                column_indices=ids[: chance.choice((3, 1, 0))],
                file_major_version=rarely(_NUMBERS[:8], 2),
                file_minor_version=rarely(_NUMBERS[:8], chance.choice((0, 1))),
                file_size_bytes=rarely(_NUMBERS, 5000),
            )
        _spoil(chance, fragment)
    if chance.random() < 0.01:
        message.tag = "t"
    return message.SerializeToString(deterministic=True)


def _spoil(chance: random.Random, fragment: Any) -> None:
    act = chance.randrange(100)
    if act == 0:
        fragment.id = 7
    elif act == 1:
        fragment.deletion_file.id = 1
    elif act == 2:
        fragment.inline_row_ids = b""
    elif act == 3 and fragment.files:
        fragment.files[0].base_id = chance.choice((0, 1))
    elif act == 4:
        fragment.overlays.add()


def search_plain_appends(
    read: ReadPlainAppend,
    is_plain: Callable[[bytes], bool],
    mutated: Callable[[bytes, random.Random], bytes],
    seconds: float,
    seed: int,
) -> tuple[int, int]:
    """Read messages for so long, whole and mutated; return how many, and how many were plain."""
    chance = random.Random(seed)
    tried = plain = 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        message = a_message(chance)
        for one in (message, mutated(message, chance)):
            found = read(one)
            assert found == read_in_python(one), one.hex()
            tried += 1
            plain += found is not None
            for encoded in _fragments(one):
                spoiled = mutated(encoded, chance)
                assert not is_plain(encoded) or not features(DataFragment.FromString(encoded))
                assert not is_plain(spoiled) or not features(DataFragment.FromString(spoiled))
                assert found is None or is_plain(encoded)
    return tried, plain


def _fragments(message: bytes) -> list[bytes]:
    try:
        fragments = Transaction.FromString(message).append.fragments
    except DecodeError:
        return []
    return [one.SerializeToString(deterministic=True) for one in fragments]


@contextmanager
def decided_both_ways() -> Iterator[list[int]]:
    """Have each decision made by all checks as well; count those that a look was enough for."""
    usual, plainly = Machine.decide, decide_plainly
    counted = [0]

    def counting(*arguments: Any, **named: Any) -> Any:
        found = plainly(*arguments, **named)
        counted[0] += found is not None
        return found

    def both(self: Machine, submitted: Submitted, observed: Observed) -> Decision | Need:
        with mock.patch.object(deciding, "decide_plainly", counting):
            found = usual(self, submitted, observed)
        with (
            mock.patch.object(deciding, "decide_plainly", return_value=None),
            mock.patch.object(draft, "read_plain_append", return_value=None),
            mock.patch.object(self, "_parses", draft.Parses()),
        ):
            expected = usual(self, submitted, observed)
        assert found == expected
        return found

    with mock.patch.object(Machine, "decide", both):
        yield counted
