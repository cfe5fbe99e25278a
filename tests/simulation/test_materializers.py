"""Two processes write one table's files: whatever one does between two steps of the other.

A leader and a standby both follow the log, and somebody commits around it. At each of the first
one's calls to the store, the second does all of its work.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from commitlog.core.decisions import Change
from commitlog.model.operations import DeleteTableVersions
from commitlog.model.records import Outcome, Status, Submitted, Transaction
from commitlog.model.table import Policy
from consumers.partition.files.events import Event, Filed
from consumers.partition.files.table_files import HINT
from consumers.partition.materializer import Materializer
from tests.core_world import World, append
from tests.simulation.auditor import manifest_path
from tests.simulation.disk import Objects, SimulatedStore
from tests.simulation.scheduler import Process, Scheduler

STRANGER = b"written around the log"
CALLS = 16


class CountedStore(SimulatedStore):
    """Runs something before its n-th call."""

    calls = 0
    at: int
    then: Callable[[], object]

    def _before(self, what: str, path: str) -> None:
        CountedStore.calls += 1
        if CountedStore.calls == CountedStore.at:
            CountedStore.then()


def _events(changes: list[Change]) -> list[Event]:
    return [
        Event(
            Submitted(0, number, 0, Transaction(f"id {number}", ())),
            Outcome(number, f"id {number}", number, Status.COMMITTED),
            b"",
            (change,),
            number,
        )
        for number, change in enumerate(changes, 1)
    ]


def _changes(policy: Policy = Policy.EVERY, appends: int = 2) -> list[Change]:
    world = World()
    world.create(policy=policy)
    for number in range(1, appends + 1):
        world.ask(f"id-{number}", append(number, f"{number}.lance"))
    return list(world.changes)


@pytest.mark.parametrize("has_put_if_absent", [True, False])
@pytest.mark.parametrize("at", range(1, CALLS))
def test_a_stranger_and_two_materializers(at: int, has_put_if_absent: bool) -> None:
    changes = _changes()
    objects = Objects(Scheduler(0))
    objects.has_put_if_absent = has_put_if_absent
    process = Process("both", is_spared=True)
    location = changes[0].location
    path = manifest_path(location, 2)
    objects.bytes[path], objects.put_at[path] = STRANGER, 0.0
    vanished: list[str] = []

    def gone(process: Process, path: str, data: bytes) -> None:
        if data != STRANGER:
            vanished.append(path)

    objects.on_gone = gone
    first = Materializer(
        lambda filed: None, open_store=lambda place: CountedStore(objects, process, place)
    )
    second = Materializer(
        lambda filed: None, open_store=lambda place: SimulatedStore(objects, process, place)
    )
    second.put(_events(changes))
    CountedStore.calls, CountedStore.at = 0, at
    CountedStore.then = lambda: second.step(0)
    first.put(_events(changes))
    first.step(0)
    second.step(0)
    assert first.written_sequence == second.written_sequence == 3
    assert not vanished
    kept = [data for name, data in objects.bytes.items() if "_quarantine" in name]
    assert kept == [STRANGER]
    assert STRANGER not in {objects.bytes[manifest_path(location, v)] for v in (1, 2, 3)}


def test_a_materializer_that_wakes_up_late_stays_in_its_own_location() -> None:
    """Its table was dropped and made again meanwhile: the new one lies elsewhere."""
    changes = _changes()
    objects = Objects(Scheduler(0))
    process = Process("late", is_spared=True)
    reported: list[Filed] = []
    late = Materializer(
        reported.append, open_store=lambda place: SimulatedStore(objects, process, place)
    )
    world = World()
    world.create()
    late.adopt(("t",), "i-again", f"{changes[0].location}-again", Policy.EVERY, world.state())
    late.put(_events(changes))
    late.step(0)
    assert [filed.versions for filed in reported] == [[("i-t", 3)]]
    assert not [path for path in objects.bytes if path.startswith(f"{changes[0].location}-again")]


def test_a_lone_change_is_written_at_once_and_groups_make_the_next_ones_wait() -> None:
    objects = Objects(Scheduler(0))
    process = Process("latest", is_spared=True)
    now = [0.0]

    class SlowStore(SimulatedStore):
        def _before(self, what: str, path: str) -> None:
            now[0] += 1.0

    written: list[int] = []
    materializer = Materializer(
        lambda filed: written.extend(event.outcome.sequence for event in filed.events),
        open_store=lambda place: SlowStore(objects, process, place),
        clock=lambda: now[0],
    )
    events = _events(_changes(Policy.LATEST, appends=8))
    for event in events[:3]:
        materializer.put([event])
        materializer.step(0)
    assert written == [1, 2, 3]
    for start in (3, 5, 7):
        materializer.put(events[start : start + 2])
        materializer.step(0)
    assert written == [1, 2, 3, 4, 5]
    now[0] += 1000
    materializer.step(0)
    assert written == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_store_that_hesitates_once_makes_nobody_wait() -> None:
    objects = Objects(Scheduler(0))
    process = Process("latest", is_spared=True)
    now, cost = [0.0], [0.0]

    class HesitatingStore(SimulatedStore):
        def _before(self, what: str, path: str) -> None:
            now[0] += cost[0]

    written: list[int] = []
    materializer = Materializer(
        lambda filed: written.extend(event.outcome.sequence for event in filed.events),
        open_store=lambda place: HesitatingStore(objects, process, place),
        clock=lambda: now[0],
    )
    events = _events(_changes(Policy.LATEST, appends=5))
    for start, seconds in ((0, 0.0), (2, 1.0), (4, 0.0)):
        cost[0] = seconds
        materializer.put(events[start : start + 2])
        materializer.step(0)
    assert written == [1, 2, 3, 4, 5, 6]


def test_a_busy_machine_makes_nobody_wait_for_a_local_manifest() -> None:
    """What a group waits for is the leader's time: another program's isn't a local manifest's."""
    objects = Objects(Scheduler(0))
    process = Process("latest", is_spared=True)
    now, work = [0.0], [0.0]

    class BusyStore(SimulatedStore):
        def _before(self, what: str, path: str) -> None:
            now[0] += 1.0
            work[0] += 1e-6

    written: list[int] = []
    materializer = Materializer(
        lambda filed: written.extend(event.outcome.sequence for event in filed.events),
        open_store=lambda place: BusyStore(objects, process, place),
        clock=lambda: now[0],
        work_clock=lambda: work[0],
    )
    events = _events(_changes(Policy.LATEST, appends=7))
    for start in (0, 2, 4, 6):
        materializer.put(events[start : start + 2])
        now[0] += 1e-3
        materializer.step(0)
    assert written == list(range(1, 9))


class Bench:
    """Several materializers over one store, and the names that were put into it."""

    def __init__(self, changes: list[Change]) -> None:
        self.objects = Objects(Scheduler(0))
        self.changes = changes
        self.put: list[str] = []
        self.objects.on_put = lambda process, path, data: self.put.append(path)

    def materializer(
        self, *, delay_seconds: float = 0.0, store: type[SimulatedStore] = SimulatedStore
    ) -> Materializer:
        process = Process("bench", is_spared=True)
        return Materializer(
            lambda events: None,
            open_store=lambda place: store(self.objects, process, place),
            delay_seconds=delay_seconds,
            clock=lambda: self.objects.scheduler.now,
            newest_in_log=self.newest_in_log,
        )

    def newest_in_log(self, incarnation: str, offset: int) -> int:
        """Return what the log names from an offset on: here an outcome's offset is its version."""
        named = self.changes[offset - 1 if offset else 0 :]
        return max((c.version for c in named if c.incarnation == incarnation), default=0)

    def strange(self, version: int) -> None:
        """Have somebody write a version around the log."""
        self.objects.bytes[self.path(version)] = STRANGER
        self.objects.put_at[self.path(version)] = 0.0

    def path(self, version: int) -> str:
        return manifest_path(self.changes[0].location, version)


