"""A new index behind a compaction that deferred its indices: as Lance has it, beside pylance.

Each case is committed twice: through the log, and by pylance to a copy of the same files. Verdicts
and manifests are equal.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

from commitlog.adapters import log_start
from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.model.limits import FRAGMENT_REUSE_SINCE
from commitlog.model.records import Outcome, Status
from tests.conformance.lance_history import assert_same_version
from tests.operations_world import (
    T,
    column_file,
    decided_again_alike,
    manifest,
    opened,
    pylance_commits,
    three_fragments,
)
from tests.service import Service, rows, service

Change = Callable[[Service], None]
READ = 5
"""What each new index was made of: three fragments, and an index on `id`."""


@pytest.fixture(autouse=True)
def overlays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Lance open what has overlays."""
    monkeypatch.setenv(OVERLAYS_ENABLED_BY, "1")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    # Lance has a fragment reuse index only where rows are found by address.
    with three_fragments(tmp_path, stable_row_ids=False) as made:
        made.client.open(T).create_scalar_index("id", "BTREE", name="by_id")
        yield made
        decided_again_alike(made)


def new_index(
    running: Service, *fragment_ids: int, kind: str = "BTREE"
) -> LanceOperation.CreateIndex:
    """Build an index on `name` as of the head, which nobody knows of yet."""
    dataset = opened(running)
    assert dataset.version == READ
    made = dataset.create_index_uncommitted(
        "name", kind, name="by_name", fragment_ids=list(fragment_ids)
    )
    return LanceOperation.CreateIndex([made], [])


def compact(running: Service, *, defers: bool = True) -> None:
    running.client.open(T).optimize.compact_files(
        target_rows_per_fragment=100, defer_index_remap=defers
    )


def overlay(column: int) -> Change:
    """Return what gives row 5 another value in a column: the id 105, or the name "new"."""

    def lay(running: Service) -> None:
        file = column_file(opened(running), ["new"] if column else [105], column)
        laid = LanceOperation.DataOverlayFile(file, [1])
        operation = LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(1, [laid])])
        running.client.submit(T, operation).result().raise_for_conflict()

    return lay


def append(running: Service) -> None:
    running.client.append(T, rows(50, name="new"))


def delete(running: Service) -> None:
    running.client.delete(T, "id = 5")


CASES: dict[str, tuple[tuple[int, ...], tuple[Change, ...], str]] = {
    "deferred": ((0, 1, 2), (compact,), "committed"),
    "deferred, then an append and a delete": ((0, 1, 2), (compact, append, delete), "committed"),
    "deferred, of which it covers a part": ((0, 1), (compact,), "committed"),
    "deferred twice": ((0, 1, 2), (compact, append, compact), "committed"),
    "deferred, then done at once": (
        (0, 1, 2),
        (compact, append, lambda running: compact(running, defers=False)),
        "committed",
    ),
    "done at once": ((0, 1, 2), (lambda running: compact(running, defers=False),), "retryable"),
    "an overlay of its column taken in": ((0, 1, 2), (overlay(1), compact), "committed"),
    "an overlay of another column taken in": ((0, 1, 2), (overlay(0), compact), "committed"),
    "a delete taken in": ((0, 1, 2), (delete, compact), "committed"),
}


def of_pylance(copy: str, operation: LanceOperation.CreateIndex, name: str) -> Status:
    """Commit an index to a copy as of what it was made of; say how it ended."""
    return pylance_commits(copy, lance.Transaction(READ, operation, name))


def of_log(running: Service, operation: LanceOperation.CreateIndex, name: str) -> Outcome:
    """Commit the same through the log."""
    transaction = lance.Transaction(READ, operation, name)
    return running.client.submit(T, transaction).result()


def found(dataset: lance.LanceDataset, predicate: str, **how: bool) -> list[int]:
    """Return the ids of the rows that a filter finds."""
    return sorted(dataset.to_table(filter=predicate, **how)["id"].to_pylist())  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES)
