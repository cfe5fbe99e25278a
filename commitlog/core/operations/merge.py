"""Merge: columns are added, by fragments that are all listed as they are to be.

Lance refuses one over whatever changes a row. Here its writer may complete it instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.awaited_columns import awaits_columns, complete_columns
from commitlog.core.operations.operation import SCHEMA, LanceOperation
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased
from commitlog.core.rebase.late import Late
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.core.schema_check.schema import schema_key_problem, schema_problem
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import Rules
from commitlog.model.names import NameProblem, first_problem
from commitlog.model.records import FragmentImage


class MergeOperation(LanceOperation[Transaction.Merge]):
    """Adds columns."""

    field = "merge"
    changes_all_fragments = True
    header_parts = SCHEMA

    def problem(self, body: Transaction.Merge) -> NameProblem | None:
        keys = first_problem("metadata key", body.schema_metadata, schema_key_problem)
        return schema_problem(body.schema) or keys or fragments_problem(body.fragments)

    def writes(self, body: Transaction.Merge, before: ManifestState) -> Writes:
        return schema_writes(self.name, body, before)

    def awaits_columns(self, transaction: Transaction, rules: Rules) -> bool:
        return awaits_columns(transaction, rules)

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        if not candidate.awaits_columns:
            return NOT_NEEDED
        return complete_columns(late, candidate)

    def put_images(self, body: Transaction.Merge, images: Sequence[FragmentImage]) -> None:
        fragments = {fragment.id: fragment for fragment in body.fragments}
        for one in images:
            if one.image is None:
                fragments.pop(one.fragment_id, None)
            else:
                fragments[one.fragment_id] = DataFragment.FromString(one.image)
        del body.fragments[:]
        body.fragments.extend(fragments[fragment_id] for fragment_id in sorted(fragments))

    def images(self, body: Transaction.Merge) -> Sequence[DataFragment]:
        return body.fragments

    def leave_unsaid(self, body: Transaction.Merge) -> bool:
        body.schema_metadata.clear()
        return True

    def schema_metadata(self, body: Transaction.Merge) -> Mapping[str, bytes]:
        return body.schema_metadata


def schema_writes(
    kind: str, body: Transaction.Merge | Transaction.Project, before: ManifestState
) -> Writes:
    """Return the fields that are dropped, and whether columns may have become non-nullable."""
    kept = {field.id for field in body.schema}
    dropped = (f for f in sorted(before.header.fields) if f not in kept)
    aspects: list[Aspect] = [(f"{kind}.dropped", f) for f in dropped]
    if not body.preserves_nullability:
        aspects.append((f"{kind}.nullability", ""))
    return Writes(tuple(aspects))
