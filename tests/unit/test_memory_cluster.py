"""Do the faults of the log in memory do what their names say?"""

from __future__ import annotations

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import AppendCall, Fate, MemoryCluster
from commitlog.errors import CorruptLog, Unavailable
from commitlog.ports import DeliveryFailed
from commitlog.protocol import outcomes_topic, transactions_topic
from tests.contract.worlds import append_all, transaction, transactions_of

Told = list[tuple[int, Exception | None]]


@pytest.fixture
def log() -> MemoryLog:
    """A log of one partition."""
    log = MemoryLog()
    log.create()
    return log


def append(log: MemoryLog, fate: Fate) -> Told:
    """Append one outcome under a fate; return what the callback is told."""
    log.cluster.on_append = lambda _append: fate
    told: Told = []
    writer = log.outcomes_writer(0)
    writer.append("1/1", b"value", lambda offset, error: told.append((offset, error)))
    writer.poll(0)
    return told


@pytest.mark.parametrize(
    ("fate", "is_appended", "said"),
    [
        (Fate.REFUSE, False, False),
        (Fate.LOSE, False, None),
        (Fate.APPEND_UNTOLD, True, None),
    ],
)
def test_fates_that_are_told_as_errors(
    log: MemoryLog, fate: Fate, is_appended: bool, said: bool | None
) -> None:
    [(offset, error)] = append(log, fate)
    assert offset == -1
    assert isinstance(error, DeliveryFailed)
    assert error.appended is said
    assert log.read_outcomes(0).end_offset() == (2 if is_appended else 1)


def test_a_delivered_record_tells_its_offset(log: MemoryLog) -> None:
    assert append(log, Fate.DELIVER) == [(1, None)]


def test_a_held_record_appears_when_released_even_if_given_up(log: MemoryLog) -> None:
    log.cluster.on_append = lambda _append: Fate.HOLD
    zombie = log.outcomes_writer(0)
    told: Told = []
    for number in range(3):
        zombie.append(f"1/{number}", b"late", lambda offset, error: told.append((offset, error)))
    assert zombie.poll(0) == 0
    assert log.cluster.release(1) == 1
    assert zombie.poll(0) == 1
    zombie.close()
    assert told[0] == (1, None)
    assert all(isinstance(error, DeliveryFailed) for _, error in told[1:])
    log.cluster.on_append = lambda _append: Fate.DELIVER
    assert log.outcomes_writer(0).poll(0) == 0
    log.cluster.append(outcomes_topic("commitlog"), 0, b"2/1", b"the next leader's")
    assert log.cluster.release() == 2
    assert [each.raw for each in log.last_outcome_records(0, 4)] == [
        b"late",
        b"the next leader's",
        b"late",
        b"late",
    ]
    assert len(told) == 3


def test_a_hook_can_single_out_one_writer(log: MemoryLog) -> None:
    seen: list[AppendCall] = []

    def on_append(append: AppendCall) -> Fate:
        seen.append(append)
        return Fate.DELIVER

    log.cluster.on_append = on_append
    first, second = log.outcomes_writer(0), log.outcomes_writer(0)
    first.append("1/1", b"a", lambda _offset, _error: None)
    second.append("2/1", b"b", lambda _offset, _error: None)
    assert seen[0].writer != seen[1].writer
    assert [each.key for each in seen] == [b"1/1", b"2/1"]


def test_an_unreachable_cluster_gives_nothing_and_comes_back(log: MemoryLog) -> None:
    reader = log.read_transactions(0)
    log.cluster.is_reachable = False
    assert reader.poll(timeout_seconds=0) == []
    with pytest.raises(Unavailable):
        reader.end_offset()
    with pytest.raises(Unavailable):
        log.genesis()
    [(_, error)] = append(log, Fate.DELIVER)
    assert isinstance(error, DeliveryFailed)
    log.cluster.is_reachable = True
    assert len(reader.poll(timeout_seconds=0)) == 1


def test_compaction_keeps_the_last_of_a_key_and_removes_what_tombstones_name() -> None:
    log = MemoryLog(MemoryCluster(now_ms=lambda: 7))
    log.create()
    topic = transactions_topic("commitlog")
    append_all(log, [transaction(b"a")] * 3)
    keys = [each.key for each in log.cluster.topics[topic].partitions[0].records]
    log.cluster.append(topic, 0, keys[2], None)
    log.cluster.append(topic, 0, b"foolish/0", b"1")
    log.cluster.append(topic, 0, b"foolish/0", b"2")
    log.cluster.compact(topic)
    found = transactions_of(log)
    assert [each.offset for each in found] == [0, 1, 3, 6]
    assert {each.append_time_ms for each in found} == {7}
    [after_the_gap] = log.read_transactions(0, 2).poll(records_max=1, timeout_seconds=0)
    assert after_the_gap.offset == 3


def test_a_reader_of_one_record_finds_the_one_behind_a_tombstone() -> None:
    log = MemoryLog()
    log.create()
    log.cluster.append(transactions_topic("commitlog"), 0, b"x/1", None)
    append_all(log, [transaction()])
    reader = log.read_transactions(0, 1)
    assert [r.offset for r in reader.poll(records_max=1, timeout_seconds=0)] == [2]


def test_a_lost_tail_is_noticed_by_who_read_it(log: MemoryLog) -> None:
    append_all(log, [transaction()] * 3)
    reader = log.read_transactions(0)
    assert len(reader.poll(timeout_seconds=0)) == 4
    log.cluster.truncate(transactions_topic("commitlog"), 0, 2)
    assert log.read_transactions(0).end_offset() == 2
    with pytest.raises(CorruptLog, match="offset 4 is outside of 0 to 2"):
        reader.poll(timeout_seconds=0)
