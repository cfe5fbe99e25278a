"""Is a copy that two runs of `move` wrote at the same time found before the old log is closed?"""

from __future__ import annotations

from typing import Any

import pytest

from commitlog.errors import CorruptLog
from commitlog.ports import RawRecord
from consumers.tools import move

RECORDS = [RawRecord(n, 1_000 + n, f"{n}".encode(), b"value") for n in range(5)]


class Side:
    """A cluster with records in one topic."""

    def __init__(self, records: list[RawRecord]) -> None:
        self.records = records

    def read_raw(self, partition: int, offset: int = 0, *, is_transactions: bool) -> Any:
        return Reader([] if is_transactions else self.records[offset:], offset)


class Reader:
    def __init__(self, records: list[RawRecord], start: int) -> None:
        self.records, self.end, self.at = records, start + len(records), start

    def end_offset(self, timeout_seconds: float = 10) -> int:
        return self.end

    def position(self) -> int:
        return self.at

    def poll(self, **_: Any) -> list[RawRecord]:
        found, self.records, self.at = self.records, [], self.end
        return found

    def close(self) -> None:
        pass


def check(copy: list[RawRecord]) -> None:
    source: Any = Side(RECORDS)
    target: Any = Side(copy)
    move._check_copied(source, target, 1)


@pytest.mark.parametrize("count", range(6))
def test_a_copy_as_far_as_it_goes_is_one(count: int) -> None:
    check(RECORDS[:count])


def test_what_compaction_removed_or_a_tombstone_replaced_says_nothing() -> None:
    check([*RECORDS[:3], RawRecord(3, 1_003, b"restored/3", None)])


def test_a_record_that_was_copied_twice_is_found() -> None:
    twice = [*RECORDS[:3], RECORDS[2]._replace(offset=3)]
    with pytest.raises(CorruptLog, match=r"offset 3: two runs .* Delete the new cluster's topics"):
        check(twice)
