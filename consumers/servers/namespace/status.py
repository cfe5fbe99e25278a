"""What a failure is called on the wire: Lance's error code, and the status that goes with it.

A 4xx is given only where nothing was appended, or where the log holds the refusal. What isn't known
is 500 and says so. 503 promises that nothing was appended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lance_namespace import LanceNamespaceError
from lance_namespace.errors import ErrorCode as Error
from pydantic import ValidationError
from starlette.responses import JSONResponse

from commitlog.errors import (
    CommitConflict,
    CommitLogError,
    CorruptLog,
    Fenced,
    InvalidRequest,
    LogMoved,
    NoSuchNamespace,
    NoSuchTable,
    NoSuchVersion,
    OutcomeUnknown,
    Overloaded,
    TableAlreadyExists,
    Unavailable,
    UnsupportedFormat,
    without_build_paths,
)
from commitlog.model.records import Code, Status

STATUS: Mapping[int, int] = {
    Error.UNSUPPORTED: 406,
    Error.NAMESPACE_NOT_FOUND: 404,
    Error.NAMESPACE_ALREADY_EXISTS: 409,
    Error.NAMESPACE_NOT_EMPTY: 409,
    Error.TABLE_NOT_FOUND: 404,
    Error.TABLE_ALREADY_EXISTS: 409,
    Error.TABLE_INDEX_NOT_FOUND: 404,
    Error.TABLE_INDEX_ALREADY_EXISTS: 409,
    Error.TABLE_TAG_NOT_FOUND: 404,
    Error.TABLE_TAG_ALREADY_EXISTS: 409,
    Error.TRANSACTION_NOT_FOUND: 404,
    Error.TABLE_VERSION_NOT_FOUND: 404,
    Error.TABLE_COLUMN_NOT_FOUND: 404,
    Error.INVALID_INPUT: 400,
    Error.CONCURRENT_MODIFICATION: 409,
    Error.PERMISSION_DENIED: 403,
    Error.UNAUTHENTICATED: 401,
    Error.SERVICE_UNAVAILABLE: 503,
    Error.INTERNAL: 500,
    Error.INVALID_TABLE_STATE: 409,
    Error.TABLE_SCHEMA_VALIDATION_ERROR: 400,
    Error.THROTTLING: 429,
    Error.TABLE_BRANCH_NOT_FOUND: 404,
    Error.TABLE_BRANCH_ALREADY_EXISTS: 409,
}

REJECTED: Mapping[Code, Error] = {
    Code.CONFLICT: Error.CONCURRENT_MODIFICATION,
    Code.READ_VERSION_PRUNED: Error.CONCURRENT_MODIFICATION,
    Code.EXPECTATION_FAILED: Error.CONCURRENT_MODIFICATION,
    Code.UNSUPPORTED_OPERATION: Error.UNSUPPORTED,
    Code.ID_REUSED: Error.CONCURRENT_MODIFICATION,
    Code.NO_SUCH_TABLE: Error.TABLE_NOT_FOUND,
    Code.NO_SUCH_NAMESPACE: Error.NAMESPACE_NOT_FOUND,
    Code.TABLE_EXISTS: Error.TABLE_ALREADY_EXISTS,
    Code.TABLE_REPLACED: Error.CONCURRENT_MODIFICATION,
    Code.LOCATION_TAKEN: Error.TABLE_ALREADY_EXISTS,
    Code.WRONG_SCHEMA: Error.TABLE_SCHEMA_VALIDATION_ERROR,
    Code.NOT_LATEST: Error.CONCURRENT_MODIFICATION,
}
"""What the log's own refusals are called; the others are mistakes of the request."""

_TOLD = {"extra_forbidden": "no such field"}
"""What is said in place of pydantic's own words."""
RETRY_AFTER_SECONDS = 1

logger = logging.getLogger(__name__)


