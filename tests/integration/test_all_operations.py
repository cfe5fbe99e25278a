"""Each of Lance's operations, submitted as pylance's object or as Lance's bytes, takes effect.

What a test asserts is seen by plain pylance, which opens the table by its path.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile, FragmentMetadata, RowIdSequence, write_fragments
from lance.schema import LanceSchema

from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from commitlog.codecs.lance_objects import schema_fields, to_transaction_bytes
from commitlog.codecs.manifest_file import decode_manifest, manifest_name
from commitlog.lancepb.table_pb2 import CompactedSsTable
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code, Outcome, Status
from tests.service import SCHEMA, Service, ids_of, rows, service

T = "ns$t"
_OPERATION = 116
"""The first operation number that Lance 14.0.2 doesn't know."""


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments: ids 0 to 3, 4 to 7, 8 to 11; its head is version 4."""
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA, stable_row_ids=request.param)
        for first in (0, 4, 8):
            made.client.append(T, rows(*range(first, first + 4)))
        yield made


def opened(running: Service) -> lance.LanceDataset:
    """Open the table by its path, as if there were no log."""
    return lance.dataset(str(running.location(T)))


def submit(running: Service, operation: Any, read_version: int | None = None) -> Outcome:
    """Submit an operation and wait until it can be read."""
    return running.client.submit(T, operation, read_version=read_version).result()


def committed(running: Service, operation: Any, read_version: int | None = None) -> Outcome:
    """Submit an operation, which commits."""
    outcome = submit(running, operation, read_version)
    assert outcome.status is Status.COMMITTED, outcome.message
    assert lance.dataset(str(running.location(T))).version == outcome.version
    return outcome


def refused(running: Service, operation: Any, code: Code, *words: str) -> None:
    """Submit an operation, which is refused in these words, and nothing changes."""
    before = opened(running).version
    outcome = submit(running, operation)
    assert (outcome.status, outcome.code) == (Status.REJECTED, code), outcome.message
    for word in words:
        assert word in outcome.message
    assert opened(running).version == before
    assert running.client.table(T).version == before


def message(running: Service, **fields: Any) -> Transaction:
    """Return Lance's message for an operation that read the head."""
    head = running.client.table(T).version
    return Transaction(read_version=head, uuid=str(uuid.uuid4()), **fields)


def names(dataset: lance.LanceDataset) -> dict[int, str]:
    """Return each row's name by its id."""
    table = dataset.to_table(columns=["id", "name"])
    return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


def column_file(dataset: lance.LanceDataset, values: list[str]) -> DataFile:
    """Write a file of the column `name` alone."""
    name = f"{uuid.uuid4()}.lance"
    schema = pa.schema([SCHEMA.field("name")])
    found = dataset.get_fragments()[0].metadata.files[0]
    major, minor = found.file_major_version, found.file_minor_version
    path = Path(dataset.uri) / "data" / name
    with LanceFileWriter(str(path), schema, version=f"{major}.{minor}") as writer:
        writer.write_batch(pa.table({"name": values}, schema=schema))
    return DataFile(name, [1], [0], major, minor, path.stat().st_size)


def compacted(dataset: lance.LanceDataset) -> tuple[list[FragmentMetadata], list[FragmentMetadata]]:
    """Return the first two fragments, and one that holds their rows."""
    fragments = dataset.get_fragments()[:2]
    found = [each.to_table(with_row_id=True) for each in fragments]
    table = pa.concat_tables(found)
    new = list(write_fragments(table.select(SCHEMA.names), dataset.uri, schema=SCHEMA))
    old = [fragment.metadata for fragment in fragments]
    if old[0].row_id_meta is not None:
        new[0].row_id_meta = RowIdSequence(table["_rowid"].to_pylist()).to_inline_metadata()
    return old, new


def merged(dataset: lance.LanceDataset) -> LanceOperation.Merge:
    """Return a Merge that adds a column `twice`."""
    made = [
        each.merge_columns(
            lambda batch: pa.record_batch({"twice": pa.compute.multiply(batch["id"], 2)}), ["id"]
        )
        for each in dataset.get_fragments()
    ]
    return LanceOperation.Merge([fragment for fragment, _ in made], made[0][1], True)


def test_append_adds_rows(running: Service) -> None:
    new = list(write_fragments(rows(100), str(running.location(T)), schema=SCHEMA))
    committed(running, LanceOperation.Append(new))
    assert ids_of(opened(running)) == [*range(12), 100]


def test_delete_takes_rows_away(running: Service) -> None:
    image = opened(running).get_fragments()[0].delete("id = 1")
    assert image is not None
    committed(running, LanceOperation.Delete([image], [2], "id = 1 or id >= 8"))
    assert ids_of(opened(running)) == [0, 2, 3, 4, 5, 6, 7]


