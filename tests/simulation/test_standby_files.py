"""A standby follows what its leader writes for few requests, and misses nothing that it doesn't."""

from __future__ import annotations

import pytest

from commitlog.core.decisions import Change
from consumers.partition.files.events import Filed
from consumers.partition.materializer import Materializer
from tests.simulation.auditor import manifest_path
from tests.simulation.disk import Objects, SimulatedStore
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.test_materializers import STRANGER, _changes, _events

APPENDS = 60


class Store(SimulatedStore):
    """Counts requests; one of them fails."""

    asked: list[tuple[str, str]]
    fails_at = -1

    def _before(self, what: str, path: str) -> None:
        self.asked.append((what, path))
        if len(self.asked) == self.fails_at:
            raise OSError("the store is away")


class Bench:
    """A leader and a standby over one store."""

    def __init__(self) -> None:
        self.changes = _changes(appends=APPENDS)
        self.objects = Objects(Scheduler(0))
        self.process = Process("both", is_spared=True)
        self.now = 0.0
        Store.asked, Store.fails_at = [], -1

    def lead(self, changes: list[Change]) -> None:
        """Have a leader write versions."""
        leader = Materializer(
            lambda filed: None,
            open_store=lambda place: SimulatedStore(self.objects, self.process, place),
        )
        leader.put(_events(changes))
        leader.step(0)
        assert leader.written_sequence == len(changes)

    def follow(self, tries: int = 1) -> list[int]:
        """Have a standby do the same; return the sequences that it told of."""
        told: list[Filed] = []
        standby = Materializer(
            told.append,
            open_store=lambda place: Store(self.objects, self.process, place),
            delay_seconds=2.0,
            clock=lambda: self.now,
        )
        standby.put(_events(self.changes))
        for _ in range(tries):
            self.now += 100.0
            standby.step(0)
        assert standby.written_sequence == len(self.changes)
        return sorted(event.outcome.sequence for filed in told for event in filed.events)

    def check(self) -> None:
        """Hold all manifests against those that a leader alone writes."""
        found = dict(self.objects.bytes)
        self.objects.bytes.clear()
        self.lead(self.changes)
        assert {path: found.get(path) for path in self.objects.bytes} == self.objects.bytes


def test_what_a_leader_has_written_costs_few_requests() -> None:
    bench = Bench()
    bench.lead(bench.changes)
    assert bench.follow() == list(range(1, APPENDS + 2))
    assert len(Store.asked) < 25, "two for each version was more than the leader needs"
    bench.check()


@pytest.mark.parametrize("written", [1, 3, 5, 6, 17, APPENDS - 1])
def test_what_a_leader_has_not_written_is_written(written: int) -> None:
    bench = Bench()
    bench.lead(bench.changes[:written])
    assert bench.follow() == list(range(1, APPENDS + 2))
    bench.check()


@pytest.mark.parametrize("at", range(1, 40))
def test_a_request_that_fails_changes_no_version(at: int) -> None:
    bench = Bench()
    bench.lead(bench.changes[: APPENDS // 2])
    Store.fails_at = at
    assert bench.follow(tries=2) == list(range(1, APPENDS + 2))
    bench.check()


def test_a_stranger_s_version_is_not_taken_for_the_leader_s() -> None:
    bench = Bench()
    bench.lead(bench.changes[:20])
    path = manifest_path(bench.changes[0].location, 21)
    bench.objects.bytes[path], bench.objects.put_at[path] = STRANGER, 0.0
    bench.follow()
    kept = [data for name, data in bench.objects.bytes.items() if "_quarantine" in name]
    assert kept == [STRANGER]
    bench.check()
