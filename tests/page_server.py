"""Serves routes on a free port of this machine, for tests that need a real socket."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence

import uvicorn
from starlette.routing import BaseRoute

from commitlog.errors import Unavailable
from consumers.servers.server import ServerSettings, make_app

START_SECONDS = 180


class NoHealth:
    """Stands in where nobody asks for health."""

    def found(self) -> tuple[()]:
        """Return nothing."""
        return ()


@contextlib.contextmanager
def serving_routes(
    routes: Sequence[BaseRoute], settings: ServerSettings | None = None
) -> Iterator[str]:
    """Serve until the block ends; yields the address, as http://HOST:PORT."""
    app = make_app(NoHealth(), routes, settings)  # type: ignore[arg-type]
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none")
    config.timeout_graceful_shutdown = 2
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + START_SECONDS
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable("the test's server did not start")
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(120)
        listener.close()
