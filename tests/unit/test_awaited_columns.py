"""What a Merge or Project that its writer completes at its turn makes of the head."""

from __future__ import annotations

import pytest

from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import COLUMNS_AWAITED_SINCE, Rules
from commitlog.model.operations import COLUMNS, COLUMNS_AWAITED
from tests.core_world import World, append, commit, delete


@pytest.fixture
def world() -> World:
    made = World(rules=Rules(COLUMNS_AWAITED_SINCE))
    made.create()
    made.ask("first", append(1, "a.lance", "b.lance"))
    return made


def awaited(world: World) -> Transaction:
    message = Transaction(read_version=world.state().version, uuid="u")
    message.transaction_properties[COLUMNS] = COLUMNS_AWAITED
    return message


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_merge_is_rebased_where_a_fragment_changed(world: World, is_changed: bool) -> None:
    message = awaited(world)
    message.merge.schema.extend(world.state().header.message.fields)
    fragments = world.state().fragments.values()
    message.merge.fragments.extend(DataFragment.FromString(one) for one in fragments)
    config = Transaction(read_version=2, uuid="c")
    config.update_config.config_updates.update_entries.add(key="a", value="1")
    world.ask("between", delete(world, 2, {0: [1]}) if is_changed else commit(config))
    outcome = world.ask("merge", commit(message))
    [result] = outcome.results
    assert (result.rebased, len(result.images)) == (is_changed, int(is_changed))


@pytest.mark.parametrize("brings_rows", [False, True])
def test_a_project_that_forbids_nulls_asks_for_rows_that_came_since(
    world: World, brings_rows: bool
) -> None:
    message = awaited(world)
    message.project.schema.extend(world.state().header.message.fields)
    between = append(2, "c.lance") if brings_rows else delete(world, 2, {0: [1]})
    world.ask("between", between)
    outcome = world.ask("project", commit(message))
    assert outcome.status == ("retryable" if brings_rows else "committed")
    assert len(outcome.observed) == 1
