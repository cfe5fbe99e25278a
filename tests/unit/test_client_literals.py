"""Python values become a column's values, or are refused; pyarrow alone would drop parts."""

from __future__ import annotations

import uuid
from array import array
from collections import UserList, deque
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lance import blob_field

from commitlog.client.rows.data import kept, rows_reader, rows_table
from commitlog.errors import InvalidTransaction, WrongColumns

NOON = datetime(2013, 7, 1, 12, 0, 0, 5)
PAIR = pa.struct([("x", pa.int32()), ("m", pa.map_(pa.string(), pa.float32()))])
ID = uuid.UUID(int=5)


def column(values: Any, kind: pa.DataType) -> list[Any]:
    schema = pa.schema([("c", kind)])
    found = rows_table({"c": values}, schema, "a$t")
    assert found.schema.equals(schema)
    read: list[Any] = found["c"].to_pylist()
    return read


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, 2], pa.int8()),
        ([2**64 - 1], pa.uint64()),
        ([1, 2.5], pa.float64()),
        ([True, None], pa.bool_()),
        ([1, Decimal("2.50")], pa.decimal128(10, 2)),
        ([10**30], pa.decimal256(50, 2)),
        (["a", None], pa.dictionary(pa.int8(), pa.string())),
        ([b"ab"], pa.binary(2)),
        ([NOON], pa.timestamp("ns")),
        ([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Paris")),
        ([date(2013, 7, 1)], pa.date64()),
        ([time(1, 2, 3)], pa.time32("s")),
        ([timedelta(seconds=1)], pa.duration("s")),
        ([[1.5, 2.5], None], pa.list_(pa.float16(), 2)),
        ([{"x": 1, "m": [("a", 0.5)]}, None], PAIR),
        ([[NOON], None, []], pa.list_(pa.timestamp("us"))),
        ([[], None], pa.list_(PAIR)),
        ([[{"x": 1, "m": [("k", None)]}]], pa.large_list(PAIR)),
        ([ID, None], pa.uuid()),
        (['{"a": 1}'], pa.json_()),
        ([None], pa.list_(pa.float32(), 3)),
        ([None, []], pa.map_(pa.string(), pa.int8())),
        ([[[], None]], pa.list_(pa.map_(pa.uuid(), pa.list_(pa.int8())))),
        ([{"x": 1, "m": None}], PAIR),
    ],
    ids=str,
)
def test_values_are_kept(values: list[Any], kind: pa.DataType) -> None:
    assert column(values, kind) == values


def test_python_values_that_pyarrow_takes_in_other_forms() -> None:
    assert column([{"a": 1}], pa.map_(pa.string(), pa.int8())) == [[("a", 1)]]
    assert column([5], pa.timestamp("us")) == [datetime(1970, 1, 1, microsecond=5)]
    assert column([0.1], pa.float32()) == [pa.scalar(0.1, pa.float32()).as_py()]
    assert column(np.array([[1.0, 2.0]]), pa.list_(pa.float32(), 2)) == [[1.0, 2.0]]
    assert column([np.array([1.0, 2.0])], pa.list_(pa.float32(), 2)) == [[1.0, 2.0]]
    assert column([{"x": 1}, {}], PAIR) == [{"x": 1, "m": None}, {"x": None, "m": None}]


