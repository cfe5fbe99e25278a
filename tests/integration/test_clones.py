"""Clones, shallow and deep: new tables that start as a version of another one."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pytest
from lance import LanceOperation

from commitlog.model.records import Code, Outcome, Status
from tests.lance_messages import to_transaction_bytes
from tests.operations_world import (
    T,
    comparable,
    opened,
    refused,
    replay,
    six_versions,
    version_without_file,
)
from tests.service import Service, ids_of, rows

CLONE = "ns$clone"
BOTH = pytest.mark.parametrize("is_shallow", [True, False], ids=["shallow", "deep"])


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments with an index, and delete a row: version 6."""
    with six_versions(tmp_path, stable_row_ids=request.param) as made:
        yield made


def clone_of(running: Service, version: int, *, is_shallow: bool) -> LanceOperation.Clone:
    """Return the clone of a version of the table."""
    return LanceOperation.Clone(is_shallow, None, version, str(running.location(T)), None)


def submit(running: Service, operation: Any, table: str = CLONE) -> Outcome:
    """Submit a clone and wait until it can be read."""
    return running.client.submit(table, operation).result()


def made(running: Service, version: int, *, is_shallow: bool) -> lance.LanceDataset:
    """Clone a version, and open the clone by its path."""
    outcome = submit(running, clone_of(running, version, is_shallow=is_shallow))
    assert outcome.status is Status.COMMITTED, outcome.message
    assert outcome.versions() == {CLONE: version}
    return lance.dataset(str(running.location(CLONE)))


@BOTH
def test_a_clone_reads_as_its_source_did_and_goes_its_own_way(
    running: Service, is_shallow: bool
) -> None:
    dataset = made(running, 6, is_shallow=is_shallow)
    assert dataset.version == 6
    assert ids_of(dataset) == [0, *range(2, 12)]
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 5").explain_plan()
    assert dataset.to_table(filter="id = 5")["id"].to_pylist() == [5]
    running.client.merge_insert(CLONE, rows(3, 60, name="new"), "id").raise_for_conflict()
    running.client.append(CLONE, rows(50))
    running.client.delete(CLONE, "id = 0")
    running.client.update(CLONE, {"name": "'new'"}, "id = 2")
    dataset = lance.dataset(str(running.location(CLONE)))
    assert ids_of(dataset) == [*range(2, 12), 50, 60]
    assert dataset.count_rows("name = 'new'") == 3
    dataset.validate()  # type: ignore[no-untyped-call]
    assert ids_of(opened(running)) == [0, *range(2, 12)]
    assert ids_of(made_again(running, 3)) == list(range(8))


def made_again(running: Service, version: int) -> lance.LanceDataset:
    """Clone an older version under another name."""
    submit(running, clone_of(running, version, is_shallow=True), "ns$older").raise_for_conflict()
    return lance.dataset(str(running.location("ns$older")))


@BOTH
def test_a_clone_is_what_pylance_makes(running: Service, is_shallow: bool) -> None:
    ours = made(running, 6, is_shallow=is_shallow)
    source, other = opened(running), running.root / "other"
    (source.shallow_clone if is_shallow else source.deep_clone)(str(other), 6)
    assert comparable(Path(ours.uri), 6) == comparable(other, 6)


def test_two_deletes_of_a_cloned_fragment_are_merged(running: Service) -> None:
    made(running, 6, is_shallow=True)
    dataset = lance.dataset(str(running.location(CLONE)))
    images = [dataset.get_fragments()[0].delete(f"id = {i}") for i in (0, 2)]
    for image in images:
        assert image is not None
        operation = LanceOperation.Delete([image], [], "")
        outcome = running.client.submit(CLONE, operation, read_version=6).result()
        assert outcome.status is Status.COMMITTED, outcome.message
    assert ids_of(lance.dataset(str(running.location(CLONE)))) == list(range(3, 12))


def test_a_deep_clone_stands_without_its_source(running: Service) -> None:
    made(running, 6, is_shallow=False)
    location = running.location(T)
    running.client.drop_table(T)
    shutil.rmtree(location)
    assert ids_of(lance.dataset(str(running.location(CLONE)))) == [0, *range(2, 12)]


def test_a_deep_clone_is_whole_or_not_there(running: Service) -> None:
    lost = sorted((running.location(T) / "data").iterdir())[-1]
    lost.unlink()
    outcome = submit(running, clone_of(running, 6, is_shallow=False))
    assert outcome.code is Code.BUILD_REFUSED
    assert lost.name in outcome.message
    assert CLONE not in [info.name for info in running.client.tables()]
    left = [p for p in (running.root / "tables").rglob("clone-*/**/*") if p.is_file()]
    assert left == []


@BOTH
def test_a_clone_of_a_table_that_exists_is_refused(running: Service, is_shallow: bool) -> None:
    clone = clone_of(running, 1, is_shallow=is_shallow)
    refused(
        running,
        clone,
        Code.UNSUPPORTED_OPERATION,
        "Clone creates a new table",
        "choose another name",
    )


def test_a_clone_stays_within_the_log(running: Service, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    lance.write_dataset(rows(1), elsewhere)
    location = str(running.location(T))
    for path in (elsewhere, f"{location}/_versions", f"{location}/../..", "relative"):
        outcome = submit(running, LanceOperation.Clone(True, None, 1, path, None))
        assert outcome.code is Code.LOCATION_NOT_ALLOWED, path
    outcome = submit(running, clone_of(running, 7, is_shallow=True))
    assert outcome.code is Code.FUTURE_READ_VERSION
    assert [info.name for info in running.client.tables()] == [T]


def test_a_clone_is_submitted_as_bytes_and_replayed(running: Service) -> None:
    operation = clone_of(running, 6, is_shallow=True)
    encoded = to_transaction_bytes(operation, read_version=6, uuid=str(uuid.uuid4()))
    outcome = submit(running, encoded.message)
    assert outcome.status is Status.COMMITTED, outcome.message
    running.client.append(CLONE, rows(50))
    replay(running)
    assert running.client.append(CLONE, rows(51)).version == 8


def test_under_latest_a_version_that_never_had_a_file_is_cloned(running: Service) -> None:
    name = "ns$latest"
    lacking = version_without_file(running, name)
    operation = LanceOperation.Clone(True, None, lacking, str(running.location(name)), None)
    outcome = submit(running, operation)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert lance.dataset(str(running.location(CLONE))).count_rows() == lacking - 1


@pytest.mark.parametrize("how", ["log", "native"])
def test_a_compacted_clone_finds_rows_by_its_index(running: Service, how: str) -> None:
    made(running, 6, is_shallow=True)
    if how == "log":
        running.client.compact(CLONE)
    else:
        running.client.open(CLONE).optimize.compact_files()
    dataset = lance.dataset(str(running.location(CLONE)))
    assert len(dataset.get_fragments()) == 1
    assert dataset.to_table(filter="id = 5")["id"].to_pylist() == [5]
    running.client.append(CLONE, rows(70))
    running.client.optimize(CLONE)
    assert running.client.open(CLONE).to_table(filter="id = 70")["id"].to_pylist() == [70]
    assert lance.dataset(str(running.location(T))).to_table(filter="id = 5").num_rows == 1
