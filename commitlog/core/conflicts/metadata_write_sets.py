"""What changes of schema, config, indices, shards and bases touch, in the history's words."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.history import Aspect
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.lancepb.table_pb2 import CompactedSsTable, IndexMetadata, MemWalIndexDetails
from commitlog.lancepb.transaction_pb2 import Transaction


class Writes(NamedTuple):
    """What an operation touches, besides keys."""

    aspects: tuple[Aspect, ...] = ()
    notes: tuple[tuple[Aspect, Any], ...] = ()
    deletion_files: tuple[tuple[int, str], ...] = ()


NOTHING = Writes()


def generations(kind: str, tables: Iterable[CompactedSsTable]) -> tuple[tuple[Aspect, Any], ...]:
    """Return the generations that MemWAL shards come to, one by one and together."""
    notes = [((f"{kind}.shard", t.shard_id.uuid), t.generation) for t in tables]
    if not notes:
        return ()
    together = Transaction.UpdateMemWalState(compacted_sstables=tables)
    encoded = together.SerializeToString(deterministic=True).hex()
    return (*notes, ((f"{kind}.compacted", ""), encoded))


def config_changes(operation: Transaction.UpdateConfig) -> tuple[set[str], set[str], bool]:
    """Return the config keys that are set, those that are removed, and whether all are replaced."""
    updates = operation.config_updates
    entries = updates.update_entries
    upserts = {e.key for e in entries if e.HasField("value")} | set(operation.upsert_values)
    deletes = {e.key for e in entries if not e.HasField("value")} | set(operation.delete_keys)
    return upserts, deletes, updates.replace


def field_metadata_ids(operation: Transaction.UpdateConfig) -> set[int]:
    """Return the fields whose metadata change."""
    return {*operation.field_metadata_updates, *operation.field_metadata}


def sets_schema_metadata(operation: Transaction.UpdateConfig) -> bool:
    """Say whether schema metadata are updated, be it by nothing."""
    return operation.HasField("schema_metadata_updates") or bool(operation.schema_metadata)


def changes_schema(operation: Transaction.UpdateConfig) -> bool:
    """Say whether schema or field metadata really change (pre-checks P2 and P3)."""
    maps = [operation.schema_metadata_updates, *operation.field_metadata_updates.values()]
    return bool(
        any(m.update_entries or m.replace for m in maps)
        or operation.schema_metadata
        or operation.field_metadata
    )


def update_config(operation: Transaction.UpdateConfig, before: ManifestState) -> Writes:
    """An UpdateConfig, in either form."""
    upserts, deletes, replaces = config_changes(operation)
    aspects: list[Aspect] = [("UpdateConfig.upserted", key) for key in sorted(upserts)]
    aspects.extend(("UpdateConfig.deleted", key) for key in sorted(deletes))
    if replaces:
        aspects.append(("UpdateConfig.replaced", ""))
    if upserts or deletes or replaces:
        aspects.append(("UpdateConfig.config", ""))
    if operation.HasField("table_metadata_updates"):
        updates = operation.table_metadata_updates
        aspects.append(("UpdateConfig.table_metadata", ""))
        keys = sorted({entry.key for entry in updates.update_entries})
        aspects.extend(("UpdateConfig.table_metadata_key", key) for key in keys)
        if updates.replace:
            aspects.append(("UpdateConfig.table_metadata_replaced", ""))
    if sets_schema_metadata(operation):
        aspects.append(("UpdateConfig.schema_metadata", ""))
    fields = sorted(field_metadata_ids(operation))
    aspects.extend(("UpdateConfig.field_metadata", field) for field in fields)
    if changes_schema(operation):
        aspects.append(("UpdateConfig.schema", ""))
    return Writes(tuple(aspects))


def overwrite(operation: Transaction.Overwrite, before: ManifestState) -> Writes:
    """An Overwrite: the config keys that it sets."""
    return Writes(
        tuple(("Overwrite.upserted", key) for key in sorted(operation.config_upsert_values))
    )


def _dropped_fields(kind: str, fields: Iterable[Any], before: ManifestState) -> list[Aspect]:
    kept = {field.id for field in fields}
    return [(f"{kind}.dropped", f) for f in sorted(before.header.fields) if f not in kept]


def merge(operation: Transaction.Merge, before: ManifestState) -> Writes:
    """A Merge: the fields that it drops, and whether columns may have become non-nullable."""
    aspects = _dropped_fields("Merge", operation.schema, before)
    if not operation.preserves_nullability:
        aspects.append(("Merge.nullability", ""))
    return Writes(tuple(aspects))


def project(operation: Transaction.Project, before: ManifestState) -> Writes:
    """A Project: the fields that it drops, and whether columns may have become non-nullable."""
    aspects = _dropped_fields("Project", operation.schema, before)
    if not operation.preserves_nullability:
        aspects.append(("Project.nullability", ""))
    return Writes(tuple(aspects))


def covered_fragments(index: IndexMetadata) -> BitMap | None:
    """Return the fragments that an index covers, None if it doesn't say."""
    bitmap = index.fragment_bitmap
    return BitMap.deserialize(bitmap) if bitmap else None


