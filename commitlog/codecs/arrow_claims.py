"""How many bytes Arrow IPC says that its record batches have, before any of it is decompressed.

Arrow reserves what a compressed buffer claims, and a few kilobytes can claim gigabytes. The buffers
are named in the flatbuffers of a file's footer and of its messages, of which only that is read.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

_MAGIC = b"ARROW1"
_BLOCK, _BUFFER = struct.Struct("<qi4xq"), struct.Struct("<qq")
_FOOTER_BATCHES, _MESSAGE_KIND, _MESSAGE_HEADER, _MESSAGE_BODY = 3, 1, 2, 3
_BATCH_BUFFERS, _BATCH_COMPRESSION, _DICTIONARY_BATCH = 2, 3, 1
"""Numbers of fields, by Arrow's File.fbs and Message.fbs."""
_DICTIONARY, _BATCH = 2, 3
"""Kinds of messages that have a record batch."""
_BUFFERS_MAX = 8
"""A column of numbers has two. A footer may name one message again and again, with all of its."""


def claimed_bytes(data: bytes) -> int:
    """Return how many bytes the buffers of all batches of a file of one column have, decompressed.

    Raises ValueError if the file isn't one.
    """
    try:
        end = len(data) - len(_MAGIC) - 4
        start = end - _number(data, "<i", end)
        footer = _table(data, start)
        count = 0
        for offset, metadata_length, _ in _structs(data, footer, _FOOTER_BATCHES, _BLOCK):
            message = _table(data, _flatbuffer(data, offset))
            count += _claims(data, message, offset + metadata_length, _BUFFERS_MAX)
        return count
    except struct.error as error:
        raise ValueError(f"it points beyond its end: {error}") from error


def claimed_by_stream(data: bytes) -> int:
    """Return how many bytes the buffers of all messages of a stream have, decompressed.

    Raises ValueError if the stream isn't one.
    """
    at = count = 0
    try:
        while at < len(data):
            start = _flatbuffer(data, at)
            size = _number(data, "<i", start - 4)
            if size == 0:
                break  # the stream's own end
            message, body = _table(data, start), start + size
            count += _claims(data, message, body)
            length_at = _field(data, message, _MESSAGE_BODY)
            length = _number(data, "<q", length_at) if length_at else 0
            if size < 0 or length < 0:
                raise ValueError("it goes back")
            at = body + length
    except struct.error as error:
        raise ValueError(f"it points beyond its end: {error}") from error
    return count


def _flatbuffer(data: bytes, at: int) -> int:
    """Return where a message's flatbuffer begins: after a mark, but in the oldest, and its size."""
    return at + (8 if data[at : at + 4] == b"\xff\xff\xff\xff" else 4)


def _claims(data: bytes, message: int, body: int, buffers_max: int = sys.maxsize) -> int:
    kind_at, header = _field(data, message, _MESSAGE_KIND), _field(data, message, _MESSAGE_HEADER)
    kind = _number(data, "<B", kind_at) if kind_at and header else 0
    if kind not in (_DICTIONARY, _BATCH):
        return 0
    batch = _table(data, header)
    if kind == _DICTIONARY:
        batch = _table(data, _field(data, batch, _DICTIONARY_BATCH))
    is_compressed, count = _field(data, batch, _BATCH_COMPRESSION) > 0, 0
    for at, length in _structs(data, batch, _BATCH_BUFFERS, _BUFFER, buffers_max):
        claimed = _number(data, "<q", body + at) if is_compressed and length else -1
        count += length if claimed < 0 else claimed  # -1: it isn't compressed
    return count


def _number(data: bytes, kind: str, at: int) -> int:
    if at < 0:
        raise ValueError("it points before its beginning")
    found: int = struct.unpack_from(kind, data, at)[0]
    return found


def _table(data: bytes, at: int) -> int:
    """Return where the table is to which an offset leads."""
    return at + _number(data, "<I", at)


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table is; 0 if it hasn't it."""
    fields = table - _number(data, "<i", table)
    entry = 4 + 2 * number
    has = entry < _number(data, "<H", fields)
    place = _number(data, "<H", fields + entry) if has else 0
    return table + place if place else 0


def _structs(
    data: bytes, table: int, number: int, kind: struct.Struct, most: int = sys.maxsize
) -> Iterator[tuple[int, ...]]:
    """Yield the structs in a vector of a table."""
    field = _field(data, table, number)
    if not field:
        return
    vector = _table(data, field)
    count = _number(data, "<I", vector)
    if count > most or count * kind.size > len(data):
        raise ValueError("it names more than it has room for")
    for index in range(count):
        yield kind.unpack_from(data, vector + 4 + index * kind.size)