def test_overwrite_makes_another_table_of_it(running: Service) -> None:
    schema = pa.schema([("x", pa.int32())], metadata={"owner": "me"})
    table = pa.table({"x": [1]}, schema=schema)
    location = str(running.location(T))
    new = list(write_fragments(table, location, schema=schema, mode="overwrite"))
    committed(running, LanceOperation.Overwrite(schema, new))
    dataset = opened(running)
    assert dataset.to_table().to_pydict() == {"x": [1]}
    assert dataset.schema.metadata == {b"owner": b"me"}, "which Lance's own message drops"


def test_create_index_answers_queries_and_is_dropped_again(running: Service) -> None:
    dataset = opened(running)
    index = dataset.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=[0, 1, 2])
    committed(running, LanceOperation.CreateIndex([index], []))
    dataset = opened(running)
    assert [found.name for found in dataset.describe_indices()] == ["by_id"]
    scanner = dataset.scanner(filter="id = 5")
    assert "ScalarIndexQuery" in scanner.explain_plan()
    assert scanner.to_table()["id"].to_pylist() == [5]
    committed(running, LanceOperation.CreateIndex([], [index]))
    assert opened(running).describe_indices() == []


def test_an_index_on_a_field_that_is_not_there_is_refused(running: Service) -> None:
    dataset = opened(running)
    index = dataset.create_index_uncommitted("id", "BTREE", name="by_id", fragment_ids=[0])
    index.fields = [7]
    refused(running, LanceOperation.CreateIndex([index], []), Code.WRONG_SCHEMA, "[7]", "by_id")


def test_rewrite_moves_rows_and_keeps_them(running: Service) -> None:
    dataset = opened(running)
    old, new = compacted(dataset)
    committed(running, LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], []))
    dataset = opened(running)
    assert [fragment.fragment_id for fragment in dataset.get_fragments()] == [2, 3]
    assert ids_of(dataset) == list(range(12))


def test_the_deprecated_form_of_rewrite_takes_effect(running: Service) -> None:
    dataset = opened(running)
    old, new = compacted(dataset)
    operation = LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], [])
    encoded = to_transaction_bytes(operation, read_version=4, uuid=str(uuid.uuid4())).message
    older = Transaction.FromString(encoded)
    older.rewrite.old_fragments.extend(older.rewrite.groups[0].old_fragments)
    older.rewrite.new_fragments.extend(older.rewrite.groups[0].new_fragments)
    del older.rewrite.groups[:]
    committed(running, older.SerializeToString())
    assert len(opened(running).get_fragments()) == 2
    assert ids_of(opened(running)) == list(range(12))
    again = Transaction.FromString(older.SerializeToString())
    again.uuid, again.read_version = str(uuid.uuid4()), 5
    refused(running, again.SerializeToString(), Code.UNKNOWN_FRAGMENT, "[0, 1]")


def test_a_reserved_fragment_id_is_used_by_a_rewrite_and_no_other(running: Service) -> None:
    reserve = message(running)
    reserve.reserve_fragments.num_fragments = 2
    committed(running, reserve.SerializeToString())
    old, new = compacted(opened(running))
    for taken in (2, 7):
        new[0].id = taken
        wrong = LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], [])
        refused(running, wrong, Code.DUPLICATE_FRAGMENT, str(taken), "reserve")
    new[0].id = 4
    committed(running, LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], []))
    assert {found.fragment_id for found in opened(running).get_fragments()} == {2, 4}
    assert ids_of(opened(running)) == list(range(12))


def test_merge_adds_a_column(running: Service) -> None:
    committed(running, merged(opened(running)))
    table = opened(running).to_table()
    assert table["twice"].to_pylist() == [2 * i for i in table["id"].to_pylist()]


def test_merge_without_one_of_its_files_is_refused(running: Service) -> None:
    operation = merged(opened(running))
    lost = str(list(operation.fragments)[1].files[-1].path)
    (running.location(T) / "data" / lost).unlink()
    refused(running, operation, Code.MISSING_FILE, lost)


def test_project_takes_a_column_away(running: Service) -> None:
    fields = opened(running).lance_schema.__reduce__()[1]
    operation = LanceOperation.Project(LanceSchema._from_protos(*fields[:2]), True)
    committed(running, operation)
    assert opened(running).schema.names == ["id"]
    assert ids_of(opened(running)) == list(range(12))


def test_restore_brings_an_older_version_back(running: Service) -> None:
    committed(running, LanceOperation.Restore(2))
    assert ids_of(opened(running)) == [0, 1, 2, 3]
    assert running.client.append(T, rows(50)).version == 6
    assert ids_of(opened(running)) == [0, 1, 2, 3, 50]
    assert ids_of(running.client.open(T, 4)) == list(range(12))
    refused(running, LanceOperation.Restore(99), Code.INVALID_OPERATION, "99")


