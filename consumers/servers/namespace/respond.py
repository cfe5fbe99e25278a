"""From a request to its answer: an operation is carried out, and whatever happens is put in words.

This runs on a thread of the server, or in a process for work on rows.
"""

from __future__ import annotations

from typing import Any

from lance_namespace import (
    PermissionDeniedError,
    UnsupportedOperationError,
)
from starlette.responses import JSONResponse, Response

from commitlog.adapters.lance_datasets import behind
from commitlog.client.commits.caller import acting_for
from commitlog.errors import InvalidTransaction, NoSuchTable, OutcomeUnknown, Unavailable
from consumers.servers.namespace import rows
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.landings import Landed
from consumers.servers.namespace.native import of_pylance
from consumers.servers.namespace.not_served import instead_of
from consumers.servers.namespace.operations import Entry
from consumers.servers.namespace.remote import DATABASE, SERVER_VERSION, answer_out, error_out
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.status import error_response
from consumers.servers.namespace.time_travel import POSITION, as_of
from consumers.servers.security.answers import unknown_status
from consumers.servers.security.grants import Access

_PANIC = "PanicException"
"""What a panic of Lance's arrives as, past `Exception`; its class cannot be imported."""


def admit(entry: Entry, call: Call) -> None:
    """Refuse unknown principals, and those that may not do this."""
    call.identify()
    if entry.access is not None:
        call.need(entry.access, call.parts)


def respond(entry: Entry, service: Service, call: Call) -> Response:
    """Carry out an admitted request; return its answer, whatever it is."""
    try:
        result = _run(entry, service, call)
    except Exception as error:
        return failure(entry, call, error)
    if call.is_remote:
        result = answer_out(entry.name, result)
    response = result if isinstance(result, Response) else JSONResponse(result)
    if call.is_remote or DATABASE in call.headers:
        response.headers.update(SERVER_VERSION)
    if call.position is not None:
        response.headers[POSITION] = str(call.position)
    return response


def failure(entry: Entry, call: Call, error: Exception) -> Response:
    """Return the answer to a request that failed."""
    if isinstance(error, Landed):
        # Without a body, so that the connection is idle again when its client asks what landed.
        return Response(status_code=error.status, headers=error.headers)
    if isinstance(error, NoSuchTable):
        error.args = (call.security.shown(call.principal, error),)
    if call.is_remote:
        error = error_out(entry.name, error, call.object_id or "")
    response = error_response(error, call.path)
    if response.status_code == 500:
        response.status_code = unknown_status(call.path)
    return response


def _run(entry: Entry, service: Service, call: Call) -> Any:
    try:
        if entry.operation is None:
            instead = instead_of(entry.name)
            raise UnsupportedOperationError(f"{entry.name} is not supported; {instead}")
        if POSITION in call.headers:
            if not entry.only_reads:
                raise PermissionDeniedError(
                    f"{entry.name}: the state at a position is read-only; send the request "
                    f"without {POSITION}"
                )
            service = as_of(service, call)
        with behind(service.reach.gate(call.principal)):
            if entry.access is Access.READ:  # nothing of it gets into the log
                return entry.operation(service, call)
            with acting_for(call.caller):
                try:
                    return entry.operation(service, call)
                except (OutcomeUnknown, Unavailable):
                    raise
                except Exception:
                    if call.committed or not service.was_committed(call):
                        raise
                # A request under the same key was faster: its answer is this one's, too.
                return entry.operation(service, call)
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        if call.committed and not isinstance(error, Landed):
            # What came after the commit cannot undo it, and no answer may say that it failed.
            raise OutcomeUnknown(
                f"transaction {call.committed} is committed, but the result cannot be read: "
                f"{error}; describe the table again",
                call.committed,
            ) from error
        raise _as_callers_know_it(call, error) from error


def _as_callers_know_it(call: Call, error: BaseException) -> Exception:
    if call.problems:
        return call.problems[0]
    if isinstance(error, InvalidTransaction) and call.stream is not None:
        return rows.schema_error(error)
    return of_pylance(error)
