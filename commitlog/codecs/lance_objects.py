"""pylance's operation objects as Lance's Transaction message, and back.

`to_transaction` loses nothing that the object holds: what the message has no place for
(schema metadata) is returned beside it. `to_lance_operation` refuses a message that pylance would
build without some of its fields; those can only be taken from the bytes.

pylance has no way of its own to write a transaction down without committing it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from lance import LanceOperation
from lance import Transaction as LanceTransaction
from lance.fragment import DataFile as LanceDataFile
from lance.fragment import FragmentMetadata
from pyroaring import BitMap

from commitlog.codecs.lance_schema import SchemaMetadata, schema_fields
from commitlog.codecs.lanes import ENCODE_APPEND, EncodedAppend
from commitlog.core.manifest.roaring import from_portable, portable
from commitlog.errors import InvalidTransaction
from commitlog.lancepb.table_pb2 import (
    DataFile,
    DataFragment,
    DataOverlayFile,
    DeletionFile,
    IndexMetadata,
)
from commitlog.lancepb.transaction_pb2 import Transaction


class BuiltTransaction(NamedTuple):
    """A transaction as Lance's message."""

    message: Transaction
    schema_metadata: SchemaMetadata | None
    """Schema-level metadata of Overwrite, Merge and Project, which the message drops."""


def to_append(operation: Any, *, read_version: int, uuid: str) -> EncodedAppend | None:
    """Encode an append of plain new fragments in machine code; None: `to_transaction` has to."""
    if ENCODE_APPEND is None or type(operation) is not LanceOperation.Append:
        return None
    return ENCODE_APPEND(operation.fragments, read_version, uuid)


