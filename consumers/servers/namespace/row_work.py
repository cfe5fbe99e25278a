"""Requests that work on rows, carried out in a process of their own (`row_processes`).

What goes there is the request as it came, and who asks; what comes back is the answer as it goes
out, and what the server notes of it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import ExitStack
from pickle import PickleBuffer
from typing import IO, Any, NamedTuple

from starlette.responses import Response

from commitlog.model.records import Outcome
from consumers.servers.metrics import Metrics
from consumers.servers.namespace.answer_files import AnswerInFile
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.operations import LOG_OPERATIONS, OPERATIONS, Entry
from consumers.servers.namespace.respond import respond
from consumers.servers.namespace.service import Service
from consumers.servers.row_processes import RowProcesses, WorkLost
from consumers.servers.security.grants import Access

READ_SECONDS, WRITE_SECONDS = 300.0, 3700.0
"""How long a question may take, and how long a change: a merge may ask for an hour."""
HAS_PROC = os.path.isdir("/proc/self/fd")
"""Whether a process can open another one's files, though they have no names."""
_ENTRIES = {entry.name: entry for entry in (*OPERATIONS, *LOG_OPERATIONS)}


_SENT = ("operation", "path", "object_id", "index_name", "query", "body", "principal")


class Work(NamedTuple):
    """A request."""

    call: dict[str, Any]
    """The fields of the `Call` that any process can have."""
    rows: PickleBuffer | None = None
    rows_file: str = ""
    """Where the rows are, if they are too many to be sent along."""


class Done(NamedTuple):
    """Its answer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: PickleBuffer
    committed: str
    position: int | None
    outcomes: list[tuple[Outcome, float]]
    body_file: str = ""
    """Where a large body is, until the process has its next request."""


class NotedMetrics(Metrics):
    """Keeps what is to be counted, for the process that tells it."""

    def __init__(self) -> None:
        """Keep nothing yet."""
        super().__init__()
        self.outcomes: list[tuple[Outcome, float]] = []

    def outcome(self, outcome: Outcome, seconds: float) -> None:
        """Keep an outcome."""
        self.outcomes.append((outcome, seconds))


def handler(service: Service, noted: NotedMetrics) -> Callable[[Work], Done]:
    """Return what carries requests out, in the process for it."""
    large: list[AnswerInFile] = []

    def carry_out(work: Work) -> Done:
        while large:
            large.pop().file.close()
        response, done = _carry_out(service, noted, work)
        if isinstance(response, AnswerInFile):
            large.append(response)
            if os.path.exists(response.path):
                done = done._replace(body_file=response.path)
            else:  # a system without /proc, as macOS
                done = done._replace(body=PickleBuffer(response.file.read()))
        return done

    return carry_out


def _carry_out(service: Service, metrics: NotedMetrics, work: Work) -> tuple[Response, Done]:
    call = Call(**work.call, items_max=service.settings.operations_max, security=service.security)
    metrics.outcomes = []
    with ExitStack() as opened:
        if work.rows_file:
            call.stream = opened.enter_context(open(work.rows_file, "rb"))
        elif work.rows is not None:
            call.stream = io.BytesIO(work.rows)
        response = respond(_ENTRIES[call.operation], service, call)
    return response, Done(
        status=response.status_code,
        headers=response.raw_headers,
        body=PickleBuffer(response.body),
        committed=call.committed,
        position=call.position,
        outcomes=metrics.outcomes,
    )


async def by_process(
    processes: RowProcesses, service: Service, entry: Entry, call: Call
) -> Response:
    """Have a process carry a request out; WorkLost if that died: what it did isn't known."""
    seconds = READ_SECONDS if entry.access is Access.READ else WRITE_SECONDS
    try:
        done: Done = await processes.ask(_work(call), seconds)
    except WorkLost as lost:
        sure = "nothing was changed" if entry.access is Access.READ else _UNKNOWN
        raise WorkLost(f"{call.operation}: {lost}; {sure}") from lost
    call.committed, call.position = done.committed, done.position
    for outcome, took in done.outcomes:
        service.metrics.outcome(outcome, took)
    if done.body_file:
        # The process has no other request yet: nothing was awaited since it answered.
        response: Response = AnswerInFile(open(done.body_file, "rb"), done.status)  # noqa: SIM115
    else:  # where it was received it is a view of what came
        response = Response(memoryview(done.body), done.status)
    response.raw_headers[:] = done.headers
    return response


_UNKNOWN = (
    "it is not known whether the request was carried out: describe the table, or "
    "repeat the request with its Idempotency-Key"
)


def _work(call: Call) -> Work:
    rows, rows_file = None, ""
    if call.stream is not None:
        rows_file = path_of(call.stream)
        rows = None if rows_file else PickleBuffer(call.stream.read())
    sent = {name: getattr(call, name) for name in _SENT}
    return Work({**sent, "headers": dict(call.headers)}, rows, rows_file)


def path_of(stream: IO[bytes]) -> str:
    """Return by which path another process opens a file; "" for what is in memory."""
    name: Any = getattr(stream, "name", "")
    return name if isinstance(name, str) else f"/proc/{os.getpid()}/fd/{name}"
