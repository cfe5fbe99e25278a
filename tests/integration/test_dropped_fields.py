"""What pylance's Python objects drop takes effect when it is given as Lance's bytes.

Where plain pylance can show the effect it is asked; else the manifest's own bytes are decoded.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments
from lance.mem_wal import CompactedSsTable as Compacted

from commitlog.codecs.lance_schema import schema_fields
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.core.manifest.indices import MEM_WAL_INDEX
from commitlog.lancepb.table_pb2 import (
    CompactedSsTable,
    IndexMetadata,
    IndexSection,
    MemWalIndexDetails,
)
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code, Status
from consumers.servers.namespace.settings import Settings
from tests.lance_messages import to_transaction_bytes
from tests.namespace_world import World
from tests.operations_world import (
    T,
    committed,
    manifest,
    message,
    opened,
    patched,
    refused,
    submit,
    three_fragments,
)
from tests.service import SCHEMA, Service, ids_of, rows

SHARD, OTHER_SHARD = uuid.UUID(int=1).bytes, uuid.UUID(int=2).bytes


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments."""
    with three_fragments(tmp_path, stable_row_ids=request.param) as made:
        yield made


def indices(running: Service) -> dict[str, IndexMetadata]:
    """Return the head's index entries by name."""
    state, _ = manifest(running, opened(running).version)
    return {x.name: x for x in IndexSection.FromString(state.index_section or b"").indices}


def generations(running: Service) -> dict[bytes, int]:
    """Return up to which generation each shard is compacted."""
    entry = indices(running)[MEM_WAL_INDEX]
    details = MemWalIndexDetails.FromString(entry.index_details.value)
    return {table.shard_id.uuid: table.generation for table in details.compacted_sstables}


def compacted(**by_shard: int) -> list[CompactedSsTable]:
    """Return how far shards are compacted."""
    shards = {"first": SHARD, "second": OTHER_SHARD}
    tables = []
    for name, generation in by_shard.items():
        table = CompactedSsTable(generation=generation)
        table.shard_id.uuid = shards[name]
        tables.append(table)
    return tables


def with_mem_wal(running: Service) -> None:
    """Give the table its MemWAL index, as pylance does it."""
    native = running.client.open(T)
    native.initialize_mem_wal()
    assert list(indices(running)) == [MEM_WAL_INDEX]


def mem_wal_state(running: Service, **by_shard: int) -> bytes:
    """Return an UpdateMemWalState as of the head."""
    state = message(running)
    state.update_mem_wal_state.compacted_sstables.extend(compacted(**by_shard))
    return state.SerializeToString()


def moving(running: Service, name: str = "new") -> Transaction:
    """Return an Update that moves the row of id 1."""
    dataset = opened(running)
    image = dataset.get_fragments()[0].delete("id = 1")
    assert image is not None
    new = list(write_fragments(rows(1, name=name), dataset.uri, schema=SCHEMA))
    operation = LanceOperation.Update([], [image], new, [], [], "rewrite_rows")
    encoded = to_transaction_bytes(operation, read_version=dataset.version, uuid=str(uuid.uuid4()))
    return Transaction.FromString(encoded.message)


def test_overwrite_sets_config_and_schema_metadata(running: Service) -> None:
    schema = pa.schema([("x", pa.int32())])
    location = str(running.location(T))
    overwrite = message(running)
    [new] = write_fragments(pa.table({"x": [1]}, schema=schema), location, mode="overwrite")
    operation = LanceOperation.Overwrite(schema, [new])
    encoded = to_transaction_bytes(operation, read_version=4, uuid=overwrite.uuid)
    overwrite = Transaction.FromString(encoded.message)
    overwrite.overwrite.config_upsert_values["k"] = "v"
    overwrite.overwrite.schema_metadata["owner"] = b"me"
    committed(running, overwrite.SerializeToString())
    dataset = opened(running)
    assert dataset.config() == {"k": "v"}
    assert dataset.schema.metadata == {b"owner": b"me"}
    assert dataset.to_table().to_pydict() == {"x": [1]}
    state, recorded = manifest(running, dataset.version)
    assert recorded == overwrite
    assert state.writer_feature_flags & 1 << 3, "a config is told to writers"
    path = running.location(T) / "_transactions" / state.transaction_file
    assert Transaction.FromString(path.read_bytes()) == overwrite
    committed(running, LanceOperation.Restore(2))
    assert ids_of(opened(running)) == [0, 1, 2, 3]


def test_merge_sets_schema_metadata(running: Service) -> None:
    dataset = opened(running)
    merge = message(running)
    fields, _ = schema_fields(dataset.lance_schema)
    merge.merge.schema.extend(fields)
    state, _ = manifest(running, dataset.version)
    for encoded in state.fragments.values():
        merge.merge.fragments.add().ParseFromString(encoded)
    merge.merge.schema_metadata["owner"] = b"me"
    committed(running, merge.SerializeToString())
    assert opened(running).schema.metadata == {b"owner": b"me"}
    assert ids_of(opened(running)) == list(range(12))


