"""Deciding a whole partition again: equal where the log is right, named where it isn't."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lance
import pytest

from commitlog.core.partition.machine import Machine
from commitlog.model.records import Code, Status, TableVersionIs
from commitlog.spark import audit as audit_module
from commitlog.spark import recompute
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.recompute import Audited, audit_partition
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    return running


def audit(world: Service) -> Audited:
    return audit_partition(world.log, 0, outcomes_end(world.log, 0))


def make_history(world: Service) -> None:
    client = world.client
    client.create_table(TABLE, SCHEMA, primary_key="id", stable_row_ids=True)
    client.append(TABLE, rows(1, 2, 3))
    client.append(TABLE, rows(4, 5))
    stale = client.table(TABLE)
    client.delete(TABLE, "id = 1")
    client.merge_insert(TABLE, rows(2, 9, name="m"), "id")
    # Over rows that somebody deleted meanwhile, and in a fragment that somebody changed.
    dataset = lance.dataset(stale.location, version=stale.version)
    for predicate in ("id = 3", "id = 1"):
        image = dataset.get_fragments()[0].delete(predicate)
        assert image is not None
        operation = lance.LanceOperation.Delete([image], [], predicate)
        ticket = client.submit(TABLE, operation, read_version=stale.version)
        assert ticket.result().status in (Status.COMMITTED, Status.RETRYABLE)
    client.open(TABLE).add_columns({"twice": "id * 2"})
    client.submit(TABLE, lance.LanceOperation.Restore(3)).result().raise_for_conflict()
    expects = [TableVersionIs(stale.table_id, 1)]
    refused = client.submit(TABLE, lance.LanceOperation.Restore(3), expects=expects).result()
    assert refused.status is not Status.COMMITTED
    with client.transact() as both:
        both.append(TABLE, rows(30))
        both.delete(TABLE, "id = 4")


def test_a_delete_is_refused_again_whose_deletion_file_nobody_can_read(world: Service) -> None:
    client = world.client
    client.create_table(TABLE, SCHEMA)
    client.append(TABLE, rows(1, 2, 3))
    stale = client.table(TABLE)
    [fragment] = lance.dataset(stale.location).get_fragments()
    image = fragment.delete("id = 3")
    assert image is not None
    [file] = (Path(stale.location) / "_deletions").iterdir()
    file.write_bytes(b"broken")
    client.delete(TABLE, "id = 1")
    operation = lance.LanceOperation.Delete([image], [], "id = 3")
    refused = client.submit(TABLE, operation, read_version=stale.version).result()
    assert refused.status is Status.REJECTED
    assert audit(world).differences == []


def test_everything_is_decided_again_as_it_was(world: Service) -> None:
    make_history(world)
    found = audit(world)
    assert found.differences == []
    assert found.outcomes == found.recomputed + found.as_recorded
    assert found.as_recorded == 0
    assert found.states >= 1
    assert found.head == world.log.last_outcome_records(0)[0].record.hash.hex()  # type: ignore[union-attr]


def test_a_decision_that_would_be_another_is_named(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_history(world)
    honest = Machine.decide

    def lenient(self: Machine, submitted, observed):  # type: ignore[no-untyped-def]
        decision = honest(self, submitted, observed)
        outcome = getattr(decision, "outcome", None)
        if outcome is not None and outcome.status is Status.RETRYABLE:
            return replace(decision, outcome=replace(outcome, code=Code.NOT_LATEST))
        return decision

    monkeypatch.setattr(Machine, "decide", lenient)
    found = audit(world)
    assert not found.is_whole
    assert all(" has code <Code." in d.problem for d in found.differences)
    assert "NOT_LATEST" in found.differences[0].problem


def test_an_outcome_whose_files_are_gone_is_taken_as_recorded(world: Service) -> None:
    make_history(world)
    for path in (world.location(TABLE) / "_deletions").iterdir():
        path.unlink()
    found = audit(world)
    assert found.as_recorded > 0
    assert found.differences == []


def test_attempts_of_a_task_that_run_at_a_time_note_their_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under `spark.speculation` one failed where the other had moved its file."""
    move, attempts = Path.replace, iter([2])

    def moved_meanwhile(path: Path, target: Path) -> Path:
        for number in attempts:
            audit_module._note(tmp_path, 0, number, 9)
        return move(path, target)

    monkeypatch.setattr(Path, "replace", moved_meanwhile)
    audit_module._note(tmp_path, 0, 1, 9)
    assert (tmp_path / "0.json").read_text() == "[1, 9]"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_task_that_runs_on_when_the_driver_is_done_does_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Path.write_text

    def gone(path: Path, text: str) -> int:
        tmp_path.rmdir()
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", gone)
    audit_module._note(tmp_path, 0, 1, 9)
    assert not tmp_path.exists()


def test_outcomes_are_read_once_so_that_progress_is_told_from_the_start(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaders declared was read beforehand, for a minute or more in which nothing was told."""
    make_history(world)
    end = outcomes_end(world.log, 0)
    read, opened = world.log.read_outcomes, []

    def counted(partition: int, offset: int = 0, **options: float) -> object:
        opened.append(offset)
        return read(partition, offset, **options)

    monkeypatch.setattr(world.log, "read_outcomes", counted)
    monkeypatch.setattr(recompute, "PROGRESS_SECONDS", -1.0)
    told: list[int] = []
    found = audit_partition(world.log, 0, end, lambda done, offset: told.append(done))
    assert opened == [0]
    assert told == [*range(1, found.outcomes + 1), found.outcomes]
    assert found.states >= 1


def test_a_leader_that_started_from_another_state_is_named(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_history(world)
    monkeypatch.setattr(Machine, "digest", lambda self: b"another")
    found = audit(world)
    assert [one.problem for one in found.differences] == ["a leader started from a different state"]
