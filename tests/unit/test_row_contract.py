"""The row contract: a value enters a column as it is, or is refused by column, row and value."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog.adapters.row_contract import (
    check_columns,
    conform,
    conform_column,
    fits,
    present,
)
from commitlog.adapters.row_text import check_batch
from commitlog.adapters.shown_values import python_rows
from commitlog.errors import InvalidTransaction

F16, F32, F64 = pa.float16(), pa.float32(), pa.float64()
I8, I32, I64 = pa.int8(), pa.int32(), pa.int64()
INSTANT = pa.timestamp("us", "UTC")
NOON = datetime(2013, 7, 1, 12)


def required(kind: pa.DataType, name: str = "item") -> pa.Field:
    return pa.field(name, kind, nullable=False)


VECTOR = pa.list_(required(F32), 2)
PAIR = pa.struct([pa.field("x", I32), required(I32, "y")])
KEPT: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (I64, I32, [1, None, -(2**31)]),
    (pa.uint64(), I64, [2**63 - 1]),
    (I64, F64, [2**53]),
    (I64, F16, [2048, -5]),
    (F64, I32, [2.0, None]),
    (F16, I8, [100.0]),
    (F64, F32, [0.5, float("inf"), None, 3.0]),
    (F64, F16, [0.25]),
    (F16, F64, [0.25]),
    (I64, pa.decimal128(10, 2), [1, None, 99999999]),
    (pa.uint64(), pa.decimal128(20, 0), [2**64 - 1]),
    (I8, pa.decimal256(76, 70), [5]),
    (I64, pa.decimal32(3, 1), [12]),
    (pa.decimal128(10, 2), I64, [Decimal("5.00")]),
    (pa.decimal128(10, 2), pa.decimal32(3, 1), [Decimal("9.90"), None]),
    (pa.decimal32(3, 1), pa.decimal256(50, 9), [Decimal("-9.9")]),
    (pa.timestamp("us"), pa.timestamp("s"), [NOON]),
    (pa.timestamp("s"), pa.timestamp("ns"), [NOON]),
    (pa.time64("us"), pa.time32("s"), [time(1, 2, 3)]),
    (pa.duration("us"), pa.duration("ms"), [timedelta(milliseconds=5)]),
    (pa.date32(), pa.date64(), [date(2013, 7, 1)]),
    (pa.date64(), pa.date32(), [date(2013, 7, 1)]),
    (pa.string(), pa.large_string(), ["x", None]),
    (pa.large_string(), pa.string(), ["x"]),
    (pa.string_view(), pa.string(), ["x", "long enough not to be inlined"]),
    (pa.binary_view(), pa.large_binary(), [b"x"]),
    (pa.binary(), pa.binary(2), [b"xy", None]),
    (pa.binary(2), pa.large_binary(), [b"xy"]),
    (pa.dictionary(I32, pa.string()), pa.string(), ["a", None, "a"]),
    (pa.string(), pa.dictionary(I8, pa.string()), ["a", None, "a"]),
    (I64, pa.dictionary(I8, I32), [7, 7]),
    (pa.dictionary(I32, pa.string()), pa.dictionary(I8, pa.large_string()), ["a", None]),
    (pa.null(), VECTOR, [None, None]),
    (pa.null(), PAIR, [None]),
    (pa.list_(I64), pa.list_(I32), [[1], None, [], [2, None]]),
    (pa.list_(I64), pa.large_list(required(I32)), [[1], None, []]),
    (pa.list_view(I64), pa.list_(I32), [[1], None, [2, 3]]),
    (pa.list_(F64), VECTOR, [[0.5, 1.0], None]),
    (pa.list_(F64, 2), VECTOR, [None, [0.5, 1.0]]),
    (pa.list_(F32, 2), pa.list_(F64), [[0.5, None], None]),
    (pa.list_(pa.list_(F64)), pa.list_(VECTOR), [[[1.0, 2.0], None], None, []]),
    (
        pa.struct([pa.field("y", I64), pa.field("x", I64)]),
        PAIR,
        [{"x": 1, "y": 2}, None, {"x": None, "y": 3}],
    ),
    (
        pa.map_(pa.string(), I64),
        pa.map_(pa.large_string(), I32),
        [[("a", 1)], None, [], [("b", 2), ("c", None)]],
    ),
    (pa.binary(16), pa.uuid(), [b"0123456789abcdef", None]),
    (pa.uuid(), pa.binary(16), [b"0123456789abcdef"]),
    (pa.string(), pa.json_(), ['{"a": 1}']),
]


def plain(values: pa.Array) -> list[Any]:
    array = values.storage if isinstance(values, pa.ExtensionArray) else values
    return [dict(v) if isinstance(v, list) and v and v[0].__class__ is tuple else v
            for v in array.to_pylist()]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted", "values"), KEPT, ids=str)
def test_values_that_fit_are_the_same_afterwards(
    given: pa.DataType, wanted: pa.DataType, values: list[Any]
) -> None:
    assert fits(given, wanted)
    array = pa.array(values, given)
    # Whole, and as slices of something longer, whose buffers begin and end elsewhere.
    for part in (array, pa.concat_arrays([array] * 3).slice(1, len(values) + 1)):
        found = conform_column(part, pa.field("c", wanted), "a$t")
        found.validate(full=True)
        assert found.type.equals(wanted)
        assert plain(found) == plain(part)


REFUSED: list[tuple[pa.DataType, pa.DataType, list[Any], int, str]] = [
    (I64, I32, [1, None, 2**40], 2, "1099511627776"),
    (I64, pa.uint8(), [-1], 0, "-1"),
    (pa.uint64(), I64, [1, 2**63], 1, "9223372036854775808"),
    (F64, I32, [1.0, 1.5], 1, "1.5"),
    (F64, I32, [float("nan")], 0, "nan"),
    (F16, I8, [300.0], 0, "300.0"),
    (I64, F64, [2**53 + 1], 0, "9007199254740993"),
    (I64, F16, [1, 2049], 1, "2049"),
    (F64, F32, [0.5, 0.1], 1, "it would be rounded"),
    (F64, F32, [1e300], 0, "would become infinite"),
    (F32, F16, [70000.0], 0, "would become infinite"),
    (I64, pa.decimal128(10, 2), [1, 10**8], 1, "100000000"),
    (I64, pa.decimal32(3, 1), [100], 0, "100"),
    (pa.decimal128(10, 2), pa.decimal128(10, 1), [Decimal("0.10"), Decimal("0.12")], 1, "0.12"),
    (pa.decimal128(10, 2), I64, [Decimal("5.50")], 0, "5.50"),
    (pa.decimal256(50, 0), I8, [Decimal(300)], 0, "300"),
    (pa.timestamp("us"), pa.timestamp("s"), [NOON, NOON.replace(microsecond=1)], 1, "2013"),
    (pa.timestamp("us"), pa.timestamp("ns"), [datetime(9999, 1, 1)], 0, "9999"),
    (pa.timestamp("ns"), pa.timestamp("us"), [1000, 5001], 1, "000005001"),
    (pa.time64("us"), pa.time32("s"), [time(1, 2, 3, 4)], 0, "datetime.time"),
    (pa.duration("us"), pa.duration("s"), [timedelta(microseconds=1)], 0, "microseconds=1"),
    (pa.binary(), pa.binary(2), [b"xy", b"xyz"], 1, "b'xyz'"),
    (pa.list_(F64), VECTOR, [None, [1.0, 2.0], [1e300, 1.0]], 2, "1e\\+300"),
    (pa.list_(F64), VECTOR, [None, [1.0, 2.0], [1.0, None]], 2, "null"),
    (pa.list_(F64), VECTOR, [None, [1.0]], 1, "it has 1 elements"),
    (pa.list_(F64, 2), pa.list_(F16, 2), [[1.0, 2.0], None, [1.0, 1e6]], 2, "1000000.0"),
    (pa.list_(I64), pa.list_(required(I64)), [[1], [2, None]], 1, "null"),
    (pa.list_(pa.list_(I64)), pa.list_(pa.list_(I8)), [[], [[1], None, [2, 300]]], 1, "300"),
    (pa.struct([("x", I64), ("y", I64)]), PAIR, [None, {"x": 1, "y": None}], 1, "null"),
    (pa.struct([("x", I64), ("y", I64)]), PAIR, [None, {"x": 2**31, "y": 1}], 1, "2147483648"),
    (pa.map_(pa.string(), I64), pa.map_(pa.string(), I8), [None, [("a", 1), ("b", 300)]], 1, "300"),
    (I64, pa.dictionary(I8, I64), list(range(200)), 128, "128"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted", "values", "row", "says"), REFUSED, ids=str)
def test_values_that_would_change_are_refused_by_column_row_and_value(
    given: pa.DataType, wanted: pa.DataType, values: list[Any], row: int, says: str
) -> None:
    assert fits(given, wanted), "others of its type would fit"
    array = pa.array(values, given)
    with pytest.raises(InvalidTransaction, match=f"row {1000 + row} of column 'c") as caught:
        conform_column(array, pa.field("c", wanted), "a$t", first_row=1000)
    assert caught.value.field == "c"
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.string(), I64),
        (I64, pa.string()),
        (pa.string(), pa.binary()),
        (pa.binary(), pa.string()),
        (pa.bool_(), I8),
        (I8, pa.bool_()),
        (F64, pa.decimal128(10, 2)),
        (pa.decimal128(10, 2), F64),
        (pa.timestamp("us"), INSTANT),
        (INSTANT, pa.timestamp("us")),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.date32()),
        (pa.time32("s"), pa.duration("s")),
        (pa.binary(3), pa.binary(2)),
        (pa.list_(F32, 3), pa.list_(F32, 2)),
        (pa.list_(pa.string()), pa.list_(I64)),
        (pa.struct([("x", I32), ("y", I32), ("z", I32)]), PAIR),
        (pa.struct([("x", I32)]), PAIR),
        (I64, pa.list_(I64)),
        (pa.uuid(), pa.json_()),
        (pa.map_(pa.string(), I64), pa.map_(I64, I64)),
    ],
    ids=str,
)
def test_types_that_never_fit_are_refused_by_their_schema(
    given: pa.DataType, wanted: pa.DataType
) -> None:
    assert not fits(given, wanted)
    with pytest.raises(InvalidTransaction, match="column 'c' of a\\$t is"):
        conform_column(pa.nulls(1, given), pa.field("c", wanted), "a$t")
    with pytest.raises(InvalidTransaction, match="column 'c' of a\\$t is") as caught:
        check_columns(pa.schema([("c", given)]), pa.schema([("c", wanted)]), "a$t")
    assert caught.value.field == "c"
    for kind in (given, wanted):
        assert str(kind) in str(caught.value)


def test_vectors_are_rounded_to_their_own_precision_and_numbers_are_not() -> None:
    doubles = pa.array([[0.1, 1e-60]], pa.list_(F64, 2))
    found = conform_column(doubles, pa.field("v", VECTOR), "a$t")
    assert found.to_pylist() == [[pa.scalar(0.1, F32).as_py(), 0.0]]
    with pytest.raises(InvalidTransaction, match="it would be rounded"):
        conform_column(doubles, pa.field("v", pa.list_(F32)), "a$t")
    literal = conform_column(pa.array([0.1]), pa.field("v", F32), "a$t", rounds=True)
    assert literal.to_pylist() == [pa.scalar(0.1, F32).as_py()]


def test_a_timestamp_keeps_its_instant_in_another_zone() -> None:
    at = datetime(2013, 7, 1, 12, tzinfo=UTC)
    values = pa.array([at], pa.timestamp("us", "America/New_York"))
    assert conform_column(values, pa.field("at", INSTANT), "a$t").to_pylist() == [at]


def test_bytes_below_a_null_are_no_values() -> None:
    rows = pa.array([True, False])
    hidden = pa.StructArray.from_arrays(
        [pa.array([1, 2**40]), pa.array([1, 1])], ["x", "y"], mask=rows.cast(I8).cast(pa.bool_())
    )
    shown = pa.StructArray.from_arrays([pa.array([2**40, 1]), pa.array([1, 1])], ["x", "y"],
                                       mask=rows)  # fmt: skip
    with pytest.raises(InvalidTransaction, match="row 1 of column 'c.x'"):
        conform_column(hidden, pa.field("c", PAIR), "a$t")
    assert conform_column(shown, pa.field("c", PAIR), "a$t").to_pylist() == [
        None,
        {"x": 1, "y": 1},
    ]


def test_a_batch_has_the_columns_of_its_table() -> None:
    table = pa.schema([required(I32, "a"), pa.field("b", pa.string()), required(I32, "c")])
    batch = pa.record_batch({"b": ["x"], "a": pa.array([1], I64)})
    with pytest.raises(InvalidTransaction, match="'c' of a\\$t may not be null and is missing"):
        check_columns(batch.schema, table, "a$t")
    check_columns(batch.schema, table, "a$t", partial=True)
    partial = conform(batch, present(batch.schema, table), "a$t")
    assert partial.schema.equals(pa.schema([table.field("a"), table.field("b")]))
    optional = table.set(2, pa.field("c", pa.date32()))
    check_columns(batch.schema, optional, "a$t")
    assert conform(batch, optional, "a$t").to_pylist() == [{"a": 1, "b": "x", "c": None}]
    with pytest.raises(InvalidTransaction, match="row 5 of column 'a' is null"):
        conform(pa.record_batch({"a": pa.nulls(1, I32)}), table, "a$t", first_row=5)


def test_what_a_source_lacks_is_left_out_of_structs_too() -> None:
    wanted = pa.schema([pa.field("s", PAIR), pa.field("b", I32), pa.field("l", pa.list_(PAIR))])
    part = pa.struct([pa.field("x", I64)])
    given = pa.schema([("l", pa.list_(pa.struct([("y", I64)]))), ("s", part)])
    assert present(given, wanted) == pa.schema([("s", pa.struct([("x", I32)])), wanted.field("l")])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (pa.schema([("as", I64)]), "Rename it to 'a'"),
        (pa.schema([("zzz", I64)]), "Its columns are a, at"),
        (pa.schema([("a", I64), ("a", I64)]), "given twice"),
        (pa.schema([("a", pa.null())]), "always null"),
        (pa.schema([("at", INSTANT)]), "'a' of a\\$t may not be null and is missing"),
    ],
)
def test_columns_are_matched_by_name(given: pa.Schema, says: str) -> None:
    table = pa.schema([required(I64, "a"), pa.field("at", INSTANT)])
    with pytest.raises(InvalidTransaction, match=says):
        check_columns(given, table, "a$t")


def test_a_struct_without_fields_is_no_value_of_one_with_fields() -> None:
    """The log refused the file, and said that the table's columns had changed meanwhile."""
    empty, one = pa.struct([]), pa.struct([("x", I32)])
    for given, wanted in ((empty, one), (pa.struct([("p", empty)]), pa.struct([("p", one)]))):
        with pytest.raises(InvalidTransaction, match="'a' of a.t .*: a struct in it has no fields"):
            check_columns(pa.schema([("a", given)]), pa.schema([("a", wanted)]), "a$t")
    # In a list, all of the item's fields are written, so they are null.
    for given, wanted in ((empty, empty), (pa.list_(empty), pa.list_(one))):
        check_columns(pa.schema([("a", given)]), pa.schema([("a", wanted)]), "a$t")


