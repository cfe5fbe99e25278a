"""Lance's Transaction message as pylance's operation objects, for pylance to build a manifest.

What pylance's Python cannot say (`unsayable`) is refused rather than dropped: an operation that
committed without a part of it would be another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from lance import DatasetBasePath, LanceOperation
from lance.bitmap import Bitmap
from lance.dataset import Index, IndexFile
from lance.fragment import DataFile as LanceDataFile
from lance.fragment import DeletionFile as LanceDeletionFile
from lance.fragment import FragmentMetadata, RowDatasetVersionMeta, RowIdMeta
from lance.schema import LanceSchema
from pyroaring import BitMap

from commitlog.codecs.lance_schema import SchemaMetadata
from commitlog.core.manifest.roaring import from_portable, portable
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import (
    DataFile,
    DataFragment,
    DataOverlayFile,
    DeletionFile,
    IndexMetadata,
)
from commitlog.lancepb.transaction_pb2 import Transaction


class NotConstructible(UnsupportedFormat):
    """pylance's Python has no object for this transaction; `parts` says for what of it."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        super().__init__(f"pylance cannot construct {', '.join(parts)}")
        self.parts = parts


def unsayable(transaction: Transaction) -> tuple[str, ...]:
    """Return the parts of a transaction that pylance's Python has no words for."""
    operation = transaction.WhichOneof("operation")
    if operation not in _DECODERS and operation not in _WITH_SCHEMA:
        return (operation or "an unknown operation",)
    parts = ["tag"] if transaction.tag else []
    if operation == "overwrite" and transaction.overwrite.config_upsert_values:
        parts.append("overwrite.config_upsert_values")
    if operation == "update" and transaction.update.compacted_sstables:
        parts.append("update.compacted_sstables")
    if operation == "update" and transaction.update.HasField("inserted_rows"):
        parts.append("update.inserted_rows")
    if operation == "rewrite" and any(
        index.new_index_files for index in transaction.rewrite.rewritten_indices
    ):
        parts.append("rewrite.rewritten_indices.new_index_files")
    if operation == "create_index":
        indices = (*transaction.create_index.new_indices, *transaction.create_index.removed_indices)
        if not all(index.fragment_bitmap for index in indices):
            parts.append("an index without fragment_bitmap")
    return tuple(parts)


def to_lance_operation(
    transaction: Transaction, schema_metadata: SchemaMetadata | None = None
) -> LanceOperation.BaseOperation:
    """Return the operation as pylance's object; `schema_metadata` is what the message dropped."""
    parts = unsayable(transaction)
    if parts:
        raise NotConstructible(parts)
    which = transaction.WhichOneof("operation") or ""
    operation = getattr(transaction, which)
    if which in _WITH_SCHEMA:
        return _WITH_SCHEMA[which](operation, _schema(operation.schema, schema_metadata or ()))
    return _DECODERS[which](operation)


def to_fragment_metadata(fragment: DataFragment) -> FragmentMetadata:
    """Return a fragment as pylance's object."""
    deletion_file = None
    if fragment.HasField("deletion_file"):
        source = fragment.deletion_file
        is_bitmap = source.file_type == DeletionFile.BITMAP
        deletion_file = LanceDeletionFile(
            source.read_version,
            source.id,
            "bitmap" if is_bitmap else "array",
            source.num_deleted_rows,
            source.base_id if source.HasField("base_id") else None,
        )
    return FragmentMetadata(
        id=fragment.id,
        files=[_data_file(file) for file in fragment.files],
        physical_rows=fragment.physical_rows,
        deletion_file=deletion_file,
        row_id_meta=_row_ids(fragment),
        created_at_version_meta=_versions(fragment, "created_at"),
        last_updated_at_version_meta=_versions(fragment, "last_updated_at"),
        overlays=[_overlay(overlay) for overlay in fragment.overlays],
    )


# pylance's stub declares this static method as if it took an instance.
_row_id_meta: Callable[[str], RowIdMeta] = getattr(RowIdMeta, "from_json")  # noqa: B009


