"""Where Lance 14.0.2's own commit loses or doubles data, and the log doesn't.

Each test first shows pylance failing, on a dataset of its own, then does the same through the log.
A newer pylance that no longer fails here fails the first half: then the hole is closed there too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction

from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.rows import Prepared, prepare_append
from commitlog.errors import RetryableConflict
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Code, Outcome, Status
from tests.lance_messages import to_transaction_bytes
from tests.service import SCHEMA, Service, ids_of, rows, service

T = "ns$t"
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        ("name", pa.string()),
    ]
)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "log") as made:
        yield made


@pytest.fixture
def alone(tmp_path: Path) -> str:
    """A dataset of pylance's own: ids 0 to 9 in version 1."""
    path = str(tmp_path / "alone")
    lance.write_dataset(rows(*range(10)), path)
    return path


def managed(running: Service, *, key: str | None = None) -> str:
    """Make the same through the log, in version 2; return where it lies."""
    schema = KEYED if key else SCHEMA
    running.client.create_table(T, schema, primary_key=key)
    running.client.append(T, rows(*range(10)).cast(schema))
    return str(running.location(T))


def submit(running: Service, operation: Any, read_version: int | None = None) -> Outcome:
    return running.client.submit(T, operation, read_version=read_version).result()


def new(location: str, *ids: int) -> list[FragmentMetadata]:
    return list(write_fragments(rows(*ids), location, schema=SCHEMA))


def without(dataset: lance.LanceDataset, row: int) -> LanceOperation.Delete:
    image = dataset.get_fragments()[0].delete(f"id = {row}")
    assert image is not None
    return LanceOperation.Delete([image], [], f"id = {row}")


def test_h1_a_version_that_was_cleaned_up_is_still_compared(running: Service, alone: str) -> None:
    stale = lance.dataset(alone)
    lance.dataset(alone).delete("id = 3")
    lance.write_dataset(rows(90), alone, mode="append")
    lance.dataset(alone).cleanup_old_versions(timedelta(0))
    stale.delete("id = 5")
    assert 3 in ids_of(lance.dataset(alone)), "pylance brings a deleted row back"

    location = managed(running)
    operation = without(lance.dataset(location), 5)
    running.client.delete(T, "id = 3")
    running.client.append(T, rows(90))
    lance.dataset(location).cleanup_old_versions(timedelta(0))
    assert submit(running, operation, 2).status is Status.COMMITTED
    assert ids_of(lance.dataset(location)) == [0, 1, 2, 4, 6, 7, 8, 9, 90]


def test_h2_no_index_lands_on_a_field_that_was_dropped(running: Service, alone: str) -> None:
    def index(dataset: lance.LanceDataset) -> LanceOperation.CreateIndex:
        made = dataset.create_index_uncommitted("name", "BTREE", name="n", fragment_ids=[0])
        return LanceOperation.CreateIndex([made], [])

    operation = index(lance.dataset(alone))
    lance.dataset(alone).drop_columns(["name"])
    lance.LanceDataset.commit(alone, operation, read_version=1)
    with pytest.raises(ValueError, match="Index referenced a field with id 1"):
        lance.dataset(alone).to_table(filter="id = 1")

    location = managed(running)
    operation = index(lance.dataset(location))
    running.client.open(T).drop_columns(["name"])
    outcome = submit(running, operation, 2)
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule == "create_index_project_indexed_field_dropped"
    assert lance.dataset(location).to_table(filter="id = 1").num_rows == 1


def test_h3_a_transaction_commits_once(running: Service, alone: str) -> None:
    transaction = lance.Transaction(1, LanceOperation.Append(new(alone, 100)))
    for _ in range(2):
        lance.LanceDataset.commit(alone, transaction)
    assert ids_of(lance.dataset(alone)).count(100) == 2, "pylance appends the same rows twice"

    location = managed(running)
    transaction = lance.Transaction(2, LanceOperation.Append(new(location, 100)))
    outcomes = [submit(running, transaction) for _ in range(2)]
    assert [outcome.version for outcome in outcomes] == [3, 3]
    assert [outcome.transaction_id for outcome in outcomes] == [transaction.uuid] * 2
    assert ids_of(lance.dataset(location)).count(100) == 1


