"""The digest of rows: the same for the same rows, however they come, and another for others."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.row_digest import joined_digests, rows_digest

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, -1, 2**62, None]),
    (pa.int8(), [0, 1, -1, 127, None]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [0.0, 0.5, 1e300, None]),
    (pa.decimal128(10, 2), [Decimal("0.01"), Decimal("1.00"), Decimal("-0.01"), None]),
    (pa.string(), ["", "a", "ab", "ba", "aab", None]),
    (pa.binary(), [b"", b"\0", b"\0\0", None]),
    (pa.large_binary(), [b"a" * 999, b"a" * 998 + b"b", b"a" * 1000, None]),
    (pa.list_(pa.float64(), 40), [[0.0] * 40, [0.0] * 39 + [1.0], None]),
    (pa.binary(3), [b"abc", b"acb", None]),
    (pa.timestamp("us"), [0, 1, None]),
    (pa.list_(pa.int64()), [[], [0], [0, 1], [1, 0], [None], None]),
    (pa.list_(pa.float32(), 2), [[1.0, 2.0], [2.0, 1.0], None]),
    (pa.list_(pa.string()), [[], ["a", "b"], ["ab"], ["", "ab"], None]),
    (pa.struct([("a", pa.int64()), ("b", pa.int64())]),
     [{"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": None, "b": None}, None]),
    (pa.map_(pa.string(), pa.int64()), [[], [("a", 1)], [("b", 1)], None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None]),
]  # fmt: skip


ALIKE: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), ["131", "212", "050"]),
    (pa.binary(4), [b"0000", b"1//1"]),
    (pa.decimal128(38, 0), [Decimal(0x010301), Decimal(0x020102)]),
    (pa.list_(pa.int64()), [[1, 3, 1], [2, 1, 2]]),
    (pa.list_(pa.int64()), [[None, 0, 0, None], [0, None, None, 0]]),
]
"""Values whose parts and the places of these have the same sums."""


@pytest.mark.parametrize(
    ("kind", "values"), [*COLUMNS, *ALIKE], ids=[str(kind) for kind, _ in [*COLUMNS, *ALIKE]]
)
def test_every_value_has_a_digest_of_its_own(kind: pa.DataType, values: list[Any]) -> None:
    seen = {rows_digest(pa.record_batch({"c": pa.array([v], kind)})) for v in values}
    assert len(seen) == len(values)


def test_order_and_batches_do_not_count_and_rows_do() -> None:
    rows = [
        {f"c{at}": random.choice(values) for at, (_, values) in enumerate(COLUMNS)}
        for _ in range(200)
    ]
    schema = pa.schema([(f"c{at}", kind) for at, (kind, _) in enumerate(COLUMNS)])

    def digest(given: list[dict[str, Any]], size: int) -> int:
        table = pa.Table.from_pylist(given, schema)
        return joined_digests([rows_digest(b) for b in table.to_batches(max_chunksize=size)])

    whole = digest(rows, 1000)
    shuffled = random.sample(rows, len(rows))
    assert digest(shuffled, 7) == digest(shuffled[50:] + shuffled[:50], 64) == whole
    assert digest(rows[1:], 1000) != whole
    assert digest([*rows, rows[0]], 1000) != whole
    pair = pa.record_batch({"a": [1, 2], "b": [1, 2]})
    crossed = pa.record_batch({"a": [1, 2], "b": [2, 1]})
    swapped = pa.record_batch({"a": [1, 1], "b": [2, 2]})
    assert len({rows_digest(each) for each in (pair, crossed, swapped)}) == 3
    assert rows_digest(pair.rename_columns(["x", "b"])) != rows_digest(pair)
