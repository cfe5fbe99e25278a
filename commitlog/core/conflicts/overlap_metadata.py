"""Rules of the grid about schema, config, shards and bases."""

from __future__ import annotations

from commitlog.core.conflicts.candidate import Verdict
from commitlog.core.conflicts.rule import Missed, rule
from commitlog.lancepb.transaction_pb2 import Transaction


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
    """Return True if schema metadata are updated, be it by nothing."""
    return operation.HasField("schema_metadata_updates") or bool(operation.schema_metadata)


def changes_schema(operation: Transaction.UpdateConfig) -> bool:
    """Return True if schema or field metadata really change (pre-checks P2 and P3)."""
    maps = [operation.schema_metadata_updates, *operation.field_metadata_updates.values()]
    return bool(
        any(m.update_entries or m.replace for m in maps)
        or operation.schema_metadata
        or operation.field_metadata
    )


@rule("nullability_not_preserved")
def nullability_committed(missed: Missed) -> None:
    """P1: values written, over a Merge or Project that may have made a column non-nullable."""
    missed.offer_first(f"{missed.kind}.nullability", "")


@rule("nullability_not_preserved")
def nullability_asked(missed: Missed) -> None:
    """P1: a Project that may make a column non-nullable, over values written.

    Unless its writer looks for nulls in these too.
    """
    if not missed.candidate.operation.preserves_nullability and not missed.candidate.awaits_columns:
        missed.offer_any()


@rule("always")
def columns_incomplete(missed: Missed) -> None:
    """A Merge over new rows or values, unless its writer computes its columns for these too."""
    if not missed.candidate.awaits_columns:
        missed.offer_any()


@rule("schema_metadata_changed")
def schema_metadata_committed(missed: Missed) -> None:
    """P2: a Merge over an UpdateConfig of schema or field metadata."""
    missed.offer_first("UpdateConfig.schema", "")


@rule("schema_metadata_changed")
def schema_metadata_asked(missed: Missed) -> None:
    """P2: an UpdateConfig of schema or field metadata, over a Merge."""
    if changes_schema(missed.candidate.operation):
        missed.offer_any()


@rule("schema_metadata_changed", Verdict.INCOMPATIBLE)
def schema_metadata_undone(missed: Missed) -> None:
    """P3: a Restore over an UpdateConfig of schema or field metadata."""
    missed.offer_first("UpdateConfig.schema", "")


@rule("schema_metadata_changed", Verdict.INCOMPATIBLE)
def schema_metadata_restored(missed: Missed) -> None:
    """P3: an UpdateConfig of schema or field metadata, over a Restore."""
    if changes_schema(missed.candidate.operation):
        missed.offer_any()


@rule("same_config_key", Verdict.INCOMPATIBLE)
def overwrite_over_overwrite(missed: Missed) -> None:
    """Overwrite over Overwrite: retryable, and incompatible where both set a config key."""
    for key in sorted(missed.candidate.operation.config_upsert_values):
        missed.offer_first("Overwrite.upserted", key, key=key)
    missed.offer_any(rule="overwritten", verdict=Verdict.RETRYABLE)


@rule("same_config_key", Verdict.INCOMPATIBLE)
def overwrite_over_config(missed: Missed) -> None:
    """An Overwrite that sets config keys, over an UpdateConfig of the same keys."""
    for key in sorted(missed.candidate.operation.config_upsert_values):
        _offer_config_key(missed, key, is_upsert=True)


@rule("same_config_key", Verdict.INCOMPATIBLE)
def config_over_overwrite(missed: Missed) -> None:
    """An UpdateConfig over an Overwrite, which made another schema, or set the same config key."""
    operation = missed.candidate.operation
    if sets_schema_metadata(operation) or field_metadata_ids(operation):
        missed.offer_any(rule="schema_replaced")
    upserts, deletes, _ = config_changes(operation)
    for key in sorted(upserts | deletes):
        missed.offer_first("Overwrite.upserted", key, key=key)


