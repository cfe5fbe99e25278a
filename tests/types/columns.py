"""The columns: each type with values at its ends; and what of a value counts, whatever holds it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import lance
import pyarrow as pa

_INF = math.inf
_UNITS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_POINT = pa.struct([pa.field("x", pa.int32(), nullable=False), pa.field("y", pa.string())])
_LEGACY_BLOB = {b"lance-encoding:blob": b"true"}


@dataclass(frozen=True)
class Column:
    """One type and its values."""

    name: str
    field: pa.Field
    values: pa.Array


def columns() -> Iterator[Column]:
    """Yield all columns, each named `c`."""
    for bits in (8, 16, 32, 64):
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        yield _column(f"int{bits}", getattr(pa, f"int{bits}")(), [low, None, high, 0])
        yield _column(f"uint{bits}", getattr(pa, f"uint{bits}")(), [2**bits - 1, None, 0])
    yield _column("bool", pa.bool_(), [True, None, False])
    yield _column("float16", pa.float16(), [1.5, None, _INF, -65504.0, -0.0, math.nan])
    yield _column("float32", pa.float32(), [0.5, None, -_INF, 3.4028234663852886e38, math.nan])
    yield _column("float64", pa.float64(), [0.1, None, _INF, 1e308, 5e-324, math.nan])
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        yield _column(str(kind), kind, ["", None, "a\u00e4\U0001f600\n", "x" * 100])
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        yield _column(str(kind), kind, [b"", None, b"\x00\xff", b"x" * 100])
    yield _column("fixed_size_binary", pa.binary(4), [b"\x00\xff\x00\xff", None])
    yield from _times()
    for kind, text in (
        (pa.decimal32(5, 2), "-999.99"),
        (pa.decimal64(15, 2), "-9999999999999.99"),
        (pa.decimal128(38, 10), "9" * 28 + ".0123456789"),
        (pa.decimal256(76, 10), "9" * 66 + ".0123456789"),
    ):
        yield _column(str(kind).partition("(")[0], kind, [Decimal(text), None, Decimal("0.5")])
    yield _column("null", pa.null(), [None, None])
    yield from _nested()
    yield from _extensions()


def _times() -> Iterator[Column]:
    yield _column("date32", pa.date32(), _counts(pa.int32(), [-719162, None, 2932896]))
    day = 86_400_000
    yield _column("date64", pa.date64(), _counts(pa.int64(), [-719162 * day, None, 2932896 * day]))
    yield _column("time32 s", pa.time32("s"), _counts(pa.int32(), [0, None, 86_399]))
    yield _column("time32 ms", pa.time32("ms"), _counts(pa.int32(), [0, None, 86_399_999]))
    yield _column("time64 us", pa.time64("us"), _counts(pa.int64(), [1, None, 86_399_999_999]))
    yield _column("time64 ns", pa.time64("ns"), _counts(pa.int64(), [1, None, 86_399_999_999_999]))
    for unit, factor in _UNITS.items():
        ends = [-62_000_000_000 * 10**9 // factor, None, 253_000_000_000 * 10**9 // factor, 1]
        if unit == "ns":
            ends = [-(2**62) - 1, None, 2**62 + 1, 1]
        for zone in (None, "UTC", "America/New_York"):
            kind = pa.timestamp(unit, zone)
            name = f"timestamp {unit}" + (f", {zone}" if zone else "")
            yield _column(name, kind, _counts(pa.int64(), ends))
        yield _column(f"duration {unit}", pa.duration(unit), _counts(pa.int64(), [-5, None, 7]))


def _nested() -> Iterator[Column]:
    texts = pa.dictionary(pa.int8(), pa.string())
    yield _column("dictionary of text", texts, ["a", None, "b", "a"])
    numbers = pa.dictionary(pa.int32(), pa.int64())
    yield _column("dictionary of numbers", numbers, [2**60, None, 5])
    yield _column("list", pa.list_(pa.int32()), [[1, None], None, [], [2]])
    yield _column("large_list", pa.large_list(pa.string()), [["a", None], None, []])
    yield _column("list of lists", pa.list_(pa.list_(pa.int8())), [[[1], None, []], None, []])
    required = pa.field("item", pa.float32(), nullable=False)
    for kind in (pa.float16(), pa.float32(), pa.float64()):
        yield _column(f"vector of {kind}", pa.list_(kind, 2), [[0.5, -2.0], None, [_INF, 1.0]])
    yield _column("vector without nulls", pa.list_(required, 2), [[0.5, -2.0], None, [0.0, 1.0]])
    yield _column("vector of int8", pa.list_(pa.int8(), 2), [[1, -128], None])
    many = pa.list_(pa.list_(pa.float32(), 2))
    yield _column("multi-vector", many, [[[0.5, 1.0], [2.0, 3.0]], None, []])
    yield _column("struct", _POINT, [{"x": 1, "y": None}, None, {"x": -1, "y": "b"}])
    deep = pa.struct([pa.field("p", _POINT), pa.field("l", pa.list_(_POINT))])
    point = {"x": 1, "y": "a"}
    values = [{"p": point, "l": [point]}, None, {"p": None, "l": None}, {"p": point, "l": []}]
    yield _column("struct of structs and lists", deep, values)
    yield _column("list of structs", pa.list_(_POINT), [[point, {"x": 2, "y": None}], None, []])
    plain = pa.map_(pa.string(), pa.int32())
    yield _column("map", plain, [[("a", 1), ("b", None)], None, []])
    yield _column("map of structs", pa.map_(pa.string(), _POINT), [[("a", point)], None])
    yield _column("list_view", pa.list_view(pa.int32()), [[1], None])
    yield _column("run_end_encoded", pa.run_end_encoded(pa.int32(), pa.string()), _runs())
    interval = pa.month_day_nano_interval()
    yield _column("interval", interval, [pa.MonthDayNano([1, 2, 3]), None])


def _extensions() -> Iterator[Column]:
    yield _column("uuid", pa.uuid(), _stored(pa.uuid(), [b"0123456789abcdef", None]))
    yield _column("json", pa.json_(), _stored(pa.json_(), ['{"a":1}', None, "[]", "null"]))
    yield _column("bool8", pa.bool8(), _stored(pa.bool8(), [1, None, 0]))
    tensor = pa.fixed_shape_tensor(pa.float32(), (1, 2))
    yield _column("fixed_shape_tensor", tensor, _stored(tensor, [[0.5, 1.0], [2.0, 3.0]]))
    half = pa.field("c", pa.binary(2), metadata={b"ARROW:extension:name": b"lance.bfloat16"})
    yield Column("bfloat16", half, pa.array([b"\x00\x3f", None], pa.binary(2)))
    blobs = [b"", None, b"\x00\xff", b"x" * 100_000]
    field = pa.field("c", pa.large_binary(), metadata=_LEGACY_BLOB)
    yield Column("blob, as large_binary", field, pa.array(blobs, pa.large_binary()))
    yield Column("blob", lance.blob_field("c"), lance.blob_array(blobs))


def _column(name: str, kind: pa.DataType, values: Any) -> Column:
    array = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return Column(name, pa.field("c", kind), array if array.type == kind else array.view(kind))


def _counts(kind: pa.DataType, values: list[int | None]) -> pa.Array:
    return pa.array(values, kind)


def _stored(kind: Any, values: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))


def _runs() -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(["a", None]))


def plain(values: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return values as Python holds them, whatever their layout is; times are nanoseconds."""
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in plain(chunk)]
    kind, types = values.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name == "lance.blob.v2":
            return plain(values.storage.field("data"))
        return plain(values.storage)
    if types.is_dictionary(kind):
        return plain(values.dictionary_decode())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        parts = zip(*(plain(part) for part in values.flatten()), strict=True)
        return _where(values, (dict(zip(names, part, strict=True)) for part in parts))
    if types.is_map(kind):
        return [None if not v.is_valid else _entries(v) for v in values]
    if types.is_nested(kind):
        return [None if not v.is_valid else plain(v.values) for v in values]
    if types.is_temporal(kind) and not types.is_interval(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        counts = values.view(width).to_pylist()
        return [None if count is None else count * _nanoseconds(kind) for count in counts]
    if types.is_floating(kind):
        return [repr(value) for value in values.to_pylist()]
    found = values.to_pylist()
    return [v.normalize() if isinstance(v, Decimal) else v for v in found]


def _entries(value: Any) -> list[Any]:
    entries = value.values
    return list(zip(plain(entries.field(0)), plain(entries.field(1)), strict=True))


def _where(values: pa.Array, rows: Iterator[Any]) -> list[Any]:
    valid = values.is_valid().to_pylist()
    return [row if is_valid else None for row, is_valid in zip(rows, valid, strict=True)]


def _nanoseconds(kind: pa.DataType) -> int:
    if pa.types.is_date32(kind):
        return 86_400 * 10**9
    return 10**6 if pa.types.is_date64(kind) else _UNITS[kind.unit]
