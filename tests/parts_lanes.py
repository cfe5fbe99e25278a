"""A checkpoint's chunks in machine code beside Python: the same values, or left to it."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.core.partition.table_parts import BEFORE_VERSIONS

NOTHING = ManifestDelta(0, 0, 0, 0, None, 0, "")
TEXTS = ("", "0190-a", "Append", "Delete", '"', "\\", "\u00e9", "\x7f", "x" * 300)

Mutated = Callable[[bytes, random.Random], bytes]


def fragments(chance: random.Random) -> bytes:
    """Return a chunk of fragments; now and then with what isn't one."""
    ids = sorted({chance.choice((0, 1, 127, 128, 2**32 - 1)) for _ in range(4)})
    made = NOTHING._replace(fragments=tuple((i, b"f" * chance.choice((1, 200))) for i in ids))
    if chance.random() < 0.1:
        made = made._replace(removed=(7,))
    if chance.random() < 0.1:
        made = made._replace(version=chance.choice((1, 2**40)))
    return made.to_bytes()


def versions(chance: random.Random) -> bytes:
    """Return a chunk of versions, plain ones mostly."""

    def text() -> str:
        return chance.choice(TEXTS if chance.random() < 0.1 else TEXTS[1:4])

    pairs = [[text(), text()] for _ in range(chance.choice((0, 1, 9)))]
    entries = [[1, "Delete", [["r", "", 1]], [], []]] * chance.choice((0, 2))
    return json.dumps(
        {"entries": entries, "versions": pairs}, separators=(",", ":"), ensure_ascii=False
    ).encode()


def search_parts(module: Any, mutated: Mutated, seconds: float, seed: int) -> tuple[int, int]:
    """Read chunks for so long; return how many, and how many machine code read."""
    chance, tried, read = random.Random(seed), 0, 0
    until = time.process_time() + seconds
    while time.process_time() < until:
        for make, check in ((fragments, _fragments_alike), (versions, _versions_alike)):
            data = make(chance)
            if chance.random() < 0.5:
                data = mutated(data, chance)
            tried += 1
            read += check(module, data)
    return tried, read


def _fragments_alike(module: Any, data: bytes) -> bool:
    found = module.read_fragments(data)
    if found is None:
        return False
    try:
        delta = ManifestDelta.from_bytes(data)
    except DecodeError:
        raise AssertionError(data.hex()) from None
    assert (tuple(found), delta.removed) == (delta.fragments, ()), data.hex()
    return True


def _versions_alike(module: Any, data: bytes) -> bool:
    at = data.rfind(BEFORE_VERSIONS)
    found = module.read_pairs(data, at + len(BEFORE_VERSIONS)) if at >= 0 else None
    if found is None:
        return False
    expected = json.loads(b"{" + data[at + 2 :])["versions"]
    assert list(map(list, found)) == expected, data.hex()
    return True
