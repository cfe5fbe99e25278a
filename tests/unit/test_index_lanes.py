"""Are the version index's rows the same by machine code as by Python?"""

from __future__ import annotations

import gc
import random
import sys
from contextlib import ExitStack, closing
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.recordings import Recordings
from commitlog.codecs import lanes
from commitlog.core.log.replica import Decided, Replica
from consumers.views.version_index.appends import LEAST, Appends
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.operation_results import DoneAppend
from tests.fakes.log_stream import PartitionLog
from tests.index_lanes import committed_appends, indexed_alike, odd_ones, search_rows
from tests.lanes import golden_logs, mutated

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendColumns

SECONDS = 1.0


@pytest.fixture
def native() -> type[AppendColumns]:
    if lanes.APPEND_COLUMNS is None:
        pytest.skip("there is no machine code here")
    return lanes.APPEND_COLUMNS


def in_batches(decided: list[Decided], chance: random.Random) -> list[list[Decided]]:
    rest = iter(decided)
    return list(iter(lambda: list(islice(rest, chance.choice((1, 2, 3, 50, 300)))), []))


def decided_in(log: MemoryLog, partition: int) -> list[Decided]:
    replica = Replica()
    with closing(log.read_transactions(partition)) as transactions:
        for submitted in transactions.poll(records_max=1_000_000):
            replica.receive_submitted(submitted)
    with closing(log.read_outcomes(partition)) as outcomes:
        for answered in outcomes.poll(records_max=1_000_000):
            replica.receive_answered(answered)
    return list(replica.drain())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_rows_of_any_log_are_alike(native: type[AppendColumns], seed: int) -> None:
    log = PartitionLog(seed=seed)
    log.grow(1_500)
    taken = indexed_alike(native, in_batches(log.decided(), random.Random(seed)))
    assert taken > 300


@pytest.mark.slow
def test_rows_of_every_golden_log_are_alike(native: type[AppendColumns]) -> None:
    taken = 0
    with ExitStack() as stack:
        for log in golden_logs(stack).values():
            for partition in range(log.partitions()):
                batch = decided_in(log, partition)
                outside = Recordings(log.genesis(partition).tables_root)
                taken += indexed_alike(native, [batch], outside.of)
    assert taken


@pytest.mark.slow
def test_changed_appends_are_indexed_alike_or_left_to_python(native: type[AppendColumns]) -> None:
    tried, taken = search_rows(native, mutated, SECONDS, 1)
    assert 0 < taken < tried


def test_an_append_over_a_known_fragment_is_left_to_python(native: type[AppendColumns]) -> None:
    appends, batch = Appends(native), committed_appends(100, 1)[:LEAST]
    told, columns = appends.read(batch, Counting())
    first = told[0][1]
    assert isinstance(first, DoneAppend)
    assert columns["transactions"].num_rows == LEAST
    counting = Counting()
    counting._tables[first.incarnation] = {}
    counting.note(first)
    told, columns = appends.read(batch, counting)
    assert not columns
    assert not any(isinstance(done, DoneAppend) for _, done in told)
    assert appends.read(batch, Counting())[1]["transactions"].num_rows == LEAST


@pytest.mark.slow
def test_making_rows_keeps_no_memory(native: type[AppendColumns]) -> None:
    appends, base = Appends(native)._native, committed_appends(300, 1)
    assert appends is not None

    def work() -> None:
        for one in islice(odd_ones(base, random.Random(1), mutated), 2_000):
            appends.add(one)
        appends.take()
        gc.collect()

    work()
    before = sys.getallocatedblocks()
    work()
    assert sys.getallocatedblocks() - before < 100
