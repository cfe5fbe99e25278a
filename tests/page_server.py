"""Serves applications on free ports of this machine, for tests that need a real socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from consumers.runtime.roots import listen
from consumers.servers.server import ServerSettings, make_app
from tests.waiting import wait_until


class NoHealth:
    """Stands in where nobody asks for health."""

    async def fresh(self) -> tuple[()]:
        """Return nothing."""
        return ()


@contextlib.contextmanager
def serving_app(app: Any, port: int = 0, **options: Any) -> Iterator[int]:
    """Serve until the block ends, with options of uvicorn's; yields the port."""
    given: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    # A client that a busy machine holds up doesn't find its connection closed.
    given["timeout_keep_alive"] = 120
    server = uvicorn.Server(uvicorn.Config(app, ws="none", **given, **options))
    listener = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "a server")
        assert server.started
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(120)
        listener.close()


@contextlib.contextmanager
def serving_routes(
    routes: Sequence[BaseRoute], settings: ServerSettings | None = None, port: int = 0
) -> Iterator[str]:
    """Serve until the block ends; yields the address, as http://HOST:PORT."""
    app = make_app(NoHealth(), routes, settings)  # type: ignore[arg-type]
    with serving_app(app, port, timeout_graceful_shutdown=2) as found:
        yield f"http://127.0.0.1:{found}"
