"""How much an Avro file may become once it is read, known before its records are made.

A block of a few kilobytes can decompress to gigabytes, and a record without any bytes can come a
billion times. The codecs here are those that Avro's own specification demands of every reader.
"""

from __future__ import annotations

import json
import zlib
from typing import Any

from commitlog.errors import UnsupportedFormat

MAGIC = b"Obj\x01"
_SYNC = 16
_BROKEN = (IndexError, KeyError, TypeError, ValueError, AttributeError, RecursionError, zlib.error)
"""What broken bytes lead to."""
_CODECS = {"null", "deflate"}
_SIZES = {"null": 0, "float": 4, "double": 8}
_PRIMITIVES = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


def check_avro(data: bytes, bytes_max: int) -> None:
    """Raise UnsupportedFormat for a file of more bytes, decompressed, or of records without any."""
    try:
        at, facts = _facts(data)
        codec = facts.get("avro.codec", b"null").decode()
        if codec not in _CODECS:
            raise UnsupportedFormat(f"the Avro codec {codec!r} is not one of {sorted(_CODECS)}")
        if _least_size(json.loads(facts["avro.schema"]), {}) < 1:
            raise UnsupportedFormat("its Avro records may have no bytes")
        at, left = at + _SYNC, bytes_max
        while at < len(data):
            count, at = _number(data, at)
            size, at = _number(data, at)
            left -= _decompressed_size(codec, data[at : at + size], left)
            if left < 0 or not 0 <= count <= bytes_max:
                raise UnsupportedFormat(f"it has over {bytes_max} bytes, decompressed")
            at += size + _SYNC
    except _BROKEN as error:
        raise UnsupportedFormat(f"not an Avro file: {error}") from error


def _facts(data: bytes) -> tuple[int, dict[str, bytes]]:
    if data[:4] != MAGIC:
        raise UnsupportedFormat("not an Avro file")
    at = 4
    facts: dict[str, bytes] = {}
    while True:
        count, at = _number(data, at)
        if not count:
            return at, facts
        if count < 0:
            _, at = _number(data, at)
        for _ in range(min(abs(count), len(data))):
            name, at = _bytes(data, at)
            facts[name.decode()], at = _bytes(data, at)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value >> 1 ^ -(value & 1), at
        if shift > 63:
            raise ValueError("a number has over ten bytes")


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _number(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError("a text goes beyond the file")
    return data[at : at + size], at + size


def _decompressed_size(codec: str, block: bytes, most: int) -> int:
    """Return a block's size, or one that is over `most`."""
    if codec == "null":
        return len(block)
    inflating, size, rest = zlib.decompressobj(-15), 0, block
    while rest and not inflating.eof and size <= most:
        size += len(inflating.decompress(rest, 1 << 20))
        rest = inflating.unconsumed_tail
    return size


def _least_size(schema: Any, named: dict[str, int]) -> int:
    """Return how many bytes a value has at least; refuse arrays of what may have none."""
    if isinstance(schema, list):
        for one in schema:
            _least_size(one, named)
        return 1
    kind = schema if isinstance(schema, str) else schema["type"]
    if not isinstance(kind, str):
        return _least_size(kind, named)
    if kind in _PRIMITIVES:
        return _SIZES.get(kind, 1)
    if kind in {"array", "map"}:
        if _least_size(schema["items" if kind == "array" else "values"], named) < 1:
            raise UnsupportedFormat("its Avro arrays may have items without any bytes")
        return 1
    if kind == "record":
        named[schema["name"]] = 0
        size = sum(_least_size(field["type"], named) for field in schema["fields"])
        named[schema["name"]] = size
        return size
    if kind in {"fixed", "enum"}:
        named[schema["name"]] = int(schema["size"]) if kind == "fixed" else 1
        return named[schema["name"]]
    return named.get(kind, named.get(kind.rpartition(".")[2], 0))
