"""Stable row ids and row versions of new rows, as Lance writes them.

New rows of a fragment take one range of ids, and one version for all of them. The bytes are made
by hand because an append makes three of these messages per fragment.
"""

from __future__ import annotations

from commitlog.core.wire import varint


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
