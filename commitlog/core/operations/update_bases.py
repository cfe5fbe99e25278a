"""UpdateBases: places besides its own location where a table's files may be."""

from __future__ import annotations

from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState, put_header
from commitlog.core.manifest.metadata_changes import updated_bases
from commitlog.core.operations.operation import BASES, LanceOperation, ManifestChange
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem, first_problem, key_problem


class UpdateBasesOperation(LanceOperation[Transaction.UpdateBases]):
    """Adds base paths."""

    field = "update_bases"
    keeps_rows = True
    keeps_indices = True
    header_parts = BASES
    built_here_since = 1
    is_carried = True

    def problem(self, body: Transaction.UpdateBases) -> NameProblem | None:
        texts = (text for base in body.new_bases for text in (base.name, base.path))
        return first_problem("base path", texts, key_problem)

    def writes(self, body: Transaction.UpdateBases, before: ManifestState) -> Writes:
        aspects: list[Aspect] = []
        for base in body.new_bases:
            if base.id:
                aspects.append(("UpdateBases.id", base.id))
            if base.HasField("name"):
                aspects.append(("UpdateBases.name", base.name))
            aspects.append(("UpdateBases.path", base.path))
        return Writes(tuple(aspects))

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        return ManifestChange(header=updated_bases(state.header, transaction.update_bases))

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        put_header(built, updated_bases(built.header, transaction.update_bases))