def to_transaction(
    operation: Any,
    *,
    read_version: int | None = None,
    uuid: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> BuiltTransaction:
    """Make a message of one of `lance.LanceOperation` or a whole `lance.Transaction`.

    What the arguments leave open is taken from the transaction, if it is one.
    """
    if isinstance(operation, LanceTransaction):
        whole, operation = operation, operation.operation
        read_version = whole.read_version if read_version is None else read_version
        uuid = whole.uuid if uuid is None else uuid
        properties = whole.transaction_properties if properties is None else properties
    if read_version is None or uuid is None:
        raise InvalidTransaction(
            "the transaction has no read version or uuid",
            field="read_version" if read_version is None else "uuid",
            advice="Pass both, or a lance.Transaction",
        )
    known = _ENCODERS.get(type(operation))
    if known is None:
        raise InvalidTransaction(
            f"{type(operation).__name__} is not an operation",
            field="operation",
            value=operation,
            advice="Pass one of lance.LanceOperation, a lance.Transaction, or Lance's bytes",
        )
    message = Transaction(read_version=read_version, uuid=uuid)
    if properties:
        message.transaction_properties.update(properties)
    field, encode = known
    target = getattr(message, field)
    target.SetInParent()
    return BuiltTransaction(message, encode(target, operation))


def _fragment(metadata: FragmentMetadata) -> DataFragment:
    fragment = DataFragment(
        id=metadata.id,
        physical_rows=metadata.physical_rows or 0,
        files=[_data_file(file) for file in metadata.files],
    )
    if metadata.overlays:
        fragment.overlays.extend(map(_overlay, metadata.overlays))
    if metadata.deletion_file is not None:
        fragment.deletion_file.CopyFrom(to_deletion_file(metadata.deletion_file))
    for name, inline, column in _SEQUENCES:
        source = getattr(metadata, name)
        if source is not None:
            _set_sequence(fragment, json.loads(source.json()), inline, column)
    return fragment


def to_deletion_file(source: Any) -> DeletionFile:
    """Return pylance's description of a deletion file as a message."""
    is_bitmap = source.file_type == "bitmap"
    return DeletionFile(
        file_type=DeletionFile.BITMAP if is_bitmap else DeletionFile.ARROW_ARRAY,
        read_version=source.read_version,
        id=source.id,
        num_deleted_rows=source.num_deleted_rows or 0,
        base_id=source.base_id,
    )


_SEQUENCES = (
    ("row_id_meta", "inline_row_ids", "column_row_ids"),
    (
        "created_at_version_meta",
        "inline_created_at_versions",
        "column_created_at_versions",
    ),
    (
        "last_updated_at_version_meta",
        "inline_last_updated_at_versions",
        "column_last_updated_at_versions",
    ),
)
"""Of a fragment, as pylance calls them and as the message does, inline and as a column."""


def _set_sequence(fragment: DataFragment, sequence: Any, inline: str, column: str) -> None:
    # Row ids say {"Inline": [...]} or "Column", row versions {"inline": [...]} or {"column": {}}.
    content = next(iter(sequence.values())) if isinstance(sequence, dict) else None
    if isinstance(content, list):
        setattr(fragment, inline, bytes(content))
    else:
        getattr(fragment, column).SetInParent()


def _data_file(file: LanceDataFile) -> DataFile:
    return DataFile(
        # The property `path` makes a class at each look, for callers of a method it once was.
        path=getattr(file, "_path", None) or str(file.path),
        fields=file.fields,
        column_indices=file.column_indices,
        file_major_version=file.file_major_version,
        file_minor_version=file.file_minor_version,
        file_size_bytes=file.file_size_bytes or 0,
        base_id=file.base_id,
    )


def _overlay(overlay: LanceOperation.DataOverlayFile) -> DataOverlayFile:
    message = DataOverlayFile(
        data_file=_data_file(overlay.data_file), committed_version=overlay.committed_version or 0
    )
    offsets: list[Any] = list(overlay.offsets)
    if offsets and not isinstance(offsets[0], int):
        for of_field in offsets:
            message.field_coverage.offset_bitmaps.append(_bitmap(of_field))
    else:
        message.shared_offset_bitmap = _bitmap(offsets)
    return message


def _bitmap(offsets: Iterable[int]) -> bytes:
    listed = list(offsets)
    rows = BitMap(listed)
    if len(rows) != len(listed):
        raise InvalidTransaction(
            "an overlay covers a row twice", field="offsets", advice="Name each offset once"
        )
    return portable(rows)


def _index(index: Any) -> IndexMetadata:
    message = IndexMetadata(
        fields=index.fields,
        name=index.name,
        dataset_version=index.dataset_version,
        fragment_bitmap=portable(BitMap(list(index.fragment_ids))),
        index_version=index.index_version,
        base_id=index.base_id,
        covering_fields=index.covering_fields or (),
    )
    message.uuid.uuid = UUID(index.uuid).bytes
    if index.created_at is not None:
        message.created_at = round(index.created_at.timestamp() * 1_000_000) // 1000
    if index.index_details is not None:
        message.index_details.type_url, message.index_details.value = index.index_details
    for file in index.files or ():
        message.files.add(path=file.path, size_bytes=file.size_bytes)
    return message


def _update_map(target: Transaction.UpdateMap, source: LanceOperation.UpdateMap) -> None:
    target.SetInParent()
    target.replace = source.replace
    for key, value in source.updates.items():
        target.update_entries.add(key=key, value=value)


def _encode_append(target: Transaction.Append, operation: LanceOperation.Append) -> None:
    target.fragments.extend(map(_fragment, operation.fragments))


def _encode_delete(target: Transaction.Delete, operation: LanceOperation.Delete) -> None:
    target.predicate = operation.predicate
    target.deleted_fragment_ids.extend(operation.deleted_fragment_ids)
    target.updated_fragments.extend(map(_fragment, operation.updated_fragments))


def _encode_overwrite(
    target: Transaction.Overwrite, operation: LanceOperation.Overwrite
) -> SchemaMetadata:
    fields, metadata = schema_fields(operation.new_schema)
    target.schema.extend(fields)
    target.fragments.extend(map(_fragment, operation.fragments))
    for base in operation.initial_bases or ():
        target.initial_bases.add(
            id=base.id, name=base.name, is_dataset_root=base.is_dataset_root, path=base.path
        )
    return metadata


def _encode_create_index(
    target: Transaction.CreateIndex, operation: LanceOperation.CreateIndex
) -> None:
    target.new_indices.extend(map(_index, operation.new_indices))
    target.removed_indices.extend(map(_index, operation.removed_indices))


def _encode_rewrite(target: Transaction.Rewrite, operation: LanceOperation.Rewrite) -> None:
    for group in operation.groups:
        target.groups.add(
            old_fragments=map(_fragment, group.old_fragments),
            new_fragments=map(_fragment, group.new_fragments),
        )
    for index in operation.rewritten_indices:
        rewritten = target.rewritten_indices.add(new_index_version=index.new_index_version)
        rewritten.old_id.uuid = UUID(index.old_id).bytes
        rewritten.new_id.uuid = UUID(index.new_id).bytes
        rewritten.new_index_details.type_url = index.new_details_type_url
        rewritten.new_index_details.value = bytes(index.new_details_value)


def _encode_merge(target: Transaction.Merge, operation: LanceOperation.Merge) -> SchemaMetadata:
    fields, metadata = schema_fields(operation.schema)
    target.schema.extend(fields)
    target.fragments.extend(map(_fragment, operation.fragments))
    target.preserves_nullability = operation.preserves_nullability
    return metadata


def _encode_project(
    target: Transaction.Project, operation: LanceOperation.Project
) -> SchemaMetadata:
    fields, metadata = schema_fields(operation.schema)
    target.schema.extend(fields)
    target.preserves_nullability = operation.preserves_nullability
    return metadata


def _encode_restore(target: Transaction.Restore, operation: LanceOperation.Restore) -> None:
    target.version = operation.version


def _encode_clone(target: Transaction.Clone, operation: LanceOperation.Clone) -> None:
    target.CopyFrom(
        Transaction.Clone(
            is_shallow=operation.is_shallow,
            ref_name=operation.ref_name,
            ref_version=operation.ref_version,
            ref_path=operation.ref_path,
            branch_name=operation.branch_name,
        )
    )


_UPDATE_MODES = {
    "": Transaction.REWRITE_ROWS,
    "rewrite_rows": Transaction.REWRITE_ROWS,
    "rewrite_columns": Transaction.REWRITE_COLUMNS,
}


def _encode_update(target: Transaction.Update, operation: LanceOperation.Update) -> None:
    mode = _UPDATE_MODES.get(operation.update_mode or "")
    if mode is None:
        raise InvalidTransaction(
            f"the update mode {operation.update_mode!r} is unknown",
            field="update_mode",
            value=operation.update_mode,
            advice=f"Use one of {sorted(_UPDATE_MODES)}",
        )
    target.update_mode = mode
    target.removed_fragment_ids.extend(operation.removed_fragment_ids)
    target.updated_fragments.extend(map(_fragment, operation.updated_fragments))
    target.new_fragments.extend(map(_fragment, operation.new_fragments))
    target.fields_modified.extend(operation.fields_modified)
    target.fields_for_preserving_frag_bitmap.extend(operation.fields_for_preserving_frag_bitmap)
    for fragment_id, offsets in (operation.updated_fragment_offsets or {}).items():
        rows = from_portable(bytes(offsets))
        if rows:
            target.updated_fragment_offset_bitmaps[fragment_id] = portable(rows)


def _encode_update_config(
    target: Transaction.UpdateConfig, operation: LanceOperation.UpdateConfig
) -> None:
    if operation.config_updates is not None:
        _update_map(target.config_updates, operation.config_updates)
    if operation.table_metadata_updates is not None:
        _update_map(target.table_metadata_updates, operation.table_metadata_updates)
    if operation.schema_metadata_updates is not None:
        _update_map(target.schema_metadata_updates, operation.schema_metadata_updates)
    for field_id, updates in (operation.field_metadata_updates or {}).items():
        _update_map(target.field_metadata_updates[field_id], updates)


def _encode_data_replacement(
    target: Transaction.DataReplacement, operation: LanceOperation.DataReplacement
) -> None:
    for group in operation.replacements:
        file = _data_file(group.new_file)
        target.replacements.add(fragment_id=group.fragment_id, new_file=file)


def _encode_data_overlay(
    target: Transaction.DataOverlay, operation: LanceOperation.DataOverlay
) -> None:
    for group in operation.groups:
        overlays = map(_overlay, group.overlays)
        target.groups.add(fragment_id=group.fragment_id, overlays=overlays)


_ENCODERS: dict[type, tuple[str, Callable[[Any, Any], SchemaMetadata | None]]] = {
    LanceOperation.Append: ("append", _encode_append),
    LanceOperation.Delete: ("delete", _encode_delete),
    LanceOperation.Overwrite: ("overwrite", _encode_overwrite),
    LanceOperation.CreateIndex: ("create_index", _encode_create_index),
    LanceOperation.Rewrite: ("rewrite", _encode_rewrite),
    LanceOperation.Merge: ("merge", _encode_merge),
    LanceOperation.Project: ("project", _encode_project),
    LanceOperation.Restore: ("restore", _encode_restore),
    LanceOperation.Clone: ("clone", _encode_clone),
    LanceOperation.Update: ("update", _encode_update),
    LanceOperation.UpdateConfig: ("update_config", _encode_update_config),
    LanceOperation.DataReplacement: ("data_replacement", _encode_data_replacement),
    LanceOperation.DataOverlay: ("data_overlay", _encode_data_overlay),
}
"""The field of each operation in the message, and what fills it."""
