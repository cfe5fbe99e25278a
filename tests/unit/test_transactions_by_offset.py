"""Transactions are fetched by offset in any order, and a slow Kafka isn't a corrupt log."""

from __future__ import annotations

import random
from typing import cast

import pytest

from commitlog.client.accepted.row_tail import Tail
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import Submitted, Transaction
from commitlog.ports import Log
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog


class _SilentReader:
    """A reader to which Kafka returns nothing."""

    def position(self) -> int:
        return 0

    def poll(self, records_max: int = 500, timeout_seconds: float = 0.0) -> list[Submitted]:
        return []

    def close(self) -> None:
        pass


class _SilentLog:
    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> _SilentReader:
        return _SilentReader()


@pytest.fixture(scope="module")
def stream() -> PartitionLog:
    made = PartitionLog()
    made.grow(1_500)
    return made


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_order_finds_each(stream: PartitionLog, seed: int) -> None:
    wanted = {one.offset: one for one in stream.submitted}
    order = sorted(wanted)
    chance = random.Random(seed)
    for _ in range(200):
        a, b = chance.randrange(len(order)), chance.randrange(len(order))
        order[a], order[b] = order[b], order[a]
    found = TransactionsByOffset(cast(Log, ReadOnlyLog([stream])), 0)
    assert [found.at(offset) for offset in order] == [wanted[offset] for offset in order]
    found.close()


def test_a_lost_transaction_is_a_corrupt_log(stream: PartitionLog) -> None:
    holed = PartitionLog()
    holed.submitted = list(stream.submitted)
    holed.submitted[700] = stream.submitted[701]
    for first in (600, 900):
        found = TransactionsByOffset(cast(Log, ReadOnlyLog([holed])), 0)
        found.at(first)
        with pytest.raises(CorruptLog, match="offset 700"):
            found.at(700)


def test_a_slow_kafka_is_unavailable() -> None:
    found = TransactionsByOffset(cast(Log, _SilentLog()), 0, seconds=0.0)
    with pytest.raises(Unavailable, match="offset 5 of partition 0"):
        found.at(5)


def test_a_tail_reads_each_record_once_though_more_is_appended_than_decided(
    stream: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = [], ReadOnlyLog.read_transactions

    def read(log: ReadOnlyLog, partition: int, offset: int = 0, **more: float) -> object:
        opened.append(offset)
        return real(log, partition, offset, **more)

    monkeypatch.setattr(ReadOnlyLog, "read_transactions", read)
    written = {one.offset: one.record for one in stream.submitted}
    known = [at for at, record in written.items() if isinstance(record, Transaction)]
    tail = Tail(cast(Log, ReadOnlyLog([stream])), 0)
    for first in range(0, 60, 3):
        wanted = known[first : first + 5]
        assert tail.read(wanted) == {at: written[at] for at in wanted}
    assert opened == [known[0]]
    tail.close()