def test_initial_bases_belong_to_the_first_version(running: Service, tmp_path: Path) -> None:
    overwrite = message(running)
    fields, _ = schema_fields(opened(running).lance_schema)
    overwrite.overwrite.schema.extend(fields)
    overwrite.overwrite.initial_bases.add(id=1, path=str(tmp_path), name="cold")
    refused(running, overwrite.SerializeToString(), Code.BUILD_REFUSED, "register new bases")


def test_a_tag_stands_in_the_manifest(running: Service) -> None:
    for number, make in enumerate((_tagged_restore, _tagged_config), 5):
        tagged = make(message(running, tag="nightly"))
        committed(running, tagged.SerializeToString())
        state, recorded = manifest(running, number)
        assert (state.tag, recorded.tag) == ("nightly", "nightly")
    running.client.append(T, rows(50))
    state, _ = manifest(running, 7)
    assert state.tag == ""


def _tagged_restore(transaction: Transaction) -> Transaction:
    transaction.restore.version = 2
    return transaction


def _tagged_config(transaction: Transaction) -> Transaction:
    transaction.update_config.config_updates.update_entries.add(key="k", value="v")
    return transaction


def test_compacted_tables_of_an_update_advance_their_shards(running: Service) -> None:
    stale = moving(running)
    stale.update.compacted_sstables.extend(compacted(first=3))
    refused(running, stale.SerializeToString(), Code.INVALID_OPERATION, MEM_WAL_INDEX)
    with_mem_wal(running)
    update = moving(running)
    update.update.compacted_sstables.extend(compacted(first=3))
    committed(running, update.SerializeToString())
    assert generations(running) == {SHARD: 3}
    assert opened(running).count_rows("name = 'new'") == 1
    again = moving(running)
    again.update.compacted_sstables.extend(compacted(second=1, first=3))
    refused(
        running,
        again.SerializeToString(),
        Code.INVALID_OPERATION,
        "is already compacted up to generation 3",
    )


def test_update_mem_wal_state_advances_its_shards(running: Service) -> None:
    refused(running, mem_wal_state(running, first=1), Code.INVALID_OPERATION, MEM_WAL_INDEX)
    with_mem_wal(running)
    old = mem_wal_state(running, first=7, second=1)
    committed(running, mem_wal_state(running, first=7))
    entry = indices(running)[MEM_WAL_INDEX]
    assert (entry.dataset_version, entry.index_version) == (6, 0)
    assert not entry.fragment_bitmap
    outcome = submit(running, old)
    assert outcome.status is Status.INCOMPATIBLE, "an equal generation is there already"
    committed(running, mem_wal_state(running, first=8, second=2))
    assert generations(running) == {SHARD: 8, OTHER_SHARD: 2}
    assert ids_of(opened(running)) == list(range(12))
    assert opened(running).mem_wal_index_details() is not None
    twice = message(running)
    twice.update_mem_wal_state.compacted_sstables.extend(compacted(first=9) + compacted(first=9))
    refused(running, twice.SerializeToString(), Code.INVALID_OPERATION, "twice")


def test_inserted_rows_are_recorded_and_compared(running: Service) -> None:
    first, second = moving(running), moving(running, "other")
    for update in (first, second):
        update.update.inserted_rows.field_ids.append(0)
        update.update.inserted_rows.exact.key_hashes.append(77)
    second.update.ClearField("updated_fragments")
    committed(running, first.SerializeToString())
    _, recorded = manifest(running, 5)
    assert recorded.update.inserted_rows == first.update.inserted_rows
    outcome = submit(running, second.SerializeToString())
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule.endswith("key_inserted")


def test_the_deprecated_offsets_of_an_update_take_effect(running: Service) -> None:
    data = pa.table({"id": [4, 6], "name": ["new", "new"]})
    operation = patched(opened(running).get_fragments()[1], data)
    encoded = to_transaction_bytes(operation, read_version=4, uuid=str(uuid.uuid4()))
    older = Transaction.FromString(encoded.message)
    older.update.updated_fragment_offset_bitmaps.clear()
    older.update.updated_fragment_offsets[1].values.extend([0, 2])
    committed(running, older.SerializeToString())
    assert sorted(opened(running).to_table(filter="name = 'new'")["id"].to_pylist()) == [4, 6]
    if opened(running).has_stable_row_ids:
        columns = ["id", "_row_last_updated_at_version"]
        table = opened(running).to_table(columns=columns, filter="id >= 4 AND id < 8")
        assert [v == 5 for v in table[columns[1]].to_pylist()] == [True, False, True, False]


def test_an_index_may_leave_open_what_it_covers(running: Service) -> None:
    dataset = opened(running)
    index = dataset.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=[0, 1, 2])
    operation = LanceOperation.CreateIndex([index], [])
    encoded = to_transaction_bytes(operation, read_version=4, uuid=str(uuid.uuid4()))
    create = Transaction.FromString(encoded.message)
    create.create_index.new_indices[0].ClearField("fragment_bitmap")
    committed(running, create.SerializeToString())
    assert not indices(running)["by_id"].fragment_bitmap
    assert opened(running).to_table(filter="id = 5")["id"].to_pylist() == [5]