def test_a_late_standby_does_not_make_deleted_versions_again() -> None:
    world = World()
    world.create()
    for number in range(1, 5):
        world.ask(f"id-{number}", append(number, f"{number}.lance"))
    world.ask("deletion", DeleteTableVersions(("t",), ((2, 3),)))
    bench = Bench(list(world.changes))
    events = _events(bench.changes)
    leader, standby = bench.materializer(), bench.materializer(delay_seconds=2.0)
    leader.put(events)
    leader.step(0)
    assert bench.path(2) not in bench.objects.bytes
    bench.put.clear()
    for event in events:
        standby.put([event])
        bench.objects.scheduler.now += 0.3
        standby.step(0)
    bench.objects.scheduler.now += 100
    standby.step(0)
    assert standby.written_sequence == len(events)
    assert not {bench.path(2), bench.path(3)} & {*bench.put, *bench.objects.bytes}
    assert bench.path(5) in bench.objects.bytes


@pytest.mark.parametrize("delay_seconds", [2.0, 0.0], ids=["standby", "after a restart"])
def test_who_is_late_leaves_a_newer_hint_alone(delay_seconds: float) -> None:
    bench = Bench(_changes(Policy.LATEST, appends=30))
    events = _events(bench.changes)
    leader = bench.materializer()
    for start in (0, 10, 20):
        leader.put(events[start : start + 10 if start < 20 else None])
        bench.objects.scheduler.now += 10
        leader.step(0)
    hint = f"{bench.changes[0].location}/{HINT}"
    newest = bench.objects.bytes[hint]
    late = bench.materializer(delay_seconds=delay_seconds)
    for start in (0, 10, 20):
        late.put(events[start : start + 10 if start < 20 else None])
        bench.objects.scheduler.now += 10
        late.step(0)
        assert bench.objects.bytes[hint] == newest


