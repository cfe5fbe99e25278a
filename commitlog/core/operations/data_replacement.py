"""DataReplacement: columns of fragments get new files.

Of a DataReplacement, the overlays that it never saw stay over its new file.
"""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.core.conflicts.history import Aspect
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.manifest.feature_flags import FLAG_DATA_OVERLAY_FILES
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.operations.operation import Claims, LanceOperation
from commitlog.core.operations.references import References
from commitlog.lancepb.table_pb2 import DataFile, DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import OVERLAYS_BY_ROW_SINCE, Rules
from commitlog.model.reasons import Phrase


class DataReplacementOperation(LanceOperation[Transaction.DataReplacement]):
    """Replaces the files of columns."""

    field = "data_replacement"

    def writes(self, body: Transaction.DataReplacement, before: ManifestState) -> Writes:
        aspects: list[Aspect] = []
        for group in body.replacements:
            aspects.append(("DataReplacement.fragment", group.fragment_id))
            aspects.append(("files", group.fragment_id))
            for field_id in group.new_file.fields:
                aspects.append(("DataReplacement.cell", (group.fragment_id, field_id)))
                aspects.append(("DataReplacement.field", field_id))
        return Writes(tuple(dict.fromkeys(aspects)))

    def changed_fragments(self, body: Transaction.DataReplacement) -> Iterable[int]:
        return [group.fragment_id for group in body.replacements]

    def brought_files(self, body: Transaction.DataReplacement) -> Iterable[DataFile]:
        return [group.new_file for group in body.replacements]

    def check_references(self, references: References, transaction: Transaction) -> None:
        groups = transaction.data_replacement.replacements
        references.check_present(group.fragment_id for group in groups)
        for group in groups:
            file = group.new_file
            references.check_fields(Phrase("the_data_file", {"path": file.path}), file.fields)

    def adjusted(
        self, delta: ManifestDelta, head: ManifestState, transaction: Transaction, rules: Rules
    ) -> ManifestDelta:
        if rules.protocol < OVERLAYS_BY_ROW_SINCE:
            return delta
        return with_newer_overlays(delta, head, transaction)

    def claims(self, body: Transaction.DataReplacement) -> Claims:
        return Claims(frozenset(self.changed_fragments(body)))


def with_newer_overlays(
    delta: ManifestDelta, head: ManifestState, transaction: Transaction
) -> ManifestDelta:
    """Return a DataReplacement's delta with the overlays that came since it read the table.

    Lance builds it as of the head, as of which the new files end all overlays of their columns.
    """
    version = transaction.read_version
    replaced = {group.fragment_id for group in transaction.data_replacement.replacements}
    fragments, restored = [], False
    for fragment_id, encoded in delta.fragments:
        if fragment_id in replaced:
            before = DataFragment.FromString(head.fragments[fragment_id])
            after = DataFragment.FromString(encoded)
            left = {overlay.data_file.path: overlay for overlay in after.overlays}
            kept = (
                o if o.committed_version > version else left.get(o.data_file.path)
                for o in before.overlays
            )
            wanted = [overlay for overlay in kept if overlay is not None]
            if wanted != list(after.overlays):
                restored = True
                del after.overlays[:]
                after.overlays.extend(wanted)
                encoded = after.SerializeToString(deterministic=True)
        fragments.append((fragment_id, encoded))
    if not restored:
        return delta
    return delta._replace(
        fragments=tuple(fragments),
        reader_feature_flags=delta.reader_feature_flags | FLAG_DATA_OVERLAY_FILES,
        writer_feature_flags=delta.writer_feature_flags | FLAG_DATA_OVERLAY_FILES,
    )
