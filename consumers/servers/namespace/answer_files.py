"""Answers of any size: a large one is in a file, so that no process has it in memory as a whole."""

from __future__ import annotations

import os
from tempfile import SpooledTemporaryFile
from typing import IO

import pyarrow as pa
from lance_namespace import ServiceUnavailableError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
        """Send it, as fast as the client takes it."""
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        with self.file:
            while piece := await run_in_threadpool(self.file.read, _PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def rows_answer(rows: pa.RecordBatchReader) -> Response:
    """Return rows as an Arrow file; ServiceUnavailableError if they would fill the disk."""
    sink: IO[bytes] = SpooledTemporaryFile(IN_MEMORY_BYTES_MAX, prefix="answer-")  # noqa: SIM115
    try:
        with pa.ipc.new_file(sink, rows.schema) as writer:
            for batch in rows:
                is_in_file = sink.tell() + batch.nbytes > IN_MEMORY_BYTES_MAX
                if is_in_file and is_disk_full(batch.nbytes):
                    raise ServiceUnavailableError(
                        "the answer is large, and the disk where the server keeps such answers is "
                        "nearly full: ask for fewer rows or columns, or try again in a while"
                    )
                writer.write_batch(batch)
        is_large = sink.tell() > IN_MEMORY_BYTES_MAX
        sink.seek(0)
        if is_large:
            return AnswerInFile(sink)
        with sink:
            return Response(sink.read())
    except BaseException:
        sink.close()
        raise
