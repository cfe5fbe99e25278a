"""A TCP proxy before the broker, which can cut or slow down one client's connections.

Kafka's clients say who they are in their first request, so that one proxy can tell a leader's
connections from a writer's. It runs on an event loop of its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from dataclasses import dataclass
from typing import Literal

CHUNK_BYTES = 1 << 16
START_SECONDS = 180.0
_HEADER_BYTES = 14
"""Size, API key, version and correlation id of a request, and the length of the client id."""

PRODUCE = b"\0\0"
"""The API key of an append, after a request's size."""

Direction = Literal["to", "from"]


@dataclass(slots=True)
class Weather:
    """What happens to a client's bytes."""

    is_cut: bool = False
    """Connections end, and new ones too."""
    holds: frozenset[Direction] = frozenset()
    """Bytes that go to the broker, or come from it, wait until the weather changes."""
    delay_seconds: float = 0.0
    """For each chunk, each way."""


FAIR = Weather()


class Proxy:
    """Listens on loopback and passes bytes on."""

    def __init__(self) -> None:
        """Listen at once; `target_port` may be set later."""
        self.target_port = 0
        self.port = 0
        self.held_appends = 0
        """How many chunks were held that begin with an append."""
        self._weather: dict[str, Weather] = {}
        self._open: dict[asyncio.StreamWriter, str] = {}
        self.loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(is_ready,), daemon=True)
        self._thread.start()
        assert is_ready.wait(START_SECONDS)

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    def set(self, client: str, weather: Weather) -> None:
        """Change a client's weather; connections that it has are ended if they are cut."""
        self.loop.call_soon_threadsafe(self._set, client, weather)

    def close(self) -> None:
        """End all connections."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(START_SECONDS)

    def _run(self, is_ready: threading.Event) -> None:
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK_BYTES)
        )
        self.port = server.sockets[0].getsockname()[1]
        is_ready.set()
        self.loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def _set(self, client: str, weather: Weather) -> None:
        self._weather[client] = weather
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        if weather.is_cut:
            for writer in [w for w, name in self._open.items() if name == client]:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        try:
            first = await reader.readexactly(_HEADER_BYTES)
            (length,) = struct.unpack(">h", first[-2:])
            name = await reader.readexactly(max(length, 0))
            client = name.decode(errors="replace")
            if self._weather.get(client, FAIR).is_cut:
                return
            back, onward = await asyncio.open_connection("127.0.0.1", self.target_port)
            self._open[writer] = self._open[onward] = client
            onward.write(first + name)
            await asyncio.gather(
                self._pass(client, "to", reader, onward), self._pass(client, "from", back, writer)
            )
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in (writer, onward):
                if end is not None:
                    self._open.pop(end, None)
                    end.transport.abort()

    async def _pass(
        self,
        client: str,
        direction: Direction,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter,
    ) -> None:
        while data := await source.read(CHUNK_BYTES):
            weather = self._weather.get(client, FAIR)
            if direction in weather.holds and direction == "to":
                self.held_appends += data[4:6] == PRODUCE
            while direction in weather.holds:
                await self._changed.wait()
                weather = self._weather.get(client, FAIR)
            if weather.delay_seconds:
                await asyncio.sleep(weather.delay_seconds)
            target.write(data)
            await target.drain()
        with contextlib.suppress(OSError):
            target.transport.abort()