@pytest.mark.parametrize("shape", ["plain", "list", "struct"])
def test_wide_values_are_moved_to_where_lance_may_read_them(tmp_path: Path, shape: str) -> None:
    whole = pa.array([Decimal("1.00"), None, Decimal("-2.00")], pa.decimal128(10, 2))
    valid, data = (buffer.to_pybytes() for buffer in whole.buffers())
    # As a stream of Arrow's has them: at 8 bytes, and not at 16.
    memory = bytearray(len(data) + 32)
    base = pa.py_buffer(memory)
    start = (8 - base.address) % 16
    memory[start : start + len(data)] = data
    odd = pa.Array.from_buffers(whole.type, 3, [pa.py_buffer(valid), base.slice(start, len(data))])
    assert odd.buffers()[1].address % 16 == 8
    assert odd.equals(whole)
    if shape == "list":
        odd = pa.ListArray.from_arrays(pa.array([0, 3], pa.int32()), odd)
    elif shape == "struct":
        odd = pa.StructArray.from_arrays([odd], names=["d"])
    schema = pa.schema([pa.field("a", odd.type)])
    batch = conform(pa.record_batch([odd], schema=schema), schema, "a$t")
    assert batch.column(0).equals(odd)
    made = lance.write_dataset(pa.Table.from_batches([batch]), str(tmp_path / "t"))
    assert made.to_table().column("a").to_pylist() == odd.to_pylist()


