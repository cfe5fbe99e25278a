"""The time of day of a process that must not believe each jump of its machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

JUMP_MS = 60_000
HELD_MS = 6 * 3_600_000
"""A jump is believed once the clock has gone on from there for so long."""
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)
"""A clock that nobody sets, and that goes on while the machine sleeps."""


class SteadyClock:
    """Tells the time as the machine's clock does, without its jumps of the last hours."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        uptime_ms: Callable[[], int] = lambda: time.clock_gettime_ns(_UPTIME) // 1_000_000,
    ) -> None:
        """Begin with the machine's time."""
        self._wall_ms, self._uptime_ms = wall_ms, uptime_ms
        self._ahead_ms = self._seen_ms = wall_ms() - uptime_ms()
        self._since_ms = 0

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        uptime_ms = self._uptime_ms()
        seen_ms = self._wall_ms() - uptime_ms
        if abs(seen_ms - self._seen_ms) > JUMP_MS:
            self._seen_ms, self._since_ms = seen_ms, uptime_ms
        is_held = uptime_ms < self._since_ms + HELD_MS
        if abs(seen_ms - self._ahead_ms) <= JUMP_MS or not is_held:
            self._ahead_ms = self._seen_ms = seen_ms
        return uptime_ms + self._ahead_ms
