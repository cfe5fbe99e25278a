"""Is what would make a move fail found before the old log is closed?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.errors import CorruptLog
from commitlog.ports import RawRecord
from commitlog.protocol import transactions_topic
from consumers.tools import move
from consumers.tools.archive.log import FOLDER
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.moved_proof import expect_followed
from tests.service import SCHEMA, rows, service

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


@pytest.mark.slow
def test_a_log_without_its_archive_is_not_closed(tmp_path: Path) -> None:
    with service(tmp_path / "root") as world:
        world.client.create_table("t", SCHEMA)
        for number in range(3):
            world.client.append("t", rows(number))
        log, folder = MemoryLog(world.cluster), world.root / FOLDER
        expect_followed(log, 1, None)
        archive(log, 0, folder)
        give_up(log, 0, folder, ArchiveRun(0))
        world.cluster.compact(transactions_topic(log.name))
        with pytest.raises(CorruptLog, match="Name the log's --root"):
            expect_followed(log, 1, None)
        expect_followed(log, 1, world.root)
