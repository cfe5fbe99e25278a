"""Rows of committed appends, made in machine code where it is there: the bulk of most logs.

`rows.py` is the reference, and makes the rows of everything else. Machine code makes no row: it
writes each value into the column where DuckDB reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from commitlog.codecs import lanes
from commitlog.core.log.replica import Decided
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Status, Transaction
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.operation_results import DoneAppend, Told, read
from consumers.views.version_index.relation import Relation, arrow_schema
from consumers.views.version_index.schema import FRAGMENT_CHANGES, OPERATIONS, TRANSACTIONS

if TYPE_CHECKING:
    from commitlog.codecs._native import AppendColumns, ArrowColumn

LEAST = 3
"""Fewer transactions go into the file as values, which is cheaper for so few; see `live.py`."""

_RELATIONS = (TRANSACTIONS, OPERATIONS, FRAGMENT_CHANGES)
_KINDS = {
    pa.int64(): "l",
    pa.timestamp("us"): "l",
    pa.int32(): "i",
    pa.bool_(): "b",
    pa.string(): "s",
    pa.binary(): "s",
    pa.list_(pa.int64()): "L",
    pa.list_(pa.string()): "S",
}
_NO_ENDS = bytes(4)

Columns = Mapping[str, pa.Table]
"""Rows by relation."""


class Appends:
    """Takes the appends out of what was decided."""

    def __init__(self, native: type[AppendColumns] | None = lanes.APPEND_COLUMNS) -> None:
        """Take what makes columns; None: Python makes all rows."""
        self._native: AppendColumns | None = None
        if native is not None:
            kinds = ("".join(_KINDS[f.type] for f in arrow_schema(one)) for one in _RELATIONS)
            self._native = native(Transaction, LanceCommit, Status.COMMITTED, *kinds)

    def read(self, batch: Sequence[Decided], counting: Counting) -> tuple[list[Told], Columns]:
        """Return what transactions came to, and the rows of those that are a `DoneAppend`."""
        native = self._native
        if native is None or len(batch) < LEAST:
            return read(batch), {}
        told: list[Told] = []
        for decided in batch:
            append = native.add(decided)
            told.append(
                (decided, DoneAppend(*append)) if append is not None else read([decided])[0]
            )
        taken = zip(_RELATIONS, native.take(), strict=True)
        counting.prepare(told)
        if not all(counting.is_new(done) for _, done in told if isinstance(done, DoneAppend)):
            return read(batch), {}  # it changes a fragment: a case for the reference
        return told, {one.name: _table(one, *rows) for one, rows in taken if rows[0]}


def _table(relation: Relation, rows: int, columns: Sequence[ArrowColumn]) -> pa.Table:
    schema = arrow_schema(relation)
    arrays = [_array(f.type, rows, one) for f, one in zip(schema, columns, strict=True)]
    return pa.table(arrays, schema=schema)


def _array(kind: pa.DataType, rows: int, column: ArrowColumn) -> pa.Array:
    nulls, items, valid, ends, item_ends, values = column
    validity = pa.py_buffer(valid) if nulls else None
    if not pa.types.is_list(kind):
        buffers = [pa.py_buffer(one) for one in (ends, values) if one is not None]
        return pa.Array.from_buffers(kind, rows, [validity, *buffers], nulls)
    inner = [pa.py_buffer(values)]
    if pa.types.is_string(kind.value_type):
        inner.insert(0, pa.py_buffer(item_ends or _NO_ENDS))
    children = [pa.Array.from_buffers(kind.value_type, items, [None, *inner], 0)]
    return pa.Array.from_buffers(
        kind, rows, [validity, pa.py_buffer(ends)], nulls, children=children
    )
