"""Compares what overlays cover with the rows that Updates move, as Lance does.

An overlay gives some rows of a fragment new values. An Update that moved such a row elsewhere took
the old value along, so one of the two has to be done again; where they have no row in common, both
commit. Of a DataReplacement, the overlays that it never saw stay over its new file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.conflicts.write_sets import deletion_file_of
from commitlog.core.decisions import rejected
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.feature_flags import FLAG_DATA_OVERLAY_FILES
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.rebase.vectors import observed, sample_of, vector_in
from commitlog.core.refusals import conflict_refused
from commitlog.lancepb.table_pb2 import DataFragment, DataOverlayFile
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.records import Code


def check_overlaid_rows(
    draft: Draft,
    view: View,
    candidate: Candidate,
    affected: Mapping[int, BitMap],
    read_version: int,
) -> None:
    """Refuse an Update of rows that were overlaid meanwhile, and an overlay of rows that moved."""
    if candidate.kind == "Update":
        _check_update(draft, view, candidate, affected, read_version)
    elif candidate.kind == "DataOverlay":
        _check_overlay(draft, view, candidate, read_version)


def _check_update(
    draft: Draft,
    view: View,
    candidate: Candidate,
    affected: Mapping[int, BitMap],
    read_version: int,
) -> None:
    if not candidate.moves_rows:
        return
    history, state = view.table.history, view.state
    assert state is not None
    overlaid = {
        fragment_id: DataFragment.FromString(state.fragments[fragment_id])
        for fragment_id in candidate.fragments
        if history.first("DataOverlay.fragment", fragment_id, read_version)
        and fragment_id in state.fragments
    }
    if not overlaid:
        return
    staged = {f.id: deletion_file_of(f) for f in candidate.operation.updated_fragments}
    read = {f: _read_at(history, overlaid[f], read_version) for f in overlaid if f not in affected}
    paths = (path for f in read for path in (staged.get(f, ""), read[f]))
    vectors = observed(draft, view, filter(None, paths))
    for fragment_id, fragment in overlaid.items():
        rows = affected.get(fragment_id)
        if rows is None:
            staged_rows = vector_in(view, staged[fragment_id], vectors)
            rows = staged_rows - vector_in(view, read[fragment_id], vectors)
        newer = (o for o in fragment.overlays if o.committed_version > read_version)
        both = rows & coverage(newer)
        if both:
            version = history.first("DataOverlay.fragment", fragment_id, read_version)
            _refuse(view, candidate, version, fragment_id, both, read_version)


def _check_overlay(draft: Draft, view: View, candidate: Candidate, read_version: int) -> None:
    history, state = view.table.history, view.state
    assert state is not None
    moved: dict[int, tuple[str, str]] = {}
    for fragment_id in candidate.fragments:
        if history.first("Update.moved", fragment_id, read_version):
            fragment = DataFragment.FromString(state.fragments[fragment_id])
            moved[fragment_id] = (
                _read_at(history, fragment, read_version),
                deletion_file_of(fragment),
            )
    paths = (path for pair in moved.values() for path in pair)
    vectors = observed(draft, view, filter(None, paths))
    for group in candidate.operation.groups:
        before, after = moved.get(group.fragment_id, ("", ""))
        gone = vector_in(view, after, vectors) - vector_in(view, before, vectors)
        both = gone & coverage(group.overlays)
        if both:
            version = history.first("Update.moved", group.fragment_id, read_version)
            _refuse(view, candidate, version, group.fragment_id, both, read_version)


def coverage(overlays: Iterable[DataOverlayFile]) -> BitMap:
    """Return the rows that overlays give values to, by their offsets in the fragment."""
    found = BitMap()
    for overlay in overlays:
        bitmaps = [overlay.shared_offset_bitmap] if overlay.shared_offset_bitmap else []
        bitmaps.extend(overlay.field_coverage.offset_bitmaps)
        for encoded in bitmaps:
            try:
                found |= BitMap.deserialize(encoded)
            except ValueError as error:
                path = overlay.data_file.path
                raise rejected(Code.MALFORMED_RECORD, "overlay_not_a_bitmap", path=path) from error
    return found


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


def _read_at(history: History, fragment: DataFragment, read_version: int) -> str:
    """Return the path of a fragment's deletion file as of a version; empty if it had none."""
    read = history.deletion_file_at(fragment.id, read_version)
    return deletion_file_of(fragment) if read is None else read


def _refuse(
    view: View,
    candidate: Candidate,
    version: int,
    fragment_id: int,
    both: BitMap,
    read_version: int,
) -> None:
    sample = sample_of(fragment_id, both)
    finding = Finding(
        version=version,
        verdict=Verdict.RETRYABLE,
        rule="overlaid_rows",
        fragments=(fragment_id,),
        keys=sample,
    )
    raise conflict_refused(view.table, candidate.kind, finding, read_version, view.version)
