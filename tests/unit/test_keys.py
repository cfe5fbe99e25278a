"""Hashes of keys."""

import math
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.codecs.keys import TOGETHER_MIN, key_hashes, packed
from commitlog.errors import InvalidTransaction

MAP = pa.map_(pa.string(), pa.int8())


def _one(value: Any, kind: pa.DataType) -> bytes:
    return key_hashes([pa.array([value], kind)])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((7, pa.int8()), (7, pa.uint64())),
        ((1.5, pa.float32()), (1.5, pa.float64())),
        ((-0.0, pa.float32()), (-0.0, pa.float64())),
        ((math.nan, pa.float16()), (math.nan, pa.float64())),
        (("a", pa.string()), ("a", pa.large_string())),
        (("a", pa.string()), ("a", pa.dictionary(pa.int8(), pa.string()))),
        ((b"ab", pa.binary()), (b"ab", pa.binary(2))),
        ((datetime(2013, 1, 1), pa.timestamp("s")), (datetime(2013, 1, 1), pa.timestamp("ns"))),
        ((date(2013, 1, 1), pa.date32()), (date(2013, 1, 1), pa.date64())),
        ((timedelta(1), pa.duration("s")), (timedelta(1), pa.duration("us"))),
        ((Decimal("1.50"), pa.decimal128(5, 2)), (Decimal("1.5"), pa.decimal256(50, 1))),
        (([1, 2], pa.list_(pa.int8())), ([1, 2], pa.list_(pa.int64(), 2))),
        (([("a", 1)], MAP), ([("a", 1)], pa.map_(pa.large_string(), pa.int64()))),
        (({"x": 1}, pa.struct([("x", pa.int8())])), ({"y": 1}, pa.struct([("y", pa.int16())]))),
    ],
    ids=lambda pair: str(pair[1]),
)
def test_one_value_has_one_hash_whatever_holds_it(one: Any, other: Any) -> None:
    assert _one(*one) == _one(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, pa.int8()), (True, pa.bool_())),
        ((1, pa.int8()), (1.0, pa.float64())),
        (("1", pa.string()), (b"1", pa.binary())),
        ((None, pa.int8()), (0, pa.int8())),
        ((0.0, pa.float64()), (-0.0, pa.float64())),
        ((math.nan, pa.float32()), (-math.nan, pa.float32())),
        ((date(1970, 1, 2), pa.date32()), (1, pa.int64())),
        (([1], pa.list_(pa.int8())), ([1, None], pa.list_(pa.int8()))),
        (([("a", 1)], MAP), ([("a", None)], MAP)),
        (([], MAP), (None, MAP)),
    ],
    ids=lambda pair: str(pair[1]),
)
def test_different_values_have_different_hashes(one: Any, other: Any) -> None:
    assert _one(*one) != _one(*other)


@given(st.lists(st.tuples(st.text(), st.text()), unique=True, max_size=20))
def test_columns_do_not_run_into_each_other(rows: list[tuple[str, str]]) -> None:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in (0, 1)]
    hashes = key_hashes(columns)
    assert len(set(hashes)) == len(rows)
    assert packed(reversed(hashes)) == packed(hashes)


KNOWN = [
    "45f6b605a483a512094f0241ec396a6b",
    "e57c35108bd4736e804bf3874edcf306",
]


def test_known_hashes_never_change() -> None:
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    assert [h.hex() for h in key_hashes([table["a"], table["b"]])] == KNOWN


def test_chunks_and_slices_are_hashed_alike() -> None:
    whole = pa.array([1, 2, 3, 4])
    chunked = pa.chunked_array([whole[:1], whole[1:]])
    assert key_hashes([chunked]) == key_hashes([whole])
    assert key_hashes([whole.slice(2)]) == key_hashes([whole])[2:]


def test_maps_are_hashed_by_their_own_entries() -> None:
    whole = pa.array([[("a", 1), ("b", 2)], None, [], [("a", 1)]], MAP)
    hashes = key_hashes([whole])
    assert len(set(hashes)) == len(whole)
    assert key_hashes([whole.slice(3)]) == hashes[3:]
    assert key_hashes([pa.array([[("a", 1)]], MAP)]) == hashes[3:]


def test_nanoseconds_count_inside_of_lists() -> None:
    kind = pa.list_(pa.timestamp("ns"))
    one = pa.array([[1]], pa.list_(pa.int64())).cast(kind)
    other = pa.array([[2]], pa.list_(pa.int64())).cast(kind)
    assert key_hashes([one]) != key_hashes([other])


def test_what_cannot_be_a_key_is_refused() -> None:
    with pytest.raises(InvalidTransaction, match="cannot be part of a key"):
        key_hashes([pa.array([pa.MonthDayNano([1, 2, 3])])])


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["", "u"])
def test_many_integers_have_the_hashes_that_each_has_alone(bits: int, sign: str) -> None:
    kind = pa.type_for_alias(f"{sign}int{bits}")
    low, high = (0, 2**bits - 1) if sign else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    values = [low, high, *range(TOGETHER_MIN)]
    for array in (pa.array([None, *values, None], kind), pa.array([0, *values], kind).slice(1)):
        assert key_hashes([array]) == [_one(value, kind) for value in array.to_pylist()]
