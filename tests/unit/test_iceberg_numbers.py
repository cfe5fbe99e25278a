"""Iceberg snapshots whose numbers others took, though nothing else of theirs is in the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commitlog.core.iceberg.reading import load_json
from commitlog.model.limits import ICEBERG_NUMBERS_SINCE
from commitlog.model.records import Code, Status
from tests.unit.iceberg_examples import change
from tests.unit.test_iceberg_machine import EVENTS
from tests.unit.test_iceberg_rebase import Commit, Writers, ref

MINUTE_MS = 60_000


def staged(commit: Commit) -> Commit:
    """What a client asks for that writes, audits, and publishes later."""
    updates = load_json(commit.operation.updates, "updates")[:1]
    return replace(commit, operation=change(updates, (), EVENTS))


def snapshot_of(world: Writers, commit: Commit) -> Any:
    found = world.machine.iceberg.tables[EVENTS].snapshots.get(commit.snapshot_id)
    assert found is not None
    return found


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize("others", [1, 2])
def test_a_branch_that_begins_with_an_append_gets_numbers_of_its_own(
    format_version: int, others: int
) -> None:
    world = Writers(format_version=format_version)
    first = world.written()
    world.commit(first)
    late = world.written(branch="fresh", says={"total-records": "10"})
    for _ in range(others):
        world.commit(world.written(over=world.head()))
    outcome = world.commit(late)
    assert outcome.status is Status.COMMITTED, outcome.message
    made = snapshot_of(world, late)
    assert made["sequence-number"] == others + 2
    assert "parent-snapshot-id" not in made
    assert made["summary"]["total-records"] == "10"
    assert world.paths(late.snapshot_id) == {late.manifest}
    (listed,) = world.listed(late.snapshot_id)
    assert listed["sequence_number"] == others + 2
    if format_version == 3:
        assert listed["first_row_id"] == made["first-row-id"] == 10 * (others + 1)
    world.check()


def test_a_staged_append_gets_numbers_of_its_own() -> None:
    world = Writers(format_version=2)
    base = world.written()
    world.commit(base)
    late = staged(world.written(over=base.snapshot_id, says={"wap.id": "a"}))
    other = world.written(over=base.snapshot_id)
    world.commit(other)
    outcome = world.commit(late)
    assert outcome.status is Status.COMMITTED, outcome.message
    made = snapshot_of(world, late)
    assert (made["sequence-number"], made["parent-snapshot-id"]) == (3, base.snapshot_id)
    assert made["summary"]["total-records"] == "20"
    assert world.paths(late.snapshot_id) == {base.manifest, late.manifest}
    assert world.head() == other.snapshot_id
    assert world.commit(late).code is Code.INVALID_OPERATION, "it is there already"
    world.check()


@pytest.mark.parametrize("is_known", [False, True])
def test_who_cannot_get_numbers_may_try_again(is_known: bool) -> None:
    world = Writers(format_version=2)
    world.set(commitlog__iceberg__rebase="off")
    base = world.written()
    world.commit(base)
    late = world.written(branch="fresh")
    for _ in range(2):
        world.commit(world.written(over=world.head()))
    if is_known:
        late = staged(world.written(over=base.snapshot_id))
        world.commit(world.written(over=world.head()))
    refused = world.commit(late)
    assert (refused.status, refused.code) == (Status.RETRYABLE, Code.EXPECTATION_FAILED)
    assert "'off'" in refused.message
    world.check()


def test_rows_from_before_row_ids_get_theirs_from_a_client() -> None:
    world = Writers(format_version=2)
    base = world.written()
    world.commit(base)
    world.ask("branch", change([ref("audit", base.snapshot_id)], (), EVENTS))
    upgrade = {"action": "upgrade-format-version", "format-version": 3}
    world.ask("upgrade", change([upgrade], (), EVENTS))
    one = world.written(over=base.snapshot_id)
    two = world.written(over=base.snapshot_id, branch="audit")
    assert world.commit(one).status is Status.COMMITTED
    refused = world.commit(two)
    assert (refused.status, refused.code) == (Status.RETRYABLE, Code.EXPECTATION_FAILED)
    assert f"rows of snapshot {base.snapshot_id}" in refused.message
    again = world.written(over=base.snapshot_id, branch="audit")
    assert world.commit(again).status is Status.COMMITTED
    world.check()


@pytest.mark.parametrize("has_moved", [False, True])
def test_an_append_that_is_slow_goes_over_a_branch_that_was_set_back(has_moved: bool) -> None:
    world = Writers(format_version=2)
    first = world.written()
    world.commit(first)
    second = world.written(over=first.snapshot_id)
    slow = world.written(over=first.snapshot_id)
    if has_moved:
        world.commit(second)
        slow = world.written(over=second.snapshot_id)
    else:
        world.commit(second)
    world.now_ms += 2 * MINUTE_MS
    world.ask("back", change([ref("main", first.snapshot_id)], (), EVENTS))
    set_back_ms = world.machine.iceberg.tables[EVENTS].last_updated_ms
    outcome = world.commit(slow)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert snapshot_of(world, slow)["timestamp-ms"] == set_back_ms
    assert world.paths(world.head()) == {first.manifest, slow.manifest}
    world.check()


def test_a_repeated_commit_hears_that_its_snapshot_is_there() -> None:
    world = Writers(format_version=2)
    first = world.written()
    world.commit(first)
    late = world.written()
    assert world.commit(late).status is Status.COMMITTED
    assert "is in the table already" in world.commit(late).message
    world.check()


def test_older_protocols_decide_as_they_did() -> None:
    world = Writers(format_version=2, protocol=ICEBERG_NUMBERS_SINCE - 1)
    first = world.written()
    world.commit(first)
    same, lower = world.written(branch="same"), world.written(branch="lower")
    stage = staged(world.written(over=first.snapshot_id))
    world.commit(world.written(over=first.snapshot_id))
    assert world.commit(same).status is Status.COMMITTED
    assert snapshot_of(world, same)["sequence-number"] == 2
    refused = world.commit(stage)
    assert (refused.code, refused.reason and refused.reason.name) == (
        Code.EXPECTATION_FAILED,
        "iceberg_in_table",
    )
    world.commit(world.written(over=world.head()))
    assert world.commit(lower).code is Code.INVALID_OPERATION
    slow = world.written(over=world.head())
    world.now_ms += 2 * MINUTE_MS
    world.ask("back", change([ref("main", first.snapshot_id)], (), EVENTS))
    assert world.commit(slow).code is Code.INVALID_OPERATION
    world.check()