class HttpError(LanceNamespaceError):
    """A failure whose status says more than its code: 405, 413, 415."""

    def __init__(
        self, status: int, message: str, code: Error = Error.INVALID_INPUT, **headers: str
    ) -> None:
        """Take the status and headers besides the message."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


_COMMITLOG: tuple[tuple[type[CommitLogError], Error], ...] = (
    (InvalidRequest, Error.INVALID_INPUT),
    (NoSuchNamespace, Error.NAMESPACE_NOT_FOUND),
    (NoSuchVersion, Error.TABLE_VERSION_NOT_FOUND),
    (NoSuchTable, Error.TABLE_NOT_FOUND),
    (TableAlreadyExists, Error.TABLE_ALREADY_EXISTS),
    (OutcomeUnknown, Error.INTERNAL),
    (Unavailable, Error.SERVICE_UNAVAILABLE),
    (LogMoved, Error.SERVICE_UNAVAILABLE),
    (UnsupportedFormat, Error.UNSUPPORTED),
    (CorruptLog, Error.INTERNAL),
    (Fenced, Error.INTERNAL),
)


def code_of(error: BaseException) -> Error:
    """Return Lance's code for an error."""
    if isinstance(error, LanceNamespaceError):
        return Error(error.code)
    if isinstance(error, LogMoved) and error.transaction_id:
        return Error.INTERNAL  # it may have been appended before the log left
    if isinstance(error, CommitConflict):
        if error.outcome.status is Status.REJECTED:
            return REJECTED.get(error.outcome.code, Error.INVALID_INPUT)
        return Error.CONCURRENT_MODIFICATION
    if isinstance(error, ValidationError):
        return Error.INVALID_INPUT
    return next((code for kind, code in _COMMITLOG if isinstance(error, kind)), Error.INTERNAL)


def message_of(error: BaseException) -> str:
    """Say what is wrong, without what only our own log should hold."""
    if isinstance(error, ValidationError):
        return "; ".join(
            f"{_place(one['loc'])}: {_TOLD.get(one['type'], one['msg'])}"
            for one in error.errors(include_url=False, include_input=False)[:5]
        )
    if isinstance(error, OutcomeUnknown) and error.transaction_id:
        # What its words advise is a method of the Python client.
        return f"{error} (over HTTP: GET /v1/log/transactions/{error.transaction_id})"
    if isinstance(error, LanceNamespaceError | CommitLogError):
        return without_build_paths(str(error))
    return (
        f"the server failed: {type(error).__name__}; whether the request was carried out is unknown"
    )


def _place(parts: tuple[int | str, ...]) -> str:
    """Write a place in a body as people would in Python: `operations[2].append`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return text.removeprefix(".") or "body"


def error_response(error: BaseException, instance: str) -> JSONResponse:
    """Answer with an error's code, status and body."""
    code = code_of(error)
    status = getattr(error, "status", STATUS[code])
    headers = dict(getattr(error, "headers", {}))
    if status == 503 and not isinstance(error, LogMoved):
        seconds = RETRY_AFTER_SECONDS
        if isinstance(error, Overloaded):
            seconds = max(1, round(error.retry_after_seconds))
        headers["Retry-After"] = str(seconds)
    if status >= 500:
        is_ours = isinstance(error, LanceNamespaceError | CommitLogError)
        logger.error("%s: %s", instance, error, exc_info=None if is_ours else error)
    body: dict[str, Any] = {"error": message_of(error), "code": int(code), "instance": instance}
    if isinstance(error, CommitConflict):
        body["detail"] = _detail(error)
    if isinstance(error, LogMoved):
        body["detail"] = f"LogMoved {error.bootstrap_servers}"
    return JSONResponse(body, status_code=status, headers=headers)


def _detail(error: CommitConflict) -> str:
    outcome = error.outcome
    words = [f"{outcome.status} as outcome {outcome.sequence}"]
    if outcome.code:
        words.append(str(outcome.code))
    if outcome.conflict is not None:
        conflict = outcome.conflict
        other = f"{conflict.operation} {conflict.transaction_id}".strip()
        # Within one record there is no other transaction to name.
        against = f" against {other}" if other else ""
        words.append(f"{conflict.rule}{against} at version {conflict.version}")
    return ", ".join(words)
