"""Refusals that are given where no API sees the request, in the shape of its path's API."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lance_namespace.errors import ErrorCode
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

RETRY_AFTER_SECONDS = 1
SAFE = ("GET", "HEAD", "OPTIONS")
"""Methods of requests that change nothing."""
_ICEBERG = ("/v1/config", "/v1/namespaces", "/v1/tables", "/v1/views", "/v1/transactions")
_AT = re.compile(r"/v1/at-[^/]+(?=/namespaces(?:/|$))")
"""How addresses begin of the catalogue as of a position."""
_ICEBERG_KINDS = {
    401: "NotAuthorizedException",
    403: "ForbiddenException",
    404: "UnsupportedOperationException",
    405: "UnsupportedOperationException",
    408: "RequestTimeoutException",
    413: "PayloadTooLargeException",
    414: "URITooLongException",
    415: "UnsupportedMediaTypeException",
    429: "TooManyRequestsException",
    431: "RequestHeaderFieldsTooLargeException",
    500: "CommitStateUnknownException",
    501: "UnsupportedOperationException",
    503: "ServiceUnavailableException",
}
"""What the specification has no names for is named after its status: its clients look at that."""
_CODES = {
    401: ErrorCode.UNAUTHENTICATED,
    403: ErrorCode.PERMISSION_DENIED,
    404: ErrorCode.UNSUPPORTED,
    429: ErrorCode.THROTTLING,
    500: ErrorCode.INTERNAL,
    520: ErrorCode.INTERNAL,
    503: ErrorCode.SERVICE_UNAVAILABLE,
}


def is_under(path: str, prefixes: tuple[str, ...]) -> bool:
    """Return True if a path is one of these or below it."""
    return any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes)


def served_path(path: str, base_path: str) -> str:
    """Return a path as the APIs know it: from their base, and of the catalogue as it is now."""
    return _AT.sub("/v1", path.removeprefix(base_path) or "/", count=1)


def is_iceberg(path: str, base_path: str) -> bool:
    """Return True if a path is the Iceberg catalogue's."""
    return is_under(served_path(path, base_path), _ICEBERG)


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """Return the methods of a path, as `Allow` lists them; empty if there is no such path."""
    matching = (one for one in routes if one.matches(scope)[0] is Match.PARTIAL)
    found = {name for one in matching if isinstance(one, Route) for name in one.methods or ()}
    return ", ".join(sorted(found))


def refusal(
    path: str,
    method: str,
    status: int,
    message: str,
    headers: Mapping[str, str] | None = None,
    base_path: str = "",
) -> Response:
    """Return a refusal as the API of this path shapes its errors; all are served below a base."""
    if method == "HEAD":
        return Response(status_code=status, headers=headers)
    if is_iceberg(path, base_path):
        kind = _ICEBERG_KINDS.get(status, "BadRequestException")
        error = {"message": message, "type": kind, "code": status}
        return JSONResponse({"error": error}, status, headers=headers)
    code = int(_CODES.get(status, ErrorCode.INVALID_INPUT))
    return JSONResponse({"error": message, "code": code, "instance": path}, status, headers=headers)


def unknown_status(path: str) -> int:
    """Return by which status a client learns that a request may have been carried out.

    LanceDB's remote client sends rows again after a 500, each time as another request (another
    `x-request-id`), and so twice what was committed. A status that it doesn't know it tells its
    user; to all others it is a 500 (RFC 9110, 15).
    """
    return 520 if path.endswith(("/insert/", "/merge_insert/")) else 500


class OverLimit(BaseException):
    """A request exceeds a limit; no API takes this for a failure of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def at_the_end(scope: Scope, is_whole: bool) -> OverLimit:
    """Return what a request is told that runs, or is still to come whole, as the server ends."""
    if not is_whole or scope["method"] in SAFE:
        return OverLimit(503, "the server ends; nothing was done, try again")
    return OverLimit(
        unknown_status(scope["path"]),
        "the server ended while it carried this out, so the result isn't known; repeat the request"
        " with its Idempotency-Key, or look at what it would change",
    )


async def refuse(
    refused: OverLimit, base_path: str, scope: Scope, receive: Receive, send: Send
) -> None:
    """Answer with a refusal; the connection may still carry an unread body, so it closes."""
    headers = {"Connection": "close"}
    if refused.status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = refusal(
        scope["path"], scope["method"], refused.status, refused.message, headers, base_path
    )
    await response(scope, receive, send)