def merging(running: Service, *ids: int) -> Callable[[], Outcome]:
    """Prepare a merge of these ids as of the head; return what submits it."""
    info = running.client.table(T)
    dataset = lance.dataset(info.location, version=info.version)
    source = rows(*ids, name="merged").cast(dataset.schema)
    return submitting(running, prepare_merge(info, dataset, source, ["id"], MergeOptions()))


def submitting(running: Service, prepared: Prepared) -> Callable[[], Outcome]:
    return lambda: running.client.submit(
        T,
        prepared.operation,
        read_version=prepared.read_version,
        affected_rows=prepared.affected,
        inserted_keys=prepared.keys,
    ).result()


def test_h4_racing_upserts_of_a_new_key_leave_one_row(running: Service, alone: str) -> None:
    stale = [lance.dataset(alone) for _ in range(2)]
    for dataset in stale:
        merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows(100))
    assert ids_of(lance.dataset(alone)).count(100) == 2, "pylance inserts the key twice"

    location = managed(running)
    first, second = merging(running, 100), merging(running, 100)
    assert first().status is Status.COMMITTED
    outcome = second()
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule.endswith("key_inserted")
    running.client.merge_insert(T, rows(100, name="again"), "id").raise_for_conflict()
    assert ids_of(lance.dataset(location)).count(100) == 1


def test_h4_an_append_doubles_no_key_that_the_table_declares(
    running: Service, tmp_path: Path
) -> None:
    path = str(tmp_path / "keyed")
    stale = lance.write_dataset(rows(*range(10)).cast(KEYED), path, schema=KEYED)
    operation = LanceOperation.Append(
        list(write_fragments(rows(100).cast(KEYED), path, schema=KEYED))
    )
    stale.merge_insert("id").when_not_matched_insert_all().execute(rows(100).cast(KEYED))
    lance.LanceDataset.commit(path, operation, read_version=1)
    assert ids_of(lance.dataset(path)).count(100) == 2, "pylance appends the key once more"

    location = managed(running, key="id")
    info, dataset = running.client.table(T), lance.dataset(location)
    reader = pa.RecordBatchReader.from_batches(KEYED, rows(100).cast(KEYED).to_batches())
    append = submitting(running, prepare_append(info, dataset, reader))
    assert merging(running, 100)().status is Status.COMMITTED
    assert append().status is Status.RETRYABLE
    assert ids_of(lance.dataset(location)).count(100) == 1


def test_h5_upserts_of_other_keys_are_no_conflict(running: Service, tmp_path: Path) -> None:
    many = [tuple(range(start, start + 150)) for start in (1000, 2000)]
    path = str(tmp_path / "keyed")
    lance.write_dataset(rows(*range(10)).cast(KEYED), path, schema=KEYED)
    stale = [lance.dataset(path) for _ in many]
    merges = [
        dataset.merge_insert("id").when_not_matched_insert_all().conflict_retries(0)
        for dataset in stale
    ]
    merges[0].execute(rows(*many[0]).cast(KEYED))
    with pytest.raises(OSError, match="Too many concurrent writers"):
        merges[1].execute(rows(*many[1]).cast(KEYED))

    location = managed(running, key="id")
    made = [merging(running, *ids) for ids in many]
    assert [submit_one().status for submit_one in made] == [Status.COMMITTED] * 2
    assert lance.dataset(location).count_rows() == 310


def test_h6_replacing_all_config_loses_no_key_set_meanwhile(running: Service, alone: str) -> None:
    def config(updates: dict[str, str | None], *, replace: bool) -> LanceOperation.UpdateConfig:
        return LanceOperation.UpdateConfig(LanceOperation.UpdateMap(updates, replace))

    lance.LanceDataset.commit(alone, config({"k": "1"}, replace=False), read_version=1)
    lance.LanceDataset.commit(alone, config({"x": "1"}, replace=True), read_version=1)
    assert lance.dataset(alone).config() == {"x": "1"}, "pylance loses k"

    location = managed(running)
    assert submit(running, config({"k": "1"}, replace=False), 2).status is Status.COMMITTED
    outcome = submit(running, config({"x": "1"}, replace=True), 2)
    assert outcome.status is Status.INCOMPATIBLE
    assert lance.dataset(location).config()["k"] == "1"