def _row_ids(fragment: DataFragment) -> RowIdMeta | None:
    if fragment.HasField("inline_row_ids"):
        return _row_id_meta(json.dumps({"Inline": list(fragment.inline_row_ids)}))
    return _row_id_meta('"Column"') if fragment.HasField("column_row_ids") else None


def _versions(fragment: DataFragment, kind: str) -> RowDatasetVersionMeta | None:
    which = fragment.WhichOneof(f"{kind}_version_sequence")
    if which is None:
        return None
    if which.startswith("column_"):
        return RowDatasetVersionMeta.from_json('{"column": {}}')
    content = list(getattr(fragment, which))
    return RowDatasetVersionMeta.from_json(json.dumps({"inline": content}))


def _fragments(fragments: Iterable[DataFragment]) -> list[FragmentMetadata]:
    return [to_fragment_metadata(fragment) for fragment in fragments]


def _data_file(file: DataFile) -> LanceDataFile:
    return LanceDataFile(
        file.path,
        list(file.fields),
        list(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes or None,
        file.base_id if file.HasField("base_id") else None,
    )


def _overlay(overlay: DataOverlayFile) -> LanceOperation.DataOverlayFile:
    offsets: Any
    if overlay.HasField("field_coverage"):
        offsets = [_offsets(bitmap) for bitmap in overlay.field_coverage.offset_bitmaps]
    else:
        offsets = _offsets(overlay.shared_offset_bitmap)
    return LanceOperation.DataOverlayFile(
        _data_file(overlay.data_file), offsets, overlay.committed_version or None
    )


def _offsets(bitmap: bytes) -> list[int]:
    return list(from_portable(bitmap))


def _schema(fields: Iterable[Field], metadata: SchemaMetadata) -> LanceSchema:
    text = json.dumps({key: list(value) for key, value in metadata})
    return LanceSchema._from_protos(text, *(field.SerializeToString() for field in fields))


def _index(index: IndexMetadata) -> Index:
    created_at = None
    if index.HasField("created_at"):
        created_at = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=index.created_at)
    details = None
    if index.HasField("index_details"):
        details = (index.index_details.type_url, index.index_details.value)
    return Index(
        uuid=str(UUID(bytes=index.uuid.uuid)),
        name=index.name,
        fields=list(index.fields),
        dataset_version=index.dataset_version,
        fragment_ids=Bitmap(_offsets(index.fragment_bitmap)),
        index_version=index.index_version,
        created_at=created_at,
        base_id=index.base_id if index.HasField("base_id") else None,
        files=[IndexFile(file.path, file.size_bytes) for file in index.files] or None,
        index_details=details,
        covering_fields=list(index.covering_fields),
    )


def _update_map(updates: Transaction.UpdateMap) -> LanceOperation.UpdateMap:
    return LanceOperation.UpdateMap(
        {
            entry.key: entry.value if entry.HasField("value") else None
            for entry in updates.update_entries
        },
        updates.replace,
    )


def _delete(operation: Transaction.Delete) -> LanceOperation.BaseOperation:
    return LanceOperation.Delete(
        _fragments(operation.updated_fragments),
        list(operation.deleted_fragment_ids),
        operation.predicate,
    )


def _overwrite(
    operation: Transaction.Overwrite, schema: LanceSchema
) -> LanceOperation.BaseOperation:
    bases = [
        DatasetBasePath(
            base.path,
            name=base.name if base.HasField("name") else None,
            is_dataset_root=base.is_dataset_root,
            id=base.id,
        )
        for base in operation.initial_bases
    ]
    return LanceOperation.Overwrite(schema, _fragments(operation.fragments), bases or None)


def _merge(operation: Transaction.Merge, schema: LanceSchema) -> LanceOperation.BaseOperation:
    fragments = _fragments(operation.fragments)
    return LanceOperation.Merge(fragments, schema, operation.preserves_nullability)


def _create_index(operation: Transaction.CreateIndex) -> LanceOperation.BaseOperation:
    return LanceOperation.CreateIndex(
        [_index(index) for index in operation.new_indices],
        [_index(index) for index in operation.removed_indices],
    )


