"""Spark's types and the columns that they are written into, and the documentation's table of them.

`python -m tests.spark_kinds --write` puts the table into the documentation.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import lance
import pyarrow as pa

from commitlog.adapters.row_values import is_blob
from commitlog.spark.arrow import spark_schema
from tests.made_tables import TYPES, MadeTable

WRITTEN = MadeTable(TYPES, "python -m tests.spark_kinds --write")
AT = datetime(2013, 7, 1, 12, 30, 1, 123456)


@dataclass(frozen=True)
class Kind:
    """A type of Spark's, the column that it is written into, and a value in each's terms."""

    spark: str
    column: pa.DataType
    value: str
    """A SQL expression."""
    stored: Any
    read: Any = None
    """What Spark reads, if that is another value."""
    duckdb: Any = True
    """Whether DuckDB reads the column's Arrow type, or what it reads."""


ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
UTC_AT = AT.replace(tzinfo=UTC)
KINDS = [
    Kind("boolean", pa.bool_(), "true", True),
    Kind("tinyint", pa.int8(), "-128", -128),
    Kind("smallint", pa.int16(), "-32768", -32768),
    Kind("int", pa.int32(), "-2147483648", -(2**31)),
    Kind("bigint", pa.int64(), "-9223372036854775807", -(2**63) + 1),
    Kind("bigint", pa.int8(), "127", 127),
    Kind("bigint", pa.uint32(), "4294967295", 2**32 - 1),
    Kind("decimal(20,0)", pa.uint64(), "18446744073709551615", 2**64 - 1, Decimal(2**64 - 1)),
    Kind("bigint", pa.decimal128(10, 2), "99999999", Decimal("99999999.00")),
    Kind("int", pa.float64(), "7", 7.0),
    Kind("float", pa.float32(), "0.1", 0.10000000149011612),
    Kind("float", pa.float16(), "1.5", 1.5, duckdb=False),
    Kind("double", pa.float64(), "0.1D", 0.1),
    Kind("double", pa.float32(), "double('Infinity')", float("inf")),
    Kind("decimal(10,2)", pa.decimal128(10, 2), "12.34", Decimal("12.34")),
    Kind("decimal(38,10)", pa.decimal128(38, 10), "0.0000000001", Decimal("1e-10")),
    Kind("decimal(10,2)", pa.decimal128(12, 4), "12.34", Decimal("12.3400")),
    Kind("string", pa.string(), "'naïve \U0001f600'", "naïve \U0001f600"),
    Kind("string", pa.large_string(), "''", ""),
    Kind("string", pa.dictionary(pa.int32(), pa.string()), "'red'", "red"),
    Kind("binary", pa.binary(), "x'00ff'", b"\x00\xff"),
    Kind("binary", pa.large_binary(), "x''", b""),
    Kind("binary", pa.binary(2), "x'00ff'", b"\x00\xff"),
    Kind("date", pa.date32(), "date'1582-10-15'", date(1582, 10, 15)),
    Kind("date", pa.date64(), "date'2013-07-01'", date(2013, 7, 1)),
    Kind("timestamp", pa.timestamp("us", "UTC"), f"timestamp'{AT}Z'", UTC_AT),
    Kind("timestamp", pa.timestamp("ns", "Asia/Tokyo"), f"timestamp'{AT}Z'", UTC_AT),
    Kind("timestamp_ntz", pa.timestamp("us"), f"timestamp_ntz'{AT}'", AT),
    Kind("timestamp_ntz", pa.timestamp("s"), "timestamp_ntz'1969-07-20 20:17:40'",
         datetime(1969, 7, 20, 20, 17, 40)),
    Kind("time(6)", pa.time64("us"), "time'23:59:59.999999'", time(23, 59, 59, 999999)),
    Kind("interval day to second", pa.duration("us"), "interval '1 02:03:04.5' day to second",
         timedelta(days=1, hours=2, minutes=3, seconds=4.5),
         duckdb=pa.MonthDayNano([0, 0, 93784500000000])),
    Kind("array<int>", pa.list_(pa.int32()), "array(1, null)", [1, None]),
    Kind("array<double>", pa.list_(pa.float32(), 2), "array(0.5D, 2D)", [0.5, 2.0]),
    Kind("array<float>", pa.list_(pa.float16(), 2), "array(0.5F, 2F)", [0.5, 2.0], duckdb=False),
    Kind("array<array<float>>", pa.list_(pa.list_(pa.float32(), 2)), "array(array(1F, 2F))",
         [[1.0, 2.0]]),
    Kind("map<string,int>", pa.map_(pa.string(), pa.int32()), "map('a', 1)", [("a", 1)], {"a": 1}),
    Kind("struct<x:bigint,y:string>", pa.struct([("x", pa.int32()), ("y", pa.string())]),
         "named_struct('x', 1L, 'y', null)", {"x": 1, "y": None}),
    Kind("binary", pa.uuid(), "x'00112233445566778899aabbccddeeff'", ID, ID.bytes, str(ID)),
    Kind("string", pa.json_(), "'[1]'", "[1]"),
    Kind("binary", lance.blob_field("b").type, "x'00ff'", b"\x00\xff"),
    Kind("array<struct<x:int>>", pa.list_(pa.struct([("x", pa.int32())])),
         "array(named_struct('x', 1))", [{"x": 1}]),
]  # fmt: skip
REFUSED = {
    "calendar interval": "no column holds months and days at once",
    "interval year to month": "no column holds months",
    "char and varchar of a frame": "cast them to `string`, as Spark's own tables do",
}
"""Types that no column holds."""
PARTS = {
    "variant": "a struct of two binaries, `metadata` and `value`; `to_json` makes text of it",
    "void": "any column that may be null",
}
"""Types that fit by their parts."""


def document() -> str:
    """Return the table: each of Spark's types, and the columns that every way of writing fills."""
    lines = ["| Spark | column | Spark reads | DuckDB reads it |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{kind.spark}` | {_name(kind.column)} | `{_as_read(kind)}` "
        f"| {'no' if kind.duckdb is False else 'yes'} |"
        for kind in KINDS
    ]
    lines += [f"| `{spark}` | {how} | – | – |" for spark, how in PARTS.items()]
    lines += [f"| {spark} | none: {why} | – | – |" for spark, why in REFUSED.items()]
    return "\n".join(lines)


def _name(column: pa.DataType) -> str:
    if isinstance(column, pa.DictionaryType):
        return f"dictionary of {column.value_type}"
    if isinstance(column, pa.BaseExtensionType):
        return "blob" if is_blob(column) else str(column.extension_name).removeprefix("arrow.")
    return str(column)


def _as_read(kind: Kind) -> str:
    schema = spark_schema(pa.schema([pa.field("c", kind.column)]), "t")
    return str(schema.fields[0].dataType.simpleString())


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        WRITTEN.write(document())
    else:
        print(document())