def test_h7_an_overwrite_says_what_it_read(running: Service, alone: str) -> None:
    for number in (100, 200):
        lance.LanceDataset.commit(alone, LanceOperation.Overwrite(SCHEMA, new(alone, number)))
    assert lance.dataset(alone).version == 3, "pylance overwrites whatever it finds"

    location = managed(running)
    operation = LanceOperation.Overwrite(SCHEMA, new(location, 100))
    encoded = to_transaction_bytes(operation, read_version=0, uuid=str(uuid.uuid4()))
    record = LanceCommit(("ns", "t"), "Overwrite", 0, encoded.message)
    outcome = submit(running, record)
    assert (outcome.status, outcome.code) == (Status.REJECTED, Code.INVALID_OPERATION)
    assert submit(running, operation, 2).status is Status.COMMITTED
    other = LanceOperation.Overwrite(SCHEMA, new(location, 200))
    assert submit(running, other, 2).status is Status.RETRYABLE
    assert ids_of(lance.dataset(location)) == [100]


def test_h8_ids_that_writers_invent_do_not_collide(running: Service, alone: str) -> None:
    def append(location: str, number: int) -> LanceOperation.Append:
        [fragment] = new(location, number)
        fragment.id = 5
        return LanceOperation.Append([fragment])

    lance.LanceDataset.commit(alone, append(alone, 100), read_version=1)
    with pytest.raises(OSError, match="two fragments with id 5"):
        lance.LanceDataset.commit(alone, append(alone, 200), read_version=1)

    location = managed(running)
    operations = [append(location, 100), append(location, 200)]
    assert [submit(running, one, 2).version for one in operations] == [3, 4]
    assert ids_of(lance.dataset(location)) == [*range(10), 100, 200]
    found = [fragment.fragment_id for fragment in lance.dataset(location).get_fragments()]
    assert found == [0, 1, 2]


def test_h9_a_compaction_that_is_refused_leaves_nothing(running: Service, alone: str) -> None:
    lance.write_dataset(rows(50), alone, mode="append")
    stale = lance.dataset(alone)
    results = [task.execute(stale) for task in Compaction.plan(stale, {}).tasks]
    lance.dataset(alone).delete("id = 3")
    with pytest.raises(OSError, match="preempted by concurrent transaction Delete"):
        Compaction.commit(stale, results)
    assert lance.dataset(alone).version == 4, "pylance leaves a version that reserved ids"

    location = managed(running)
    running.client.append(T, rows(50))
    dataset = lance.dataset(location)
    old = [fragment.metadata for fragment in dataset.get_fragments()]
    group = LanceOperation.RewriteGroup(old, new(location, *ids_of(dataset)))
    running.client.delete(T, "id = 3")
    outcome = submit(running, LanceOperation.Rewrite([group], []), 3)
    assert outcome.status is Status.RETRYABLE
    assert lance.dataset(location).version == 4
    assert not list((Path(location) / "_transactions").glob(f"*{outcome.transaction_id}*"))


def test_h10_a_new_column_has_no_values_of_a_dropped_one(running: Service, alone: str) -> None:
    """Its id comes back, and files that were written before name columns by id."""

    def change(open_table: Callable[[], lance.LanceDataset]) -> None:
        open_table().drop_columns(["name"])
        lance.write_dataset(rows(50).select(["id"]), open_table(), mode="append")
        open_table().delete("id < 10")  # the only file that had the column
        open_table().add_columns(pa.field("tag", pa.string()))

    stale = LanceOperation.Append(new(alone, 100))
    change(lambda: lance.dataset(alone))
    lance.LanceDataset.commit(alone, stale, read_version=1)
    [tag] = lance.dataset(alone).to_table(filter="id = 100")["tag"].to_pylist()
    assert [tag] == rows(100)["name"].to_pylist(), "pylance takes the name for a tag"

    location = managed(running)
    read = running.client.open(T)
    stale = LanceOperation.Append(new(location, 100))
    change(lambda: running.client.open(T))
    outcome = submit(running, stale, 2)
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule == "append_project_field_dropped"
    with pytest.raises(RetryableConflict, match="append_project_field_dropped"):
        lance.LanceDataset.commit(read, stale, read_version=2)
    assert ids_of(lance.dataset(location)) == [50]


def test_pylance_alone_still_tells_a_conflict_from_a_fault(alone: str) -> None:
    """The shown failures are silent or unclear; an ordinary conflict is neither."""
    operation = without(lance.dataset(alone), 1)
    lance.dataset(alone).delete("id = 2")
    with pytest.raises(CommitConflictError) as raised:
        lance.LanceDataset.commit(alone, operation, read_version=1)
    assert raised.value.retryable
