"""What an UpdateConfig changes, in either of its forms, as rules and its write set ask for it."""

from __future__ import annotations

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
