"""The HTTP server: all APIs on one port, and whether the service is well. It holds no truth.

A request passes, from outside in: the observer (count, log, trace), the limits, the guard, and
then the API that its path belongs to. What each answers is that API's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from lance_namespace import LanceNamespaceError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from commitlog.errors import CommitLogError, Unavailable
from consumers.runtime.certificate import Tls
from consumers.runtime.process import hurried
from consumers.runtime.roots import host_in_url
from consumers.servers.metrics import CONTENT_TYPE, Metrics
from consumers.servers.namespace.status import error_response
from consumers.servers.observing import Observe
from consumers.servers.openapi.routes import openapi_routes
from consumers.servers.security.answers import allowed_methods, refusal
from consumers.servers.security.certificates import Certificates
from consumers.servers.security.guard import Guard
from consumers.servers.security.identity import Security
from consumers.servers.security.limits import Limits, LimitSettings
from consumers.servers.server_heads import LimitedHeads
from consumers.servers.server_routes import RouteTable, nowhere
from consumers.views.health import Check, Health, Level, is_whole

SHUTDOWN_SECONDS = 3
TICK_SECONDS, LOOK_SECONDS = 1.0, 2.0
IDLE_SECONDS = 120
"""How long a connection may be idle: longer than clients keep theirs (Lance's 90 s), since a
request that meets the end of its connection fails."""
HANDSHAKE_SECONDS = 10.0
"""How long a connection may take until it speaks TLS; until then nothing else counts it."""
_STARTUP_SECONDS = 20.0
SWITCH_SECONDS = 0.0005
"""How long a thread that computes keeps the interpreter from the event loop, which needs it again
after each of a request's calls to the system: a tenth of what is usual."""

_NONE_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_TOLD_SECONDS = 60.0
_ENDS_SOON = Check("server", Level.FAIL, "it was told to end", "send requests to another one")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServerSettings:
    """What stands around the APIs."""

    base_path: str = ""
    """All APIs are served below it: `/lance` makes `/lance/v1/table…`."""
    security: Security = field(default_factory=Security)
    limits: LimitSettings = field(default_factory=LimitSettings)
    metrics: Metrics = field(default_factory=Metrics)
    tls: Tls | None = None
    drain_seconds: float = 0.0
    """How long it serves on when it is to end, with `/healthz` red: so balancers learn of it."""


def make_app(
    health: Health | None, routes: Sequence[BaseRoute] = (), settings: ServerSettings | None = None
) -> Starlette:
    """Return the application: APIs, what tells of its health, and metrics."""
    settings = settings or ServerSettings()

    async def healthz(request: Request) -> JSONResponse:
        ends = LimitedHeads.is_draining
        return JSONResponse({"status": "ending" if ends else "ok"}, 503 if ends else 200)

    async def readyz(request: Request) -> JSONResponse:
        checks = await health.fresh() if health is not None else ()
        if LimitedHeads.is_draining:
            checks = (*checks, _ENDS_SOON)
        whole = is_whole(checks)
        body = {
            "status": "ready" if whole else "not ready",
            "checks": [check.to_json() for check in checks],
        }
        headers = {} if whole else {"Retry-After": "1"}
        return JSONResponse(body, status_code=200 if whole else 503, headers=headers)

    async def metrics(request: Request) -> Response:
        if health is not None:
            await health.fresh()
        text = await run_in_threadpool(settings.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    base = settings.base_path

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        path, status, headers = request.url.path, error.status_code, error.headers
        message = f"{request.method} {path}: {error.detail}"
        if status == 405 and (allowed := allowed_methods(routes, request.scope)):
            headers = {"Allow": allowed}  # Starlette names those of the path's first route only
        return refusal(path, request.method, status, message, headers, base)

    async def failed(request: Request, error: Exception) -> Response:
        return error_response(error, request.url.path)

    described = openapi_routes(routes, base_path=base, is_secured=settings.security.is_on)
    table = RouteTable(routes)
    below = Router([table], redirect_slashes=False, default=nowhere([table]))
    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            *described,
            Mount(base, app=below) if base else table,
        ],
        exception_handlers={
            HTTPException: refused,
            CommitLogError: failed,
            LanceNamespaceError: failed,
        },
        middleware=[
            Middleware(Observe, metrics=settings.metrics, base_path=base),
            Middleware(
                Limits, settings=settings.limits, security=settings.security, base_path=base
            ),
            Middleware(Guard, security=settings.security, base_path=base),
        ],
    )
    app.router.redirect_slashes, app.router.default = False, nowhere(app.routes)
    return app