def test_restore_under_latest_says_how_to_get_at_a_version_without_file(running: Service) -> None:
    client, name = running.client, "ns$latest"
    client.create_table(name, SCHEMA, policy="latest")
    location = running.location(name)
    [fragment] = write_fragments(rows(1), str(location), schema=SCHEMA)
    tickets = [client.submit(name, LanceOperation.Append([fragment])) for _ in range(40)]
    assert {ticket.result().status for ticket in tickets} == {Status.COMMITTED}
    versions = location / "_versions"
    lacking = next(v for v in range(2, 41) if not (versions / manifest_name(v)).exists())
    restore = LanceOperation.Restore(lacking)
    refused = client.submit(name, restore).result()
    assert refused.code is Code.BUILD_REFUSED
    assert f"version {lacking} has no manifest file" in refused.message
    client.open(name, lacking)
    client.submit(name, restore).result().raise_for_conflict()
    assert lance.dataset(str(location)).count_rows() == lacking - 1


def test_reserve_fragments_keeps_ids_free(running: Service) -> None:
    reserve = message(running)
    reserve.reserve_fragments.num_fragments = 5
    committed(running, reserve.SerializeToString())
    running.client.append(T, rows(50))
    assert opened(running).get_fragments()[-1].fragment_id == 8


@pytest.mark.parametrize("operation", [True, False], ids=["shallow", "deep"])
def test_clone_is_refused_on_a_table_that_exists(running: Service, operation: bool) -> None:
    clone = LanceOperation.Clone(operation, None, 1, str(running.location(T)), None)
    refused(running, clone, Code.UNSUPPORTED_OPERATION, "Clone makes a new table", "register")


def test_a_clone_by_pylance_is_registered(running: Service) -> None:
    target = running.root / "tables" / "cloned"
    opened(running).shallow_clone(str(target), reference=3)
    running.client.register_table("ns$cloned", str(target))
    running.client.append("ns$cloned", rows(77))
    assert ids_of(lance.dataset(str(target))) == [*range(8), 77]
    assert ids_of(opened(running)) == list(range(12))


def test_update_moves_rows(running: Service) -> None:
    dataset = opened(running)
    image = dataset.get_fragments()[0].delete("id = 1")
    assert image is not None
    new = list(write_fragments(rows(1, name="new"), dataset.uri, schema=SCHEMA))
    operation = LanceOperation.Update(
        removed_fragment_ids=[],
        updated_fragments=[image],
        new_fragments=new,
        fields_modified=[],
        fields_for_preserving_frag_bitmap=[],
        update_mode="rewrite_rows",
    )
    committed(running, operation)
    assert names(opened(running)) == {i: "new" if i == 1 else "a" for i in range(12)}


def test_update_rewrites_columns(running: Service) -> None:
    fragment = opened(running).get_fragments()[1]
    data = pa.table({"id": [4, 6], "name": ["new", "new"]})
    image, fields, offsets = fragment.update_columns(data, "id", "id", with_offsets=True)
    operation = LanceOperation.Update(
        updated_fragments=[image],
        fields_modified=fields,
        update_mode="rewrite_columns",
        updated_fragment_offsets={1: offsets},
    )
    committed(running, operation)
    assert names(opened(running)) == {i: "new" if i in (4, 6) else "a" for i in range(12)}


def test_update_config_changes_each_of_its_maps(running: Service) -> None:
    update = LanceOperation.UpdateMap
    operation = LanceOperation.UpdateConfig(
        config_updates=update({"k": "1"}),
        table_metadata_updates=update({"t": "2"}),
        schema_metadata_updates=update({"s": "3"}),
        field_metadata_updates={0: update({"f": "4"})},
    )
    committed(running, operation)
    dataset = opened(running)
    assert dataset.config()["k"] == "1"
    assert dataset.metadata == {"t": "2"}
    assert dataset.schema.metadata == {b"s": b"3"}
    assert dataset.schema.field("id").metadata[b"f"] == b"4"


def test_the_deprecated_form_of_update_config_takes_effect(running: Service) -> None:
    older = message(running)
    older.update_config.upsert_values["k"] = "1"
    older.update_config.schema_metadata["s"] = "3"
    older.update_config.field_metadata[1].metadata["f"] = "4"
    committed(running, older.SerializeToString())
    dataset = opened(running)
    assert dataset.config()["k"] == "1"
    assert dataset.schema.metadata == {b"s": b"3"}
    assert dataset.schema.field("name").metadata == {b"f": b"4"}


