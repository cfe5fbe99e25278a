"""Which values of two columns differ, as they are written."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.differing_values import differing

NAN = float("nan")
COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, -1, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float16(), [0.0, -0.0, NAN, None]),
    (pa.float32(), [0.0, -0.0, NAN, 1.5, None]),
    (pa.float64(), [0.0, -0.0, NAN, None]),
    (pa.decimal128(10, 2), [Decimal("0.01"), Decimal("1.00"), None]),
    (pa.string(), ["", "a", "ab", None]),
    (pa.large_binary(), [b"", b"\0", b"a" * 99, None]),
    (pa.binary(3), [b"abc", b"acb", None]),
    (pa.timestamp("ns", "UTC"), [0, 1, -(2**60), None]),
    (pa.date32(), [0, 2**30, None]),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], [2.0, 1.0], [NAN, 0.0], [None, 0.0], None]),
    (pa.list_(pa.string()), [[], ["a"], ["a", "b"], ["", "ab"], [None], None]),
    (pa.large_list(pa.list_(pa.int8())), [[], [[]], [[1], [2]], [[1, 2]], [None], None]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("a", None)], [("b", 1)], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int8()))]),
     [{"a": 1, "b": [1]}, {"a": 1, "b": []}, {"a": None, "b": None}, None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values"), COLUMNS, ids=[str(kind) for kind, _ in COLUMNS])
def test_each_value_equals_itself_and_no_other(kind: pa.DataType, values: list[Any]) -> None:
    count = len(values)
    pairs = [(this, that) for this in range(count) for that in range(count)]
    one, other = (pa.array([values[p[side]] for p in pairs], kind) for side in (0, 1))
    wanted = [this != that for this, that in pairs]
    assert differing(one, other).tolist() == wanted
    # Slices, whose buffers begin before them.
    assert differing(one[2:], other[2:]).tolist() == wanted[2:]
    # Without nulls.
    valid = [at for at, (this, that) in enumerate(pairs) if values[this] and values[that]]
    some = [wanted[at] for at in valid]
    assert differing(one.take(pa.array(valid)), other.take(pa.array(valid))).tolist() == some
    assert differing(one[:0], other[:0]).tolist() == []


def test_values_of_two_types_are_compared_as_python_has_them() -> None:
    one, other = pa.array([1, 2, None], pa.int32()), pa.array([1, 3, None], pa.int64())
    assert differing(one, other).tolist() == [False, True, False]
