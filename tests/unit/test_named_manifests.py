"""The manifests that a record names: none is read before it is known that they fit together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from commitlog import words
from commitlog.core.decisions import Found, ManifestWanted, Need, Wanted
from commitlog.core.lance import named_manifests
from commitlog.core.lance.direct import direct_delta
from commitlog.core.log.replica import Decided
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.core.partition.driving import next_step
from commitlog.core.partition.recorded import decide_again
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import HEADERS_BOUNDED_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateTableVersion, Operation, RegisterTable
from commitlog.model.records import Observation, Outcome, Transaction
from tests.core_world import ROOT, World, append

MOST = 1_000


class Sized(World):
    """A log whose store has manifests of some sizes, and notes how much of them is read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.read = self.rounds = 0

    def put(self, location: str, path: str, size: int, found: Found) -> None:
        seen = Observation(path, size, size.to_bytes(32))
        self.manifests[location, path] = replace(found, observation=seen)

    def observe(self, wanted: Wanted) -> Found:
        found = super().observe(wanted)
        if isinstance(wanted, ManifestWanted):
            size = found.observation.size
            if wanted.bytes_max and size > wanted.bytes_max:
                return Found(Observation(wanted.path, size), error="it is too large")
            self.read += max(size, 0)
        return found

    def asked(self, operations: Sequence[Operation]) -> Outcome:
        """Decide a record, and decide it again from what its outcome holds."""
        submitted = self.submitted(Transaction(f"x{len(self.log)}", tuple(operations)))
        seen: dict[Wanted, Found] = {}
        self.read = self.rounds = 0
        while isinstance(step := next_step(self.machine, submitted, seen), Need):
            seen |= {one: self.observe(one) for one in step.wanted}
            self.rounds += 1
        read, decided = self.read, Decided(submitted, step.outcome, 0)
        again = decide_again(self.machine, decided, self.recordings, self.look_again)
        assert (again.difference, again.decision is None) == ("", False)
        self.read = read
        return step.outcome

    def look_again(self, wanted: Wanted) -> Found:
        assert isinstance(wanted, ManifestWanted)
        return self.observe(replace(wanted, bytes_max=0))


Naming = Callable[[Sized, Sequence[int]], list[Operation]]
"""Puts manifests of these sizes into the store, and returns operations that name them."""


@pytest.fixture(autouse=True)
def _small_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_manifests, "MANIFESTS_BYTES_MAX", MOST)


def a_log(protocol: int = PROTOCOL_SUPPORTED) -> Sized:
    world = Sized(rules=Rules(protocol))
    world.create()
    world.ask("first", append(1, "a.lance"))
    return world


def staged(world: Sized, sizes: Sequence[int]) -> list[Operation]:
    """Return versions of one table, each of which a client staged on the one before."""
    made: list[Operation] = []
    state: ManifestState = world.state().copy()
    for number, size in enumerate(sizes):
        change = LanceTransaction.FromString(append(state.version, f"s{number}.lance").message)
        state = state.copy()
        apply_delta(state, direct_delta(state, change, timestamp_ms=7))
        message = change.SerializeToString(deterministic=True)
        path = f"_versions/{2**64 - 1 - state.version:020}.manifest-0a1b"
        found = Found(Observation(path, 0), state=state, transaction=message)
        world.put(f"{ROOT}/t", path, size, found)
        made.append(CreateTableVersion(("t",), state.version, path, 0, message=message))
    return made


def registered(world: Sized, sizes: Sequence[int]) -> list[Operation]:
    path, made = "_versions/1.manifest", list[Operation]()
    state = world.state().copy()
    state.version = 1
    for number, size in enumerate(sizes):
        world.put(f"{ROOT}/r{number}", path, size, Found(Observation(path, 0), state=state))
        made.append(RegisterTable((f"r{number}",), f"i{number}", f"{ROOT}/r{number}", 1, path))
    return made


@pytest.mark.parametrize("kind", [staged, registered])
@pytest.mark.parametrize(
    ("sizes", "rounds", "read"),
    [
        ((200, 250, 250, 250), 1, 950),
        ((100, 600, 100, 100), 2, 900),
        ((300, 300, 50, 300), 2, 950),
        ((100, 600, 100, 300), None, 1_100),
        ((10**12,) * 50, None, 0),
        ((20,) * 50, 1, 1_000),
        ((10,) * 49 + (10**12,), None, 490),
    ],
)
def test_large_ones_are_read_only_if_all_of_them_fit(
    kind: Naming,
    sizes: tuple[int, ...],
    rounds: int | None,
    read: int,
) -> None:
    world = a_log()
    outcome = world.asked(kind(world, sizes))
    if rounds is None:
        assert (outcome.status, outcome.code) == ("rejected", "INVALID_OPERATION")
        assert "Send several records" in words.worded(outcome).message
        assert world.rounds <= 2
    else:
        assert (outcome.status, world.rounds) == ("committed", rounds)
    assert world.read == read


@pytest.mark.parametrize("kind", [staged, registered])
def test_one_alone_and_those_of_older_logs_have_no_bound_together(
    kind: Naming,
) -> None:
    for protocol, count in ((PROTOCOL_SUPPORTED, 1), (HEADERS_BOUNDED_SINCE - 1, 3)):
        world = a_log(protocol)
        assert world.asked(kind(world, (5_000,) * count)).status == "committed"
        assert world.read == 5_000 * count