def test_parts_of_nested_arrays_are_copied() -> None:
    kind = pa.list_(pa.struct([pa.field("x", I32), pa.field("s", pa.string())]))
    whole = pa.array([[{"x": 1, "s": "a"}, None], None, [{"x": None, "s": "b"}]], kind)
    for at in range(len(whole)):
        part = conform_column(whole.slice(at, 1), pa.field("c", kind), "a$t")
        assert part.to_pylist() == whole.slice(at, 1).to_pylist()
        assert part.offset == 0
        assert part.get_total_buffer_size() < whole.get_total_buffer_size()


def test_vectors_are_never_copied() -> None:
    whole = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(F32, 2)).slice(1, 1)
    kept = conform_column(whole, pa.field("c", whole.type), "a$t")
    assert kept.buffers()[-1].address == whole.buffers()[-1].address


def test_values_that_python_cannot_hold_are_shown_as_text() -> None:
    rows = pa.table(
        {
            "k": pa.array([5001, None, 1000], pa.timestamp("ns")),
            "d": pa.array([[1], None, []], pa.list_(pa.duration("ns"))),
            "n": [1, 2, 3],
        }
    )
    found = list(python_rows(rows))
    assert [row["k"] for row in found] == [
        "1970-01-01 00:00:00.000005001", None, datetime(1970, 1, 1, microsecond=1),
    ]  # fmt: skip
    assert [str(row["d"]) for row in found] == ["[ 1 ]", "None", "[]"]
    assert [row["n"] for row in found] == [1, 2, 3]


