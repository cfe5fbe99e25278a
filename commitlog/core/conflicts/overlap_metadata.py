"""The rules that the grid's lower-case cells name, for schema, config, shards and bases."""

from __future__ import annotations

from commitlog.core.conflicts.candidate import Candidate, Finding, Nearest, Verdict
from commitlog.core.conflicts.config_changes import (
    changes_schema,
    config_changes,
    field_metadata_ids,
    sets_schema_metadata,
)
from commitlog.core.conflicts.history import History


def nullability_committed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P1: values written, over a Merge or Project that may have made a column non-nullable."""
    nearest = Nearest("nullability_not_preserved")
    nearest.offer(history.first(f"{kind}.nullability", "", after))
    return nearest.finding


def nullability_asked(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P1: a Project that may make a column non-nullable, over values written.

    Unless its writer looks for nulls in these too.
    """
    nearest = Nearest("nullability_not_preserved")
    if not candidate.operation.preserves_nullability and not candidate.awaits_columns:
        nearest.offer(history.first_of_kind(kind, after))
    return nearest.finding


def columns_incomplete(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A Merge over new rows or values, unless its writer computes its columns for these too."""
    nearest = Nearest("always")
    if not candidate.awaits_columns:
        nearest.offer(history.first_of_kind(kind, after))
    return nearest.finding


def schema_metadata_committed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P2: a Merge over an UpdateConfig of schema or field metadata."""
    nearest = Nearest("schema_metadata_changed")
    nearest.offer(history.first("UpdateConfig.schema", "", after))
    return nearest.finding


def schema_metadata_asked(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P2: an UpdateConfig of schema or field metadata, over a Merge."""
    nearest = Nearest("schema_metadata_changed")
    if changes_schema(candidate.operation):
        nearest.offer(history.first_of_kind(kind, after))
    return nearest.finding


def schema_metadata_undone(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P3: a Restore over an UpdateConfig of schema or field metadata."""
    nearest = Nearest("schema_metadata_changed", Verdict.INCOMPATIBLE)
    nearest.offer(history.first("UpdateConfig.schema", "", after))
    return nearest.finding


def schema_metadata_restored(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """P3: an UpdateConfig of schema or field metadata, over a Restore."""
    nearest = Nearest("schema_metadata_changed", Verdict.INCOMPATIBLE)
    if changes_schema(candidate.operation):
        nearest.offer(history.first_of_kind(kind, after))
    return nearest.finding


def overwrite_over_overwrite(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """Overwrite over Overwrite: retryable, and incompatible where both set a config key."""
    nearest = Nearest("same_config_key", Verdict.INCOMPATIBLE)
    for key in sorted(candidate.operation.config_upsert_values):
        nearest.offer(history.first("Overwrite.upserted", key, after), key=key)
    first = history.first_of_kind(kind, after)
    nearest.offer(first, rule="overwritten", verdict=Verdict.RETRYABLE)
    return nearest.finding


def overwrite_over_config(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """An Overwrite that sets config keys, over an UpdateConfig of the same keys."""
    nearest = Nearest("same_config_key", Verdict.INCOMPATIBLE)
    for key in sorted(candidate.operation.config_upsert_values):
        _offer_config_key(nearest, history, key, after, is_upsert=True)
    return nearest.finding


def config_over_overwrite(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """An UpdateConfig over an Overwrite, which made another schema, or set the same config key."""
    nearest = Nearest("same_config_key", Verdict.INCOMPATIBLE)
    operation = candidate.operation
    if sets_schema_metadata(operation) or field_metadata_ids(operation):
        nearest.offer(history.first_of_kind(kind, after), rule="schema_replaced")
    upserts, deletes, _ = config_changes(operation)
    for key in sorted(upserts | deletes):
        nearest.offer(history.first("Overwrite.upserted", key, after), key=key)
    return nearest.finding


def _offer_config_key(
    nearest: Nearest, history: History, key: str, after: int, *, is_upsert: bool
) -> None:
    nearest.offer(history.first("UpdateConfig.upserted", key, after), key=key)
    if is_upsert:
        nearest.offer(history.first("UpdateConfig.deleted", key, after), key=key)


def config_over_config(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """UpdateConfig over UpdateConfig: no key is changed by both.

    Stricter than Lance: replacing all config keys conflicts with every key.
    """
    nearest = Nearest("same_config_key", Verdict.INCOMPATIBLE)
    operation = candidate.operation
    upserts, deletes, replaces = config_changes(operation)
    for key in sorted(upserts | deletes):
        _offer_config_key(nearest, history, key, after, is_upsert=key in upserts)
    if replaces:
        version = history.first("UpdateConfig.config", "", after)
        nearest.offer(version, rule="config_replaced")
    elif upserts or deletes:
        version = history.first("UpdateConfig.replaced", "", after)
        nearest.offer(version, rule="config_replaced")
    if operation.HasField("table_metadata_updates"):
        _table_metadata(nearest, candidate, history, after)
    if sets_schema_metadata(operation):
        version = history.first("UpdateConfig.schema_metadata", "", after)
        nearest.offer(version, rule="schema_metadata_changed")
    for field_id in sorted(field_metadata_ids(operation)):
        version = history.first("UpdateConfig.field_metadata", field_id, after)
        nearest.offer(version, rule="same_field_metadata", key=field_id)
    return nearest.finding


def _table_metadata(nearest: Nearest, candidate: Candidate, history: History, after: int) -> None:
    updates = candidate.operation.table_metadata_updates
    how = "UpdateConfig.table_metadata" + ("" if updates.replace else "_replaced")
    nearest.offer(history.first(how, "", after), rule="table_metadata_replaced")
    for key in sorted({entry.key for entry in updates.update_entries}):
        version = history.first("UpdateConfig.table_metadata_key", key, after)
        nearest.offer(version, rule="same_table_metadata_key", key=key)


def field_dropped(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """An Update that modifies fields, over a Project that dropped one (and P1)."""
    nearest = Nearest("nullability_not_preserved")
    nearest.offer(history.first(f"{kind}.nullability", "", after))
    for field_id in candidate.operation.fields_modified:
        version = history.first(f"{kind}.dropped", field_id, after)
        nearest.offer(version, rule="field_dropped", key=field_id)
    return nearest.finding


def replaced_field_dropped(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataReplacement over a Project that dropped its field (and P1)."""
    nearest = Nearest("nullability_not_preserved")
    nearest.offer(history.first(f"{kind}.nullability", "", after))
    for group in candidate.operation.replacements:
        for field_id in group.new_file.fields:
            version = history.first(f"{kind}.dropped", field_id, after)
            verdict = Verdict.INCOMPATIBLE
            nearest.offer(version, rule="field_dropped", key=field_id, verdict=verdict)
    return nearest.finding


def shard_generation(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A MemWAL shard's generation only grows: equal or newer ones win for good."""
    nearest = Nearest("shard_generation")
    for table in candidate.operation.compacted_sstables:
        shard = table.shard_id.uuid
        version = history.first(f"{kind}.shard", shard, after)
        if not version:
            continue
        is_passed = history.note(f"{kind}.shard", shard, version) >= table.generation
        verdict = Verdict.INCOMPATIBLE if is_passed else Verdict.RETRYABLE
        nearest.offer(version, verdict=verdict, key=shard)
    return nearest.finding


def same_base(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """UpdateBases over UpdateBases: id, name and path of a base are its own."""
    nearest = Nearest("same_base", Verdict.INCOMPATIBLE)
    for base in candidate.operation.new_bases:
        if base.id:
            nearest.offer(history.first("UpdateBases.id", base.id, after), key=base.id)
        if base.HasField("name"):
            nearest.offer(history.first("UpdateBases.name", base.name, after), key=base.name)
        nearest.offer(history.first("UpdateBases.path", base.path, after), key=base.path)
    return nearest.finding
