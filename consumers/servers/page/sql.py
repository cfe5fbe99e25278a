"""SQL over the version index: `POST /v1/sql`, off unless it is turned on.

Questions are answered by processes of their own (`sql_child`), which can read the index and
nothing else. One that takes too long, or answers with too much, is killed; the next question gets
a new one.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait  # `select` takes no descriptor above 1,023
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from commitlog.errors import Overloaded
from consumers.servers.security.budgets import body_pieces, parse_body

SQL_BYTES_MAX = 64 * 1024
START_SECONDS = END_SECONDS = 20.0
RETRY_SECONDS = 2.0
READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SqlSettings:
    """Limits of a question."""

    seconds: float = 10.0
    rows_max: int = 10_000
    answer_bytes_max: int = 8 * 1024 * 1024
    processes: int = 2
    wait_seconds: float = 5.0
    """How long a question waits for a process that is free."""


class Failed(Exception):
    """A question that was given up, and its process with it."""


class SqlProcess:
    """One child that answers questions, started again after it was killed. For one thread."""

    def __init__(self, root: Path, settings: SqlSettings) -> None:
        self._root = root
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        return self._process.pid if self._process else None

    def ask(self, sql: str, parameters: list[Any]) -> dict[str, Any]:
        """Return the answer to one question; `Failed` says why there is none.

        Raises Overloaded if the process doesn't start in time: nothing was asked.
        """
        settings = self._settings
        if self._process is None or self._process.poll() is not None:
            self._start()
        asked = {
            "sql": sql,
            "parameters": parameters,
            "rows_max": settings.rows_max,
            "seconds": settings.seconds + 1,
        }
        try:
            assert self._process is not None
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            return self._line(settings.seconds)
        except Failed:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise Failed("the process that answers SQL has ended; ask again") from error

    def close(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(END_SECONDS)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def _start(self) -> None:
        try:
            self._try_to_start()
        except (Failed, OSError) as error:
            self.close()  # what it says later is no answer
            message = "the process that answers SQL does not start; try again in a while"
            raise Overloaded(message, RETRY_SECONDS) from error

    def _try_to_start(self) -> None:
        self.close()
        # An environment of its own: what this process knows of passwords stays here.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "consumers.servers.page.sql_child", str(self._root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        self._line(START_SECONDS)

    def _line(self, seconds: float) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        number = process.stdout.fileno()
        deadline = time.monotonic() + seconds
        pieces: list[bytes] = []
        size = 0
        while not pieces or not pieces[-1].endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not wait([number], left):
                raise Failed(f"no answer within {seconds:g} s; ask for less")
            piece = os.read(number, READ_BYTES)
            if not piece:
                raise Failed("the process that answers SQL has ended: ask for less")
            size += len(piece)
            if size > self._settings.answer_bytes_max:
                raise Failed(f"the answer has more than {self._settings.answer_bytes_max} bytes")
            pieces.append(piece)
        found: dict[str, Any] = json.loads(b"".join(pieces))
        return found


class SqlService:
    """Processes that answer questions, and the route to them."""

    def __init__(self, root: str | os.PathLike[str], settings: SqlSettings | None = None) -> None:
        """Answer over the index under `root`; a process starts with the first question."""
        self._settings = settings or SqlSettings()
        count = self._settings.processes
        self._threads = ThreadPoolExecutor(count * 8, thread_name_prefix="sql")
        self._processes = [SqlProcess(Path(root).absolute(), self._settings) for _ in range(count)]
        self._free: queue.LifoQueue[SqlProcess] = queue.LifoQueue()
        for process in self._processes:
            self._free.put(process)

    def routes(self) -> list[Route]:
        """Return the route that takes questions.

        Its body is `{"sql": "SELECT …", "parameters": […]}`; the answer has `columns`, `types`,
        `rows`, and `is_cut`, which is true if there were more rows.
        """
        return [Route("/v1/sql", self._endpoint, methods=["POST"])]

    def answer(self, sql: str, parameters: list[Any]) -> dict[str, Any]:
        """Answer one question: with `error`, if it is wrong or was given up.

        Raises Overloaded if no process is free in time, or starts.
        """
        try:
            process = self._free.get(timeout=self._settings.wait_seconds)
        except queue.Empty:
            message = "the server is busy with other queries; try again in a while"
            raise Overloaded(message, RETRY_SECONDS) from None
        try:
            return process.ask(sql, parameters)
        except Failed as failure:
            return {"error": str(failure)}
        finally:
            self._free.put(process)

    def close(self) -> None:
        """Kill the processes; questions that are being answered are given up."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.close()

    async def _endpoint(self, request: Request) -> Response:
        sql, parameters = _question(await _body(request))
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self.answer, sql, parameters)
        if "error" in found:
            raise HTTPException(400, found["error"])
        return JSONResponse(found, headers={"Cache-Control": "no-store"})


async def _body(request: Request) -> bytes:
    message = f"the query has more than {SQL_BYTES_MAX} bytes"
    refusal = partial(HTTPException, 413, message)
    return b"".join([piece async for piece in body_pieces(request, SQL_BYTES_MAX, refusal)])


def _question(body: bytes) -> tuple[str, list[Any]]:
    try:
        asked = parse_body(body)
    except ValueError as error:
        raise HTTPException(400, f"{error}; send an object with sql") from None
    sql = asked.get("sql") if isinstance(asked, Mapping) else None
    if not isinstance(sql, str) or not sql.strip():
        raise HTTPException(400, "sql is missing: send an object with sql, a SELECT")
    parameters = asked.get("parameters") or []
    plain = (str, int, float, bool, type(None))
    if not isinstance(parameters, list) or not all(isinstance(one, plain) for one in parameters):
        raise HTTPException(400, "parameters is not a list of strings, numbers, booleans and nulls")
    return sql, parameters
