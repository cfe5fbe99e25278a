"""Rows as JSON are kept as they were said, or refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from lance_namespace import InvalidInputError

from consumers.servers.namespace.arrow_rows import rows_of_json
from consumers.servers.namespace.log_transactions import Append

STRUCT = pa.struct([("a", pa.int64())])
MAP = pa.map_(pa.int64(), pa.float32())


def made(kind: pa.DataType, value: Any) -> Any:
    schema = pa.schema([("c", kind)])
    return rows_of_json([{"c": value}], schema).column("c").to_pylist()[0]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (STRUCT, {"b": 1}),
        (STRUCT, {"a": 1, "b": None}),
        (STRUCT, []),
        (STRUCT, [1]),
        (STRUCT, ""),
        (pa.list_(STRUCT), [{"a": 1}, {"b": 1}]),
        (pa.list_(STRUCT), [[1]]),
        (pa.list_(pa.int64()), ""),
        (pa.large_list(pa.int64()), [1, 1.5]),
        (MAP, ""),
        (MAP, [{"key": 1}]),
        (MAP, [{"key": 1, "value": 2, "more": 3}]),
        (MAP, [{"key": 1.5, "value": 2}]),
        (MAP, [{"key": 1, "value": 1e300}]),
        (MAP, [[1, 2]]),
        (MAP, [5]),
        (pa.dictionary(pa.int32(), pa.int64()), 1.5),
        (pa.float32(), 1e300),
        (pa.float16(), 70000),
        (pa.float64(), True),
        (pa.int64(), float("nan")),
        (pa.dense_union([pa.field("a", pa.int64())]), [1]),
    ],
)
def test_what_a_column_would_lose_is_refused(kind: pa.DataType, value: Any) -> None:
    with pytest.raises((InvalidInputError, pa.ArrowException)):
        made(kind, value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (STRUCT, {"a": 1}),
        (STRUCT, {"a": None}),
        (STRUCT, None),
        (pa.list_(STRUCT), [{"a": 1}, None]),
        (pa.list_(pa.float32(), 2), [0.5, 1.5]),
        (pa.dictionary(pa.int32(), pa.string()), "x"),
        (pa.float16(), 65504),
        (pa.float32(), float("inf")),
        (pa.int64(), 1.0),
    ],
)
def test_what_fits_is_kept(kind: pa.DataType, value: Any) -> None:
    assert made(kind, value) == value


def test_a_map_is_an_object_or_a_list_of_keys_and_values() -> None:
    by_text = pa.map_(pa.string(), pa.int64())
    assert made(by_text, {"a": 1, "b": None}) == [("a", 1), ("b", None)]
    assert made(by_text, [{"key": "a", "value": 1}]) == [("a", 1)]
    assert made(MAP, [{"key": 1, "value": 2.5}]) == [(1, 2.5)]


def test_a_number_that_is_too_large_names_its_table() -> None:
    rows = Append(table="shop$orders", rows=[{"c": 2**64}])
    with pytest.raises(InvalidInputError, match=r"shop\$orders: the rows can't be read"):
        rows.data(pa.schema([("c", pa.int64())]))