def test_data_replacement_replaces_a_column_of_one_fragment(running: Service) -> None:
    new = column_file(opened(running), ["r"] * 4)
    group = LanceOperation.DataReplacementGroup(1, new)
    committed(running, LanceOperation.DataReplacement([group]))
    assert names(opened(running)) == {i: "r" if 4 <= i < 8 else "a" for i in range(12)}
    lost = LanceOperation.DataReplacementGroup(1, column_file(opened(running), ["r"] * 4))
    (running.location(T) / "data" / str(lost.new_file.path)).unlink()
    refused(running, LanceOperation.DataReplacement([lost]), Code.MISSING_FILE)
    group = LanceOperation.DataReplacementGroup(9, new)
    refused(running, LanceOperation.DataReplacement([group]), Code.UNKNOWN_FRAGMENT, "[9]")


def overlay(running: Service) -> LanceOperation.DataOverlay:
    """Return an overlay of the names of ids 5 and 7."""
    file = LanceOperation.DataOverlayFile(column_file(opened(running), ["o", "o"]), [1, 3])
    return LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(1, [file])])


def test_data_overlay_lays_values_over_a_column(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OVERLAYS_ENABLED_BY, "1")
    committed(running, overlay(running))
    assert names(opened(running)) == {i: "o" if i in (5, 7) else "a" for i in range(12)}
    running.client.delete(T, "id = 5")
    assert names(opened(running)) == {i: "o" if i == 7 else "a" for i in range(12) if i != 5}


def test_an_overlay_that_would_lock_readers_out_is_refused(running: Service) -> None:
    refused(running, overlay(running), Code.BUILD_REFUSED, "overlay", OVERLAYS_ENABLED_BY)


def test_update_bases_adds_a_place_for_files(running: Service, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    cold.mkdir()
    bases = message(running)
    bases.update_bases.new_bases.add(path=str(cold), name="cold")
    committed(running, bases.SerializeToString())
    path = running.location(T) / "_versions" / manifest_name(5)
    state, _ = decode_manifest(path.read_bytes())
    [base] = state.header.message.base_paths
    assert (base.id, base.name, base.path) == (1, "cold", str(cold))
    [new] = write_fragments(rows(100), str(cold), schema=SCHEMA)
    (cold / "data" / str(new.files[0].path)).rename(cold / str(new.files[0].path))
    fragment = json.loads(json.dumps(new.to_json()))
    fragment["files"][0]["base_id"] = 1
    append = LanceOperation.Append([FragmentMetadata.from_json(json.dumps(fragment))])
    committed(running, append)
    assert ids_of(opened(running)) == [*range(12), 100]


def test_update_mem_wal_state_is_refused_in_words(running: Service) -> None:
    state = message(running)
    table = CompactedSsTable(generation=3)
    table.shard_id.uuid = uuid.uuid4().bytes
    state.update_mem_wal_state.compacted_sstables.append(table)
    refused(
        running, state.SerializeToString(), Code.BUILD_REFUSED, "cannot construct", "mem_wal_state"
    )


def test_an_operation_of_a_newer_lance_is_kept_and_refused_by_its_number(running: Service) -> None:
    unknown = message(running).SerializeToString() + bytes([_OPERATION << 3 & 0x7F | 0x82, 7, 0])
    assert Transaction.FromString(unknown).WhichOneof("operation") is None
    assert Transaction.FromString(unknown).SerializeToString() == unknown
    refused(running, unknown, Code.UNSUPPORTED_OPERATION, f"operation {_OPERATION}", "14.0.2")
    empty = message(running).SerializeToString()
    refused(running, empty, Code.UNSUPPORTED_OPERATION, "without operation")


def test_what_pylance_would_drop_is_refused_by_its_name(running: Service) -> None:
    overwrite = message(running)
    fields, _ = schema_fields(opened(running).lance_schema)
    overwrite.overwrite.schema.extend(fields)
    overwrite.overwrite.config_upsert_values["k"] = "v"
    refused(
        running, overwrite.SerializeToString(), Code.BUILD_REFUSED, "overwrite.config_upsert_values"
    )
    tagged = message(running, tag="nightly")
    tagged.restore.version = 1
    refused(running, tagged.SerializeToString(), Code.BUILD_REFUSED, "tag")
    update = message(running)
    update.update.compacted_sstables.add(generation=1)
    refused(running, update.SerializeToString(), Code.BUILD_REFUSED, "update.compacted_sstables")


def test_what_was_built_by_pylance_is_replayed_without_it(running: Service) -> None:
    committed(running, merged(opened(running)))
    committed(running, LanceOperation.Restore(3))
    index = opened(running).create_index_uncommitted("id", "BTREE", name="i", fragment_ids=[0, 1])
    committed(running, LanceOperation.CreateIndex([index], []))
    first = running.running[0]
    first.stop()
    follower = first.committer._follower
    assert follower is not None
    again = running.start(running.root / "again").await_leading()
    rebuilt = again.committer._follower
    assert rebuilt is not None
    assert rebuilt.machine.digest() == follower.machine.digest()
