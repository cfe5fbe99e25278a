"""Each of Lance's operations, submitted as pylance's object or as Lance's bytes, takes effect.

What a test asserts is seen by plain pylance, which opens the table by its path.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import FragmentMetadata, RowIdSequence, write_fragments
from lance.schema import LanceSchema

from commitlog import CommitLog
from commitlog.adapters.lance_builder import OVERLAYS_ENABLED_BY
from commitlog.adapters.memory import MemoryLog
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code
from tests.lance_messages import to_transaction_bytes
from tests.operations_world import (
    T,
    column_file,
    committed,
    manifest,
    message,
    opened,
    patched,
    refused,
    replay,
    submit,
    three_fragments,
    version_without_file,
)
from tests.service import SCHEMA, Service, ids_of, rows

_OPERATION = 116
"""The first operation number that Lance 14.0.2 doesn't know."""


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments."""
    with three_fragments(tmp_path, stable_row_ids=request.param) as made:
        yield made


def names(dataset: lance.LanceDataset) -> dict[int, str]:
    """Return each row's name by its id."""
    table = dataset.to_table(columns=["id", "name"])
    return dict(zip(table["id"].to_pylist(), table["name"].to_pylist(), strict=True))


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


def test_an_append_as_of_an_older_version_may_have_a_column_that_was_dropped_since(
    running: Service,
) -> None:
    read = opened(running)
    new = list(write_fragments(rows(12), read.uri, schema=SCHEMA))
    running.client.drop_columns(T, ["name"])
    with CommitLog(lambda: MemoryLog(running.cluster)) as other:  # who knows the newest schema
        ticket = other.submit(T, LanceOperation.Append(new), read_version=read.version)
        ticket.result().raise_for_conflict()
    assert ids_of(opened(running)) == list(range(13))


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


def test_restore_under_latest_brings_back_a_version_that_never_had_a_file(
    running: Service,
) -> None:
    name = "ns$latest"
    lacking = version_without_file(running, name)
    running.client.submit(name, LanceOperation.Restore(lacking)).result().raise_for_conflict()
    assert lance.dataset(str(running.location(name))).count_rows() == lacking - 1


def test_reserve_fragments_keeps_ids_free(running: Service) -> None:
    reserve = message(running)
    reserve.reserve_fragments.num_fragments = 5
    committed(running, reserve.SerializeToString())
    running.client.append(T, rows(50))
    assert opened(running).get_fragments()[-1].fragment_id == 8


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


def test_indices_cover_no_rows_of_an_update_without_a_mode(running: Service) -> None:
    running.client.open(T).create_scalar_index("name", "BITMAP")
    image = opened(running).get_fragments()[0].delete("id = 1")
    assert image is not None
    new = list(write_fragments(rows(1, name="new"), opened(running).uri, schema=SCHEMA))
    operation = LanceOperation.Update(updated_fragments=[image], new_fragments=new)
    transaction = lance.Transaction(opened(running).version, operation)
    first = committed(running, transaction)
    assert opened(running).to_table(filter="name = 'new'")["id"].to_pylist() == [1]
    running.client.open(T).add_columns({"later": "id"})
    assert submit(running, transaction).sequence == first.sequence
    assert operation.fields_for_preserving_frag_bitmap == []


def test_update_rewrites_columns(running: Service) -> None:
    data = pa.table({"id": [4, 6], "name": ["new", "new"]})
    committed(running, patched(opened(running).get_fragments()[1], data))
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
    state, _ = manifest(running, 5)
    [base] = state.header.message.base_paths
    assert (base.id, base.name, base.path) == (1, "cold", str(cold))
    [new] = write_fragments(rows(100), str(cold), schema=SCHEMA)
    (cold / "data" / str(new.files[0].path)).rename(cold / str(new.files[0].path))
    fragment = json.loads(json.dumps(new.to_json()))
    fragment["files"][0]["base_id"] = 1
    append = LanceOperation.Append([FragmentMetadata.from_json(json.dumps(fragment))])
    committed(running, append)
    assert ids_of(opened(running)) == [*range(12), 100]


def test_an_operation_of_a_newer_lance_is_kept_and_refused_by_its_number(running: Service) -> None:
    unknown = message(running).SerializeToString() + bytes([_OPERATION << 3 & 0x7F | 0x82, 7, 0])
    assert Transaction.FromString(unknown).WhichOneof("operation") is None
    assert Transaction.FromString(unknown).SerializeToString() == unknown
    refused(running, unknown, Code.UNSUPPORTED_OPERATION, f"operation {_OPERATION}", "14.0.2")
    empty = message(running).SerializeToString()
    refused(running, empty, Code.UNSUPPORTED_OPERATION, "without operation")


def test_what_was_built_by_pylance_is_replayed_without_it(running: Service) -> None:
    committed(running, merged(opened(running)))
    committed(running, LanceOperation.Restore(3))
    index = opened(running).create_index_uncommitted("id", "BTREE", name="i", fragment_ids=[0, 1])
    committed(running, LanceOperation.CreateIndex([index], []))
    replay(running)
