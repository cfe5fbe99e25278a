"""Answers with rows: of any size as an Arrow file, or as JSON to look at.

A large one is in a file, so that no process has it in memory as a whole. Programs read Arrow. In
JSON for people what is long is cut, and says so; numbers that JavaScript can't hold, times,
decimals and bytes are texts.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import pyarrow as pa
from lance_namespace import ServiceUnavailableError
from pyarrow import types
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from commitlog.adapters.row_values import holds
from commitlog.adapters.shown_values import python_values
from consumers.servers.namespace.leaving import until_left
from consumers.servers.security.limits import IN_MEMORY_BYTES_MAX, is_disk_full

_PIECE_BYTES = 256 * 1024


class AnswerInFile(Response):
    """An answer that is read from a file as it is sent; then the file is gone."""

    def __init__(self, file: IO[bytes], status_code: int = 200) -> None:
        """Take a file without a name, or with one that is removed once it is closed."""
        super().__init__(status_code=status_code)
        self.file = file
        self.headers["content-length"] = str(os.fstat(file.fileno()).st_size)

    @property
    def path(self) -> str:
        """By which another process opens the file, as long as this one has it."""
        return f"/proc/{os.getpid()}/fd/{self.file.fileno()}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, as fast as the client takes it, and no further than it does."""
        start = {"type": "http.response.start", "status": self.status_code}
        gone = asyncio.ensure_future(until_left(receive))
        try:
            with self.file:
                await send({**start, "headers": self.raw_headers})
                while not gone.done() and (
                    piece := await run_in_threadpool(self.file.read, _PIECE_BYTES)
                ):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            gone.cancel()
        await send({"type": "http.response.body", "body": b""})


def rows_answer(rows: pa.RecordBatchReader) -> Response:
    """Return rows as an Arrow file; ServiceUnavailableError if they would fill the disk."""
    sink = _spooled()
    try:
        if any(holds(field.type, types.is_dictionary) for field in rows.schema):
            with _spooled() as stream:
                _write(sink, rows.schema, _with_one_dictionary(rows, stream))
        else:
            _write(sink, rows.schema, rows)
        is_large = sink.tell() > IN_MEMORY_BYTES_MAX
        sink.seek(0)
        if is_large:
            return AnswerInFile(sink)
        with sink:
            return Response(sink.read())
    except BaseException:
        sink.close()
        raise


def _spooled() -> IO[bytes]:
    return SpooledTemporaryFile(IN_MEMORY_BYTES_MAX, prefix="answer-")


def _write(sink: IO[bytes], schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            _need_space(sink, batch)
            writer.write_batch(batch)


def _need_space(sink: IO[bytes], batch: pa.RecordBatch) -> None:
    is_in_file = sink.tell() + batch.nbytes > IN_MEMORY_BYTES_MAX
    if is_in_file and is_disk_full(batch.nbytes):
        raise ServiceUnavailableError(
            "the answer is large, and the disk where the server keeps such answers is "
            "nearly full: ask for fewer rows or columns, or try again in a while"
        )


def _with_one_dictionary(rows: pa.RecordBatchReader, stream: IO[bytes]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with one dictionary a column: an Arrow file holds no more.

    Each fragment has its own. All are known once all rows are read; until then the rows are in
    `stream`, and memory holds only the columns with dictionaries.
    """
    schema = rows.schema
    numbers = [i for i, field in enumerate(schema) if holds(field.type, types.is_dictionary)]
    kept: list[pa.RecordBatch] = []
    with pa.ipc.new_stream(stream, schema) as writer:
        for batch in rows:
            if batch.num_rows:
                _need_space(stream, batch)
                writer.write_batch(batch)
                kept.append(batch.select(numbers))
    stream.seek(0)
    some = pa.schema([schema.field(i) for i in numbers])
    unified = pa.Table.from_batches(kept, some).unify_dictionaries().to_batches()
    for batch, columns in zip(pa.ipc.open_stream(stream), unified, strict=True):
        merged = dict(zip(numbers, columns.columns, strict=True))
        arrays = [merged.get(i, column) for i, column in enumerate(batch.columns)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


ROWS_MAX = 1000
TEXT_MAX = 400
BYTES_MAX = 48
ITEMS_MAX = 24
DEPTH_MAX = 6
SAFE_INTEGER = 2**53


def preview(found: pa.Table, version: int) -> Response:
    """Return columns with their types, and rows whose cells are texts, numbers, booleans or null.

    At most `ROWS_MAX` rows; `is_cut` says that there were more.
    """
    shown = found.slice(0, ROWS_MAX)
    columns = [[_cell(value) for value in python_values(column)] for column in shown.columns]
    body = {
        "version": version,
        "columns": [{"name": field.name, "type": str(field.type)} for field in found.schema],
        "rows": list(zip(*columns, strict=True)) if columns else [],
        "is_cut": found.num_rows > ROWS_MAX,
    }
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})


def _cell(value: Any) -> None | bool | int | float | str:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= SAFE_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    text = value if isinstance(value, str) else _text(value, 0)
    left_out = len(text) - TEXT_MAX
    return text if left_out <= 0 else f"{text[:TEXT_MAX]}… {left_out:,} more characters"


def _text(value: Any, depth: int) -> str:
    if isinstance(value, bytes):
        left_out = len(value) - BYTES_MAX
        more = f"… {left_out:,} more bytes" if left_out > 0 else ""
        return f"0x{value[:BYTES_MAX].hex()}{more}"
    if isinstance(value, str):
        return json.dumps(value[:TEXT_MAX], ensure_ascii=False)
    if isinstance(value, Mapping):
        return _many(
            [f"{name}: {_inner(one, depth)}" for name, one in list(value.items())[:ITEMS_MAX]],
            len(value),
            "{}",
        )
    if isinstance(value, list | tuple):
        return _many([_inner(one, depth) for one in value[:ITEMS_MAX]], len(value), "[]")
    return str(value)


def _inner(value: Any, depth: int) -> str:
    if depth >= DEPTH_MAX:
        return "…"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "null" if value is None else _text(value, depth + 1)


def _many(shown: list[str], count: int, brackets: str) -> str:
    left_out = count - len(shown)
    texts = [*shown, f"… {left_out:,} more"] if left_out > 0 else shown
    return f"{brackets[0]}{', '.join(texts)}{brackets[1]}"
