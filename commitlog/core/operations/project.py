"""Project: columns are dropped, renamed or put in another order."""

from __future__ import annotations

from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.merge import schema_writes
from commitlog.core.operations.operation import SCHEMA, LanceOperation
from commitlog.core.schema_check.schema import schema_problem
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem


class ProjectOperation(LanceOperation[Transaction.Project]):
    """Gives the table a part of its schema."""

    field = "project"
    changes_all_fragments = True
    header_parts = SCHEMA

    def problem(self, body: Transaction.Project) -> NameProblem | None:
        return schema_problem(body.schema)

    def writes(self, body: Transaction.Project, before: ManifestState) -> Writes:
        return schema_writes(self.name, body, before)
