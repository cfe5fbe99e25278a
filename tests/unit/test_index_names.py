"""Which index changes go beside each other: one name has one maker, one segment one successor."""

from __future__ import annotations

import pytest

from commitlog.core.conflicts.candidate import Verdict
from commitlog.core.conflicts.grid import first_conflict
from commitlog.core.conflicts.history import History
from commitlog.core.operations.registry import candidate_of, write_set_of
from commitlog.core.tables.creation import empty_state
from commitlog.lancepb.table_pb2 import IndexMetadata
from commitlog.lancepb.transaction_pb2 import Transaction

CREATE, OTHER_NAME = ("i.new",), ("j.new",)
REPLACE, REPLACE_OTHER = ("i.new", "-i.a"), ("i.new", "-i.b")
REMOVE, REMOVE_OTHER = ("-i.a",), ("-i.b",)
NAME, SEGMENT = "same_index_name", "same_segment_removed"


def change(made: tuple[str, ...], salt: int = 0) -> Transaction:
    """Return a CreateIndex of segments `NAME.SEGMENT`, those with a dash removed."""
    message = Transaction(read_version=1, uuid=f"u{salt}")
    for one in made:
        name, _, segment = one.removeprefix("-").partition(".")
        index = IndexMetadata(name=name, fields=[0], fragment_bitmap=b"")
        index.uuid.uuid = (segment + str(salt) * (segment == "new")).encode().ljust(16, b".")
        body = message.create_index
        (body.removed_indices if one.startswith("-") else body.new_indices).append(index)
    return message


@pytest.mark.parametrize(
    ("committed", "asked", "rule"),
    [
        (CREATE, CREATE, NAME),
        (CREATE, REMOVE, NAME),
        (REMOVE, CREATE, NAME),
        (CREATE, REPLACE, NAME),
        (REPLACE, CREATE, NAME),
        (REPLACE, REPLACE_OTHER, NAME),
        (REMOVE, REPLACE, SEGMENT),
        (REPLACE, REMOVE, SEGMENT),
        (REMOVE, REPLACE_OTHER, ""),
        (REPLACE_OTHER, REMOVE, ""),
        (REMOVE, REMOVE, ""),
        (REMOVE, REMOVE_OTHER, ""),
        (REMOVE, OTHER_NAME, ""),
        (CREATE, OTHER_NAME, ""),
    ],
)
def test_an_index_change_beside_another(
    committed: tuple[str, ...], asked: tuple[str, ...], rule: str
) -> None:
    history = History(1)
    first = change(committed)
    writes = write_set_of(first, None, empty_state())
    history.record("first", writes)
    finding = first_conflict(candidate_of(change(asked, 1)), history, 1)
    assert (finding.rule if finding else "") == rule
    assert finding is None or finding.verdict is Verdict.RETRYABLE
