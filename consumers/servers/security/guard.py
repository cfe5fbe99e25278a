"""Asks for credentials and grants in front of the APIs that have no notion of them.

The Lance Namespace checks for itself, since its requests may show who asks in their bodies. Here
are the Iceberg catalogue, the page's data, and the metrics. A path that isn't known here needs the
most: nothing is open because somebody forgot it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError, UnauthenticatedError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commitlog.client.commits.caller import Caller, acting_for
from commitlog.errors import CommitLogError
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.security.answers import is_under, refusal, served_path
from consumers.servers.security.budgets import ICEBERG_SEPARATOR, json_problem
from consumers.servers.security.grants import Access, Principal
from consumers.servers.security.identity import (
    ANYBODY,
    CHECK_AGAIN,
    PRINCIPAL,
    SEES,
    Credentials,
    Security,
    credentials_of_headers,
)

OPEN = ("/healthz", "/readyz", "/openapi.json", "/docs", "/page", "/v1/oauth/tokens")
LANCEDB = ("/v1/function", "/v1/jobs", "/v1/secret", "/v1/view")
"""What LanceDB's client asks for, and the namespace only says that it isn't served."""
CHECKS_ITSELF = (
    *("/v1/namespace", "/v1/table", "/v1/transaction", "/v1/materialized_view"),
    *("/v1/log/properties", "/v1/log/restore", "/v1/log/transactions", "/v1/log/undrop"),
    *LANCEDB,
)
LATER_SECONDS = 1.0
"""A body that took longer is taken from who can still prove who they are."""
BODY_BYTES_MAX = 16 * 1024 * 1024

Need = tuple[Access, TableId]
READ, WRITE, ADMIN = Access.READ, Access.WRITE, Access.ADMIN
_NAMESPACE = re.compile(
    r"/v1/namespaces/([^/]+)(?:/(properties|tables|views|register|register-view))?/?"
)
_TABLE = re.compile(
    r"/v1/namespaces/([^/]+)/(?:tables|views)/([^/]+)(/metrics|/credentials|/sign)?/?"
)
"""What is below a table takes read; who signs looks at each request that it signs."""
_LISTED = ("tables", "views")
_REGISTERS = ("register", "register-view")
BATCH_ACCESS = {
    "declare_table": WRITE,
    "create_table_version": WRITE,
    "delete_table_versions": ADMIN,
    "deregister_table": ADMIN,
}
"""What each operation takes of a batch over many tables."""


class Guard:
    """Refuses who isn't known, and what no grant allows."""

    def __init__(self, app: ASGIApp, security: Security, base_path: str = "") -> None:
        """Guard an application that is served below `base_path`."""
        self._app = app
        self._security = security
        self._base_path = base_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if not self._security.is_on:
            # Not in a copy: the limits around this read what the answer notes there.
            scope[SEES] = partial(self._security.sees, ANYBODY)
            return await self._app(scope, receive, send)
        path = served_path(scope["path"], self._base_path)
        if path == "/" or is_under(path, (*OPEN, *CHECKS_ITSELF)):
            return await self._app(scope, receive, send)
        try:
            shown = credentials_of_headers(Headers(scope=scope))
            # The limits around this have just found out, unless they don't look at this path.
            principal = scope.get(PRINCIPAL) or await self._security.identified(shown)
            who = partial(self._by_now, principal, shown, time.monotonic())
            receive = await self._check(who, path, scope, receive)
        except (LanceNamespaceError, CommitLogError) as error:
            return await _refused(path, scope["method"], error)(scope, receive, send)

        async def check_again() -> None:
            known = await self._security.identified(shown)
            for access, what in _needs_of_path(path, scope["method"]):
                self._security.check(known, access, what)

        with acting_for(Caller(principal.name)):
            sees = partial(self._security.sees, principal)
            admitted = {**scope, PRINCIPAL: principal, SEES: sees, CHECK_AGAIN: check_again}
            return await self._app(admitted, receive, send)

    async def _by_now(self, principal: Principal, shown: Credentials, began: float) -> Principal:
        """Return who asks: a body may take minutes, and a key or token end meanwhile."""
        if time.monotonic() - began < LATER_SECONDS:
            return principal
        return await self._security.identified(shown)

    async def _check(
        self, who: Callable[[], Awaitable[Principal]], path: str, scope: Scope, receive: Receive
    ) -> Receive:
        """Refuse what is not allowed; return what gives the body to the next layer."""
        needs = _needs_of_body(path, scope["method"])
        if needs is None:
            of_path = tuple(_needs_of_path(path, scope["method"]))

            async def check() -> None:
                principal = await who()
                for access, what in of_path:
                    self._security.check(principal, access, what)

            await check()
            return _checked_whole(receive, check)
        body = await _read(receive)
        principal = await who()
        for access, what in needs(await run_in_threadpool(_decoded, body)):
            self._security.check(principal, access, what)
        return _again(body, receive)


