"""Serves applications on free ports of this machine, for tests that need a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from starlette.routing import BaseRoute

from consumers.runtime.roots import listen
from consumers.servers.server import ServerSettings, _Server, make_app
from tests.waiting import WAIT_SECONDS

LOOK_SECONDS = 0.002


class NoHealth:
    """Stands in where nobody asks for health."""

    def start(self) -> None:
        """Look at nothing."""

    def close(self) -> None:
        """Stop doing so."""

    async def fresh(self) -> tuple[()]:
        """Return nothing."""
        return ()


class Server(_Server):
    """Says when it has started, and ends without uvicorn's pauses: hundreds of tests end one."""

    def __init__(self, config: uvicorn.Config) -> None:
        """Take what uvicorn is to do."""
        super().__init__(config)
        self.begun = threading.Event()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it is to end."""
        try:
            super().run(sockets)
        finally:
            self.begun.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.begun.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what was asked, within the time that uvicorn would take."""
        for listening in (*self.servers, *(sockets or ())):
            listening.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:
                    await asyncio.sleep(LOOK_SECONDS)
        for task in state.tasks:
            task.cancel()


@contextlib.contextmanager
def serving_app(app: Any, port: int = 0, **options: Any) -> Iterator[int]:
    """Serve until the block ends, with options of uvicorn's; yields the port."""
    given: dict[str, Any] = {"log_config": None, "access_log": False, "lifespan": "off"}
    # A client that a busy machine holds up doesn't find its connection closed.
    given["timeout_keep_alive"] = 120
    server = Server(uvicorn.Config(app, ws="none", **given, **options))
    listener = listen("127.0.0.1", port)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        assert server.begun.wait(WAIT_SECONDS)
        assert server.started
        yield listener.getsockname()[1]
    finally:
        server.end()
        thread.join(120)
        listener.close()


@contextlib.contextmanager
def serving_routes(
    routes: Sequence[BaseRoute], settings: ServerSettings | None = None, port: int = 0
) -> Iterator[str]:
    """Serve until the block ends; yields the address, as http://HOST:PORT."""
    app = make_app(NoHealth(), routes, settings)  # type: ignore[arg-type]
    with serving_app(app, port, timeout_graceful_shutdown=2) as found:
        try:
            yield f"http://127.0.0.1:{found}"
        finally:
            app.state.is_ending = True
