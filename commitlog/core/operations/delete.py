"""Delete: rows go, by deletion vectors, or with their fragments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.fragment_changes import fragments_after, with_deletion_file
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.fragment_images import image_aspects, put_rebased, retained_indices
from commitlog.core.operations.operation import Claims, LanceOperation, ManifestChange
from commitlog.core.rebase.deletions import Rebased, images_with_known_rows, rebase_deletions
from commitlog.core.rebase.late import Late
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem
from commitlog.model.records import FragmentImage


class DeleteOperation(LanceOperation[Transaction.Delete]):
    """Removes rows."""

    field = "delete"
    read_at_head = True
    built_here_since = 1

    def problem(self, body: Transaction.Delete) -> NameProblem | None:
        return fragments_problem(body.updated_fragments)

    def writes(self, body: Transaction.Delete, before: ManifestState) -> Writes:
        aspects, deletion_files = image_aspects("Delete", body.updated_fragments, before)
        aspects.extend(("Delete.removed", f) for f in body.deleted_fragment_ids)
        return Writes(tuple(aspects), (), tuple(deletion_files))

    def changed_fragments(self, body: Transaction.Delete) -> Iterable[int]:
        return chain((f.id for f in body.updated_fragments), body.deleted_fragment_ids)

    def fragments_with_known_rows(self, body: Transaction.Delete, late: Late) -> frozenset[int]:
        images = body.updated_fragments
        return images_with_known_rows(images, late)

    def less_rows(self, body: Transaction.Delete) -> Sequence[DataFragment]:
        return body.updated_fragments

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        return rebase_deletions(late, candidate, only_deletes=True)

    def put_images(self, body: Transaction.Delete, images: Sequence[FragmentImage]) -> None:
        put_rebased(body.updated_fragments, body.deleted_fragment_ids, images)

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        body = transaction.delete
        taken = fragments_after(
            state,
            ("deleted_fragment_ids", body.deleted_fragment_ids),
            body.updated_fragments,
            with_deletion_file,
        )
        return ManifestChange(
            removed=taken.removed,
            fragments=taken.fragments,
            features=taken.features,
            index_section=retained_indices(state, taken.removed),
        )

    def claims(self, body: Transaction.Delete) -> Claims:
        changed = frozenset(f.id for f in body.updated_fragments)
        return Claims(changed, changed.union(body.deleted_fragment_ids))