def _rewrite(operation: Transaction.Rewrite) -> LanceOperation.BaseOperation:
    groups = [
        LanceOperation.RewriteGroup(
            _fragments(source.old_fragments), _fragments(source.new_fragments)
        )
        # Without groups it is the older form, which is one group itself.
        for source in (operation.groups or [operation])
    ]
    rewritten = [
        LanceOperation.RewrittenIndex(
            str(UUID(bytes=index.old_id.uuid)),
            str(UUID(bytes=index.new_id.uuid)),
            index.new_index_details.type_url,
            index.new_index_details.value,
            index.new_index_version,
        )
        for index in operation.rewritten_indices
    ]
    return LanceOperation.Rewrite(groups, rewritten)


def _clone(operation: Transaction.Clone) -> LanceOperation.BaseOperation:
    return LanceOperation.Clone(
        operation.is_shallow,
        operation.ref_name if operation.HasField("ref_name") else None,
        operation.ref_version,
        operation.ref_path,
        operation.branch_name if operation.HasField("branch_name") else None,
    )


def _update(operation: Transaction.Update) -> LanceOperation.BaseOperation:
    offsets = dict(operation.updated_fragment_offset_bitmaps) or {
        fragment_id: portable(BitMap(offsets.values))
        for fragment_id, offsets in operation.updated_fragment_offsets.items()
    }
    is_columns = operation.update_mode == Transaction.REWRITE_COLUMNS
    return LanceOperation.Update(
        removed_fragment_ids=list(operation.removed_fragment_ids),
        updated_fragments=_fragments(operation.updated_fragments),
        new_fragments=_fragments(operation.new_fragments),
        fields_modified=list(operation.fields_modified),
        fields_for_preserving_frag_bitmap=list(operation.fields_for_preserving_frag_bitmap),
        update_mode="rewrite_columns" if is_columns else "rewrite_rows",
        updated_fragment_offsets=offsets or None,
    )


def _update_config(operation: Transaction.UpdateConfig) -> LanceOperation.BaseOperation:
    if (
        operation.upsert_values
        or operation.delete_keys
        or operation.schema_metadata
        or operation.field_metadata
    ):
        raise NotConstructible(("the older form of update_config",))

    def updates(name: str) -> LanceOperation.UpdateMap | None:
        present = operation.HasField(name)
        return _update_map(getattr(operation, name)) if present else None

    fields = operation.field_metadata_updates
    return LanceOperation.UpdateConfig(
        updates("config_updates"),
        updates("table_metadata_updates"),
        updates("schema_metadata_updates"),
        {field_id: _update_map(fields[field_id]) for field_id in fields} or None,
    )


def _data_replacement(operation: Transaction.DataReplacement) -> LanceOperation.BaseOperation:
    return LanceOperation.DataReplacement(
        [
            LanceOperation.DataReplacementGroup(group.fragment_id, _data_file(group.new_file))
            for group in operation.replacements
        ]
    )


def _data_overlay(operation: Transaction.DataOverlay) -> LanceOperation.BaseOperation:
    return LanceOperation.DataOverlay(
        [
            LanceOperation.DataOverlayGroup(group.fragment_id, list(map(_overlay, group.overlays)))
            for group in operation.groups
        ]
    )


_WITH_SCHEMA: dict[str, Callable[[Any, LanceSchema], LanceOperation.BaseOperation]] = {
    "overwrite": _overwrite,
    "merge": _merge,
    "project": lambda operation, schema: LanceOperation.Project(
        schema, operation.preserves_nullability
    ),
}
_DECODERS: dict[str, Callable[[Any], LanceOperation.BaseOperation]] = {
    "append": lambda operation: LanceOperation.Append(_fragments(operation.fragments)),
    "delete": _delete,
    "create_index": _create_index,
    "rewrite": _rewrite,
    "restore": lambda operation: LanceOperation.Restore(operation.version),
    "clone": _clone,
    "update": _update,
    "update_config": _update_config,
    "data_replacement": _data_replacement,
    "data_overlay": _data_overlay,
}
