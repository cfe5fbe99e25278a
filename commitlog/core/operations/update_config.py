"""UpdateConfig: config, and metadata of the table, its schema and its fields."""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.overlap_metadata import (
    changes_schema,
    config_changes,
    field_metadata_ids,
    sets_schema_metadata,
)
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.metadata_changes import newer_form, updated_config
from commitlog.core.operations.operation import CONFIG, SCHEMA, LanceOperation, ManifestChange
from commitlog.core.schema_check.schema import schema_key_problem
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem, first_problem, key_problem


class UpdateConfigOperation(LanceOperation[Transaction.UpdateConfig]):
    """Changes config and metadata, in either of Lance's two forms."""

    field = "update_config"
    keeps_rows = True
    keeps_indices = True
    header_parts = SCHEMA | CONFIG
    built_here_since = 1

    def problem(self, body: Transaction.UpdateConfig) -> NameProblem | None:
        keys = [*body.schema_metadata, *_set_by(body.schema_metadata_updates)]
        return first_problem("metadata key", keys, schema_key_problem) or first_problem(
            "metadata key", _other_keys(body), key_problem
        )

    def writes(self, body: Transaction.UpdateConfig, before: ManifestState) -> Writes:
        upserts, deletes, replaces = config_changes(body)
        aspects: list[Aspect] = [("UpdateConfig.upserted", key) for key in sorted(upserts)]
        aspects.extend(("UpdateConfig.deleted", key) for key in sorted(deletes))
        if replaces:
            aspects.append(("UpdateConfig.replaced", ""))
        if upserts or deletes or replaces:
            aspects.append(("UpdateConfig.config", ""))
        if body.HasField("table_metadata_updates"):
            updates = body.table_metadata_updates
            aspects.append(("UpdateConfig.table_metadata", ""))
            keys = sorted({entry.key for entry in updates.update_entries})
            aspects.extend(("UpdateConfig.table_metadata_key", key) for key in keys)
            if updates.replace:
                aspects.append(("UpdateConfig.table_metadata_replaced", ""))
        if sets_schema_metadata(body):
            aspects.append(("UpdateConfig.schema_metadata", ""))
        fields = sorted(field_metadata_ids(body))
        aspects.extend(("UpdateConfig.field_metadata", field) for field in fields)
        if changes_schema(body):
            aspects.append(("UpdateConfig.schema", ""))
        return Writes(tuple(aspects))

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        is_stable = bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS)
        header = updated_config(state.header, transaction.update_config, is_stable)
        return ManifestChange(header=header)

    def leave_unsaid(self, body: Transaction.UpdateConfig) -> bool:
        body.CopyFrom(newer_form(body))
        return True


def _other_keys(body: Transaction.UpdateConfig) -> Iterable[str]:
    yield from body.upsert_values
    for old in body.field_metadata.values():
        yield from old.metadata
    maps = [body.config_updates, body.table_metadata_updates]
    for update in [*maps, *body.field_metadata_updates.values()]:
        yield from _set_by(update)


def _set_by(update: Transaction.UpdateMap) -> Iterable[str]:
    # A bad key that is there already may be removed.
    return (entry.key for entry in update.update_entries if entry.HasField("value"))