def serve(
    health: Health,
    listener: socket.socket,
    *,
    routes: Sequence[BaseRoute] = (),
    settings: ServerSettings | None = None,
    stop: threading.Event,
    on_ready: Callable[[str], None],
) -> None:
    """Serve on a listening socket until `stop` is set."""
    settings = settings or ServerSettings()
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY:
        LimitedHeads.connections_max = min(LimitedHeads.connections_max, allowed // 2)
    LimitedHeads.base_path = settings.base_path
    LimitedHeads.is_draining = False
    sys.setswitchinterval(SWITCH_SECONDS)
    app = make_app(health, routes, settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http=LimitedHeads,
        # The other loop is no faster here, and another one than everything else runs on.
        loop="asyncio",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        timeout_keep_alive=IDLE_SECONDS,
        **_tls_of(settings),
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    health.start()
    thread.start()
    try:
        pause = threading.Event()
        waited = 0.0
        while not server.started:
            if not thread.is_alive() or waited > _STARTUP_SECONDS:
                raise server.why("did not start")
            waited += 0.02
            pause.wait(0.02)
        host, port = listener.getsockname()[:2]
        on_ready(f"{host_in_url(host)}:{port}")
        while not stop.wait(LOOK_SECONDS):
            if not thread.is_alive():
                raise server.why("ended")
        drain(settings.drain_seconds, thread.is_alive, hurried)
    finally:
        app.state.is_ending = True  # else it would wait for feeds, which go on for an hour
        server.end()
        thread.join(SHUTDOWN_SECONDS + 1)
        health.close()
        with contextlib.suppress(OSError):
            listener.close()


def drain(seconds: float, is_serving: Callable[[], bool], hurried: threading.Event) -> None:
    """Let a server serve on until `hurried`, but tell balancers and clients to go elsewhere."""
    if not seconds:
        return
    logger.info("serves for %g s more, so that balancers send requests elsewhere", seconds)
    LimitedHeads.is_draining = True
    ends = time.monotonic() + seconds
    while is_serving() and (left := ends - time.monotonic()) > 0:
        if hurried.wait(min(left, LOOK_SECONDS)):
            logger.info("was told again to end")
            return


class _Server(uvicorn.Server):
    """Is told to end, while uvicorn's own looks ten times a second whether to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None
        self._told_until = 0.0

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `end`."""
        try:
            super().run(sockets)
        except Exception as error:
            self._failure = error

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._failed)
        if self.config.is_ssl:  # uvicorn leaves its minute as it is
            limited = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_SECONDS)
            loop.create_server = limited  # type: ignore[method-assign]
        await super().startup(sockets)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        # A connection that can't be accepted: asyncio then tries as often as the queue is long,
        # each second, and would log each try with its traceback.
        error = context.get("exception")
        if self.should_exit and "_start_serving" in context["message"]:
            return  # one of these tries came after the end: its socket is closed
        if not isinstance(error, OSError) or error.errno not in _NONE_LEFT:
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._told_until:
            self._told_until = time.monotonic() + _TOLD_SECONDS
            logger.error(
                "no more connections are accepted for a moment: %s; allow this process more open "
                "files (ulimit -n, LimitNOFILE), or find who keeps connections open",
                error.strerror,
            )

    def why(self, what: str) -> Exception:
        """Return why it doesn't run."""
        return self._failure or Unavailable(f"the HTTP server {what}; see its log")

    def end(self) -> None:
        """End soon; from another thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed already
                self._loop.call_soon_threadsafe(self._ended.set)

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):  # which also sets the answers' date
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_SECONDS):
                    await self._ended.wait()


def _tls_of(settings: ServerSettings) -> dict[str, Any]:
    if settings.tls is None:
        return {}
    certificates = Certificates(settings.tls)
    settings.metrics.certificate(lambda: certificates.validity.ends)
    return {"ssl_context_factory": lambda config, default: certificates.context}
