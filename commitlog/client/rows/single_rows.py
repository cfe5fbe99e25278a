"""The value of a column in a data file of one row, read without Lance.

A search reads a file by its metadata, its schema and its pages, 0.2 ms of CPU for the files that
others' changes of single rows leave. Of one row Lance 2.2 keeps a constant: a number beside the
description of the page, a text in a buffer that holds its length and its bytes. A column that is
described by any other bytes is left to Lance.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

import pyarrow as pa

from commitlog.adapters.storage import is_local, store_for
from commitlog.client.rows.key_numbers import is_number, is_text, number_of_text
from commitlog.codecs.manifest_file import MAGIC
from commitlog.lancepb.table_pb2 import DataFragment

FILE_BYTES_MAX = 1 << 16
_FOOTER = struct.Struct("<QQQIIHH4s")
"""Positions of the columns' metadata and of two tables, counts of global buffers and columns, the
version, the magic."""
_ENTRY = struct.Struct("<QQ")
_SHORT, _LONG = struct.Struct("<IIIii"), struct.Struct("<IIIqq")
"""What precedes a text: two buffers, their sizes, and the first one, where the text starts and
ends."""
_ANY, _FIRST, _SECOND = b"\x0a", b"\x0a", b"\x12"


def single_value(
    location: str, fragment: DataFragment, field_id: int, kind: pa.DataType
) -> int | None:
    """Return the number (`numbers_of`) of the value of a fragment's only row.

    None: it isn't known.
    """
    if fragment.physical_rows != 1 or fragment.overlays or not is_local(location):
        return None
    if not is_number(kind) and not is_text(kind):
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
    described = _described(data, file.column_indices[position])
    if is_text(kind):
        text = _text(data, described, _SHORT if pa.types.is_string(kind) else _LONG)
        return None if text is None else number_of_text(text)
    width = kind.bit_width // 8
    expected = _description(width)
    if len(described) != len(expected) + width or not described.startswith(expected):
        return None
    is_signed = not pa.types.is_unsigned_integer(kind)
    return int.from_bytes(described[-width:], "little", signed=is_signed) & (1 << 64) - 1


def _described(data: bytes, column: int) -> bytes:
    """Return a column's metadata (`lance.file.v2.ColumnMetadata`); empty if there is none."""
    start = len(data) - _FOOTER.size
    if start < 0:
        return b""
    _, table, _, _, columns, _, _, magic = _FOOTER.unpack_from(data, start)
    entry = table + column * _ENTRY.size
    if magic != MAGIC or not 0 <= column < columns or entry + _ENTRY.size > start:
        return b""
    position, size = _ENTRY.unpack_from(data, entry)
    return data[position : position + size]


def _text(data: bytes, described: bytes, head: struct.Struct) -> str | None:
    """Return the text in the buffer of a column's only page, if they say nothing else."""
    found = _text_description().fullmatch(described)
    if found is None:
        return None
    start, size = (_varint(one) for one in found.groups())
    held = data[start : start + size]
    if len(held) != size or size < head.size:
        return None
    length = size - head.size
    if held[: head.size] != head.pack(2, head.size - 12, length, 0, length):
        return None
    try:
        return held[head.size :].decode()
    except UnicodeDecodeError:
        return None


def _varint(encoded: bytes) -> int:
    return sum((one & 0x7F) << 7 * place for place, one in enumerate(encoded))


@lru_cache
def _text_description() -> re.Pattern[bytes]:
    """Return what describes a text: as `_description`, with a buffer's position and size.

    The layout has no inline value. The lengths before a position and a size are theirs.
    """
    page = _any("/lance.encodings21.PageLayout", _SECOND + b"\x03\x2a\x01\x01", 0)
    page = _nested(_SECOND, _nested(_FIRST, page, 0), 0)
    page = b"\x18\x01\x22" + bytes((len(page),)) + page
    varint = rb"[\x01-\x09]([\x80-\xff]{0,8}[\x00-\x7f])"
    buffers = _FIRST + varint + _SECOND + varint
    before = re.escape(_column_encoding() + _SECOND)
    return re.compile(before + b"." + buffers + re.escape(page), re.DOTALL)


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
    return _column_encoding() + _nested(_SECOND, page, width)


def _column_encoding() -> bytes:
    encoding = _any("/lance.encodings.ColumnEncoding", b"\x0a\x00", 0)
    return _nested(_FIRST, _nested(_SECOND, _nested(_FIRST, encoding, 0), 0), 0)


def _any(name: str, value: bytes, more: int) -> bytes:
    """Return a `google.protobuf.Any` whose value has `more` bytes beyond these."""
    return _nested(_ANY, name.encode(), 0) + _nested(_SECOND, value, more)


def _nested(key: bytes, value: bytes, more: int) -> bytes:
    return key + bytes((len(value) + more,)) + value
