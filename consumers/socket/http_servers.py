"""How many HTTP servers a log has: each asks its leaders for their state every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

SILENT_SECONDS = 30.0
"""A server that asks no more for so long is gone; one that asked a moment ago may be."""
SURE_SECONDS = 10.0
"""By then all servers have asked a new leader, though it heard one of them first."""
SERVERS_MAX = 1000


class HttpServers:
    """Those that have asked of late. Owned by one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        """Know none; `now` tells the time."""
        self._now = now
        self._heard: dict[str, float] = {}
        self._began = 0.0

    async def counted(self, params: Mapping[str, Any]) -> int:
        """Answer a request for their number; its `server` may be one of them."""
        return self.count(str(params.get("server") or ""))

    def count(self, asking: str = "") -> int:
        """Return how many there are, the one that asks included; 0 if that isn't known yet."""
        now = self._now()
        self._heard = {one: at for one, at in self._heard.items() if now - at < SILENT_SECONDS}
        if not self._heard:
            self._began = now
        if asking and (asking in self._heard or len(self._heard) < SERVERS_MAX):
            self._heard[asking] = now
        return len(self._heard) if now - self._began >= SURE_SECONDS else 0