def create_index(operation: Transaction.CreateIndex, before: ManifestState) -> Writes:
    """A CreateIndex: names, segments, fields, and the fragments that are covered."""
    created = dict.fromkeys(index.name for index in operation.new_indices)
    removed = dict.fromkeys(index.name for index in operation.removed_indices)
    aspects: list[Aspect] = [("CreateIndex.created", name) for name in created]
    aspects.extend(("CreateIndex.added", name) for name in created if name not in removed)
    aspects.extend(("CreateIndex.removed", name) for name in removed)
    for index in operation.removed_indices:
        aspects.append(("CreateIndex.uuid", index.uuid.uuid))
        if index.name in created:
            aspects.append(("CreateIndex.replaced_uuid", index.uuid.uuid))
    for index in operation.new_indices:
        aspects.extend(("CreateIndex.field", field_id) for field_id in index.fields)
    if FRAGMENT_REUSE_INDEX in created and (
        len(operation.new_indices) != 1 or len(operation.removed_indices) != 1
    ):
        aspects.append(("CreateIndex.reuse_mixed", ""))
    notes: list[tuple[Aspect, Any]] = []
    for index in operation.new_indices:
        if index.name == MEM_WAL_INDEX:
            details = MemWalIndexDetails.FromString(index.index_details.value)
            notes.extend(generations("CreateIndex", details.compacted_sstables))
    aspects.extend(aspect for aspect, _ in notes)
    if created and FRAGMENT_REUSE_INDEX not in created:
        covers = [covered_fragments(index) for index in operation.new_indices]
        bitmaps = [bitmap for bitmap in covers if bitmap is not None]
        union = BitMap.union(*bitmaps) if bitmaps else BitMap()
        covered = None if len(bitmaps) < len(covers) else union.serialize().hex()
        notes.append((("CreateIndex.covers", ""), covered))
        aspects.append(("CreateIndex.covers", ""))
    return Writes(tuple(dict.fromkeys(aspects)), tuple(notes))


def update_mem_wal_state(operation: Transaction.UpdateMemWalState, before: ManifestState) -> Writes:
    """An UpdateMemWalState: its shards."""
    notes = generations("UpdateMemWalState", operation.compacted_sstables)
    return Writes(tuple(aspect for aspect, _ in notes), notes)


def update_bases(operation: Transaction.UpdateBases, before: ManifestState) -> Writes:
    """An UpdateBases: ids, names and paths."""
    aspects: list[Aspect] = []
    for base in operation.new_bases:
        if base.id:
            aspects.append(("UpdateBases.id", base.id))
        if base.HasField("name"):
            aspects.append(("UpdateBases.name", base.name))
        aspects.append(("UpdateBases.path", base.path))
    return Writes(tuple(aspects))