def _refused(path: str, method: str, error: Exception) -> Response:
    status, headers = 400, {}
    if isinstance(error, UnauthenticatedError):
        status, headers = 401, {"WWW-Authenticate": "Bearer"}
    elif isinstance(error, PermissionDeniedError):
        status = 403
    elif isinstance(error, _TooLarge):
        status = 413
    elif isinstance(error, LanceNamespaceError):
        status, headers = 503, {"Retry-After": "1"}
    return refusal(path, method, status, str(error), headers)


def _namespace(text: str) -> TableId:
    return parse_table_id(text.split(ICEBERG_SEPARATOR))


def _lists(path: str) -> bool:
    found = _NAMESPACE.fullmatch(path)
    return path == "/v1/namespaces" or (found is not None and found[2] in _LISTED)


def _needs_of_path(path: str, method: str) -> Iterator[Need]:
    path = path.rstrip("/")  # it only leads to the same without a slash
    table, namespace = _TABLE.fullmatch(path), _NAMESPACE.fullmatch(path)
    is_reading = method in ("GET", "HEAD")
    if path == "/v1/config" or (is_reading and _lists(path)):
        return  # any known principal may; who lists leaves out what it may not see
    if table is not None:
        reads = is_reading or table[3] is not None
        access = READ if reads else ADMIN if method == "DELETE" else WRITE
        yield access, (*_namespace(table[1]), table[2])
    elif namespace is not None:
        yield READ if is_reading else ADMIN, _namespace(namespace[1])
    elif path == "/metrics" or is_under(path, ("/api", "/v1/feed", "/v1/log/feed", "/v1/sql")):
        yield READ, ()
    else:
        yield ADMIN, ()


def _needs_of_body(path: str, method: str) -> Callable[[Any], Iterator[Need]] | None:
    if method != "POST":
        return None
    if path == "/v1/transactions/commit":
        return _commit
    if path in ("/v1/tables/rename", "/v1/views/rename"):
        return lambda body: (
            (ADMIN, _identifier(body.get(end))) for end in ("source", "destination")
        )
    if path == "/v1/namespaces":
        return lambda body: iter([(ADMIN, _parts(body.get("namespace")))])
    found = _NAMESPACE.fullmatch(path)
    if found is None or found[2] not in (*_LISTED, *_REGISTERS):
        return None
    parent, access = _namespace(found[1]), WRITE if found[2] in _LISTED else ADMIN
    return lambda body: iter([(access, (*parent, *_parts([body.get("name")])))])


def _commit(body: Any) -> Iterator[Need]:
    for change in _list(body.get("table-changes")):
        yield WRITE, _identifier(change.get("identifier"))
    for operation in _list(body.get("lance-operations")):
        for kind, inner in operation.items():
            parts = inner.get("id") if isinstance(inner, dict) else None
            yield BATCH_ACCESS.get(kind, ADMIN), _parts(parts)


def _identifier(value: Any) -> TableId:
    if not isinstance(value, dict):
        return ()
    return (*_parts(value.get("namespace")), *_parts([value.get("name")]))


def _parts(value: Any) -> TableId:
    """Return a name; an invalid one counts as the root, on which few have a grant."""
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        return ()
    return tuple(value)


def _list(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _decoded(body: bytes) -> dict[str, Any]:
    if json_problem(body):
        return {}  # the next reader refuses it
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


class _TooLarge(CommitLogError):
    """A body is larger than any that is taken."""


async def _read(receive: Receive) -> bytes:
    pieces, size = [], 0
    while True:
        message = await receive()
        piece = message.get("body", b"")
        size += len(piece)
        if size > BODY_BYTES_MAX:
            raise _TooLarge(f"the body has more than {BODY_BYTES_MAX} bytes")
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _checked_whole(receive: Receive, check: Callable[[], Awaitable[None]]) -> Receive:
    """Check again when a body is whole, which may take minutes."""

    async def checked() -> Message:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            await check()
        return message

    return checked


def _again(body: bytes, receive: Receive) -> Receive:
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again
