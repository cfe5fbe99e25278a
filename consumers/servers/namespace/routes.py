"""The table of routes: which operation answers which path, and the way of a request through it.

Bodies are read up to a limit before an operation starts; it then runs on a thread, since the log's
answers take their time. Operations on rows have threads of their own, so that they don't hold up
commits. Whatever happens, the answer is the protocol's JSON.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, cast

from lance_namespace.errors import ErrorCode, InvalidInputError, ServiceUnavailableError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from commitlog import CommitLog
from consumers.servers.metrics import Metrics
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.landings import PEER
from consumers.servers.namespace.leaving import while_awaited
from consumers.servers.namespace.not_served import is_of_job, not_served
from consumers.servers.namespace.operations import LOG_OPERATIONS, OPERATIONS, Entry
from consumers.servers.namespace.remote import (
    DATABASE,
    ExistsAlready,
    is_remote,
    says_that_it_exists,
)
from consumers.servers.namespace.respond import admit, failure, respond
from consumers.servers.namespace.row_turns import LargeBodies, RowTurns
from consumers.servers.namespace.row_work import HAS_PROC, by_process
from consumers.servers.namespace.rows import NeedsRows
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.settings import Settings
from consumers.servers.namespace.status import HttpError, error_response
from consumers.servers.namespace.time_travel import POSITION
from consumers.servers.observing import tell
from consumers.servers.row_processes import RowProcesses
from consumers.servers.security.answers import allowed_methods
from consumers.servers.security.budgets import LARGE_BYTES, body_pieces, json_problem
from consumers.servers.security.grants import Access
from consumers.servers.security.guard import LANCEDB
from consumers.servers.security.identity import Security, credentials_of_headers, may_take_long
from consumers.servers.security.tarpit import ORDINARY
from consumers.servers.server_heads import CONNECTION

COMMIT_THREADS = 64
PAST_THREADS = 4
"""For what is asked of the past, which may take long to be read from the log."""
ROW_THREADS = 8
CLIENT_CHARACTERS_MAX = 256
_NOT_LANCE = frozenset({"forwarded", "user-agent", "via", "x-forwarded-for", "x-real-ip"})
"""What Lance's own client doesn't send; a proxy adds some of it, and may send the requests of many
clients on one connection."""
SPOOL_BYTES = 8 * 1024 * 1024

_OURS = (
    "/v1/log/properties",
    "/v1/log/restore",
    "/v1/log/transactions",
    "/v1/log/undrop",
    "/v1/namespace",
    "/v1/table",
    "/v1/transaction",
    "/v1/materialized_view",
    *LANCEDB,
)


def routes(
    log: CommitLog,
    settings: Settings | None = None,
    security: Security | None = None,
    metrics: Metrics | None = None,
    processes: RowProcesses | None = None,
    large: LargeBodies | None = None,
) -> list[Route]:
    """Return the routes of the Lance Namespace over a log.

    With `processes`, those carry out what works on rows, else this one does. `large` is shared with
    the other API.
    """
    service = Service(log, settings, security, metrics)
    threads = ThreadPoolExecutor(COMMIT_THREADS, "namespace")
    places = ROW_THREADS if processes is None else processes.count
    workers = _Workers(
        threads=threads,
        past_threads=ThreadPoolExecutor(PAST_THREADS, "namespace-past"),
        row_threads=ThreadPoolExecutor(places, "namespace-rows"),
        turns=RowTurns(
            places,
            tells_clients_apart=service.security.is_on,
            problem=service.settings.problem,
        ),
        large=large or LargeBodies(tells_clients_apart=service.security.is_on),
        processes=processes,
    )
    found = []
    for entry in (*OPERATIONS, *LOG_OPERATIONS):
        endpoint = partial(_answer, entry, service, workers)
        methods = [entry.method, "GET"] if entry.also_by_get else [entry.method]
        for path in (entry.path, f"{entry.path}/"):
            found.append(Route(path, endpoint, methods=methods, name=entry.name))
    unknown = partial(_unknown, tuple(found))
    for path in _OURS:
        for rest in ("", "/{rest:path}"):
            found.append(Route(f"{path}{rest}", unknown, methods=_METHODS))
    return found


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


def _path(request: Request) -> str:
    return str(request.scope["path"]).removeprefix(request.scope.get("root_path", ""))


async def _unknown(known: tuple[Route, ...], request: Request) -> Response:
    """Answer a path or a method that no operation has."""
    where = f"{request.method} {request.url.path}"
    if allowed := allowed_methods(known, request.scope):
        text = f"{where}: use {allowed}"
        error = HttpError(405, text, ErrorCode.INVALID_INPUT, Allow=allowed)
    elif is_of_job(_path(request)):
        error = HttpError(404, f"{where}: {not_served(_path(request))}", ErrorCode.UNSUPPORTED)
    elif text := not_served(_path(request)):
        error = HttpError(406, f"{where}: {text}", ErrorCode.UNSUPPORTED)
    elif is_remote(request.url.path) or DATABASE in request.headers:
        # The client takes 404 for a table that isn't there.
        error = HttpError(
            406, f"{where} is no operation of this server; /docs lists them", ErrorCode.UNSUPPORTED
        )
    else:
        error = HttpError(404, f"{where} is no operation", ErrorCode.UNSUPPORTED)
    return error_response(error, request.url.path)


@dataclass(frozen=True, slots=True)
class _Workers:
    """Who carries requests out."""

    threads: ThreadPoolExecutor
    past_threads: ThreadPoolExecutor
    row_threads: ThreadPoolExecutor
    turns: RowTurns
    large: LargeBodies
    processes: RowProcesses | None


async def _answer(entry: Entry, service: Service, workers: _Workers, request: Request) -> Response:
    response = await _answered(entry, service, workers, request)
    if response.status_code == ExistsAlready.status and says_that_it_exists(response.body):
        request.scope[ORDINARY] = True
    return response


async def _answered(
    entry: Entry, service: Service, workers: _Workers, request: Request
) -> Response:
    stream: IO[bytes] | None = None
    run = asyncio.get_running_loop().run_in_executor
    in_pool = partial(run, workers.threads)
    call = _call(entry, service, request)
    try:
        shown = credentials_of_headers(call.headers)
        if service.security.is_on and (entry.takes_arrow or shown):
            # Before a body is read, which may be long.
            if may_take_long(shown):
                await in_pool(admit, entry, call)
            else:
                admit(entry, call)
        if entry.takes_arrow:
            call.need_arrow()
            stream = call.stream = await _spooled(request, service.settings.arrow_bytes_max)
        else:
            call.body = await _whole(request, service.settings.json_bytes_max)
        large = workers.large.turn(call.body, _client(call))
        if not entry.is_heavy:
            threads = workers.past_threads if POSITION in call.headers else workers.threads
            async with large:
                return await run(threads, _carry_out, entry, service, call)
        is_large = len(call.body) > LARGE_BYTES
        is_heavy = is_large or POSITION in call.headers or entry.heavy_word in call.body
        if entry.lightly is not None and not is_heavy:
            lightly = replace(entry, operation=entry.lightly)
            with suppress(NeedsRows):
                return await run(workers.threads, _carry_out, lightly, service, call)
        async with large:  # what is too much isn't sent to a process
            if is_large and (problem := await in_pool(json_problem, call.body)):
                raise InvalidInputError(problem)
        if service.security.is_on:
            await in_pool(admit, entry, call)
        else:  # there is nothing to wait for
            admit(entry, call)
        processes = workers.processes if entry.operation is not None else None
        # A change goes on: its client may ask what became of it.
        can_end = processes is not None and entry.access is Access.READ
        awaited = while_awaited(request.receive) if can_end else nullcontext()
        async with awaited, workers.turns.turn(_client(call)):
            if processes is not None:
                return await by_process(processes, service, entry, call)
            return await run(workers.row_threads, respond, entry, service, call)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        return failure(entry, call, error)
    finally:
        if stream is not None:
            stream.close()
        tell(
            request.scope,
            operation=entry.name,
            object=call.object_id,
            principal=call.principal.name,
            transaction=call.committed,
            position=call.position,
        )


def _client(call: Call) -> str:
    """Return by what clients are told apart: who shows no name, by the table."""
    # It is remembered, and a path is as long as its client likes.
    return call.principal.name or f"/{call.object_id}"[:CLIENT_CHARACTERS_MAX]


def _carry_out(entry: Entry, service: Service, call: Call) -> Response:
    admit(entry, call)
    return respond(entry, service, call)


def _call(entry: Entry, service: Service, request: Request) -> Call:
    headers = dict(reversed(request.headers.items()))  # of equal ones the first, as elsewhere
    connection = None if headers.keys() & _NOT_LANCE else request.scope.get(CONNECTION)
    if connection is not None and request.client is not None:
        connection[PEER] = request.client.host
    return Call(
        operation=entry.name,
        path=request.scope["path"],
        object_id=request.path_params.get("id"),
        index_name=request.path_params.get("index_name", ""),
        query=tuple(request.query_params.multi_items()),
        headers=headers,
        connection=connection,
        items_max=service.settings.operations_max,
        security=service.security,
    )


def _pieces(request: Request, bytes_max: int) -> AsyncIterator[bytes]:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise HttpError(413, f"the body has {declared} bytes; at most {bytes_max} are accepted")
    refusal = partial(HttpError, 413, f"the body has more than {bytes_max} bytes")
    return body_pieces(request, bytes_max, refusal)


async def _whole(request: Request, bytes_max: int) -> bytes:
    return b"".join([piece async for piece in _pieces(request, bytes_max)])


async def _spooled(request: Request, bytes_max: int) -> IO[bytes]:
    # The caller closes it: the operation reads it on another thread, or by its name.
    spool: IO[bytes] = io.BytesIO()
    try:
        async for piece in _pieces(request, bytes_max):
            with _in_temporary_files():
                if isinstance(spool, io.BytesIO) and spool.tell() + len(piece) > SPOOL_BYTES:
                    # Without a name, where another process can open it so: no crash leaves it
                    # behind.
                    made = tempfile.TemporaryFile if HAS_PROC else tempfile.NamedTemporaryFile
                    file = cast(IO[bytes], made(prefix="rows-"))
                    file.write(spool.getvalue())
                    spool = file
                spool.write(piece)
        with _in_temporary_files():
            spool.flush()
        spool.seek(0)
    except BaseException:
        with suppress(OSError):  # what a full disk didn't take is written once more
            spool.close()
        raise
    return spool


@contextmanager
def _in_temporary_files() -> Iterator[None]:
    try:
        yield
    except OSError as error:  # full, of a user with a quota, mounted again for reading only
        raise ServiceUnavailableError(
            f"arriving rows cannot be kept in {tempfile.gettempdir()}: {error.strerror}; nothing "
            "was done, try again once the server's temporary folder takes files"
        ) from error
