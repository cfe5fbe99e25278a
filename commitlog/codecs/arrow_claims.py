"""How many bytes an Arrow IPC file says that its record batches have, before any is decompressed.

Arrow reserves what a compressed buffer claims, and a few kilobytes can claim gigabytes. The buffers
are named in the flatbuffers of the file's footer and of its messages, of which only that is read.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator

_MAGIC = b"ARROW1"
_BLOCK, _BUFFER = struct.Struct("<qi4xq"), struct.Struct("<qq")
_FOOTER_BATCHES, _MESSAGE_HEADER, _BATCH_BUFFERS, _BATCH_COMPRESSION = 3, 2, 2, 3
"""Numbers of fields, by Arrow's File.fbs and Message.fbs."""
_BUFFERS_MAX = 8
"""A column of numbers has two. A footer may name one message again and again, with all of its."""


def claimed_bytes(data: bytes) -> int:
    """Return how many bytes the buffers of all batches of one column have, decompressed.

    Raises ValueError if the file isn't one.
    """
    try:
        end = len(data) - len(_MAGIC) - 4
        start = end - _number(data, "<i", end)
        footer = _table(data, start)
        return sum(_claims(data, *one) for one in _structs(data, footer, _FOOTER_BATCHES, _BLOCK))
    except struct.error as error:
        raise ValueError(f"it points beyond its end: {error}") from error


def _claims(data: bytes, offset: int, metadata_length: int, _: int) -> int:
    # A message begins with a mark (but in the oldest files) and the length of its flatbuffer.
    start = offset + (8 if data[offset : offset + 4] == b"\xff\xff\xff\xff" else 4)
    message = _table(data, start)
    header = _field(data, message, _MESSAGE_HEADER)
    if not header:
        return 0
    batch, body, count = _table(data, header), offset + metadata_length, 0
    is_compressed = _field(data, batch, _BATCH_COMPRESSION) > 0
    for at, length in _structs(data, batch, _BATCH_BUFFERS, _BUFFER, _BUFFERS_MAX):
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
