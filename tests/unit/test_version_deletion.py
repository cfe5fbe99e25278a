"""Are old versions deleted as the record says, once, and never the newest?"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.core.catalogue.version_deletion import held_versions, merged, without
from commitlog.core.decisions import ChangeKind, Found
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.limits import HOLDS_SINCE, INCARNATIONS_SINCE, Rules
from commitlog.model.operations import (
    INCARNATION,
    AlterProperties,
    DeleteTableVersions,
    DeregisterTable,
    Operation,
    RegisterTable,
)
from commitlog.model.records import Code, Observation, Transaction
from consumers.partition.files.table_files import Deletions
from tests.core_world import World, append, commit, replayed_from_parts

RANGES = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 6)).map(lambda one: (one[0], one[0] + one[1]))
)


def versions(ranges: object) -> set[int]:
    return {v for first, last in ranges for v in range(first, last + 1)}  # type: ignore[attr-defined]


@pytest.fixture
def world() -> World:
    """A table at version 5."""
    world = World()
    world.create()
    for version in range(1, 5):
        assert world.ask(f"a{version}", append(version, f"{version}.lance")).version == version + 1
    return world


def delete(*ranges: tuple[int, int]) -> DeleteTableVersions:
    return DeleteTableVersions(("t",), ranges)


@given(RANGES, RANGES)
def test_ranges_are_sets_of_versions(
    some: list[tuple[int, int]], gone: list[tuple[int, int]]
) -> None:
    whole = merged(some, gone)
    assert versions(whole) == versions(some) | versions(gone)
    assert all(left[1] + 1 < right[0] for left, right in zip(whole, whole[1:], strict=False))
    assert versions(without(some, merged(gone))) == versions(some) - versions(gone)


def test_deleted_versions_are_kept_in_the_state_and_survive_a_snapshot(world: World) -> None:
    before = world.machine.digest()
    assert world.ask("d", delete((1, 2), (4, 4))).status == "committed"
    assert world.changes[-1].kind is ChangeKind.VERSIONS_DELETED
    assert world.changes[-1].deleted == ((1, 2), (4, 4))
    assert world.machine.tables["t",].deleted == ((1, 2), (4, 4))
    assert world.machine.digest() != before
    again = replayed_from_parts(world.machine)
    assert again.tables["t",].deleted == ((1, 2), (4, 4))
    assert again.digest() == world.machine.digest()
    assert world.ask("next", append(5, "n.lance")).version == 6


@pytest.mark.parametrize("protocol", [INCARNATIONS_SINCE - 1, INCARNATIONS_SINCE])
def test_versions_of_another_table_of_that_name_are_not_deleted(protocol: int) -> None:
    world = World(rules=Rules(protocol))
    world.create()
    for version in range(1, 5):
        world.ask(f"a{version}", append(version, f"{version}.lance"))
    properties = ((INCARNATION, "the one before"),)
    record = Transaction("d", (delete((1, 2)),), properties=properties, payload_hash=b"h")
    outcome = world.run(record)
    assert outcome.code == (Code.TABLE_REPLACED if protocol >= INCARNATIONS_SINCE else Code.NONE)
    properties = ((INCARNATION, "i-t"),)
    record = Transaction("e", (delete((3, 3)),), properties=properties, payload_hash=b"h")
    assert world.run(record).status == "committed"


@pytest.mark.parametrize(
    ("ranges", "code"),
    [
        (((0, 1),), "INVALID_OPERATION"),
        (((3, 2),), "INVALID_OPERATION"),
        (((1, 2), (2, 3)), "INVALID_OPERATION"),
        (((4, 4), (1, 1)), "INVALID_OPERATION"),
        (((5, 5),), "INVALID_OPERATION"),
        (((1, 9),), "INVALID_OPERATION"),
        (((2, 3),), "EXPECTATION_FAILED"),
    ],
)
def test_a_record_names_versions_that_are_there_and_not_the_newest(
    world: World, ranges: tuple[tuple[int, int], ...], code: str
) -> None:
    world.ask("first", delete((3, 3)))
    digest = world.machine.tables["t",].deleted
    assert world.ask("d", delete(*ranges)).code == code
    assert world.machine.tables["t",].deleted == digest


def test_the_newest_can_go_once_the_same_record_made_a_newer_one(world: World) -> None:
    outcome = world.ask("d", append(5, "x.lance"), delete((5, 5)))
    assert outcome.status == "committed", outcome.message
    assert world.machine.tables["t",].deleted == ((5, 5),)
    again = world.ask("e", delete((1, 1)), delete((1, 2)))
    assert again.code == "EXPECTATION_FAILED", "the record's own deletions count as well"


@pytest.mark.parametrize(
    ("value", "held"),
    [
        ("3", [(3, 3)]),
        ("3-", [(3, 9)]),
        ("3- until 1000", []),
        ("3 until 1001", [(3, 3)]),
        ("newest", [(1, 9)]),
    ],
)
def test_what_a_hold_means(value: str, held: list[tuple[int, int]]) -> None:
    properties = [("commitlog.hold.x", value), ("other", "3")]
    assert held_versions(properties, 9, 1000) == held


@pytest.mark.parametrize("protocol", [HOLDS_SINCE - 1, HOLDS_SINCE])
def test_held_versions_stay_from_protocol_4_on(world: World, protocol: int) -> None:
    world.machine.rules = Rules(protocol)
    world.ask("h", AlterProperties(("t",), upserts=(("commitlog.hold.x", "2"),)))
    outcome = world.ask("d", delete((1, 3)))
    if protocol < HOLDS_SINCE:
        assert outcome.status == "committed", outcome.message
        return
    assert outcome.code == "INVALID_OPERATION"
    assert "hold 2-2" in outcome.message
    assert world.ask("e", delete((1, 1), (3, 3))).status == "committed"


def test_nothing_is_restored_from_a_deleted_version(world: World) -> None:
    world.ask("d", delete((2, 2)))
    restore = LanceTransaction(read_version=5, uuid="u")
    restore.restore.version = 2
    outcome = world.ask("r", commit(restore))
    assert outcome.code == "INVALID_OPERATION"
    assert "was deleted" in outcome.message


def test_any_order_of_deletions_leaves_the_same(world: World, seed: int) -> None:
    left = [1, 2, 3, 4]
    random.Random(seed).shuffle(left)
    for version in left:
        assert world.ask(f"d{version}", delete((version, version))).status == "committed"
    assert world.machine.tables["t",].deleted == ((1, 4),)


def test_versions_deleted_again_after_their_table_came_back_stay_announced(world: World) -> None:
    table = world.machine.tables[("t",)]
    path = f"_versions/{table.version}.manifest"
    seen = Observation(path, 1, bytes(32))
    world.manifests[table.location, path] = Found(seen, state=world.state().copy())
    back = RegisterTable(("t",), table.incarnation, table.location, table.version, path)
    gone = DeregisterTable(("t",))
    steps: tuple[Operation, ...] = (delete((1, 4)), gone, back, delete((2, 3)))
    for number, one in enumerate(steps):
        assert world.ask(f"{number}", one).status == "committed"
    first, second = [change for change in world.changes if change.deleted]
    deletions = Deletions()
    deletions.announce([first, second])
    made = {change.version: change for change in world.changes if change.version}
    assert [v for v, change in made.items() if deletions.include(change)] == [1, 2, 3, 4]
    deletions.forget(first)
    assert [v for v, change in made.items() if deletions.include(change)] == [2, 3]
    deletions.forget(second)
    assert not any(map(deletions.include, made.values()))
