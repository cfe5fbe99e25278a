"""The table of routes: which operation answers which path, and the way of a request through it.

Bodies are read up to a limit before an operation starts; it then runs on a thread, since the log's
answers take their time. Operations on rows have threads of their own, so that they don't hold up
commits. Whatever happens, the answer is the protocol's JSON.
"""

from __future__ import annotations

import asyncio
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import IO, Any, cast

from lance_namespace import InvalidInputError, UnsupportedOperationError
from lance_namespace.errors import ErrorCode
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from commitlog import CommitLog
from commitlog.adapters.lance_datasets import behind
from commitlog.client.caller import acting_for
from commitlog.errors import InvalidTransaction, OutcomeUnknown
from consumers.metrics import Metrics
from consumers.namespace import rows
from consumers.namespace.call import Call
from consumers.namespace.native import of_pylance
from consumers.namespace.operations import OPERATIONS, Entry
from consumers.namespace.remote import DATABASE, SERVER_VERSION, answer_out, error_out
from consumers.namespace.service import POSITION, Service, Settings
from consumers.namespace.status import HttpError, error_response
from consumers.observing import tell
from consumers.security.budgets import text_problem
from consumers.security.identity import Security, credentials_of_headers

COMMIT_THREADS = 64
ROW_THREADS = 8
SPOOL_BYTES = 8 * 1024 * 1024
_PANIC = "PanicException"
"""What a panic of Lance's arrives as, past `Exception`; its class cannot be imported."""

_OURS = ("/v1/namespace", "/v1/table", "/v1/transaction", "/v1/materialized_view")


def routes(
    log: CommitLog,
    settings: Settings | None = None,
    security: Security | None = None,
    metrics: Metrics | None = None,
) -> list[Route]:
    """Return the routes of the Lance Namespace over a log."""
    service = Service(log, settings, security, metrics)
    threads = ThreadPoolExecutor(COMMIT_THREADS, "namespace")
    row_threads = ThreadPoolExecutor(ROW_THREADS, "namespace-rows")
    found = []
    for entry in OPERATIONS:
        pool = row_threads if entry.is_heavy else threads
        endpoint = partial(_answer, entry, service, pool)
        for path in (entry.path, f"{entry.path}/"):
            found.append(Route(path, endpoint, methods=[entry.method], name=entry.name))
    unknown = partial(_unknown, tuple(found))
    for path in _OURS:
        for rest in ("", "/{rest:path}"):
            found.append(Route(f"{path}{rest}", unknown, methods=_METHODS))
    return found


_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]


async def _unknown(known: tuple[Route, ...], request: Request) -> Response:
    """Answer a path or a method that no operation has."""
    allowed = sorted(
        method
        for route in known
        if route.matches(request.scope)[0] is Match.PARTIAL
        for method in route.methods or ()
    )
    where = f"{request.method} {request.url.path}"
    if allowed:
        error = HttpError(
            405,
            f"{where}: use {', '.join(allowed)}",
            ErrorCode.INVALID_INPUT,
            Allow=", ".join(allowed),
        )
    else:
        error = HttpError(404, f"{where} is no operation", ErrorCode.UNSUPPORTED)
    return error_response(error, request.url.path)


async def _answer(
    entry: Entry, service: Service, pool: ThreadPoolExecutor, request: Request
) -> Response:
    instance = request.url.path
    stream: IO[bytes] | None = None
    in_pool = partial(asyncio.get_running_loop().run_in_executor, pool)
    call = _call(entry, service, request)
    try:
        if service.security.is_on and (entry.takes_arrow or credentials_of_headers(call.headers)):
            # Before a body is read, which may be long.
            await in_pool(_admit, entry, call)
        if entry.takes_arrow:
            call.need_arrow()
            stream = call.stream = await _spooled(request, service.settings.arrow_bytes_max)
        else:
            call.body = await _whole(request, service.settings.json_bytes_max)
        result = await in_pool(_run, entry, service, call)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:
        if call.is_remote:
            error = error_out(entry.name, error, call.object_id or "")
        return error_response(error, instance)
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
    if call.is_remote:
        result = answer_out(entry.name, result)
    response = result if isinstance(result, Response) else JSONResponse(result)
    if call.is_remote or DATABASE in call.headers:
        response.headers.update(SERVER_VERSION)
    if call.position is not None:
        response.headers[POSITION] = str(call.position)
    return response


def _call(entry: Entry, service: Service, request: Request) -> Call:
    return Call(
        operation=entry.name,
        path=request.url.path,
        object_id=request.path_params.get("id"),
        index_name=request.path_params.get("index_name", ""),
        query=tuple(request.query_params.multi_items()),
        headers={name.lower(): value for name, value in request.headers.items()},
        items_max=service.settings.operations_max,
        security=service.security,
    )


def _admit(entry: Entry, call: Call) -> None:
    """Refuse who isn't known, and who may not do this."""
    call.identify()
    if entry.access is not None:
        call.need(entry.access, call.parts)


def _run(entry: Entry, service: Service, call: Call) -> Any:
    try:
        if problem := text_problem(
            [call.object_id, call.index_name, *map(list, call.query)], "path"
        ):
            raise InvalidInputError(problem)
        _admit(entry, call)
        if entry.operation is None:
            raise UnsupportedOperationError(f"{entry.name} is not supported yet")
        with acting_for(call.caller), behind(service.reach.gate(call.principal)):
            return entry.operation(service, call)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        if call.committed:
            # What came after the commit cannot undo it, and no answer may say that it failed.
            raise OutcomeUnknown(
                f"transaction {call.committed} is committed, and cannot be described: {error};"
                " describe it again",
                call.committed,
            ) from error
        raise _as_callers_know_it(call, error) from error


def _as_callers_know_it(call: Call, error: BaseException) -> Exception:
    if isinstance(error, InvalidTransaction) and call.stream is not None:
        return rows.schema_error(error)
    return of_pylance(error)


async def _pieces(request: Request, bytes_max: int) -> Any:
    size = 0
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise HttpError(413, f"the body has {declared} bytes, at most {bytes_max} are taken")
    async for piece in request.stream():
        size += len(piece)
        if size > bytes_max:
            raise HttpError(413, f"the body has over {bytes_max} bytes")
        yield piece


async def _whole(request: Request, bytes_max: int) -> bytes:
    return b"".join([piece async for piece in _pieces(request, bytes_max)])


async def _spooled(request: Request, bytes_max: int) -> IO[bytes]:
    # Who asked for it closes it: the operation reads it on another thread.
    spool = cast(IO[bytes], tempfile.SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115
    try:
        async for piece in _pieces(request, bytes_max):
            spool.write(piece)
        spool.seek(0)
    except BaseException:
        spool.close()
        raise
    return spool
