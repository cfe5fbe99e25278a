"""Rows that arrive as an Arrow IPC stream, checked as they are read, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import IO, Any

import pyarrow as pa
from lance_namespace import InvalidInputError
from pyarrow import types

from commitlog.adapters.row_text import check_batch
from commitlog.codecs.lance_schema import check_schema_names

_FILE_BEGINS = b"ARROW1"


def open_rows(stream: IO[bytes], problems: list[Exception]) -> pa.RecordBatchReader:
    """Open a stream; what is wrong with it is raised as its rows are read, and added to `problems`.

    Native code that reads them knows such an error as a text alone, with Python's traceback in it.

    Raises:
        InvalidInputError: it isn't an Arrow stream.
    """
    try:
        # As it came, a decimal may be where native code can't read one.
        options = pa.ipc.IpcReadOptions(ensure_alignment=pa.ipc.Alignment.At64Byte)
        found = pa.ipc.open_stream(stream, options=options)
    except (pa.ArrowException, OSError) as error:
        stream.seek(0)
        is_file = stream.read(len(_FILE_BEGINS)) == _FILE_BEGINS
        raise _no_stream("it is Arrow's file format" if is_file else error) from error
    check_schema_names(found.schema)
    return pa.RecordBatchReader.from_batches(found.schema, _noting(_whole(found, stream), problems))


def _noting(
    batches: Iterator[pa.RecordBatch], problems: list[Exception]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        problems.append(_no_stream(error))
        raise problems[-1] from error
    except InvalidInputError as error:
        problems.append(error)
        raise


def _whole(rows: pa.RecordBatchReader, stream: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield batches whose offsets stay within them, and whose text is UTF-8.

    Beyond its offsets native code reads what isn't theirs; other text it writes and can't read.
    """
    first = 0
    for batch in rows:
        try:
            batch.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" in str(error):
                check_batch(batch, first)
            raise InvalidInputError(f"the rows are invalid: {error}") from error
        first += batch.num_rows
        yield batch
    if stream.read(1):
        raise InvalidInputError(
            "bytes follow the end of the Arrow IPC stream; if they are a second one's, send all of "
            "its batches in the first"
        )


def _no_stream(reason: object) -> InvalidInputError:
    return InvalidInputError(f"the body is not an Arrow IPC stream: {reason}")


def rows_of_json(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return rows of JSON: each column as the table has it, and null where a row lacks it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    unknown = [name for name in names if name not in schema.names]
    if unknown or not rows:
        raise InvalidInputError(
            f"the rows have the columns {unknown[:5]}, which the table doesn't have; it has "
            f"{schema.names}"
            if rows
            else "no rows are given"
        )
    for name in names:
        kind = schema.field(name).type
        wrong = next((row[name] for row in rows if name in row and _loses(row[name], kind)), None)
        if wrong is not None:
            raise InvalidInputError(
                f"column {name!r} is {kind}, which can't hold all of {str(wrong)[:100]}"
            )
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in names]))


def _loses(value: Any, kind: pa.DataType) -> bool:
    """Return True if Arrow would keep less than JSON says: it leaves things out without a word.

    These are fractions, fields of a struct that it doesn't have, and texts where lists belong.
    """
    if value is None:
        return False
    if isinstance(kind, pa.BaseExtensionType):
        return _loses(value, kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _loses(value, kind.value_type)
    if isinstance(value, bool):
        return bool(types.is_floating(kind))
    if isinstance(value, int | float) and (most := _FLOATS_END.get(kind)) and isfinite(value):
        return abs(value) >= most
    if isinstance(value, float):
        return not value.is_integer() and bool(types.is_integer(kind) or types.is_temporal(kind))
    if types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return not isinstance(value, dict) or any(
            name not in known or _loses(part, known[name]) for name, part in value.items()
        )
    if types.is_map(kind):
        return _loses_pairs(value, kind)
    if types.is_nested(kind) and not types.is_union(kind):
        return not isinstance(value, list) or any(_loses(part, kind.value_type) for part in value)
    return False


def _loses_pairs(value: Any, kind: pa.MapType) -> bool:
    """Return the same for a map: an object, or a list of `{"key": ..., "value": ...}`."""
    if isinstance(value, dict):
        return any(_loses(part, kind.item_type) for part in value.values())
    return not isinstance(value, list) or any(
        not isinstance(pair, dict)
        or pair.keys() != {"key", "value"}
        or _loses(pair["key"], kind.key_type)
        or _loses(pair["value"], kind.item_type)
        for pair in value
    )


_FLOATS_END = {pa.float16(): 65520.0, pa.float32(): 3.4028235677973366e38}
"""From where on they have infinity for a number."""