def test_who_is_late_at_a_strangers_version_leaves_the_logs_own_ones_alone() -> None:
    """Under `latest` the leader skipped the version that a stranger took, and went on."""
    bench = Bench(_changes(Policy.LATEST, appends=4))
    events = _events(bench.changes)
    leader, late = bench.materializer(), bench.materializer()
    for start, end in ((0, 1), (1, 3), (3, 4), (4, 5)):
        leader.put(events[start:end])
        bench.objects.scheduler.now += 10
        leader.step(0)
    own = {bench.path(version): bench.objects.bytes[bench.path(version)] for version in (3, 4, 5)}
    bench.strange(2)
    gone: list[str] = []
    bench.objects.on_gone = lambda process, path, data: gone.append(path)
    for event in events:
        late.put([event])
        bench.objects.scheduler.now += 10
        late.step(0)
        assert {path: bench.objects.bytes.get(path) for path in own} == own
    assert not gone
    assert late.written_sequence == len(events)


def test_who_has_all_of_the_log_moves_all_that_a_stranger_made() -> None:
    bench = Bench(_changes(Policy.LATEST, appends=1))
    for version in (2, 3, 4):
        bench.strange(version)
    standby = bench.materializer(delay_seconds=2.0)
    standby.put(_events(bench.changes))
    bench.objects.scheduler.now += 10
    standby.step(0)
    assert standby.written_sequence == 2
    assert bench.objects.bytes[bench.path(2)] != STRANGER
    assert not {bench.path(3), bench.path(4)} & set(bench.objects.bytes)
    kept = [data for name, data in bench.objects.bytes.items() if "_quarantine" in name]
    assert kept == [STRANGER] * 3


@pytest.mark.parametrize("held_up_at", ["read", "set_aside"])
def test_who_is_held_up_at_a_strangers_versions_takes_none_that_a_leader_wrote_since(
    held_up_at: str,
) -> None:
    """Both versions were a stranger's when it looked; a later leader has replaced them by now."""
    bench = Bench(_changes(appends=2))
    events = _events(bench.changes)
    leader = bench.materializer()
    first, rest = events[:1], events[1:]
    leader.put(first)
    leader.step(0)
    for version in (2, 3):
        bench.strange(version)

    def go_on() -> None:
        leader.put(rest)
        leader.step(0)

    class HeldUpStore(SimulatedStore):
        def read(self, path: str) -> bytes:
            return self._held_up("read", path) or super().read(path)

        def set_aside(self, path: str, to: str, sha256: str) -> bool:
            self._held_up("set_aside", path)
            return super().set_aside(path, to, sha256)

        def _held_up(self, where: str, path: str) -> bytes:
            if where == held_up_at and self._root + path == bench.path(3):
                found = bench.objects.bytes[bench.path(3)]
                if found == STRANGER:
                    go_on()
                    return found
            return b""

    late = bench.materializer(store=HeldUpStore)
    gone: list[str] = []
    late.put(_events(bench.changes))
    bench.objects.on_gone = lambda process, path, data: gone.extend([path] * (data != STRANGER))
    late.step(0)
    assert not gone
    assert late.written_sequence == len(events)
    assert STRANGER not in (bench.objects.bytes[bench.path(version)] for version in (2, 3))
