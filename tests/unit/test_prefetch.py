"""What is looked at before a decision, so that it is made once."""

from __future__ import annotations

import pytest

from commitlog.core.decisions import Decision, FileWanted, Need, Observed, VectorWanted
from commitlog.core.partition.machine import Machine
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Status, Submitted, Transaction
from tests.core_world import World, append, delete


@pytest.fixture
def world() -> World:
    """Return a log with table t at version 3: two fragments of 10 rows."""
    made = World(rules=Rules(protocol=PROTOCOL_SUPPORTED))
    made.create()
    made.ask("first", append(1, "a.lance", "b.lance"))
    made.ask("second", delete(made, 2, {0: [9], 1: [9]}))
    return made


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[type[Decision | Need]]:
    """Return what each call of `decide` gives."""
    found: list[type[Decision | Need]] = []
    decide = Machine.decide

    def noting(self: Machine, submitted: Submitted, observed: Observed) -> Decision | Need:
        step = decide(self, submitted, observed)
        found.append(type(step))
        return step

    monkeypatch.setattr(Machine, "decide", noting)
    return found


def named(world: World, operation: LanceCommit) -> list[str]:
    submitted = world.submitted(Transaction("x", (operation,)))
    wanted = world.machine.prefetch(submitted)
    return [one.path for one in wanted if isinstance(one, FileWanted | VectorWanted)]


def test_a_delete_of_a_fragment_that_nobody_changed_since_is_decided_once(
    world: World, decided: list[type[Decision | Need]]
) -> None:
    at_head = delete(world, 3, {0: [1]}, base={0: [9]}, name=5)
    other_fragment = delete(world, 3, {1: [1]}, base={1: [9]}, name=6)
    assert named(world, at_head) == ["_deletions/0-1-5000.bin"]
    outcomes = [world.ask("at head", at_head), world.ask("behind", other_fragment)]
    assert [outcome.status for outcome in outcomes] == [Status.COMMITTED] * 2
    assert decided == [Decision] * 2


def test_a_file_that_the_rebase_replaces_is_not_read(world: World) -> None:
    said = delete(world, 3, {0: [2]}, base={0: [9]}, name=5)
    unsaid = delete(world, 3, {0: [3]}, base={0: [9]}, with_rows=False, name=6)
    world.ask("other", delete(world, 3, {0: [1]}, base={0: [9]}))
    assert named(world, said) == []
    assert named(world, unsaid) == ["_deletions/0-1-6000.bin"], "its rows are read from there"