def test_nulls_among_the_values_of_a_dictionary_are_nulls() -> None:
    text = pa.dictionary(pa.int8(), pa.string())
    held = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), held)
    assert held.null_count == 0
    found = conform_column(held, pa.field("c", text), "a$t")
    assert (found.null_count, found.to_pylist()) == (1, ["a", None])
    inner = conform_column(lists, pa.field("c", pa.list_(text)), "a$t").flatten()
    assert (inner.null_count, inner.dictionary.null_count) == (1, 0)
    for values, kind in ((held, text), (lists, pa.list_(required(text)))):
        with pytest.raises(InvalidTransaction, match="null"):
            conform_column(values, required(kind, "c"), "a$t")


def test_dictionaries_of_views_as_polars_makes_them_are_their_values() -> None:
    for view, kind, value in (
        (pa.string_view(), pa.string(), "a" * 20),
        (pa.binary_view(), pa.binary(), b"a" * 20),
    ):
        held = pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1, 0], pa.uint32()), pa.array([value, None], view)
        )
        lists = pa.ListArray.from_arrays(pa.array([0, 4], pa.int32()), held)
        for wanted in (kind, pa.dictionary(pa.int8(), kind)):
            found = conform_column(held.slice(1), pa.field("c", wanted), "a$t")
            assert (found.type, found.to_pylist()) == (wanted, [None, None, value])
            found = conform_column(lists, pa.field("c", pa.list_(wanted)), "a$t")
            assert found.to_pylist() == [[value, None, None, value]]


