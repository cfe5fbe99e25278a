"""pylance's errors have few types: are they still told apart by the words that it has for them?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace import (
    ConcurrentModificationError,
    InvalidInputError,
    UnsupportedOperationError,
)

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.errors import OutcomeUnknown, TransactionRejected
from commitlog.model.records import Code, Outcome, Status, Submitted, Transaction
from consumers.servers.namespace.native import of_pylance
from tests.steered_leader import SCHEMA, SteeredLeader, blank
from tests.waiting import at_once

ROWS = pa.table({"id": [1, 2], "v": ["a", "b"]})


def raised(work: Callable[[], Any]) -> Exception:
    """Return what pylance raises."""
    with pytest.raises(Exception) as found:  # noqa: PT011 - what it is, is the question
        work()
    return found.value


def preempted(path: str) -> Exception:
    stale = lance.dataset(path)
    lance.dataset(path).add_columns({"w": "id"})
    return raised(lambda: stale.drop_columns(["v"]))


def incompatible(path: str) -> Exception:
    stale = lance.dataset(path)
    lance.write_dataset(ROWS, path, mode="overwrite")
    return raised(lambda: stale.delete("id = 1"))


def contended(path: str) -> Exception:
    stale = lance.dataset(path)
    lance.dataset(path).delete("id = 1")
    return raised(lambda: stale.update({"v": "'x'"}, "id = 1", conflict_retries=0))


def tagged_twice(path: str) -> Exception:
    dataset = lance.dataset(path)
    dataset.tags.create("kept", 1)
    return raised(lambda: dataset.tags.create("kept", 1))


def raced(path: str) -> Exception:
    """Return what a commit raises whose version another one has taken in the same moment."""
    append = lance.LanceOperation.Append(lance.fragment.write_fragments(ROWS, path))
    found: list[Exception] = []

    def commit(_: int) -> None:
        while not found:
            version = lance.dataset(path).version
            try:
                lance.LanceDataset.commit(path, append, read_version=version, max_retries=0)
            except OSError as error:
                found.append(error)

    at_once(commit, range(4))
    return found[0]


def reading(**question: Any) -> Callable[[str], Exception]:
    return lambda path: raised(lambda: lance.dataset(path).to_table(**question))


MEANT: dict[str, tuple[Callable[[str], Exception], type[Exception]]] = {
    "preempted": (preempted, ConcurrentModificationError),
    "incompatible": (incompatible, ConcurrentModificationError),
    "contended": (contended, ConcurrentModificationError),
    "a tag twice": (tagged_twice, ConcurrentModificationError),
    "raced": (raced, ConcurrentModificationError),
    "an aggregate": (reading(filter="max(id) > 1"), UnsupportedOperationError),
    "an index of no type": (
        lambda path: raised(lambda: lance.dataset(path).create_scalar_index("id", "BTRE")),  # type: ignore[arg-type]
        UnsupportedOperationError,
    ),
    "no column": (reading(filter="w = 1"), InvalidInputError),
    # What users call something says nothing of what went wrong.
    "a column named so": (reading(filter="`commit result for version` = 1"), InvalidInputError),
    "a column of conflicts": (reading(filter="conflict = 1"), InvalidInputError),
    "a column, not supported": (reading(columns=["not supported"]), InvalidInputError),
}


@pytest.mark.parametrize("name", MEANT)
def test_an_error_of_pylance_means_what_it_says(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    lance.write_dataset(ROWS, path)
    work, meant = MEANT[name]
    error = work(path)
    assert type(of_pylance(error)) is meant, repr(error)


def test_a_commit_of_which_pylance_does_not_know_is_unknown(
    log: MemoryLog, leader: SteeredLeader
) -> None:
    def refuse(submitted: Submitted) -> Outcome | None:
        record = submitted.record
        is_delete = isinstance(record, Transaction) and record.transaction_id not in known
        return blank(Status.REJECTED, Code.BUILD_REFUSED) if is_delete else None

    with CommitLog(lambda: log) as client:
        client.create_table("a$t", SCHEMA)
        client.append("a$t", {"id": [1], "v": ["a"]})
        known = {transaction.transaction_id for _, transaction in leader.committed}
        leader.decide = refuse
        with pytest.raises(TransactionRejected) as refused:
            client.open("a$t").delete("id = 1")
    cause = refused.value.__cause__
    assert cause is not None
    assert type(of_pylance(cause)) is OutcomeUnknown, repr(cause)
