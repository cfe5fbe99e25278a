"""Callers' rows in the types of a table: by name, without loss, or refused naming the column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from commitlog.errors import InvalidTransaction

_ACCEPTED = (
    "a pyarrow Table, RecordBatch or RecordBatchReader, a mapping of column names to values, a"
    " sequence of mappings, or anything with __arrow_c_stream__"
)


def rows_reader(data: Any, schema: pa.Schema, table: str) -> pa.RecordBatchReader:
    """Return the rows in the table's own schema, batch by batch; what is wrong raises on reading.

    Columns that are left out become null.
    """
    source = _source(data, schema, table)
    _check_columns(source.schema, schema, table)
    return pa.RecordBatchReader.from_batches(schema, _cast_all(source, schema, table))


def rows_table(data: Any, schema: pa.Schema, table: str) -> pa.Table:
    """Return the rows in the table's own schema, in memory."""
    return rows_reader(data, schema, table).read_all()


def _source(data: Any, schema: pa.Schema, table: str) -> pa.RecordBatchReader:
    if isinstance(data, pa.RecordBatchReader):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    if isinstance(data, pa.Table):
        return data.to_reader()
    if isinstance(data, Mapping):
        return _from_columns(data, schema, table).to_reader()
    if isinstance(data, Sequence) and all(isinstance(row, Mapping) for row in data):
        names = list(dict.fromkeys(name for row in data for name in row))
        columns = {name: [row.get(name) for row in data] for name in names}
        return _from_columns(columns, schema, table, len(data)).to_reader()
    if hasattr(data, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(data)
    raise InvalidTransaction(
        f"{type(data).__name__} holds no rows",
        field="data",
        value=type(data).__name__,
        advice=f"Pass {_ACCEPTED}",
    )


def _from_columns(
    columns: Mapping[str, Any], schema: pa.Schema, table: str, row_count: int = 0
) -> pa.Table:
    arrays, fields = [], []
    for name, values in columns.items():
        position = schema.get_field_index(name)
        field = schema.field(position) if position >= 0 else pa.field(name, pa.null())
        if isinstance(values, pa.Array | pa.ChunkedArray):
            array = values
        else:
            array = _array(values, field, table) if position >= 0 else pa.nulls(len(values))
        arrays.append(array)
        fields.append(pa.field(name, array.type))
    if not arrays:
        return pa.table({schema.field(0).name: pa.nulls(row_count, schema.field(0).type)})
    if len({len(array) for array in arrays}) > 1:
        lengths = {name: len(values) for name, values in columns.items()}
        raise InvalidTransaction(
            f"columns differ in length: {lengths}", field="data", value=lengths
        )
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _array(values: Any, field: pa.Field, table: str) -> pa.Array:
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _wrong(field, table, str(error)) from error


def _check_columns(given: pa.Schema, schema: pa.Schema, table: str) -> None:
    foreign = [name for name in given.names if schema.get_field_index(name) < 0]
    if foreign:
        raise InvalidTransaction(
            f"{table} has no column {', '.join(map(repr, foreign))}; it has"
            f" {', '.join(schema.names)}",
            field="schema",
            value=foreign,
            advice="Correct the names, or add the column to the table first",
        )
    if len(set(given.names)) != len(given.names):
        raise InvalidTransaction(
            f"a column is given twice: {given.names}", field="schema", value=given.names
        )
    missing = [f.name for f in schema if not f.nullable and given.get_field_index(f.name) < 0]
    if missing:
        raise InvalidTransaction(
            f"column {', '.join(map(repr, missing))} of {table} may not be null and is left out",
            field="schema",
            value=missing,
            advice="Give it values",
        )


def _cast_all(
    source: pa.RecordBatchReader, schema: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    for batch in source:
        columns = []
        for field in schema:
            position = batch.schema.get_field_index(field.name)
            if position < 0:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                columns.append(_cast(batch.column(position), field, table))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(array: pa.Array, field: pa.Field, table: str) -> pa.Array:
    if array.type != field.type:
        try:
            array = array.cast(field.type)
        except pa.ArrowException as error:
            raise _wrong(field, table, f"{array.type}: {error}") from error
    if not field.nullable and array.null_count:
        raise _wrong(field, table, f"{array.null_count} nulls, and it may not be null")
    return array


def _wrong(field: pa.Field, table: str, what: str) -> InvalidTransaction:
    return InvalidTransaction(
        f"column {field.name!r} of {table} is {field.type}; the data has {what}",
        field=field.name,
        advice="Convert the column before",
    )
