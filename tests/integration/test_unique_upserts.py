"""Where a table declares its key, racing writers never leave a key twice: each way to write."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

from commitlog import CommitConflict, RetryableConflict
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.written_keys import as_carried, read_written_keys
from commitlog.core.lance.staged_keys import keys_in
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import CreateTableVersion
from commitlog.model.records import Code, Status
from tests.namespace_world import World
from tests.service import SCHEMA, Service, ids_of, rows, service

T = "ns$keyed"


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table that declares its key, with the keys 0 to 3; its head is version 2."""
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA, primary_key="id", stable_row_ids=request.param)
        made.client.append(T, rows(0, 1, 2, 3))
        yield made


def found(running: Service) -> list[int]:
    """Return the keys that plain pylance reads."""
    return ids_of(lance.dataset(str(running.location(T))))


def upsert(dataset: lance.LanceDataset, *ids: int) -> None:
    """Upsert rows as pylance does it by itself."""
    builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    builder.execute(rows(*ids, name="native"))


def test_two_native_upserts_of_one_new_key_leave_one_row(running: Service) -> None:
    handles = [running.client.open(T) for _ in range(2)]
    upsert(handles[0], 100)
    with pytest.raises(RetryableConflict, match="redo the operation"):
        upsert(handles[1], 100, 101)
    upsert(running.client.open(T), 100, 101)
    assert found(running) == [0, 1, 2, 3, 100, 101]


def test_native_upserts_of_other_keys_are_no_conflict(running: Service) -> None:
    handles = [running.client.open(T) for _ in range(2)]
    upsert(handles[0], 100)
    upsert(handles[1], 101)
    assert found(running) == [0, 1, 2, 3, 100, 101]


@pytest.mark.parametrize("native_first", [True, False])
def test_a_native_upsert_and_one_of_ours_leave_one_row(
    running: Service, native_first: bool
) -> None:
    handle = running.client.open(T)
    if native_first:
        upsert(handle, 100)
        running.client.merge_insert(T, rows(100, name="ours"), "id").raise_for_conflict()
    else:
        running.client.merge_insert(T, rows(100, name="ours"), "id").raise_for_conflict()
        try:
            upsert(handle, 100)
        except (OSError, CommitConflict):
            upsert(running.client.open(T), 100)
    assert found(running) == [0, 1, 2, 3, 100]


def test_a_native_insert_behind_an_upsert_is_refused(running: Service) -> None:
    location = str(running.location(T))
    append = LanceOperation.Append(list(write_fragments(rows(100), location, schema=SCHEMA)))
    running.client.merge_insert(T, rows(100), "id")
    outcome = running.client.submit(T, append, read_version=2).result()
    assert outcome.status is Status.RETRYABLE, "nobody knows which keys it has"
    handle = running.client.open(T, 2)
    with pytest.raises(RetryableConflict):
        handle.insert(rows(100))
    assert found(running) == [0, 1, 2, 3, 100]


def test_a_staged_manifest_says_which_keys_are_in_its_files(running: Service) -> None:
    running.client.open(T).insert(rows(7, 8))
    info = running.client.table(T)
    log = running.log.read_transactions(0)
    records = [submitted.record for submitted in log.poll(records_max=500)]
    operations = [o for r in records for o in getattr(r, "operations", ())]
    [staged] = [o for o in operations if isinstance(o, CreateTableVersion)]
    keys = keys_in(staged.metadata)
    assert keys is not None
    assert keys == as_carried(read_written_keys(info, Transaction.FromString(staged.message)))
    assert len(keys.hashes) == 2 * 16


def test_keys_that_cannot_be_read_are_refused(running: Service) -> None:
    operation = CreateTableVersion(
        ("ns", "keyed"),
        3,
        "_versions/18446744073709551612.manifest-x",
        9,
        message=Transaction(
            uuid="u", read_version=2, append=Transaction.Append()
        ).SerializeToString(),
        operation="Append",
        metadata=(("commitlog.inserted_keys", "0:???"),),
    )
    outcome = running.client.submit(None, operation).result()
    assert outcome.code is Code.MALFORMED_RECORD
    assert "commitlog.inserted_keys" in outcome.message


