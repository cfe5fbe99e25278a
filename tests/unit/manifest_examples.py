"""Small manifests and transactions for tests that need no dataset."""

from __future__ import annotations

from collections.abc import Sequence

from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragments import Fragments
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import DataFile, DataFragment, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction

UUID = "11111111-2222-4333-8444-555555555555"


def fragment(fragment_id: int = 0, *, rows: int = 10, deleted: int = 0) -> DataFragment:
    made = DataFragment(id=fragment_id, physical_rows=rows)
    made.files.append(data_file(f"{fragment_id}.lance"))
    if deleted:
        made.deletion_file.id = 1
        made.deletion_file.num_deleted_rows = deleted
    return made


def data_file(path: str = "a.lance", fields: Sequence[int] = (0, 1)) -> DataFile:
    return DataFile(
        path=path,
        fields=fields,
        column_indices=range(len(fields)),
        file_major_version=2,
        file_minor_version=2,
        file_size_bytes=100,
    )


def state(
    *fragments: DataFragment,
    version: int = 5,
    max_fragment_id: int | None = None,
    stable_row_ids: bool = False,
    next_row_id: int = 0,
    indices: IndexSection | None = None,
) -> ManifestState:
    """A table of the fields id (0, required) and name (1)."""
    flags = FLAG_STABLE_ROW_IDS if stable_row_ids else 0
    manifest = Manifest(
        version=version,
        max_fragment_id=max_fragment_id,
        next_row_id=next_row_id,
        reader_feature_flags=flags,
        writer_feature_flags=flags,
    )
    manifest.fields.add(name="id", id=0, parent_id=-1, logical_type="int64")
    manifest.fields.add(name="name", id=1, parent_id=-1, logical_type="string", nullable=True)
    manifest.data_format.file_format = "lance"
    manifest.data_format.version = "2.2"
    manifest.writer_version.library = "lance"
    manifest.writer_version.version = "14.0.2"
    encoded = Fragments(f.SerializeToString(deterministic=True) for f in fragments)
    return ManifestState.of(manifest, encoded, indices.SerializeToString() if indices else None)


def append(*fragments: DataFragment, read_version: int = 5) -> Transaction:
    transaction = Transaction(read_version=read_version, uuid=UUID)
    transaction.append.SetInParent()
    transaction.append.fragments.extend(fragments)
    return transaction


def delete(*updated: DataFragment, removed: Sequence[int] = ()) -> Transaction:
    transaction = Transaction(read_version=5, uuid=UUID)
    transaction.delete.predicate = "true"
    transaction.delete.updated_fragments.extend(updated)
    transaction.delete.deleted_fragment_ids.extend(removed)
    return transaction
