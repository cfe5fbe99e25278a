"""Compares what overlays cover with the rows that Updates move, as Lance does.

An overlay gives some rows of a fragment new values. An Update that moved such a row elsewhere took
the old value along, so one of the two has to be done again; where they have no row in common, both
commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.decisions import rejected
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.roaring import from_portable
from commitlog.core.rebase.late import Late, sample_of
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment, DataOverlayFile
from commitlog.model.records import Code


def coverage(overlays: Iterable[DataOverlayFile]) -> BitMap:
    """Return the rows that overlays give values to, by their offsets in the fragment."""
    found = BitMap()
    for overlay in overlays:
        bitmaps = [overlay.shared_offset_bitmap] if overlay.shared_offset_bitmap else []
        bitmaps.extend(overlay.field_coverage.offset_bitmaps)
        for encoded in bitmaps:
            try:
                found |= from_portable(encoded)
            except UnsupportedFormat as error:
                path = overlay.data_file.path
                raise rejected(Code.MALFORMED_RECORD, "overlay_not_a_bitmap", path=path) from error
    return found


def deletion_file_read(late: Late, fragment: DataFragment) -> str:
    """Return the path of a fragment's deletion file as it was read; empty if it had none."""
    read = late.history.deletion_file_at(fragment.id, late.read_version)
    return deletion_file_of(fragment) if read is None else read


def refuse_overlaid(
    late: Late, candidate: Candidate, version: int, fragment_id: int, both: BitMap
) -> NoReturn:
    """Refuse a candidate that has rows of a fragment in common with an overlay."""
    sample = sample_of(fragment_id, both)
    finding = Finding(version, Verdict.RETRYABLE, "overlaid_rows", (fragment_id,), sample)
    raise late.refused(candidate, finding)