@pytest.mark.parametrize(
    ("values", "kind", "says"),
    [
        ([1, 1.5], pa.int64(), "1.5"),
        ([1, 2**40], pa.int32(), "1099511627776"),
        ([2**53 + 1, 0.5], pa.float64(), "9007199254740993"),
        ([1e300], pa.float32(), "infinite"),
        ([[1.0, 1e300]], pa.list_(pa.float32(), 2), "infinite"),
        ([[1.0]], pa.list_(pa.float32(), 2), "1 elements"),
        ([[1.0, None]], pa.list_(pa.field("item", pa.float32(), False), 2), "null"),
        ([1, "2"], pa.int64(), "several kinds"),
        (["2"], pa.int64(), "'2'"),
        ([True], pa.int64(), "True"),
        ([1.5], pa.decimal128(10, 2), "1.5"),
        ([Decimal("1.234")], pa.decimal128(10, 2), "1.234"),
        (["a"], pa.binary(), "'a'"),
        ([b"a"], pa.string(), "b'a'"),
        ([NOON], pa.timestamp("s"), "2013"),
        ([NOON], pa.date32(), "datetime.datetime"),
        ([date(2013, 7, 1), NOON], pa.date32(), "several kinds"),
        ([NOON], pa.timestamp("us", "UTC"), "datetime.datetime"),
        ([NOON, NOON.replace(tzinfo=UTC)], pa.timestamp("us"), "several kinds"),
        ([NOON.replace(tzinfo=UTC)], pa.timestamp("us"), "datetime.datetime"),
        ([timedelta(microseconds=1)], pa.duration("s"), "microseconds=1"),
        ([{"x": 1, "z": 2}], PAIR, "'z' is not a field"),
        ([[{"x": 1, "z": 2}]], pa.list_(PAIR), "'z' is not a field"),
        ([{"m": {"a": 1e300}}], PAIR, "infinite"),
        ([[1]], PAIR, "not a mapping"),
        (["ab"], pa.list_(pa.string()), "not a sequence"),
        ([["a"]], pa.map_(pa.string(), pa.int8()), "not hold pairs"),
        ([{"a": 1}, {None: 1}], pa.map_(pa.string(), pa.int8()), "never null"),
        ([[{None: 1}]], pa.list_(pa.map_(pa.string(), pa.int8())), "never null"),
        (["nope"], pa.uuid(), "'nope'"),
        ([float("nan"), None], pa.string(), "nan"),
        ([float("inf"), 2**70], pa.int64(), "cannot hold"),
        ([Decimal("NaN")], pa.decimal128(10, 2), "NaN"),
        ([1 + 2j], pa.float64(), "(1+2j)"),
        (np.array([0.1]), pa.float32(), "rounded"),
        (np.zeros((1, 1, 1)), pa.float32(), "1-dimensional"),
    ],
    ids=str,
)
def test_values_that_would_lose_something_are_refused(
    values: Any, kind: pa.DataType, says: str
) -> None:
    with pytest.raises(InvalidTransaction, match="column 'c") as caught:
        column(values, kind)
    assert says in str(caught.value)
    assert caught.value.field == "c"


