"""What all writes of rows with one schema have in common: checked, and made, once for each table.

Of the next write with that schema only the values are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from commitlog.adapters.row_values import holds_blobs, is_number
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.data import columns_of
from commitlog.client.rows.merging import check_merge
from commitlog.client.rows.row_groups import RowsUnusable, fulfilling
from commitlog.client.rows.rows import whole
from commitlog.core.rows.deciding import schema_digest
from commitlog.errors import InvalidTransaction, WrongColumns
from commitlog.model.operations import RowsColumn, RowsMode

SHAPES_MAX = 64
"""So many are kept for a table: conditions may differ from write to write."""
STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"
"""How a stream of Arrow ends."""
_ALIGNMENT = 8


class NotForTheLog(InvalidTransaction):
    """A write that the log can't take as rows, and that may go another way."""


class RowShape(NamedTuple):
    """What rows of one schema become."""

    given: pa.Schema
    """The schema, as callers gave it."""
    fitting: pa.Schema
    """Its columns in the table's types."""
    columns: tuple[RowsColumn, ...]
    """What is written, as a record names it if there are no nulls."""
    digest: bytes
    head: bytes
    """How the stream of rows begins that are written as they were given; empty: none may be."""


def row_shape(
    info: TableInfo,
    given: pa.Schema,
    mode: RowsMode,
    key: tuple[str, ...],
    settings: Mapping[str, Any],
) -> RowShape:
    """Return the shape of rows; InvalidTransaction for what is wrong with any rows of that schema.

    `settings` are an upsert's, as a record has them.
    """
    name = (mode, key, settings.get("insert_all"), settings.get("update_if"))
    found: RowShape | None = info.row_shapes.get(name)
    if found is None or not found.given.equals(given):
        if len(info.row_shapes) >= SHAPES_MAX:
            info.row_shapes.clear()
        found = info.row_shapes[name] = _made(info, given, mode, key, settings)
    return found


def is_as_written(batch: pa.RecordBatch) -> bool:
    """Return True if numbers of their columns' types need no copy: no nulls, at good addresses."""
    for values in batch.columns:
        if values.null_count:
            return False
        for buffer in values.buffers():
            if buffer is not None and buffer.address % _ALIGNMENT:
                return False
    return True


def _made(
    info: TableInfo,
    given: pa.Schema,
    mode: RowsMode,
    key: tuple[str, ...],
    settings: Mapping[str, Any],
) -> RowShape:
    fitting = columns_of(given, info.schema, info.name, required=mode is RowsMode.APPEND)
    written = fitting
    if mode is RowsMode.DELETE:
        there = set(fitting.names)
        written = pa.schema([fitting.field(name) for name in key if name in there])
    _check_columns(info, written, mode)
    if key:
        check_merge(info, fitting.empty_table(), key)
    names = written.names
    if settings.get("insert_all"):
        lacking = [name for name in info.required_columns if name not in names]
        if lacking:
            raise WrongColumns(
                f"column {lacking[0]!r} of {info.name} may not be null and is missing",
                field="schema",
                value=lacking[0],
                advice="Give it values, or only update (when_not_matched_insert_all=False)",
            )
    if settings.get("update_if"):
        _check_condition(info.schema, written, settings["update_if"])
    ids = info.top_level_ids(names)
    is_plain = given.names == names and all(
        is_number(given.field(name).type) and given.field(name).type.equals(one.type)
        for name, one in zip(names, written, strict=True)
    )
    return RowShape(
        given,
        fitting,
        tuple(RowsColumn(number, name, 0) for number, name in zip(ids, names, strict=True)),
        schema_digest(info.field_ids.values(), names),
        bytes(written.remove_metadata().serialize()) if is_plain else b"",
    )


def _check_columns(info: TableInfo, written: pa.Schema, mode: RowsMode) -> None:
    if mode is RowsMode.UPSERT and info.has_blobs:
        raise NotForTheLog(
            f"{info.name} has blob columns, which row updates cannot carry",
            field="mode",
            value=mode.value,
            advice="Use log.merge_insert, which writes files",
        )
    for column in written:
        wanted = info.schema.field(column.name)
        if info.has_blobs and holds_blobs(wanted):
            raise NotForTheLog(
                f"column {column.name!r} of {info.name} holds blobs, which row writes cannot carry",
                field=column.name,
                advice="Use log.append or log.merge_insert on a table without rows=log",
            )
        if not column.type.equals(wanted.type):
            raise NotForTheLog(
                f"struct column {column.name!r} lacks fields that it has in {info.name}",
                field=column.name,
                advice="Give every field; use nulls for missing values",
            )


@lru_cache(maxsize=256)
def _check_condition(table: pa.Schema, rows: pa.Schema, condition: str) -> None:
    """Refuse a condition that no rows could be held against."""
    try:
        for sql in (condition, whole(condition)):  # also what may be behind its first expression
            fulfilling(table.empty_table(), rows.empty_table(), sql)
    except RowsUnusable as error:
        raise InvalidTransaction(
            error.problem,
            field="when_matched_update_all_filt",
            value=condition,
            advice=f"Use SQL over target.{{{', '.join(table.names)}}} and"
            f" source.{{{', '.join(rows.names)}}}",
        ) from None
