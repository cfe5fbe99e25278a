"""The three worked scenarios of Lance's transaction specification, as its text has them."""

from __future__ import annotations

from typing import Any

import lance
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog.errors import IncompatibleConflict, RetryableConflict
from commitlog.model.records import Outcome, Status
from tests.service import SCHEMA, Service, ids_of, rows

T = "ns$t"


@pytest.fixture
def running(running: Service) -> Service:
    running.client.create_table(T, SCHEMA)
    return running


def table(running: Service) -> lance.LanceDataset:
    """Open the table in plain pylance."""
    return lance.dataset(str(running.location(T)))


def submit(running: Service, operation: Any, read_version: int) -> Outcome:
    return running.client.submit(T, operation, read_version=read_version).result()


def delete(dataset: lance.LanceDataset, fragment_id: int, predicate: str) -> LanceOperation.Delete:
    """Delete rows of one fragment without committing it."""
    fragment = dataset.get_fragment(fragment_id)
    assert fragment is not None
    image = fragment.delete(predicate)
    return LanceOperation.Delete(
        [] if image is None else [image], [] if image else [fragment_id], predicate
    )


def test_a_rebasable_conflict(running: Service) -> None:
    """Two Delete operations modify different rows in the same fragment."""
    running.client.append(T, rows(*range(1000)))
    version_2 = table(running)
    # Writer A deletes rows 100-199, writer B rows 500-599; both read version 2.
    writer_a = delete(version_2, 0, "id >= 100 and id < 200")
    writer_b = delete(version_2, 0, "id >= 500 and id < 600")
    # Writer A successfully commits version 3.
    assert submit(running, writer_a, 2).version == 3
    # Writer B's transaction is rebasable: it only modified deletion vectors, and the affected rows
    # do not overlap. It merges writer A's deletion vector with its own, and commits version 4.
    outcome = submit(running, writer_b, 2)
    assert (outcome.status, outcome.version) == (Status.COMMITTED, 4)
    [result] = outcome.results
    assert (result.rebased, result.rebased_over, result.read_version) == (True, 1, 3)
    [merged] = result.files
    assert merged.path.startswith("_deletions/0-3-")
    kept = [*range(100), *range(200, 500), *range(600, 1000)]
    assert ids_of(table(running)) == kept
    assert ids_of(running.client.open(T, 3)) == [*range(100), *range(200, 1000)]


def test_a_retryable_conflict(running: Service) -> None:
    """An Update meets a concurrent Rewrite (compaction) that prevents automatic rebasing."""
    location = str(running.location(T))
    six = write_fragments(rows(*range(60)), location, schema=SCHEMA, max_rows_per_file=10)
    assert submit(running, LanceOperation.Append(list(six)), 1).version == 2
    version_2 = table(running)
    old = [fragment.metadata for fragment in version_2.get_fragments() if fragment.fragment_id >= 1]
    new = write_fragments(rows(*range(10, 60)), location, schema=SCHEMA)
    fragment_3 = version_2.get_fragment(3)
    assert fragment_3 is not None
    without_35 = fragment_3.delete("id = 35")
    assert without_35 is not None
    update = LanceOperation.Update(
        updated_fragments=[without_35],
        new_fragments=list(write_fragments(rows(35, name="new"), location, schema=SCHEMA)),
        update_mode="rewrite_rows",
    )
    # Writer A compacts fragments 1-5 into a single fragment and commits version 3.
    compaction = LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, list(new))], [])
    winner = submit(running, compaction, 2)
    assert winner.version == 3
    assert [fragment.fragment_id for fragment in table(running).get_fragments()] == [0, 6]
    # Writer B's Update is retryable but not rebasable: fragment 3 no longer exists.
    outcome = submit(running, update, 2)
    assert outcome.status is Status.RETRYABLE
    with pytest.raises(RetryableConflict):
        outcome.raise_for_conflict()
    conflict = outcome.conflict
    assert conflict is not None
    assert (conflict.transaction_id, conflict.version) == (winner.transaction_id, 3)
    assert (conflict.operation, conflict.fragments) == ("Rewrite", (3,))
    assert conflict.advice == "Read version 3 and redo the operation."
    # The application re-executes it against version 3, finding the rows in the new fragment.
    again = running.client.update(T, {"name": "'new'"}, "id = 35")
    assert again.version == 4
    dataset = table(running)
    assert ids_of(dataset) == list(range(60))
    assert dataset.to_table(filter="name = 'new'")["id"].to_pylist() == [35]


def test_an_incompatible_conflict(running: Service) -> None:
    """A Delete meets a concurrent Restore that fundamentally invalidates the operation."""
    running.client.append(T, rows(1, 2))
    running.client.append(T, rows(3, 4))
    version_3 = table(running)
    # Writer B is about to delete rows that were added between versions 2 and 3.
    writer_b = delete(version_3, 1, "id = 3")
    # Writer A restores the table to version 1 and commits version 4.
    assert submit(running, LanceOperation.Restore(1), 3).version == 4
    assert ids_of(table(running)) == []
    # Writer B's Delete is incompatible: the commit fails with a non-retryable error.
    outcome = submit(running, writer_b, 3)
    assert outcome.status is Status.INCOMPATIBLE
    with pytest.raises(IncompatibleConflict, match="Restore"):
        outcome.raise_for_conflict()
    assert outcome.conflict is not None
    assert "it may mean something else now" in outcome.conflict.advice
    assert table(running).version == 4
