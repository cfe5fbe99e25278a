"""Project: columns are dropped, renamed, put in another order, or may not be null any more."""

from __future__ import annotations

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.awaited_columns import awaits_columns, check_for_nulls
from commitlog.core.operations.merge import schema_writes
from commitlog.core.operations.operation import SCHEMA, LanceOperation
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased
from commitlog.core.rebase.late import Late
from commitlog.core.schema_check.schema import schema_problem
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import Rules
from commitlog.model.names import NameProblem


class ProjectOperation(LanceOperation[Transaction.Project]):
    """Gives the table a part of its schema."""

    field = "project"
    changes_all_fragments = True
    header_parts = SCHEMA

    def awaits_columns(self, transaction: Transaction, rules: Rules) -> bool:
        return awaits_columns(transaction, rules)

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        if candidate.awaits_columns and not candidate.operation.preserves_nullability:
            check_for_nulls(late, candidate)
        return NOT_NEEDED

    def problem(self, body: Transaction.Project) -> NameProblem | None:
        return schema_problem(body.schema)

    def writes(self, body: Transaction.Project, before: ManifestState) -> Writes:
        return schema_writes(self.name, body, before)
