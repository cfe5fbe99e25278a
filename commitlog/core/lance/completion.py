"""What pylance's Python has no words for: left out of what it builds, put in afterwards.

`sayable` is the transaction that pylance is told; `complete` makes of the manifest that it built
the one that the whole transaction asks for. Three operations that Python cannot name at all ride
on an empty UpdateConfig: pylance carries everything over, indices included, and their own change
follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyroaring import BitMap

from commitlog.core.lance.direct import reserved_maximum
from commitlog.core.manifest.deletion_vectors import portable
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.mem_wal import with_compacted
from commitlog.core.manifest.metadata_changes import newer_form, updated_bases
from commitlog.lancepb.table_pb2 import CompactedSsTable, IndexMetadata, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction

CARRIED = frozenset({"reserve_fragments", "update_bases", "update_mem_wal_state"})
"""Operations that pylance's Python has no object for."""


def sayable(transaction: Transaction) -> Transaction:
    """Return a transaction without what pylance's Python cannot say; the same if that is all."""
    field = transaction.WhichOneof("operation") or ""
    change = _SAYABLE.get(field)
    if field not in CARRIED and change is None and not transaction.tag:
        return transaction
    told = Transaction()
    told.CopyFrom(transaction)
    told.tag = ""
    if field in CARRIED:
        told.update_config.config_updates.SetInParent()
    elif change is not None:
        change(getattr(told, field))
    return told


def schema_metadata(transaction: Transaction) -> tuple[tuple[str, bytes], ...]:
    """Return the schema's own metadata in a message, where Lance itself doesn't look."""
    field = transaction.WhichOneof("operation")
    if field not in ("overwrite", "merge"):
        return ()
    return tuple(sorted(getattr(transaction, field).schema_metadata.items()))


def complete(built: ManifestState, transaction: Transaction) -> None:
    """Put into a manifest what pylance wasn't told of its transaction; raises DeltaRefused."""
    built.tag = transaction.tag
    field = transaction.WhichOneof("operation") or ""
    change = _COMPLETE.get(field)
    if change is not None:
        change(built, transaction)


def _without_metadata(operation: Transaction.Merge) -> None:
    operation.schema_metadata.clear()


def _sayable_overwrite(operation: Transaction.Overwrite) -> None:
    operation.schema_metadata.clear()
    operation.config_upsert_values.clear()


def _sayable_update(operation: Transaction.Update) -> None:
    del operation.compacted_sstables[:]
    operation.ClearField("inserted_rows")
    for fragment_id, offsets in operation.updated_fragment_offsets.items():
        bitmap = portable(BitMap(offsets.values))
        operation.updated_fragment_offset_bitmaps.setdefault(fragment_id, bitmap)
    operation.updated_fragment_offsets.clear()


def _sayable_rewrite(operation: Transaction.Rewrite) -> None:
    for index in operation.rewritten_indices:
        del index.new_index_files[:]
    if operation.old_fragments or operation.new_fragments:
        # The older form, which names fragments itself, is one group.
        group = operation.groups.add()
        group.old_fragments.extend(operation.old_fragments)
        group.new_fragments.extend(operation.new_fragments)
        del operation.old_fragments[:], operation.new_fragments[:]


def _sayable_index(operation: Transaction.CreateIndex) -> None:
    for index in (*operation.new_indices, *operation.removed_indices):
        index.fragment_bitmap = index.fragment_bitmap or portable(BitMap())


def _sayable_config(operation: Transaction.UpdateConfig) -> None:
    operation.CopyFrom(newer_form(operation))


_SAYABLE: dict[str, Callable[[Any], None]] = {
    "overwrite": _sayable_overwrite,
    "merge": _without_metadata,
    "update": _sayable_update,
    "rewrite": _sayable_rewrite,
    "create_index": _sayable_index,
    "update_config": _sayable_config,
}


def _complete_overwrite(built: ManifestState, transaction: Transaction) -> None:
    values = transaction.overwrite.config_upsert_values
    if values:
        manifest = Manifest.FromString(built.header.encoded)
        manifest.config.update(values)
        _put_header(built, ManifestHeader.of(manifest))


def _complete_bases(built: ManifestState, transaction: Transaction) -> None:
    _put_header(built, updated_bases(built.header, transaction.update_bases))


def _put_header(built: ManifestState, header: ManifestHeader) -> None:
    built.header = header
    reader, writer = header.flags
    built.reader_feature_flags |= reader
    built.writer_feature_flags |= writer


def _complete_reserve(built: ManifestState, transaction: Transaction) -> None:
    built.max_fragment_id = reserved_maximum(built, transaction.reserve_fragments)


def _complete_mem_wal(built: ManifestState, transaction: Transaction) -> None:
    _compacted(built, transaction, transaction.update_mem_wal_state.compacted_sstables)


def _complete_update(built: ManifestState, transaction: Transaction) -> None:
    _compacted(built, transaction, transaction.update.compacted_sstables)


def _compacted(
    built: ManifestState, transaction: Transaction, tables: Iterable[CompactedSsTable]
) -> None:
    built.index_section = with_compacted(
        built.index_section,
        tables,
        version=built.version,
        transaction_uuid=transaction.uuid,
        created_at_ms=built.timestamp_nanos // 1_000_000,
    )


def _complete_rewrite(built: ManifestState, transaction: Transaction) -> None:
    files = {i.new_id.uuid: i.new_index_files for i in transaction.rewrite.rewritten_indices}

    def with_files(index: IndexMetadata) -> None:
        if files.get(index.uuid.uuid):
            del index.files[:]
            index.files.extend(files[index.uuid.uuid])

    _change_indices(built, with_files, any(files.values()))


def _complete_index(built: ManifestState, transaction: Transaction) -> None:
    unknown = {i.uuid.uuid for i in transaction.create_index.new_indices if not i.fragment_bitmap}

    def without_bitmap(index: IndexMetadata) -> None:
        if index.uuid.uuid in unknown:
            index.ClearField("fragment_bitmap")

    _change_indices(built, without_bitmap, bool(unknown))


def _change_indices(
    built: ManifestState, change: Callable[[IndexMetadata], None], is_needed: bool
) -> None:
    if is_needed and built.index_section:
        section = IndexSection.FromString(built.index_section)
        for index in section.indices:
            change(index)
        built.index_section = section.SerializeToString(deterministic=True)


_COMPLETE: dict[str, Callable[[ManifestState, Transaction], None]] = {
    "overwrite": _complete_overwrite,
    "update": _complete_update,
    "rewrite": _complete_rewrite,
    "create_index": _complete_index,
    "reserve_fragments": _complete_reserve,
    "update_bases": _complete_bases,
    "update_mem_wal_state": _complete_mem_wal,
}
