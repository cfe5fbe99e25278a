"""Exact hashes of keys: which rows a transaction inserts, so that no key is inserted twice.

A key's hash is the 16-byte BLAKE2b of its columns' encodings, in the order of their field ids.
One value has one encoding, whatever type holds it:

    null        00
    boolean     01, one byte
    integer     02, 16 bytes, big endian, two's complement (all widths, signed or not)
    float       03, 8 bytes, IEEE 754 double, big endian (all widths); as in Lance's joins,
                -0.0 is another key than 0.0, and so is each NaN of other bits
    text        04, length, UTF-8
    bytes       05, length, bytes
    date        06, days since 1970 as an integer's 16 bytes
    timestamp   07, nanoseconds since 1970 as 16 bytes (UTC if it has a zone)
    time        08, nanoseconds since midnight as 16 bytes
    duration    09, nanoseconds as 16 bytes
    decimal     0a, unscaled value without trailing zeros as 32 bytes, scale as 4 bytes, signed
    list        0b, length, items
    struct      0c, count of fields, values in their order
    map         0d, length, its keys and values in turn

Lengths and counts are 8 bytes, big endian.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.errors import InvalidTransaction

HASH_BYTES = 16
_NULL = b"\x00"
_INTEGER = b"\x02"
_INTEGER_BYTES = 16
TOGETHER_MIN = 32
"""So many integers are encoded at once: below, to begin costs more than it spares."""
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DOUBLE = struct.Struct(">d")
_LENGTH = struct.Struct(">Q")

Encoder = Callable[[Any], bytes]


def key_hashes(columns: Sequence[pa.ChunkedArray | pa.Array]) -> list[bytes]:
    """Return each row's hash; `columns` are the key's, in the order of their field ids."""
    return hashed(encoded_keys(columns))


def encoded_keys(columns: Sequence[pa.ChunkedArray | pa.Array]) -> Iterator[bytes]:
    """Yield what each row's hash is made of; `columns` are in the order of their field ids."""
    encoded = [_encoded(column) for column in columns]
    return encoded[0] if len(encoded) == 1 else map(b"".join, zip(*encoded, strict=True))


def hashed(encoded: Iterable[bytes]) -> list[bytes]:
    """Return the hashes of encoded keys."""
    return [hashlib.blake2b(row, digest_size=HASH_BYTES).digest() for row in encoded]


def packed(hashes: Iterable[bytes]) -> bytes:
    """Return hashes as a transaction carries them: sorted, each once, concatenated."""
    return b"".join(sorted(set(hashes)))


def _encoded(column: pa.ChunkedArray | pa.Array) -> Iterator[bytes]:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        yield from _values(chunk)


def _values(array: pa.Array) -> Iterator[bytes]:
    """Encode an array's values; nested ones by their own arrays, so that nothing is rounded."""
    kind, types = array.type, pa.types
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array)
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if types.is_null(kind):
        return iter([_NULL] * len(array))
    if types.is_integer(kind) and len(array) >= TOGETHER_MIN and not array.null_count:
        return _integers(array)
    encode = _encoder(kind)
    if types.is_temporal(kind):
        # Python's own dates and times lose nanoseconds: Arrow's integers are taken instead.
        is_narrow = kind.bit_width == 32
        array = array.cast(pa.int32()).cast(pa.int64()) if is_narrow else array.cast(pa.int64())
    return (_NULL if value is None else encode(value) for value in array.to_pylist())


def _integers(array: pa.Array) -> Iterator[bytes]:
    """Encode integers as `_integer` does, all at once."""
    values = array.to_numpy()
    encoded = np.empty((len(values), 1 + _INTEGER_BYTES), np.uint8)
    encoded[:, 0] = _INTEGER[0]
    encoded[:, 1:] = np.where(values < 0, 0xFF, 0)[:, np.newaxis]
    big_endian = values.astype(">i8" if values.dtype.kind == "i" else ">u8")
    encoded[:, -big_endian.itemsize :] = big_endian.view(np.uint8).reshape(len(values), -1)
    return iter(encoded.view(f"V{encoded.shape[1]}").ravel().tolist())


def _lists(array: pa.Array) -> Iterator[bytes]:
    items = _values(array.flatten())
    for length in pc.list_value_length(array).to_pylist():
        if length is None:
            yield _NULL
        else:
            yield b"\x0b" + _LENGTH.pack(length) + b"".join(islice(items, length))


def _maps(array: pa.MapArray) -> Iterator[bytes]:
    offsets = array.offsets.to_pylist()
    start, count = offsets[0], offsets[-1] - offsets[0]
    keys = _values(array.keys.slice(start, count))
    items = _values(array.items.slice(start, count))
    entries = (key + item for key, item in zip(keys, items, strict=True))
    for is_valid, first, end in zip(
        array.is_valid().to_pylist(), offsets, offsets[1:], strict=False
    ):
        held = b"".join(islice(entries, end - first))
        yield b"\x0d" + _LENGTH.pack(end - first) + held if is_valid else _NULL


def _structs(array: pa.Array) -> Iterator[bytes]:
    count = _LENGTH.pack(array.type.num_fields)
    rows = zip(*map(_values, array.flatten()), strict=True)
    for is_valid, values in zip(array.is_valid().to_pylist(), rows, strict=True):
        yield b"\x0c" + count + b"".join(values) if is_valid else _NULL


def _encoder(kind: pa.DataType) -> Encoder:
    types = pa.types
    if types.is_boolean(kind):
        return lambda value: b"\x01\x01" if value else b"\x01\x00"
    if types.is_integer(kind):
        return lambda value: _integer(_INTEGER, value)
    if types.is_floating(kind):
        return lambda value: b"\x03" + _DOUBLE.pack(value)
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return lambda value: _sized(b"\x04", value.encode())
    if (
        types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_fixed_size_binary(kind)
        or types.is_binary_view(kind)
    ):
        return lambda value: _sized(b"\x05", value)
    if types.is_decimal(kind):
        return _decimal
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _temporal(kind)
    raise InvalidTransaction(
        f"a column of type {kind} cannot be part of a key",
        field="on",
        value=str(kind),
        advice="Choose columns of numbers, text, bytes, dates, times, lists, maps or structs",
    )


def _integer(tag: bytes, value: int) -> bytes:
    return tag + value.to_bytes(_INTEGER_BYTES, "big", signed=True)


def _sized(tag: bytes, data: bytes) -> bytes:
    return tag + _LENGTH.pack(len(data)) + data


def _decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    unscaled = int("".join(map(str, digits)))
    scale = -int(exponent)
    while unscaled and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    scale = scale if unscaled else 0
    signed = -unscaled if sign else unscaled
    return b"\x0a" + signed.to_bytes(32, "big", signed=True) + scale.to_bytes(4, "big", signed=True)


def _temporal(kind: pa.DataType) -> Encoder:
    """Encode the integer that Arrow stores."""
    if pa.types.is_date32(kind):
        return lambda value: _integer(b"\x06", value)
    if pa.types.is_date64(kind):
        return lambda value: _integer(b"\x06", value // 86_400_000)
    tag = b"\x07" if pa.types.is_timestamp(kind) else b"\x08" if pa.types.is_time(kind) else b"\x09"
    factor = _NANOSECONDS[kind.unit]
    return lambda value: _integer(tag, value * factor)