def test_a_table_without_declared_key_reads_no_files(tmp_path: Path) -> None:
    with service(tmp_path) as made:
        made.client.create_table("ns$free", SCHEMA)
        info = made.client.table("ns$free")
        lost = Transaction(append=Transaction.Append())
        lost.append.fragments.add(physical_rows=1).files.add(path="nowhere.lance", fields=[0])
        assert read_written_keys(info, lost) is None
        schema = pa.schema([SCHEMA.field("id")])
        made.client.create_table("ns$k", schema, primary_key="id")
        assert read_written_keys(made.client.table("ns$k"), lost) is None, (
            "the leader misses the file"
        )


KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("name", pa.string()),
    ]
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Run the HTTP server."""
    running = World(tmp_path_factory.mktemp("unique"))
    yield running
    running.close()


def test_plain_clients_over_http_leave_one_row(world: World) -> None:
    table = [world.fresh_name(), "t"]
    world.write(table, rows(0, 1).cast(KEYED))
    handles = [world.open(table) for _ in range(2)]
    for handle in handles:
        builder = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(rows(100).cast(KEYED))
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100]
    # Its schema declares the key: what pylance notes of keys conflicts with every upsert of ours.
    name = "$".join(table)
    stale = world.log.table(name)
    builder = world.open(table).merge_insert("id").when_not_matched_insert_all()
    builder.execute(rows(200).cast(KEYED))
    merge = prepare_merge(
        stale,
        lance.dataset(stale.location, version=stale.version),
        rows(200).cast(KEYED),
        ["id"],
        MergeOptions(),
    )
    outcome = world.log.submit(
        name,
        merge.operation,
        read_version=merge.read_version,
        affected_rows=merge.affected,
        inserted_keys=merge.keys,
    ).result()
    assert outcome.status is Status.RETRYABLE
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100, 200]


def test_a_plain_append_over_http_behind_an_upsert_is_refused(world: World) -> None:
    table = [world.fresh_name(), "t"]
    name = "$".join(table)
    # The log alone knows of the key; an Append says truly which version it read.
    world.log.create_table(name, SCHEMA, primary_key="id")
    world.log.append(name, rows(0, 1))
    first, second = world.open(table), world.open(table)
    world.log.merge_insert(name, rows(100), "id").raise_for_conflict()
    # Lance asks for the version that won its place, and finds none.
    with pytest.raises(OSError, match="unknown"):
        first.insert(rows(100))
    second.insert(rows(101))
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100, 101]


def keyed_by_the_log(world: World, schema: pa.Schema, data: pa.Table) -> list[str]:
    """Make a table whose key the log alone knows, with two rows."""
    table = [world.fresh_name(), "t"]
    world.log.create_table("$".join(table), schema, primary_key="id", policy="latest")
    world.log.append("$".join(table), data)
    return table


def test_plain_upserts_over_http_of_a_key_that_lance_knows_nothing_of_leave_one_row(
    world: World,
) -> None:
    table = keyed_by_the_log(world, SCHEMA, rows(0, 1))
    first, second = world.open(table), world.open(table)
    upsert(first, 100)
    # Lance carries the second over the first without a look at keys.
    with pytest.raises(OSError, match="unknown|conflict"):
        upsert(second, 100, 101)
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100]
    upsert(world.open(table), 100, 101)
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100, 101]
    # A key may come again once it is gone, and others go on at any age.
    world.open(table).delete("id = 100")
    upsert(world.open(table), 100)
    upsert(first, 102)
    upsert(first, 1)
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100, 101, 102]


def test_keys_of_a_type_that_lance_cannot_look_for_are_all_read(world: World) -> None:
    schema = pa.schema([pa.field("id", pa.large_string(), False)])
    table = keyed_by_the_log(world, schema, pa.table({"id": ["a", "b"]}, schema=schema))
    first, second = world.open(table), world.open(table)
    for handle, keys, taken in ((first, ["c", "a"], False), (second, ["c", "d"], True)):
        builder = handle.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        data = pa.table({"id": keys}, schema=schema)
        if taken:
            with pytest.raises(OSError, match="unknown|conflict"):
                builder.execute(data)
        else:
            builder.execute(data)
    found = lance.dataset(world.location(table)).to_table()
    assert sorted(found.column("id").to_pylist()) == ["a", "b", "c"]


def test_merges_over_http_of_one_new_key_leave_one_row(world: World) -> None:
    table = [world.fresh_name(), "t"]
    world.write(table, rows(0, 1))
    path = f"/v1/table/{'$'.join(table)}/merge_insert?on=id&when_not_matched_insert_all=true"
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: world.rows(path, rows(100)), range(4)))
    assert {status for status, _ in answers} == {200}, answers
    assert ids_of(lance.dataset(world.location(table))) == [0, 1, 100]
