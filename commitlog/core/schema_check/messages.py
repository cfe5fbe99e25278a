"""Whether Lance can open fragments that an operation brings: row ids, versions, overlays."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from commitlog.core.manifest.roaring import is_bitmap
from commitlog.core.manifest.row_lineage import lost_lineage
from commitlog.lancepb.rowids_pb2 import RowDatasetVersionSequence, RowIdSequence
from commitlog.lancepb.table_pb2 import DataFragment, DataOverlayFile
from commitlog.model.names import NameProblem
from commitlog.model.reasons import Phrase


def fragments_problem(fragments: Iterable[DataFragment]) -> NameProblem | None:
    """Return what is wrong with the fragments that an operation brings, None if nothing."""
    for fragment in fragments:
        problem = _lineage(fragment) or (
            overlays_problem(fragment.overlays) if fragment.overlays else None
        )
        if problem is not None:
            return problem
    return None


def _lineage(fragment: DataFragment) -> NameProblem | None:
    try:
        if fragment.inline_row_ids:
            RowIdSequence.FromString(fragment.inline_row_ids)
        for encoded in (
            fragment.inline_created_at_versions,
            fragment.inline_last_updated_at_versions,
        ):
            if encoded:
                RowDatasetVersionSequence.FromString(encoded)
    except DecodeError:
        return unreadable(f"fragments[{fragment.id}]", "row ids and row versions")
    if lost := lost_lineage(fragment):
        return unreadable(f"fragments[{fragment.id}]", f"a data file with its {lost}")
    return None


def overlays_problem(overlays: Iterable[DataOverlayFile]) -> NameProblem | None:
    """Return what is wrong with overlays, None if nothing."""
    for overlay in overlays:
        bitmaps = list(overlay.field_coverage.offset_bitmaps)
        if overlay.HasField("shared_offset_bitmap"):
            bitmaps.append(overlay.shared_offset_bitmap)
        if not all(map(is_bitmap, bitmaps)):
            return unreadable(f"overlay {overlay.data_file.path}", "a Roaring bitmap")
    return None


def unreadable(field: str, what: str) -> NameProblem:
    """Return that an encoded field holds something else."""
    return NameProblem("operation", field, Phrase("encoded_otherwise", {"expected": what}))
