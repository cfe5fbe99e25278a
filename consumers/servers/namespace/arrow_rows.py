"""Rows that arrive as an Arrow IPC stream, checked as they are read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

import pyarrow as pa
from lance_namespace import InvalidInputError

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
