"""Deletion files that pylance wrote, and rebased deletes that pylance reads."""

from __future__ import annotations

import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, encode_manifest, manifest_name
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.deletion_vectors import deletion_file_path, merge_deletions
from commitlog.core.manifest.manifest_state import apply_delta
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.conformance.lance_history import assert_same_version, head, read_version, validate
from tests.lance_messages import to_transaction_bytes


def dataset_of(folder: Path, rows: int) -> lance.LanceDataset:
    return lance.write_dataset(pa.table({"id": list(range(rows))}), str(folder))


def deleted_rows(root: Path, fragment: DataFragment) -> BitMap:
    if not fragment.HasField("deletion_file"):
        return BitMap()
    path = root / deletion_file_path(fragment.id, fragment.deletion_file)
    return decode_deletion_file(path.read_bytes(), fragment.deletion_file.file_type)


@pytest.mark.parametrize(
    ("predicate", "file_type"),
    [("id % 1000 = 7", DeletionFile.ARROW_ARRAY), ("id % 10 != 3", DeletionFile.BITMAP)],
)
def test_both_formats_are_read(
    tmp_path: Path, predicate: str, file_type: DeletionFile.DeletionFileType
) -> None:
    dataset = dataset_of(tmp_path, 100_000)
    dataset.delete(predicate)
    state, _ = head(tmp_path)
    fragment = DataFragment.FromString(state.fragments[0])
    assert fragment.deletion_file.file_type == file_type
    expected = set(range(100_000)) - set(dataset.to_table()["id"].to_pylist())
    assert set(deleted_rows(tmp_path, fragment)) == expected


def test_a_delete_is_rebased_as_pylance_would(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "pylance"
    for root in (ours, theirs):
        dataset = dataset_of(root, 50)
        stale = lance.dataset(str(root))
        lance.dataset(str(root)).delete("id % 7 = 0")
        if root is theirs:
            stale.delete("id % 5 = 1")
        else:
            rebase(stale, "id % 5 = 1")
        dataset = lance.dataset(str(root))
        validate(dataset)
        expected = [i for i in range(50) if i % 7 and i % 5 != 1]
        assert dataset.to_table()["id"].to_pylist() == expected
    built, _ = head(ours)
    theirs_state, _ = head(theirs)
    images = [DataFragment.FromString(s.fragments[0]) for s in (built, theirs_state)]
    assert images[0].deletion_file.read_version == images[1].deletion_file.read_version == 2
    # Ours is always a bitmap; pylance chooses by the number of rows.
    assert images[0].deletion_file.file_type == DeletionFile.BITMAP
    assert deleted_rows(ours, images[0]) == deleted_rows(theirs, images[1])
    assert built.transaction_file.split("-")[0] == theirs_state.transaction_file.split("-")[0]


def rebase(stale: lance.LanceDataset, predicate: str) -> None:
    root = Path(stale.uri.removeprefix("file://"))
    after = stale.get_fragments()[0].delete(predicate)
    assert after is not None
    operation = lance.LanceOperation.Delete([after], [], predicate)
    name = str(uuid.uuid4())
    encoded = to_transaction_bytes(operation, read_version=stale.version, uuid=name)
    transaction = Transaction.FromString(encoded.message)
    (image,) = transaction.delete.updated_fragments
    state, _ = head(root)
    before, _ = read_version(root, stale.version)
    at_read = deleted_rows(root, DataFragment.FromString(before.fragments[0]))
    affected = deleted_rows(root, image) - at_read
    merged = merge_deletions(
        state.fragments[0],
        deleted_rows(root, DataFragment.FromString(state.fragments[0])),
        affected,
        read_version=state.version,
        transaction_id=name,
    )
    assert merged.fragment is not None
    (root / merged.path).write_bytes(merged.data)
    image.CopyFrom(DataFragment.FromString(merged.fragment))
    transaction.read_version = state.version
    apply_delta(state, direct_delta(state, transaction, timestamp_ms=1))
    message = transaction.SerializeToString(deterministic=True)
    path = root / VERSIONS_DIRECTORY / manifest_name(state.version)
    path.write_bytes(encode_manifest(state, message))
    reopened, _ = head(root)
    assert_same_version(state, reopened)