class Frame:
    """What a data frame is that Arrow can't read, or a series, which has no columns."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        return self._read().__arrow_c_stream__(requested_schema)


def test_a_frame_that_arrow_cannot_read_is_refused() -> None:
    schema = pa.schema([("c", pa.string())])
    mixed = Frame(lambda: pa.table({"c": pa.array(["a", 5])}))
    series = Frame(lambda: pa.chunked_array([["a"]]))

    def table_of(data: Frame) -> pa.Table:
        return rows_table(data, schema, "a$t")

    for read in (table_of, kept):
        with pytest.raises(InvalidTransaction, match="Frame cannot be read.* 'int' object.*pass a"):
            read(mixed)
        with pytest.raises(InvalidTransaction, match="Frame cannot be read.*non-struct.*pass a"):
            read(series)


def test_an_unnamed_index_of_pandas_is_no_column_and_a_named_one_is() -> None:
    """A filtered, sorted or joined frame has one, and pyarrow gives it a name of its own."""
    index = {"__index_level_0__": [3, 5]}
    of_pandas = {b"pandas": b"{}"}
    schema = pa.schema([("c", pa.string())])
    given = pa.table({"c": ["a", "b"], **index})
    frame = given.replace_schema_metadata(of_pandas)
    for read in (frame, Frame(lambda: frame), frame.to_reader(), [frame]):
        assert rows_table(read, schema, "a$t").to_pydict() == {"c": ["a", "b"]}
    with pytest.raises(WrongColumns, match="no column '__index_level_0__'"):
        rows_table(given, schema, "a$t")
    named = schema.append(pa.field("__index_level_0__", pa.int64()))
    assert rows_table(frame, named, "a$t").to_pydict() == {"c": ["a", "b"], **index}


def test_a_frame_without_rows_fits_whatever_types_pandas_gives_it() -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    of_pandas = {b"pandas": b"{}"}
    # What pandas makes of `{"id": [], "name": []}`, and of rows of which a filter left none.
    for types in ((pa.float64(), pa.float64()), (pa.int64(), pa.string())):
        given = pa.schema(list(zip(schema.names, types, strict=True)), of_pandas).empty_table()
        assert rows_table(given, schema, "t") == schema.empty_table()
    nothings: list[Any] = [pa.table({}), pa.table({}).replace_schema_metadata(of_pandas), [], {}]
    for nothing in nothings:
        assert rows_table(nothing, schema, "t") == schema.empty_table()
    of_nulls = pa.table({"id": [], "name": []})  # as polars' frame of these has them
    assert rows_reader(of_nulls, schema, "t").read_all() == schema.empty_table()
    blobs = pa.schema([("id", pa.int64()), blob_field("b")])
    assert rows_table(blobs.empty_table(), blobs, "t") == blobs.empty_table()
    indexed = [("name", pa.float64()), ("__index_level_0__", pa.int64())]
    assert rows_table(pa.schema(indexed, of_pandas).empty_table(), schema, "t").to_pydict() == {
        "name": []
    }
    unknown = pa.schema([("nam", pa.float64())], of_pandas).empty_table()
    with pytest.raises(InvalidTransaction, match="no column 'nam'"):
        rows_table(unknown, schema, "t")


@pytest.mark.parametrize(
    "values",
    [
        *({1: "a", 2: "b"}.keys(), {"a": 1, "b": 2}.values(), deque([1, 2]), range(1, 3), (1, 2)),
        *(array("q", [1, 2]), memoryview(array("q", [1, 2])), UserList([1, 2])),
        *(pa.array([1, 2]), pa.chunked_array([[1], [2]]), np.array([1, 2])),
    ],
    ids=lambda values: type(values).__name__,
)
def test_whatever_holds_values_in_an_order_is_a_column(values: object) -> None:
    """Also the keys of a mapping, whose values may be another column."""
    schema = pa.schema([("c", pa.int64())])
    assert rows_table({"c": values}, schema, "t").to_pydict() == {"c": [1, 2]}


@pytest.mark.parametrize("values", [{1, 2}, frozenset((1, 2)), {1: 2}, {1: 2}.items(), b"ab"])
def test_what_has_no_order_or_is_one_value_is_no_column(values: object) -> None:
    with pytest.raises(InvalidTransaction, match="column 'c' for t cannot be"):
        rows_table({"c": values}, pa.schema([("c", pa.int64())]), "t")


def test_iterators_and_lists_of_tables_batches_and_rows_are_read() -> None:
    schema = pa.schema([("c", pa.int64())])
    tables = [pa.table({"c": [1]}), pa.table({"c": [2, 3]}), pa.table({"c": []}, schema=schema)]
    batches = [batch for table in tables for batch in table.to_batches()]
    rows = [{"c": one} for one in (1, 2, 3)]
    for data in (iter(tables), tables, iter(batches), batches, iter(rows), rows):
        assert rows_table(data, schema, "a$t").to_pydict() == {"c": [1, 2, 3]}
    for data in (iter([]), iter(tables[2:]), tables[2:]):
        assert rows_table(data, schema, "a$t").num_rows == 0
    with pytest.raises(InvalidTransaction, match="list_iterator of bytes cannot be read as rows"):
        rows_table(iter([b"a line"]), schema, "a$t")
    mixed = [pa.table({"c": [1]}), pa.table({"d": [1]})]
    for data in (mixed, iter(mixed)):
        with pytest.raises(InvalidTransaction, match="the batches differ in their columns"):
            rows_table(data, schema, "a$t")


def test_a_stream_of_another_library_is_read_as_arrow_though_it_is_an_iterator() -> None:
    class Reader(Iterator[object]):
        """As that of arro3, which delta-rs returns: its batches are no pyarrow's."""

        def __next__(self) -> object:
            return object()

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"c": [1, 2]}).__arrow_c_stream__(requested_schema)

    schema = pa.schema([("c", pa.int64())])
    assert rows_table(Reader(), schema, "a$t").to_pydict() == {"c": [1, 2]}
    assert rows_table(kept(Reader()), schema, "a$t").to_pydict() == {"c": [1, 2]}


def test_what_an_iterator_raises_is_raised() -> None:
    def failing() -> Iterator[pa.Table]:
        yield pa.table({"c": [1]})
        raise LookupError("its source is gone")

    with pytest.raises(LookupError, match="its source is gone"):
        rows_table(failing(), pa.schema([("c", pa.int64())]), "a$t")
