"""Fitting Spark's batches to a table's schema."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from commitlog.errors import InvalidTransaction
from commitlog.spark.arrow import check, conform, fits
from commitlog.spark.source import readable_type

INSTANT = pa.timestamp("us", "UTC")


def one(batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
    (fitted,) = conform([batch], wanted)
    return fitted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.int32(), pa.float64()),
        (pa.float64(), pa.float32()),
        (pa.string(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
        (pa.timestamp("us", "Etc/UTC"), INSTANT),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.list_(pa.float32()), pa.list_(pa.float32(), 4)),
        (pa.struct([pa.field("a", pa.int64())]), pa.struct([pa.field("a", pa.int32())])),
        (pa.string(), pa.dictionary(pa.int8(), pa.string())),
        (pa.null(), pa.int64()),
    ],
)
def test_types_that_keep_their_meaning_fit(given: pa.DataType, wanted: pa.DataType) -> None:
    assert fits(given, wanted)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.string(), pa.int64()),
        (pa.int64(), pa.string()),
        (pa.float64(), pa.int64()),
        (pa.timestamp("us"), INSTANT),
        (INSTANT, pa.timestamp("us")),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([pa.field("a", pa.int64())]), pa.struct([pa.field("b", pa.int64())])),
        (pa.struct([]), pa.struct([pa.field("a", pa.int64(), nullable=False)])),
        (pa.bool_(), pa.int8()),
    ],
)
def test_types_that_would_change_their_meaning_do_not(
    given: pa.DataType, wanted: pa.DataType
) -> None:
    assert not fits(given, wanted)


def test_an_instant_is_the_same_in_every_session_time_zone() -> None:
    at = datetime(2013, 7, 1, 12, tzinfo=UTC)
    values = pa.array([at], pa.timestamp("us", "America/New_York"))
    wanted = pa.schema([pa.field("at", INSTANT)])
    fitted = one(pa.record_batch({"at": values}), wanted)
    assert fitted.schema.equals(wanted)
    assert fitted["at"].to_pylist() == [at]


def test_columns_are_taken_by_name_and_missing_ones_are_null() -> None:
    batch = pa.record_batch({"b": ["x"], "a": pa.array([1], pa.int64())})
    wanted = pa.schema(
        [pa.field("a", pa.int32(), False), pa.field("b", pa.string()), pa.field("c", pa.date32())]
    )
    assert one(batch, wanted).to_pylist() == [{"a": 1, "b": "x", "c": None}]


def test_a_vector_keeps_its_values() -> None:
    batch = pa.record_batch({"v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64()))})
    wanted = pa.schema([pa.field("v", pa.list_(pa.float32(), 2))])
    assert one(batch, wanted)["v"].to_pylist() == [[1.0, 2.0], [3.0, 4.0]]


def test_empty_batches_are_left_out() -> None:
    wanted = pa.schema([pa.field("a", pa.int64())])
    assert list(conform([pa.record_batch({"a": pa.array([], pa.int64())})], wanted)) == []


@pytest.mark.parametrize(
    ("values", "field", "says"),
    [
        (pa.array([2**40]), pa.field("a", pa.int32()), "does not fit int32"),
        (pa.array([None], pa.int64()), pa.field("a", pa.int64(), False), "1 nulls"),
        (pa.array([[1.0]]), pa.field("a", pa.list_(pa.float32(), 2)), "does not fit"),
    ],
)
def test_a_value_that_does_not_fit_is_named(values: pa.Array, field: pa.Field, says: str) -> None:
    with pytest.raises(InvalidTransaction, match=says) as caught:
        one(pa.record_batch({"a": values}), pa.schema([field]))
    assert caught.value.field == "a"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (pa.schema([("ids", pa.int64())]), "Rename it to 'id'"),
        (pa.schema([("zzz", pa.int64())]), "Its columns are id, at"),
        (pa.schema([("id", pa.string())]), "is string where the table has int64"),
        (pa.schema([("at", INSTANT)]), "is required and missing"),
        (pa.schema([("id", pa.int64()), ("id", pa.int64())]), "is there twice"),
        (pa.schema([("id", pa.null())]), "is required and always null"),
    ],
)
def test_columns_that_can_never_fit_are_refused_at_once(given: pa.Schema, says: str) -> None:
    table = pa.schema([pa.field("id", pa.int64(), False), pa.field("at", INSTANT)])
    with pytest.raises(InvalidTransaction, match=says):
        check(given, table, "a$b")


def test_a_query_with_fewer_columns_may_append() -> None:
    table = pa.schema([pa.field("id", pa.int64(), False), pa.field("at", INSTANT)])
    check(pa.schema([("id", pa.int64())]), table, "a$b")


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (pa.list_(pa.float32(), 3), pa.list_(pa.float32())),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.uint32(), pa.int64()),
        (pa.timestamp("ns", "Europe/Berlin"), INSTANT),
        (pa.struct([("v", pa.list_(pa.int8(), 2))]), pa.struct([("v", pa.list_(pa.int8()))])),
    ],
)
def test_spark_reads_the_nearest_type_it_knows(stored: pa.DataType, read: pa.DataType) -> None:
    assert readable_type(stored) == read