def replay(running: Service, change: Callable[[lance.LanceDataset], Any]) -> int:
    """Let pylance change a copy, then submit the bytes of what it did; return how many versions."""
    location = running.location(T)
    copy = running.root / "copy"
    shutil.copytree(location, copy)
    before = lance.dataset(str(copy)).version
    change(lance.dataset(str(copy)))
    shutil.copytree(copy, location, dirs_exist_ok=True, ignore=_only_data)
    newest = lance.dataset(str(copy)).version
    for version in range(before + 1, newest + 1):
        data = (copy / "_versions" / manifest_name(version)).read_bytes()
        theirs, encoded = decode_manifest(data)
        assert encoded is not None
        committed(running, encoded)
        ours, _ = manifest(running, version)
        assert dict(ours.fragments) == dict(theirs.fragments)
        assert ours.max_fragment_id == theirs.max_fragment_id
        assert ours.header.encoded == theirs.header.encoded
        assert _comparable(ours.index_section) == _comparable(theirs.index_section)
    return newest - before


def _only_data(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in {"_versions", "_transactions"}}


def _comparable(section: bytes | None) -> IndexSection:
    """Leave out what every build makes anew: a MemWAL entry's id, and its time."""
    found = IndexSection.FromString(section or b"")
    for index in found.indices:
        if index.name == MEM_WAL_INDEX:
            index.ClearField("uuid")
            index.ClearField("created_at")
    return found


def test_a_compaction_names_the_files_of_the_index_that_it_rewrote(running: Service) -> None:
    running.client.open(T).create_scalar_index("id", "BTREE", name="by_id")
    files = [file.path for file in indices(running)["by_id"].files]
    done = replay(running, lambda d: d.optimize.compact_files(target_rows_per_fragment=100))
    assert done == 2, "ReserveFragments and Rewrite"
    _, rewrite = manifest(running, opened(running).version)
    if not opened(running).has_stable_row_ids:
        [rewritten] = rewrite.rewrite.rewritten_indices
        assert [file.path for file in rewritten.new_index_files] == files
        assert indices(running)["by_id"].files == rewritten.new_index_files
    assert opened(running).to_table(filter="id = 5")["id"].to_pylist() == [5]


def test_what_python_cannot_name_goes_with_a_mem_wal_and_its_coverage(running: Service) -> None:
    with_mem_wal(running)
    running.client.open(T).create_scalar_index("id", "BTREE", name="by_id")
    committed(running, mem_wal_state(running, first=4))
    reserve = message(running)
    reserve.reserve_fragments.num_fragments = 3
    committed(running, reserve.SerializeToString())
    assert manifest(running, opened(running).version)[0].max_fragment_id == 5
    bases = message(running)
    bases.update_bases.new_bases.add(path="/cold", name="cold")
    committed(running, bases.SerializeToString())
    [base] = manifest(running, opened(running).version)[0].header.message.base_paths
    assert base.path == "/cold"
    assert generations(running) == {SHARD: 4}
    assert set(indices(running)) == {MEM_WAL_INDEX, "by_id"}


def test_what_a_merge_marks_as_compacted_is_what_pylance_makes_of_it(running: Service) -> None:
    with_mem_wal(running)
    tables = [Compacted(str(uuid.UUID(bytes=SHARD)), 3)]

    def merge(dataset: lance.LanceDataset) -> None:
        builder = dataset.merge_insert("id").when_matched_update_all()
        builder.mark_sstables_as_compacted(tables).execute(rows(5, name="new"))

    replay(running, merge)
    assert generations(running) == {SHARD: 3}


def test_initial_bases_take_effect_in_a_first_version(tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    world = World(tmp_path, settings=Settings(locations=(str(cold),)))
    try:
        cold.mkdir()
        table = [world.fresh_name(), "t"]
        bases = [lance.DatasetBasePath(str(cold), name="cold", is_dataset_root=True)]
        lance.write_dataset(
            rows(1, 2),
            namespace_client=world.namespace,
            table_id=table,
            mode="create",
            initial_bases=bases,
            target_bases=["cold"],
        )
        location = Path(world.location(table))
        state, encoded = decode_manifest((location / "_versions" / manifest_name(1)).read_bytes())
        assert encoded is not None
        [base] = state.header.message.base_paths
        assert (base.name, base.path) == ("cold", str(cold))
        [recorded] = Transaction.FromString(encoded).overwrite.initial_bases
        assert recorded.name == "cold"
        assert list((cold / "data").iterdir()), "its rows lie there"
        assert ids_of(lance.dataset(str(location))) == [1, 2]
        world.log.append("$".join(table), rows(3))
        assert ids_of(lance.dataset(str(location))) == [1, 2, 3]
    finally:
        world.close()
