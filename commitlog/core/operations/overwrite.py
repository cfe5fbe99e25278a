"""Overwrite: other rows, and perhaps another schema, in the place of all that was there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState, put_header
from commitlog.core.operations.operation import BASES, CONFIG, FORMAT, SCHEMA, LanceOperation
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.core.schema_check.schema import schema_key_problem, schema_problem
from commitlog.lancepb.table_pb2 import DataFragment, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem, first_problem, key_problem


class OverwriteOperation(LanceOperation[Transaction.Overwrite]):
    """Replaces the table's content."""

    field = "overwrite"
    replaces_fragments = True
    renumbers_fields = True
    header_parts = SCHEMA | CONFIG | BASES | FORMAT

    def problem(self, body: Transaction.Overwrite) -> NameProblem | None:
        return (
            schema_problem(body.schema)
            or first_problem("metadata key", body.schema_metadata, schema_key_problem)
            or first_problem("config key", body.config_upsert_values, key_problem)
            or fragments_problem(body.fragments)
        )

    def named_fragments(self, body: Transaction.Overwrite) -> list[int]:
        return [fragment.id for fragment in body.fragments if fragment.id]

    def writes(self, body: Transaction.Overwrite, before: ManifestState) -> Writes:
        keys = sorted(body.config_upsert_values)
        return Writes(tuple(("Overwrite.upserted", key) for key in keys))

    def new_fragments(self, body: Transaction.Overwrite) -> Iterable[DataFragment]:
        return body.fragments

    def leave_unsaid(self, body: Transaction.Overwrite) -> bool:
        body.schema_metadata.clear()
        body.config_upsert_values.clear()
        return True

    def schema_metadata(self, body: Transaction.Overwrite) -> Mapping[str, bytes]:
        return body.schema_metadata

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        values = transaction.overwrite.config_upsert_values
        if values:
            manifest = Manifest.FromString(built.header.encoded)
            manifest.config.update(values)
            put_header(built, ManifestHeader.of(manifest))
