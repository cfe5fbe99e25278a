"""Callers' rows, whatever holds them, in the types of a table by the row contract."""

from __future__ import annotations

import re
import sys
from collections.abc import ItemsView, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import chain
from typing import Any

import pyarrow as pa

from commitlog.adapters.row_contract import check_columns, conform, present
from commitlog.client.rows.literals import literal_column
from commitlog.errors import InvalidTransaction

_ACCEPTED = (
    "a pyarrow Table, RecordBatch or RecordBatchReader, a list or iterator of Tables or"
    " RecordBatches, a Dataset or Scanner of pyarrow or Lance, a mapping of column names to values,"
    " a list or iterator of mappings, or anything with __arrow_c_stream__"
)
_PIECE = pa.RecordBatch | pa.Table
_NO_COLUMN = (str, bytes, bytearray, Mapping, set, frozenset, ItemsView)
"""What has a length, but isn't a list of values: `"abc"` would be three rows of one letter."""
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""What pyarrow calls an index of pandas that has no name, as that of a filtered frame."""


def rows_reader(data: Any, schema: pa.Schema, table: str) -> pa.RecordBatchReader:
    """Return the rows in the table's own types, batch by batch; wrong values raise on reading.

    Columns that are left out stay out; only those that may be null.
    """
    columns, batches = _columns_and_batches(data, schema, table, required=True)
    return pa.RecordBatchReader.from_batches(columns, batches)


def rows_table(data: Any, schema: pa.Schema, table: str) -> pa.Table:
    """Return the rows in the table's own types, in memory; any columns may be left out."""
    columns, batches = _columns_and_batches(data, schema, table, required=False)
    return pa.Table.from_batches(list(batches), columns)


