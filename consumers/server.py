"""The HTTP server: the namespace, and whether the service is well. It holds no truth of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from commitlog.errors import Unavailable
from consumers.health import Health, is_whole

SHUTDOWN_SECONDS = 3
_STARTUP_SECONDS = 20.0

logger = logging.getLogger(__name__)


def make_app(health: Health, routes: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application: what tells of its health, and other routes."""

    async def healthz(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def readyz(request: Request) -> JSONResponse:
        checks = health.found()
        whole = is_whole(checks)
        body = {
            "status": "ready" if whole else "not ready",
            "checks": [check.to_json() for check in checks],
        }
        headers = {} if whole else {"Retry-After": "1"}
        return JSONResponse(body, status_code=200 if whole else 503, headers=headers)

    async def refused(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        path = request.url.path
        body = {"error": f"{request.method} {path}: {error.detail}", "code": 0, "instance": path}
        return JSONResponse(body, status_code=error.status_code, headers=error.headers)

    return Starlette(
        routes=[Route("/healthz", healthz), Route("/readyz", readyz), *routes],
        exception_handlers={HTTPException: refused},
    )


def serve(
    health: Health,
    listener: socket.socket,
    *,
    routes: Sequence[BaseRoute] = (),
    stop: threading.Event,
    on_ready: Callable[[str], None],
) -> None:
    """Serve on a listening socket until `stop` is set."""
    config = uvicorn.Config(
        make_app(health, routes),
        log_config=None,
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), name="http", daemon=True)
    health.start()
    thread.start()
    try:
        pause = threading.Event()
        waited = 0.0
        while not server.started:
            if not thread.is_alive() or waited > _STARTUP_SECONDS:
                raise Unavailable("the HTTP server did not start; its log says why")
            waited += 0.02
            pause.wait(0.02)
        host, port = listener.getsockname()[:2]
        on_ready(f"{host}:{port}")
        while not stop.wait(0.5):
            if not thread.is_alive():
                raise Unavailable("the HTTP server ended; its log says why")
    finally:
        server.should_exit = True
        thread.join(SHUTDOWN_SECONDS + 1)
        health.close()
        with contextlib.suppress(OSError):
            listener.close()