def _offer_config_key(missed: Missed, key: str, *, is_upsert: bool) -> None:
    missed.offer_first("UpdateConfig.upserted", key, key=key)
    if is_upsert:
        missed.offer_first("UpdateConfig.deleted", key, key=key)


@rule("same_config_key", Verdict.INCOMPATIBLE)
def config_over_config(missed: Missed) -> None:
    """UpdateConfig over UpdateConfig: no key is changed by both.

    Stricter than Lance: replacing all config keys conflicts with every key.
    """
    operation = missed.candidate.operation
    upserts, deletes, replaces = config_changes(operation)
    for key in sorted(upserts | deletes):
        _offer_config_key(missed, key, is_upsert=key in upserts)
    if replaces:
        missed.offer_first("UpdateConfig.config", "", rule="config_replaced")
    elif upserts or deletes:
        missed.offer_first("UpdateConfig.replaced", "", rule="config_replaced")
    if operation.HasField("table_metadata_updates"):
        _table_metadata(missed)
    if sets_schema_metadata(operation):
        missed.offer_first("UpdateConfig.schema_metadata", "", rule="schema_metadata_changed")
    for field_id in sorted(field_metadata_ids(operation)):
        how = "UpdateConfig.field_metadata"
        missed.offer_first(how, field_id, rule="same_field_metadata", key=field_id)


def _table_metadata(missed: Missed) -> None:
    updates = missed.candidate.operation.table_metadata_updates
    how = "UpdateConfig.table_metadata" + ("" if updates.replace else "_replaced")
    missed.offer_first(how, "", rule="table_metadata_replaced")
    for key in sorted({entry.key for entry in updates.update_entries}):
        how = "UpdateConfig.table_metadata_key"
        missed.offer_first(how, key, rule="same_table_metadata_key", key=key)


@rule("nullability_not_preserved")
def field_dropped(missed: Missed) -> None:
    """An Update that modifies fields, over a Project that dropped one (and P1)."""
    missed.offer_first(f"{missed.kind}.nullability", "")
    for field_id in missed.candidate.operation.fields_modified:
        missed.offer_first(f"{missed.kind}.dropped", field_id, rule="field_dropped", key=field_id)


@rule("nullability_not_preserved")
def replaced_field_dropped(missed: Missed) -> None:
    """A DataReplacement over a Project that dropped its field (and P1)."""
    missed.offer_first(f"{missed.kind}.nullability", "")
    for group in missed.candidate.operation.replacements:
        for field_id in group.new_file.fields:
            how, verdict = f"{missed.kind}.dropped", Verdict.INCOMPATIBLE
            missed.offer_first(how, field_id, rule="field_dropped", key=field_id, verdict=verdict)


@rule("shard_generation")
def shard_generation(missed: Missed) -> None:
    """A MemWAL shard's generation only grows: equal or newer ones win for good."""
    for table in missed.candidate.operation.compacted_sstables:
        shard = table.shard_id.uuid
        version = missed.first(f"{missed.kind}.shard", shard)
        if not version:
            continue
        is_passed = missed.history.note(f"{missed.kind}.shard", shard, version) >= table.generation
        verdict = Verdict.INCOMPATIBLE if is_passed else Verdict.RETRYABLE
        missed.offer(version, verdict=verdict, key=shard)


@rule("same_base", Verdict.INCOMPATIBLE)
def same_base(missed: Missed) -> None:
    """UpdateBases over UpdateBases: id, name and path of a base are its own."""
    for base in missed.candidate.operation.new_bases:
        if base.id:
            missed.offer_first("UpdateBases.id", base.id, key=base.id)
        if base.HasField("name"):
            missed.offer_first("UpdateBases.name", base.name, key=base.name)
        missed.offer_first("UpdateBases.path", base.path, key=base.path)