def _columns_and_batches(
    data: Any, schema: pa.Schema, table: str, *, required: bool
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    source = rows_source(data, schema, table)
    columns = columns_of(source.schema, schema, table, required=required)
    return columns, conformed(source, columns, table)


def columns_of(given: pa.Schema, schema: pa.Schema, table: str, *, required: bool) -> pa.Schema:
    """Return the table's own columns that rows have; InvalidTransaction if they can never fit."""
    check_columns(given, schema, table, partial=not required)
    return present(given, schema)


def kept(data: Any) -> Any:
    """Return rows that can be read more than once: a stream is read into memory.

    Rows are cast again if others changed the table's columns; a stream would yield only its rest.
    """
    data = as_arrow(data)
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    is_held = isinstance(data, pa.RecordBatch | pa.Table | Mapping | Sequence)
    if is_held or not hasattr(data, "__arrow_c_stream__"):
        return data
    return _stream_of(data).read_all()


def as_arrow(data: Any) -> Any:
    """Return datasets, scanners and iterators as streams, and lists of batches or tables as tables.

    All else is returned as given, but iterators of mappings as lists.
    """
    if isinstance(data, pa.RecordBatchReader | pa.RecordBatch | pa.Table | Mapping):
        return data
    if isinstance(data, Sequence):
        is_pieces = bool(data) and all(isinstance(one, _PIECE) for one in data)
        return _table_of(data) if is_pieces else data
    # Another library's reader of Arrow streams is an iterator, too: of its own batches.
    if isinstance(data, Iterator) and not hasattr(data, "__arrow_c_stream__"):
        return _stream_of_pieces(data)
    # Whoever has one of these has imported its module.
    if (lance := sys.modules.get("lance")) and isinstance(data, lance.LanceDataset):
        # By default, Lance reads blobs as their places in files of that dataset.
        return data.scanner(blob_handling="all_binary").to_reader()
    if datasets := sys.modules.get("pyarrow.dataset"):
        if isinstance(data, datasets.Dataset):
            return data.scanner().to_reader()
        if isinstance(data, datasets.Scanner):
            return data.to_reader()
    return data


def _stream_of(data: Any) -> pa.RecordBatchReader:
    try:
        return pa.RecordBatchReader.from_stream(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        kind, reason = type(data).__name__, " ".join(map(str, error.args))
        raise InvalidTransaction(
            f"{kind} cannot be read as rows: {reason}",
            field="data",
            value=kind,
            advice=f"Correct its columns, or pass {_ACCEPTED}",
        ) from error


def _stream_of_pieces(pieces: Iterator[Any]) -> pa.RecordBatchReader | list[Any]:
    first = next(pieces, None)
    if first is None:
        return []
    if isinstance(first, Mapping):
        return [first, *pieces]
    if not isinstance(first, _PIECE):
        raise _unreadable(f"{type(pieces).__name__} of {type(first).__name__}")
    batches = _batches_of(chain([first], pieces), first.schema)
    return pa.RecordBatchReader.from_batches(first.schema, batches)


def _table_of(pieces: Sequence[pa.RecordBatch | pa.Table]) -> pa.Table:
    schema = pieces[0].schema
    return pa.Table.from_batches(list(_batches_of(pieces, schema)), schema)


def _batches_of(
    pieces: Iterable[pa.RecordBatch | pa.Table], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        if not piece.schema.equals(schema):
            both = f"({_columns(schema)}) and ({_columns(piece.schema)})"
            raise InvalidTransaction(
                f"the batches differ in their columns: {both}",
                field="data",
                advice="Give batches of the same schema",
            )
        yield from piece.to_batches() if isinstance(piece, pa.Table) else [piece]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def rows_source(data: Any, schema: pa.Schema, table: str) -> pa.RecordBatchReader:
    """Return the rows as they were given; what has no types of its own gets the table's.

    An unnamed index of pandas is left out, unless the table has a column of that name.
    """
    source = _source(data, schema, table)
    given = source.schema
    is_of_pandas = b"pandas" in (given.metadata or {})
    fitting = _without_guesses(given, schema, is_of_pandas=is_of_pandas)
    if fitting is not given and isinstance(data, Sized) and not len(data):
        source, given = fitting.empty_table().to_reader(), fitting
    if not is_of_pandas:
        return source
    columns = set(schema.names)
    taken = [
        position
        for position, name in enumerate(given.names)
        if name in columns or not _UNNAMED_INDEX.fullmatch(name)
    ]
    if len(taken) == len(given.names):
        return source
    fields = pa.schema([given.field(position) for position in taken])
    batches = (batch.select(taken).replace_schema_metadata(None) for batch in source)
    return pa.RecordBatchReader.from_batches(fields, batches)


def _without_guesses(given: pa.Schema, schema: pa.Schema, *, is_of_pandas: bool) -> pa.Schema:
    """Return the columns as they fit if there are no rows; the same object if none was guessed.

    A column without values is one of nulls to Arrow and polars, and pandas calls it float64.
    """
    if not given.names:
        return schema
    guesses = [pa.null(), pa.float64()] if is_of_pandas else [pa.null()]
    if not any(one in guesses for one in given.types):
        return given
    fields = [
        schema.field(one.name).with_nullable(True)
        if one.type in guesses and one.name in schema.names
        else one
        for one in given
    ]
    return pa.schema(fields, given.metadata)


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
    arrow = as_arrow(data)
    if arrow is not data:
        return _source(arrow, schema, table)
    if hasattr(data, "__arrow_c_stream__"):
        return _stream_of(data)
    kind = type(data).__name__
    if isinstance(data, list | tuple):
        kinds = sorted({type(one).__name__ for one in data})
        kind = f"a {kind} of {', '.join(kinds)}"
    elif hasattr(data, "collect"):  # a lazy frame, as of polars
        raise _unreadable(kind, "Call its method collect() first")
    raise _unreadable(kind)


def _unreadable(kind: str, advice: str = f"Pass {_ACCEPTED}") -> InvalidTransaction:
    return InvalidTransaction(
        f"{kind} cannot be read as rows", field="data", value=kind, advice=advice
    )


def _from_columns(
    columns: Mapping[str, Any], schema: pa.Schema, table: str, row_count: int = 0
) -> pa.Table:
    arrays, fields = [], []
    for name, values in columns.items():
        is_column = hasattr(values, "__len__") and not isinstance(values, _NO_COLUMN)
        if not isinstance(name, str) or not is_column:
            raise InvalidTransaction(
                f"column {name!r} for {table} cannot be {type(values).__name__}",
                field="data",
                value=name,
                advice="Give lists of values by the columns' names, or a list of rows: [{…}]",
            )
        position = schema.get_field_index(name)
        if isinstance(values, pa.Array | pa.ChunkedArray):
            array = values
        elif position < 0:
            array = pa.nulls(len(values))
        elif hasattr(values, "__array__") or hasattr(values, "__arrow_c_array__"):
            array = _typed_column(values, name, table)
        else:
            array = literal_column(values, schema.field(position), table)
        arrays.append(array)
        fields.append(pa.field(name, array.type))
    if not arrays:
        if not row_count:
            return schema.empty_table()
        return pa.table({schema.field(0).name: pa.nulls(row_count, schema.field(0).type)})
    if len({len(array) for array in arrays}) > 1:
        lengths = {name: len(values) for name, values in columns.items()}
        raise InvalidTransaction(
            f"columns differ in length: {lengths}",
            field="data",
            value=lengths,
            advice="Give each column as many values",
        )
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _typed_column(values: Any, name: str, table: str) -> pa.Array:
    """Return values with a type of their own, such as a NumPy array; vectors of a 2-d one."""
    try:
        if getattr(values, "ndim", 1) == 2:
            return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidTransaction(
            f"column {name!r} for {table} cannot be read: {error}", field=name
        ) from error


def conformed(
    source: Iterable[pa.RecordBatch], columns: pa.Schema, table: str
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the table's own types; the first value that doesn't fit raises."""
    rows = 0
    for batch in source:
        yield conform(batch, columns, table, first_row=rows)
        rows += batch.num_rows


def arrow_stream(rows: pa.Table) -> bytes:
    """Return rows as a stream of Arrow."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())