def test_verdicts_and_manifests_are_lances(running: Service, case: str) -> None:
    covered, meanwhile, expected = CASES[case]
    operation, name = new_index(running, *covered), str(uuid.uuid4())
    for change in meanwhile:
        change(running)
    copy = f"{running.location(T)}-copy"
    shutil.copytree(running.location(T), copy)
    theirs = of_pylance(copy, operation, name)
    outcome = of_log(running, operation, name)
    assert (outcome.status, outcome.status) == (theirs, Status(expected)), outcome.message
    if theirs is Status.COMMITTED:
        ours, _ = manifest(running, outcome.version)
        path = Path(copy) / "_versions" / manifest_name(outcome.version)
        assert_same_version(ours, decode_manifest(path.read_bytes())[0])
    dataset = opened(running)
    for predicate in ("name = 'new'", "name = 'a'", "id = 5", "id = 105", "id = 11"):
        assert found(dataset, predicate) == found(dataset, predicate, use_scalar_index=False)
    dataset.validate()  # type: ignore[no-untyped-call]


def test_details_in_a_file_of_their_own_are_read(tmp_path: Path) -> None:
    count = 4_000_000
    schema = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    with service(tmp_path) as made:
        made.client.create_table(T, schema)
        column = pa.array([*range(100)] * (count // 100), pa.int8())
        parts = pa.table([column, column], schema=schema)
        for start in range(0, count, count // 4):
            made.client.append(T, parts.slice(start, count // 4))
        made.client.open(T).create_scalar_index("a", "BITMAP", name="by_a")
        made.client.delete(T, "b % 2 = 0")
        dataset = opened(made)
        index = dataset.create_index_uncommitted(
            "b", "BITMAP", name="by_b", fragment_ids=[0, 1, 2, 3]
        )
        made.client.open(T).optimize.compact_files(
            target_rows_per_fragment=count, defer_index_remap=True
        )
        [details] = made.location(T).rglob("details.binpb")
        assert details.stat().st_size > 200_000
        transaction = lance.Transaction(
            dataset.version, LanceOperation.CreateIndex([index], []), str(uuid.uuid4())
        )
        copy = f"{made.location(T)}-copy"
        shutil.copytree(made.location(T), copy)
        lance.LanceDataset.commit(copy, transaction)
        outcome = made.client.submit(T, transaction).result()
        assert outcome.status is Status.COMMITTED, outcome.message
        assert [seen.path for seen in outcome.observed if seen.path.endswith(".binpb")] == [
            str(details.relative_to(made.location(T)))
        ]
        path = Path(copy) / "_versions" / manifest_name(outcome.version)
        ours, _ = manifest(made, outcome.version)
        assert_same_version(ours, decode_manifest(path.read_bytes())[0])
        assert opened(made).count_rows("b = 7") == count // 100
        decided_again_alike(made)


def test_an_index_that_needs_addresses_is_made_again(running: Service) -> None:
    operation, name = new_index(running, 0, 1, 2, kind="NGRAM"), str(uuid.uuid4())
    compact(running)
    copy = f"{running.location(T)}-copy"
    shutil.copytree(running.location(T), copy)
    assert of_log(running, operation, name).status is Status.RETRYABLE
    assert of_pylance(copy, operation, name) is Status.RETRYABLE


def test_a_native_index_of_a_stale_handle_is_committed(running: Service) -> None:
    stale = running.client.open(T)
    compact(running)
    stale.create_scalar_index("name", "BTREE", name="by_name")
    assert "by_name" in {index.name for index in opened(running).describe_indices()}
    assert found(opened(running), "name = 'a'") == list(range(12))


def test_older_logs_ask_again(tmp_path: Path) -> None:
    with (
        mock.patch.object(log_start, "PROTOCOL_SUPPORTED", FRAGMENT_REUSE_SINCE - 1),
        three_fragments(tmp_path, stable_row_ids=False) as older,
    ):
        older.client.open(T).create_scalar_index("id", "BTREE", name="by_id")
        operation = new_index(older, 0, 1, 2)
        compact(older)
        assert of_log(older, operation, str(uuid.uuid4())).status is Status.RETRYABLE
