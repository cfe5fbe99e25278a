"""DataOverlay: files that give some rows of fragments new values."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.operations.operation import Claims, LanceOperation
from commitlog.core.operations.references import References
from commitlog.core.rebase.late import Late, observed, vector_in
from commitlog.core.rebase.overlay_rows import coverage, deletion_file_read, refuse_overlaid
from commitlog.core.schema_check.messages import overlays_problem
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem
from commitlog.model.reasons import Phrase


class DataOverlayOperation(LanceOperation[Transaction.DataOverlay]):
    """Lays new values over rows."""

    field = "data_overlay"
    read_at_head = True

    def problem(self, body: Transaction.DataOverlay) -> NameProblem | None:
        return overlays_problem(chain.from_iterable(group.overlays for group in body.groups))

    def writes(self, body: Transaction.DataOverlay, before: ManifestState) -> Writes:
        aspects: list[Aspect] = []
        for group in body.groups:
            aspects.append(("DataOverlay.fragment", group.fragment_id))
            for overlay in group.overlays:
                for field_id in overlay.data_file.fields:
                    aspects.append(("DataOverlay.cell", (group.fragment_id, field_id)))
        return Writes(tuple(dict.fromkeys(aspects)))

    def changed_fragments(self, body: Transaction.DataOverlay) -> Iterable[int]:
        return [group.fragment_id for group in body.groups]

    def fragments_with_known_rows(
        self, body: Transaction.DataOverlay, late: Late
    ) -> frozenset[int]:
        return frozenset(self.changed_fragments(body))

    def brought_files(self, body: Transaction.DataOverlay) -> Iterable[DataFile]:
        return [overlay.data_file for group in body.groups for overlay in group.overlays]

    def check_overlaid_rows(self, late: Late, candidate: Candidate) -> None:
        """Refuse an overlay of rows that an Update moved elsewhere meanwhile."""
        history, state, read_version = late.history, late.state, late.read_version
        moved: dict[int, tuple[str, str]] = {}
        emptied: set[int] = set()
        for fragment_id in candidate.fragments:
            if history.first("Update.moved", fragment_id, read_version):
                encoded = state.fragments.get(fragment_id)
                if encoded is None:
                    emptied.add(fragment_id)
                    continue
                fragment = DataFragment.FromString(encoded)
                moved[fragment_id] = (
                    deletion_file_read(late, fragment),
                    deletion_file_of(fragment),
                )
        paths = (path for pair in moved.values() for path in pair)
        vectors = observed(late.draft, late.view, filter(None, paths))
        for group in candidate.operation.groups:
            before, after = moved.get(group.fragment_id, ("", ""))
            gone = vector_in(late.view, after, vectors) - vector_in(late.view, before, vectors)
            overlaid, is_emptied = coverage(group.overlays), group.fragment_id in emptied
            both = overlaid if is_emptied else gone & overlaid
            if both or is_emptied:
                version = history.first("Update.moved", group.fragment_id, read_version)
                refuse_overlaid(late, candidate, version, group.fragment_id, both)

    def check_references(self, references: References, transaction: Transaction) -> None:
        groups = transaction.data_overlay.groups
        references.check_fragments(group.fragment_id for group in groups)
        for overlay in chain.from_iterable(group.overlays for group in groups):
            file = overlay.data_file
            references.check_fields(Phrase("the_overlay", {"path": file.path}), file.fields)

    def claims(self, body: Transaction.DataOverlay) -> Claims:
        return Claims(frozenset(self.changed_fragments(body)))
