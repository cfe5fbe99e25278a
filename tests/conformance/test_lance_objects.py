"""pylance's operations as messages: what pylance itself records when it commits the same object."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.file import LanceFileWriter
from lance.fragment import DataFile, RowIdSequence, write_fragments
from lance.schema import LanceSchema
from pyroaring import BitMap

from commitlog.codecs.lance_operations import (
    NotConstructible,
    to_fragment_metadata,
    to_lance_operation,
    unsayable,
)
from commitlog.codecs.manifest_file import decode_manifest, encode_manifest
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.manifest_state import ManifestDelta, apply_delta, diff
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.conformance.lance_history import assert_same_version, head, is_direct, read_version
from tests.lance_messages import to_transaction_bytes
from tests.operations_world import patched

Operation = LanceOperation.BaseOperation


def table(first: int, count: int) -> pa.Table:
    return pa.table(
        {"id": list(range(first, first + count)), "name": [f"n{i}" for i in range(count)]}
    ).replace_schema_metadata({"owner": "us"})


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def dataset(request: pytest.FixtureRequest, tmp_path: Path) -> lance.LanceDataset:
    dataset = lance.write_dataset(
        table(0, 40),
        str(tmp_path / "table"),
        max_rows_per_file=20,
        enable_stable_row_ids=request.param,
    )
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id = 3")
    return dataset


def root(dataset: lance.LanceDataset) -> Path:
    return Path(dataset.uri.removeprefix("file://"))


def new_fragments(dataset: lance.LanceDataset, first: int = 100) -> list[lance.FragmentMetadata]:
    return list(write_fragments(table(first, 5), dataset.uri, mode="append"))


def append(dataset: lance.LanceDataset) -> Operation:
    return LanceOperation.Append(new_fragments(dataset))


def delete(dataset: lance.LanceDataset) -> Operation:
    after = dataset.get_fragments()[0].delete("id < 7")
    assert after is not None
    return LanceOperation.Delete([after], [1], "id < 7 or id >= 20")


def overwrite(dataset: lance.LanceDataset) -> Operation:
    return LanceOperation.Overwrite(dataset.schema, new_fragments(dataset))


def overwrite_with_lance_schema(dataset: lance.LanceDataset) -> Operation:
    return LanceOperation.Overwrite(dataset.lance_schema, new_fragments(dataset))


def update_rows(dataset: lance.LanceDataset) -> Operation:
    after = dataset.get_fragments()[0].delete("id in (4, 5)")
    assert after is not None
    return LanceOperation.Update(
        removed_fragment_ids=[1],
        updated_fragments=[after],
        new_fragments=new_fragments(dataset),
        fields_modified=[],
        fields_for_preserving_frag_bitmap=[1],
        update_mode="rewrite_rows",
    )


def update_columns(dataset: lance.LanceDataset) -> Operation:
    data = pa.table({"id": [0, 1], "name": ["new", "newer"]})
    return patched(dataset.get_fragments()[0], data)


def merge(dataset: lance.LanceDataset) -> Operation:
    merged = [
        fragment.merge_columns(
            lambda batch: pa.record_batch([batch["id"]], ["copy"]), columns=["id"]
        )
        for fragment in dataset.get_fragments()
    ]
    return LanceOperation.Merge([fragment for fragment, _ in merged], merged[0][1], True)


def project(dataset: lance.LanceDataset) -> Operation:
    fields = dataset.lance_schema.__reduce__()[1]
    return LanceOperation.Project(LanceSchema._from_protos(*fields[:2]), True)


def restore(dataset: lance.LanceDataset) -> Operation:
    return LanceOperation.Restore(1)


def create_index(dataset: lance.LanceDataset) -> Operation:
    index = dataset.create_index_uncommitted("name", "BTREE", name="by_name", fragment_ids=[0, 1])
    return LanceOperation.CreateIndex([index], [])


def drop_index(dataset: lance.LanceDataset) -> Operation:
    transaction = dataset.read_transaction(2)
    assert transaction is not None
    assert isinstance(transaction.operation, LanceOperation.CreateIndex)
    return LanceOperation.CreateIndex([], transaction.operation.new_indices)


def rewrite(dataset: lance.LanceDataset) -> Operation:
    old = [fragment.metadata for fragment in dataset.get_fragments()]
    rows = dataset.to_table(with_row_id=True)
    new = list(write_fragments(rows.drop_columns("_rowid"), dataset.uri, mode="append"))
    if old[0].row_id_meta is not None:
        ids = RowIdSequence(rows["_rowid"].to_pylist())
        new[0].row_id_meta = ids.to_inline_metadata()
    return LanceOperation.Rewrite([LanceOperation.RewriteGroup(old, new)], [])


def data_replacement(dataset: lance.LanceDataset) -> Operation:
    path = root(dataset) / "data" / "replaced.lance"
    fields = pa.schema([dataset.schema.field("name")])
    with LanceFileWriter(str(path), fields, version="2.2") as writer:
        writer.write_batch(pa.record_batch([pa.array(["r"] * 20)], schema=fields))
    # Only a file with the same fields can be replaced: split the columns first.
    dataset.add_columns({"name2": "name"})
    added = dataset.get_fragments()[0].metadata.files[-1]
    new = DataFile("replaced.lance", added.fields, added.column_indices, 2, 2, path.stat().st_size)
    return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(0, new)])


def update_config(dataset: lance.LanceDataset) -> Operation:
    update = LanceOperation.UpdateMap
    return LanceOperation.UpdateConfig(
        config_updates=update({"a": "1", "b": None}),
        table_metadata_updates=update({"c": "2"}, True),
        schema_metadata_updates=update({"owner": None}),
        field_metadata_updates={0: update({"unit": "m"}), 1: update({}, True)},
    )


OPERATIONS: list[Callable[[lance.LanceDataset], Operation]] = [
    append,
    delete,
    overwrite,
    overwrite_with_lance_schema,
    update_rows,
    update_columns,
    merge,
    project,
    restore,
    create_index,
    drop_index,
    rewrite,
    data_replacement,
    update_config,
]


@pytest.mark.parametrize("make", OPERATIONS, ids=lambda make: make.__name__)
def test_a_message_is_what_pylance_records(
    dataset: lance.LanceDataset, make: Callable[[lance.LanceDataset], Operation]
) -> None:
    operation = make(dataset)
    dataset = lance.dataset(dataset.uri)
    transaction = lance.Transaction(
        dataset.version, operation, str(uuid.uuid4()), {"__lance_commit_message": "hello"}
    )
    encoded = to_transaction_bytes(transaction)
    lance.LanceDataset.commit(dataset, transaction)
    _, recorded = head(root(dataset))
    assert Transaction.FromString(encoded.message) == recorded
    has_schema = isinstance(
        operation, LanceOperation.Overwrite | LanceOperation.Merge | LanceOperation.Project
    )
    assert encoded.schema_metadata == ((("owner", b"us"),) if has_schema else None)

    again = to_lance_operation(recorded, encoded.schema_metadata)
    assert (
        to_transaction_bytes(
            again,
            read_version=recorded.read_version,
            uuid=recorded.uuid,
            properties=recorded.transaction_properties,
        )
        == encoded
    )


@pytest.mark.parametrize("is_sparse", [False, True], ids=["dense", "sparse"])
def test_an_overlay_keeps_its_coverage(is_sparse: bool) -> None:
    file = DataFile("o.lance", [0, 1], [0, 1], 2, 2, 10, 3)
    offsets: Any = [[1, 2], [3]] if is_sparse else [4, 2]
    overlay = LanceOperation.DataOverlayFile(file, offsets)
    operation = LanceOperation.DataOverlay([LanceOperation.DataOverlayGroup(7, [overlay])])
    encoded = to_transaction_bytes(operation, read_version=1, uuid="u")
    message = Transaction.FromString(encoded.message)
    (group,) = message.data_overlay.groups
    if is_sparse:
        bitmaps = group.overlays[0].field_coverage.offset_bitmaps
        assert [list(BitMap.deserialize(bitmap)) for bitmap in bitmaps] == [[1, 2], [3]]
    else:
        assert list(BitMap.deserialize(group.overlays[0].shared_offset_bitmap)) == [2, 4]
    again = to_lance_operation(message)
    assert to_transaction_bytes(again, read_version=1, uuid="u") == encoded


def test_a_clone_keeps_what_it_refers_to() -> None:
    operation = LanceOperation.Clone(True, None, 3, "/tables/t", "b")
    encoded = to_transaction_bytes(operation, read_version=3, uuid="u")
    message = Transaction.FromString(encoded.message)
    assert not message.clone.HasField("ref_name")
    assert to_lance_operation(message) == operation


def test_a_new_table_keeps_its_base_paths(tmp_path: Path) -> None:
    uri, elsewhere = str(tmp_path / "new"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    base = lance.DatasetBasePath(str(elsewhere), name="cold", is_dataset_root=True, id=3)
    fragments = list(write_fragments(table(0, 5), uri, mode="create"))
    operation = LanceOperation.Overwrite(table(0, 0).schema, fragments, [base])
    transaction = lance.Transaction(0, operation)
    encoded = to_transaction_bytes(transaction)
    lance.LanceDataset.commit(uri, transaction)
    _, recorded = head(tmp_path / "new")
    assert Transaction.FromString(encoded.message) == recorded
    again = to_lance_operation(recorded, encoded.schema_metadata)
    assert to_transaction_bytes(again, read_version=0, uuid=recorded.uuid) == encoded


def test_what_pylance_cannot_say_is_refused() -> None:
    message = Transaction(uuid="u")
    assert unsayable(message) == ("an unknown operation",)
    message.reserve_fragments.num_fragments = 3
    assert unsayable(message) == ("reserve_fragments",)
    message.overwrite.config_upsert_values["a"] = "b"
    message.tag = "t"
    with pytest.raises(NotConstructible, match="tag, overwrite.config_upsert_values"):
        to_lance_operation(message)


def test_fragment_metadata_comes_back_the_same(dataset: lance.LanceDataset) -> None:
    dataset = lance.dataset(dataset.uri)
    state, _ = head(root(dataset))
    for fragment in dataset.get_fragments():
        operation = LanceOperation.Append([fragment.metadata])
        message = to_transaction_bytes(operation, read_version=1, uuid="u").message
        (encoded,) = Transaction.FromString(message).append.fragments
        in_manifest = state.fragments[fragment.fragment_id]
        assert encoded.SerializeToString(deterministic=True) == in_manifest
        again = to_fragment_metadata(encoded)
        assert again.to_json() == fragment.metadata.to_json()


def assert_same_as_object(transaction: Transaction) -> None:
    if unsayable(transaction):
        return
    operation = to_lance_operation(transaction)
    encoded = to_transaction_bytes(
        operation,
        read_version=transaction.read_version,
        uuid=transaction.uuid,
        properties=transaction.transaction_properties,
    )
    assert Transaction.FromString(encoded.message) == transaction


def a_long_history(uri: str, *, stable_row_ids: bool) -> None:
    """Let pylance do one of everything, each in its own way."""
    lance.write_dataset(
        table(0, 40), uri, max_rows_per_file=10, enable_stable_row_ids=stable_row_ids
    )
    dataset = lance.dataset(uri)
    dataset.create_scalar_index("id", "BTREE")
    dataset.insert(table(40, 10))
    dataset.delete("id % 3 = 0")
    dataset.update({"name": "'x'"}, where="id < 9")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
        table(45, 10)
    )
    dataset.update_config({"k": "v", "lance.auto_cleanup.interval": "100"})
    dataset.delete_config_keys(["k"])
    dataset.update_metadata({"m": "1"})
    dataset.update_schema_metadata({"s": "1"})
    dataset.update_field_metadata({"name": {"unit": "word"}})
    dataset.add_columns({"twice": "id * 2"})
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    dataset.insert(table(60, 10).append_column("twice", pa.array([1] * 10)))
    dataset.optimize.optimize_indices()
    dataset.drop_columns(["name"])
    renamed: Any = {"path": "twice", "name": "double"}
    dataset.alter_columns(renamed)
    other = uri + "-base"
    os.makedirs(other)
    dataset.add_bases([lance.DatasetBasePath(other, name="cold")])
    dataset.delete("true")
    lance.write_dataset(table(0, 5), uri, mode="overwrite")
    lance.dataset(uri).checkout_version(3).restore()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable_row_ids"])
def test_each_version_of_a_long_history_is_the_one_before_and_its_delta(
    tmp_path: Path, stable_row_ids: bool
) -> None:
    uri = str(tmp_path / "t")
    a_long_history(uri, stable_row_ids=stable_row_ids)
    newest = lance.dataset(uri).version
    before, _ = read_version(tmp_path / "t", 1)
    built: set[str] = set()
    for version in range(2, newest + 1):
        after, transaction = read_version(tmp_path / "t", version)
        replayed, ours = before.fork(), before.fork()
        delta = diff(before, after)
        apply_delta(replayed, ManifestDelta.from_bytes(delta.to_bytes()))
        assert replayed == after
        assert decode_manifest(encode_manifest(replayed, None)) == (after, None)
        if is_direct(transaction) and not (stable_row_ids and transaction.HasField("update")):
            milliseconds = after.timestamp_nanos // 1_000_000
            apply_delta(ours, direct_delta(before, transaction, timestamp_ms=milliseconds))
            assert_same_version(ours, after)
            built.add(transaction.WhichOneof("operation") or "")
        assert_same_as_object(transaction)
        before = after
    here = {"append", "delete", "reserve_fragments", "rewrite"}
    here |= {"update_config", "update_bases"}
    assert built == (here if stable_row_ids else here | {"update"})
