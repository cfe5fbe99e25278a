"""Every request leaves a count, a line in the log, and, if asked for, a trace.

What a line says is what an operator searches by: operation, status, milliseconds, who, the
transaction, the position. Bodies and headers are never in it, so neither are secrets. A request's
trace continues with its caller's and names the transaction, which has a trace of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commitlog.adapters.tracing import tracing
from consumers.runtime.log_lines import VARIABLE
from consumers.servers.metrics import Metrics
from consumers.servers.security.answers import served_path
from consumers.servers.security.tarpit import HELD_SECONDS

_PLACES = (
    *("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/api", "/page"),
    *("/v1/feed", "/v1/log/feed", "/v1/sql"),
)
FACTS = "commitlog.facts"
"""In a request's scope: what its operation tells about it."""
QUIET = ("/healthz", "/readyz", "/metrics")

_TELLS_ALL = os.environ.get(VARIABLE) == "json"
"""Lines for machines tell of every request; lines for people, of what went wrong."""
_TELLING = (401, 403, 408, 413, 429, 431)
"""Refusals that an operator looks for; who lost a race, or asked for what isn't there, isn't."""

logger = logging.getLogger("consumers.http")


def tell(scope: Scope, **facts: Any) -> None:
    """Add to what is known of a request; what is empty is left out."""
    known = scope.setdefault(FACTS, {})
    known |= {name: value for name, value in facts.items() if value not in ("", None)}


class Observe:
    """Counts, logs and traces what passes through."""

    def __init__(self, app: ASGIApp, metrics: Metrics, base_path: str = "") -> None:
        """Watch an application that is served below `base_path`."""
        self._app = app
        self._metrics = metrics
        self._base_path = base_path
        self._tracer = _tracer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on and look at its answer."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        # The parts of the application share this one, whatever they put into a scope of their own.
        facts: dict[str, Any] = scope.setdefault(FACTS, {})
        status, began = 500, time.perf_counter()

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self._metrics.running.inc()
        with self._span(scope) as span:
            try:
                await self._app(scope, receive, noting)
            finally:
                held = scope.get(HELD_SECONDS, 0.0)
                seconds = time.perf_counter() - began - held
                if held:
                    facts["held_milliseconds"] = round(held * 1000)
                self._metrics.running.dec()
                operation = str(facts.get("operation") or self._place(scope))
                self._metrics.request(operation, _method(scope), status, seconds)
                if span is not None:
                    _describe(span, operation, status, facts)
                if scope["path"] not in QUIET:
                    _log(scope, operation, status, seconds, facts)

    def _place(self, scope: Scope) -> str:
        return _place(served_path(scope["path"], self._base_path))

    @contextlib.contextmanager
    def _span(self, scope: Scope) -> Iterator[Any]:
        if self._tracer is None:
            yield None
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        carrier = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        with self._tracer.start_as_current_span(
            _method(scope), context=extract(carrier), kind=SpanKind.SERVER
        ) as span:
            yield span


def _method(scope: Scope) -> str:
    # A label has few values, whatever a client makes up.
    method = str(scope["method"])
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH") else "OTHER"


def _place(path: str) -> str:
    """Return what stands for the path of no named operation."""
    for prefix in _PLACES:
        if path == prefix or path.startswith(f"{prefix}/"):
            return prefix
    return "/" if path == "/" else "iceberg" if path.startswith("/v1/") else "other"


def _log(
    scope: Scope, operation: str, status: int, seconds: float, facts: Mapping[str, Any]
) -> None:
    level = logging.INFO if _TELLS_ALL or status in _TELLING or status >= 500 else logging.DEBUG
    if not logger.isEnabledFor(level):
        return
    said = {
        "operation": operation,
        "method": _method(scope),
        "path": scope["path"],
        "status": status,
        "milliseconds": round(seconds * 1000, 2),
        **{name: value for name, value in facts.items() if name != "operation"},
    }
    more = "".join(f" {name}={value}" for name, value in said.items() if name in facts)
    # A path may hold whatever a client sent: as one line, it stays one line.
    logger.log(
        level,
        "%s %s %d in %.1f ms%s",
        said["method"],
        ascii(scope["path"])[1:-1],
        status,
        seconds * 1000,
        ascii(more)[1:-1],
        extra={"facts": said},
    )


def _describe(span: Any, operation: str, status: int, facts: Mapping[str, Any]) -> None:
    span.update_name(operation)
    span.set_attribute("http.response.status_code", status)
    for name, value in facts.items():
        span.set_attribute(f"commitlog.{name}", value)


def _tracer() -> Any:
    """Return what makes spans, or None if tracing is off."""
    found = tracing()
    return None if found is None else found.tracer
