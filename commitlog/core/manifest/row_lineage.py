"""Stable row ids and row versions of new rows, as Lance writes them.

New rows of a fragment take one range of ids, and one version for all of them. The bytes are made
by hand because an append makes three of these messages per fragment.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.manifest.wire import varint
from commitlog.lancepb.rowids_pb2 import (
    EncodedU64Array,
    RowDatasetVersionSequence,
    RowIdSequence,
    U64Segment,
)
from commitlog.lancepb.table_pb2 import DataFragment

_SPILLED = (
    ("column_row_ids", -3),
    ("column_created_at_versions", -4),
    ("column_last_updated_at_versions", -5),
)
"""Lineage that is in a data file, and the field of that file."""
_WIDTHS = (("u16_array", 2), ("u32_array", 4))


def _field(key: bytes, value: bytes) -> bytes:
    return key + varint(len(value)) + value


def _segment(start: int, end: int) -> bytes:
    """A U64Segment that is a range."""
    bounds = b"\x10" + varint(end)
    return _field(b"\x0a", b"\x08" + varint(start) + bounds if start else bounds)


def new_row_lineage(first_row_id: int, rows: int, version: int) -> bytes:
    """Return the fields of a DataFragment that give `rows` new rows their ids and `version`."""
    row_ids = _field(b"\x0a", _segment(first_row_id, first_row_id + rows))
    run = _field(b"\x0a", _segment(0, rows)) + b"\x10" + varint(version)
    versions = _field(b"\x0a", run)
    return _field(b"\x2a", row_ids) + _field(b"\x3a", versions) + _field(b"\x4a", versions)


_VERSIONS = ("inline_created_at_versions", "inline_last_updated_at_versions")


def lost_lineage(fragment: DataFragment) -> str:
    """Return the first lineage that is missing from the fragment's data files; empty: none is."""
    named = [(name, field) for name, field in _SPILLED if fragment.HasField(name)]
    if not named:
        return ""
    stored = {field for file in fragment.files for field in file.fields}
    return next((name for name, field in named if field not in stored), "")


def check_lineage(fragment: DataFragment, *, is_stable: bool) -> None:
    """Refuse a fragment whose rows don't have the ids and versions that Lance will look for."""
    where = f"fragments[{fragment.id}]"
    if lost := lost_lineage(fragment):
        raise DeltaRefused("lineage_missing", field=where, value=lost)
    for name in _VERSIONS:
        encoded = getattr(fragment, name)
        try:
            runs = RowDatasetVersionSequence.FromString(encoded).runs
        except DecodeError:
            raise DeltaRefused("lineage_unreadable", field=where, value=name) from None
        count = sum(_length(run.span) for run in runs)
        if encoded and is_stable and count != fragment.physical_rows:
            raise DeltaRefused(
                "row_versions_missing", field=where, value=name, count=count,
                rows=fragment.physical_rows,
            )  # fmt: skip
    has_ids = fragment.WhichOneof("row_id_sequence") is not None
    if has_ids and not is_stable:
        raise DeltaRefused("unexpected_row_ids", field=where, value="given")
    if not is_stable or fragment.HasField("column_row_ids"):
        return
    try:
        sequence = RowIdSequence.FromString(fragment.inline_row_ids)
    except DecodeError:
        sequence = RowIdSequence()
    count = sum(map(_length, sequence.segments))
    if count != fragment.physical_rows:
        raise DeltaRefused("row_ids_missing", field=where, value=count, rows=fragment.physical_rows)


def _length(segment: U64Segment) -> int:
    """Return how many ids a segment has."""
    kind = segment.WhichOneof("segment")
    if kind == "range":
        return segment.range.end - segment.range.start
    if kind == "range_with_holes":
        of = segment.range_with_holes
        return of.end - of.start - _entries(of.holes)
    if kind == "range_with_bitmap":
        return sum(byte.bit_count() for byte in segment.range_with_bitmap.bitmap)
    if kind is None:
        return 0
    return _entries(segment.sorted_array if kind == "sorted_array" else segment.array)


def _entries(array: EncodedU64Array) -> int:
    for name, width in _WIDTHS:
        if array.HasField(name):
            return len(getattr(array, name).offsets) // width
    return len(array.u64_array.values) // 8
