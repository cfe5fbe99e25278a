"""The value of a column in a data file of one row, read without Lance.

A search reads a file by its metadata, its schema and its pages, 0.2 ms of CPU for the files that
others' changes of single rows leave. Of one row Lance 2.2 keeps a number beside the description of
the page, as a constant. A column that is described by any other bytes is left to Lance.
"""

from __future__ import annotations

import struct
from functools import lru_cache

import pyarrow as pa

from commitlog.adapters.storage import is_local, store_for
from commitlog.client.key_numbers import is_number
from commitlog.lancepb.table_pb2 import DataFragment

FILE_BYTES_MAX = 1 << 16
_FOOTER = struct.Struct("<QQQIIHH4s")
"""Positions of the columns' metadata and of two tables, counts of global buffers and columns, the
version, the magic."""
_ENTRY = struct.Struct("<QQ")
_MAGIC = b"LANC"
_ANY, _FIRST, _SECOND = b"\x0a", b"\x0a", b"\x12"


def single_value(
    location: str, fragment: DataFragment, field_id: int, kind: pa.DataType
) -> int | None:
    """Return an integer or timestamp of a fragment's only row as an unsigned number of 64 bits.

    None: it isn't known.
    """
    if fragment.physical_rows != 1 or fragment.overlays or not is_local(location):
        return None
    if not is_number(kind):
        return None
    holding = [file for file in fragment.files if field_id in file.fields]
    if len(holding) != 1:
        return None
    [file] = holding
    if file.HasField("base_id") or not 0 < file.file_size_bytes <= FILE_BYTES_MAX:
        return None
    position = list(file.fields).index(field_id)
    if position >= len(file.column_indices):
        return None
    try:
        data = store_for(location).read(f"data/{file.path}")
    except OSError:
        return None
    width = kind.bit_width // 8
    found = _constant(data, file.column_indices[position], width)
    if found is None:
        return None
    is_signed = not pa.types.is_unsigned_integer(kind)
    return int.from_bytes(found, "little", signed=is_signed) & (1 << 64) - 1


def _constant(data: bytes, column: int, width: int) -> bytes | None:
    """Return the bytes of a column's only value, if the file says nothing else of the column."""
    start = len(data) - _FOOTER.size
    if start < 0:
        return None
    _, table, _, _, columns, _, _, magic = _FOOTER.unpack_from(data, start)
    entry = table + column * _ENTRY.size
    if magic != _MAGIC or not 0 <= column < columns or entry + _ENTRY.size > start:
        return None
    position, size = _ENTRY.unpack_from(data, entry)
    described = data[position : position + size]
    expected = _description(width)
    if len(described) != len(expected) + width or not described.startswith(expected):
        return None
    return described[-width:]


@lru_cache
def _description(width: int) -> bytes:
    """Return what precedes the value in the metadata (`lance.file.v2.ColumnMetadata`) of a column.

    It is one page of one row, a `ConstantLayout` with an inline value, and no nulls.
    """
    before = b"\x2a\x01\x01\x32" + bytes((width,))  # layers: all valid; the inline value follows
    layout = _SECOND + bytes((len(before) + width,)) + before
    page = _any("/lance.encodings21.PageLayout", layout, width)
    page = _nested(_SECOND, _nested(_FIRST, page, width), width)
    page = b"\x18\x01\x22" + bytes((len(page) + width,)) + page  # one row, its encoding
    encoding = _any("/lance.encodings.ColumnEncoding", b"\x0a\x00", 0)
    encoding = _nested(_FIRST, _nested(_SECOND, _nested(_FIRST, encoding, 0), 0), 0)
    return encoding + _nested(_SECOND, page, width)


def _any(name: str, value: bytes, more: int) -> bytes:
    """Return a `google.protobuf.Any` whose value has `more` bytes beyond these."""
    return _nested(_ANY, name.encode(), 0) + _nested(_SECOND, value, more)


def _nested(key: bytes, value: bytes, more: int) -> bytes:
    return key + bytes((len(value) + more,)) + value
