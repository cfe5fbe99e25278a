"""A table's columns as Spark has them."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    LongType,
    NullType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from commitlog.adapters.row_contract import check_columns
from commitlog.errors import InvalidTransaction, WrongColumns
from commitlog.spark.arrow import arrow_schema, conformed, readable_type, spark_schema, to_spark
from commitlog.spark.pyspark_api import arrow_schema_of

INSTANT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.uint32(), pa.int64()),
        (pa.timestamp("ns", "Europe/Berlin"), INSTANT),
        (pa.struct([("v", pa.list_(pa.int8(), 2))]), pa.struct([("v", pa.list_(pa.int8()))])),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
        (pa.time32("s"), pa.time64("us")),
        (pa.duration("ns"), pa.duration("us")),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        (pa.string_view(), pa.string()),
        (pa.uuid(), pa.binary()),
        (pa.json_(), pa.string()),
    ],
)
def test_spark_reads_the_nearest_type_it_knows(stored: pa.DataType, read: pa.DataType) -> None:
    assert readable_type(stored) == read


def read(values: pa.Array) -> list[Any]:
    """Return values as Spark reads them."""
    batch = pa.record_batch({"c": values})
    schema = arrow_schema_of(spark_schema(batch.schema, "a$b"))
    read: list[Any] = to_spark(batch, schema).column("c").to_pylist()
    return read


def test_what_is_below_microseconds_is_cut_off_wherever_it_is() -> None:
    nanos = pa.array([1_600_000_000_000_001_999, None], pa.timestamp("ns"))
    cut = datetime(2020, 9, 13, 12, 26, 40, 1)
    assert read(nanos) == [cut, None]
    assert read(nanos.cast(pa.timestamp("ns", "UTC"))) == [cut.replace(tzinfo=UTC), None]
    assert read(pa.array([[1_999, None]], pa.list_(pa.timestamp("ns")))) == [
        [datetime(1970, 1, 1, 0, 0, 0, 1), None]
    ]
    inside = pa.array([{"at": 1_999}], pa.struct([("at", pa.timestamp("ns"))]))
    assert read(inside) == [{"at": datetime(1970, 1, 1, 0, 0, 0, 1)}]
    assert read(pa.array([1_999], pa.duration("ns"))) == [timedelta(microseconds=1)]
    assert read(pa.array([1_999], pa.time64("ns"))) == [time(0, 0, 0, 1)]


def test_times_without_a_zone_have_none_in_any_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark 4.1 takes them for instants, and shows them in the session's zone, if not asked."""
    defaults = {one: (False,) for one in (from_arrow_schema, from_arrow_type)}
    for function, values in defaults.items():
        monkeypatch.setattr(function, "__defaults__", values)
    plain = pa.timestamp("us")
    columns = {"at": plain, "many": pa.list_(plain), "inside": pa.struct([("at", plain)])}
    found = spark_schema(pa.schema(list(columns.items())), "t")
    assert arrow_schema_of(found) == pa.schema(list(columns.items()))


def test_other_values_are_read_as_they_are() -> None:
    assert read(pa.array([2**64 - 1], pa.uint64())) == [Decimal(2**64 - 1)]
    assert read(pa.array([date(2013, 7, 1)], pa.date64())) == [date(2013, 7, 1)]
    assert read(pa.array([1.5], pa.float16())) == [1.5]
    storage = pa.array([b"0123456789abcdef"], pa.binary(16))
    assert read(pa.ExtensionArray.from_storage(pa.uuid(), storage)) == [b"0123456789abcdef"]
    assert read(lance.blob_array([b"x", None, b""])) == [b"x", None, b""]
    vectors = pa.array([[[1.0, 2.0]]], pa.list_(pa.list_(pa.float32(), 2)))
    assert read(vectors) == [[[1.0, 2.0]]]


def test_what_spark_cannot_hold_is_named() -> None:
    with pytest.raises(InvalidTransaction, match="no type for column 'c'.*more than 38 digits"):
        read(pa.array([Decimal(1)], pa.decimal256(50, 2)))
    with pytest.raises(InvalidTransaction, match="cannot hold a value of column 'c'"):
        read(pa.array([2**62], pa.timestamp("s")))
    with pytest.raises(InvalidTransaction, match="interval year to month, which tables cannot"):
        arrow_schema(StructType([StructField("c", YearMonthIntervalType())]), "a$b")
    assert arrow_schema(StructType([StructField("c", LongType())]), "a$b").field("c").type == "i8"
    # `array()`: Spark says that it has no nulls.
    nothing = StructType([StructField("c", ArrayType(NullType(), containsNull=False))])
    assert arrow_schema(nothing, "a$b").field("c").type == pa.list_(pa.null())


def test_rows_are_counted_over_all_batches() -> None:
    wanted = pa.schema([pa.field("c", pa.int8())])
    batches = [pa.record_batch({"c": pa.array(values, pa.int64())}) for values in ([], [1], [300])]
    with pytest.raises(InvalidTransaction, match="row 1 of column 'c' is 300"):
        list(conformed(batches, wanted, "a$b"))


def test_a_null_that_spark_does_not_expect_is_named() -> None:
    """A column may have become nullable since SQL's CREATE TABLE noted it in Spark's catalog."""
    noted = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    to_spark(pa.record_batch({"id": [1, 2]}), noted)
    for batch in (pa.record_batch({"id": [1, None]}), pa.record_batch({"name": ["a"]})):
        with pytest.raises(InvalidTransaction, match=r"'id' has nulls.*CREATE OR REPLACE TABLE"):
            to_spark(batch, noted)


def test_a_variant_that_does_not_fit_is_named_with_what_makes_text_of_it() -> None:
    inner = StructType([StructField("w", VariantType())])
    given = arrow_schema(
        StructType([StructField("v", VariantType()), StructField("n", inner)]), "t"
    )
    text = pa.struct([("w", pa.string())])
    for name, kind in (("v", pa.string()), ("n", text)):
        with pytest.raises(WrongColumns, match="a VARIANT of Spark.*`to_json`"):
            check_columns(pa.schema([given.field(name)]), pa.schema([(name, kind)]), "t")
