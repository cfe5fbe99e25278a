"""A number for the content of rows, whatever their order and however they are split into batches.

It tells whether two writes held the same rows. It is a sum over the rows, so that every task of a
query adds its own. It protects against accidents, not against somebody who wants a collision.
"""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

BITS = 63
_MASK = (1 << BITS) - 1
_NULL = np.uint64(0x9E3779B97F4A7C15)
_ODD = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(33)
_BYTES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

LONG_BYTES = 64

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]


def rows_digest(rows: pa.RecordBatch) -> int:
    """Return the sum of the rows' hashes; columns count by their names."""
    return int(row_hashes(rows).sum(dtype=np.uint64)) & _MASK


def row_hashes(rows: pa.RecordBatch) -> Hashes:
    """Return each row's hash."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        hashes += _mixed(_hashes(column) + np.uint64(crc32(name.encode())))
    return _mixed(hashes)


def joined_digests(digests: list[int]) -> int:
    """Return the digest of all rows that the digests are of."""
    return sum(digests) & _MASK


def _hashes(values: pa.Array) -> Hashes:
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _hashes(values.storage)
    if types.is_dictionary(kind):
        return _hashes(values.dictionary_decode())
    if types.is_null(kind):
        return np.full(len(values), _NULL)
    valid = np.asarray(values.is_valid())
    found = np.full(len(values), _NULL)
    live = values.drop_null() if values.null_count else values
    found[valid] = _mixed(_live(live))
    return found


def _live(values: pa.Array) -> Hashes:
    """Return the hashes of values without nulls."""
    kind = values.type
    if types.is_struct(kind):
        hashes = np.zeros(len(values), np.uint64)
        for at, child in enumerate(values.flatten()):
            hashes += _mixed(_hashes(child) + np.uint64(at))
        return hashes
    if types.is_map(kind):
        offsets = np.asarray(values.offsets).astype(np.int64)
        start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
        items = _hashes(values.items.slice(start, count))
        return _summed(_mixed(_hashes(values.keys.slice(start, count)) + items), np.diff(offsets))
    if types.is_nested(kind):
        items, lengths = values.flatten(), np.asarray(pc.list_value_length(values)).astype(np.int64)
        if types.is_primitive(items.type) and items.type.bit_width >= 8:
            width = items.type.bit_width // 8
            if not items.null_count:
                return _of_bytes(_raw(items), lengths * width)
            null = np.asarray(items.is_null())
            raw = np.where(np.repeat(null, width), np.uint8(0), _raw(items))
            return _of_bytes(raw, lengths * width) + _weighed(null, lengths)
        return _summed(_hashes(items), lengths)
    if types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif not (
        types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
    ):
        values = values.cast(pa.large_binary())
        _, offsets_at, data = values.buffers()
        offsets = np.frombuffer(offsets_at, np.int64)[values.offset :][: len(values) + 1]
        return _of_bytes(
            np.frombuffer(data or b"", np.uint8)[offsets[0] : offsets[-1]], np.diff(offsets)
        )
    width = values.type.bit_width // 8
    if width in _BYTES:
        return _raw(values).view(_BYTES[width]).astype(np.uint64)
    return _of_bytes(_raw(values), np.full(len(values), width, np.int64))


def _raw(values: pa.Array) -> Bytes:
    width = values.type.bit_width // 8
    raw = np.frombuffer(values.buffers()[1] or b"", np.uint8)
    return raw[values.offset * width :][: len(values) * width]


def _of_bytes(data: Bytes, lengths: np.ndarray[Any, Any]) -> Hashes:
    is_long = lengths > LONG_BYTES
    if not is_long.any():
        return _summed(data, lengths)
    # Long values one by one: they are few, and a checksum of their bytes is quick.
    ends = np.cumsum(lengths)
    hashes = np.zeros(len(lengths), np.uint64)
    if not is_long.all():
        short = lengths[~is_long]
        hashes[~is_long] = _summed(data[np.repeat(~is_long, lengths)], short)
    whole = data.data
    for at in np.flatnonzero(is_long):
        hashes[at] = crc32(whole[ends[at] - lengths[at] : ends[at]]) + (int(lengths[at]) << 32)
    return hashes


def _summed(items: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Hashes:
    """Return a hash for each run of items, of these lengths, which counts their order."""
    return lengths.astype(np.uint64) + _weighed(items.astype(np.uint64) + np.uint64(1), lengths)


def _weighed(items: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> Hashes:
    hashes = np.zeros(len(lengths), np.uint64)
    starts = np.cumsum(lengths) - lengths
    filled = lengths > 0
    if items.any():
        place = np.arange(len(items)) - np.repeat(starts, lengths)
        # Weights that grew evenly would give "131" the sum of "212".
        weights = _mixed(np.arange(lengths.max(), dtype=np.uint64) * _ODD + _NULL)
        weighed = items.astype(np.uint64, copy=False) * weights[place]
        hashes[filled] = np.add.reduceat(weighed, starts[filled])
    return hashes


def _mixed(values: Hashes) -> Hashes:
    mixed = (values ^ (values >> _HALF)) * _ODD
    return mixed ^ (mixed >> _HALF)