def not_utf8(kind: pa.DataType) -> pa.Array:
    """Return text of which the second value isn't UTF-8."""
    width = pa.int64() if kind == pa.large_string() else pa.int32()
    offsets = pa.array([0, 2, 4], width).buffers()[1]
    return pa.Array.from_buffers(kind, 2, [None, offsets, pa.py_buffer(b"ok\xff\xfe")])


def _held(values: pa.Array) -> list[pa.Array]:
    each = pa.array([0, 1, 2], pa.int32())
    keyed = pa.MapArray.from_arrays(each, pa.array([1, 2]), values)
    return [
        values,
        not_utf8(pa.large_string()),
        pa.ListArray.from_arrays(each, values),
        pa.StructArray.from_arrays([values, pa.array([1, 2])], names=["s", "n"]),
        pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), values),
        keyed,
        pa.ExtensionArray.from_storage(pa.json_(), values),
    ]


@pytest.mark.parametrize(
    "values", _held(not_utf8(pa.string())), ids=lambda values: str(values.type)
)
def test_text_that_is_not_utf8_is_refused(values: pa.Array) -> None:
    field = pa.field("c", values.type)
    with pytest.raises(InvalidTransaction, match="row 11 of column 'c' is b'.xff.xfe'.*not UTF-8"):
        conform_column(values, field, "a$t", first_row=10)
    good = conform_column(values.slice(0, 1), field, "a$t")
    assert len(good) == 1
    read = pa.RecordBatch.from_arrays([values], schema=pa.schema([field]))
    with pytest.raises(InvalidTransaction, match="row 1 of column 'c'.*not UTF-8"):
        check_batch(read, 0)
    # Over HTTP this asks first, which finds broken offsets too.
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        read.validate(full=True)
