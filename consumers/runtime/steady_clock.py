"""The time of day of a process that must not believe each jump of its machine's clock."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from commitlog.adapters import disk

JUMP_MS = 60_000
HELD_MS = 6 * 3_600_000
"""A jump is believed once the clock has gone on from there for so long."""
SET_BACK_MS, LOOK_SECONDS = 10_000, 2.0
_UPTIME: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC_RAW)
"""A clock that nobody sets, and that goes on while the machine sleeps."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

logger = logging.getLogger(__name__)


def wall_ms() -> int:
    """Return what the machine's clock says, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def uptime_ms() -> int:
    """Return for how many milliseconds the machine has run; nobody sets that."""
    return time.clock_gettime_ns(_UPTIME) // 1_000_000


def stop_when_set_back(
    stop: threading.Event,
    wall_ms: Callable[[], int] = wall_ms,
    uptime_ms: Callable[[], int] = uptime_ms,
) -> list[str]:
    """Have `stop` set once the machine's clock is set back; the returned list then says why.

    Kafka's library waits by that clock: what waits for a broker that is away, then waits for so
    much longer, and nobody can end that. A few seconds, by which clocks are set all the time, are
    left alone.
    """
    why: list[str] = []

    def look() -> None:
        ahead_ms = wall_ms() - uptime_ms()
        while not stop.wait(LOOK_SECONDS):
            before_ms, ahead_ms = ahead_ms, wall_ms() - uptime_ms()
            if before_ms - ahead_ms >= SET_BACK_MS:
                seconds = (before_ms - ahead_ms) / 1000
                why.append(f"the clock was set back by {seconds:,.0f} s: all waits begin anew")
                stop.set()

    threading.Thread(target=look, name="clock", daemon=True).start()
    return why


def _boot() -> str:
    """Return what names this start of the machine; empty where nothing does."""
    with contextlib.suppress(OSError):
        return _BOOT.read_text(encoding="ascii").strip()
    return ""


class SteadyClock:
    """Tells the time as the machine's clock does, without its jumps of the last hours."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_ms,
        uptime_ms: Callable[[], int] = uptime_ms,
        *,
        kept: Path | None = None,
        boot: Callable[[], str] = _boot,
    ) -> None:
        """Begin with the machine's time.

        What is `kept` in a file holds for a process that is started again, until the machine is.
        """
        self._wall_ms, self._uptime_ms, self._kept = wall_ms, uptime_ms, kept
        self._ahead_ms = self._seen_ms = wall_ms() - uptime_ms()
        self._since_ms = 0
        self._boot = boot() if kept is not None else ""
        self._written = (0, 0)
        if kept is not None and self._boot:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = json.loads(kept.read_bytes())
                # What was set back is believed: by an earlier time nothing is too old.
                if found["boot"] == self._boot and found["ahead_ms"] < self._ahead_ms:
                    self._ahead_ms, self._seen_ms = int(found["ahead_ms"]), int(found["seen_ms"])
                    self._since_ms = int(found["since_ms"])
            self.now_ms()

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        uptime_ms = self._uptime_ms()
        seen_ms = self._wall_ms() - uptime_ms
        if abs(seen_ms - self._seen_ms) > JUMP_MS:
            self._seen_ms, self._since_ms = seen_ms, uptime_ms
            jumped = (seen_ms - self._ahead_ms) / 1000
            if abs(jumped) > JUMP_MS / 1000:
                logger.warning(
                    "this machine's clock jumped by %s s, which is believed after %d hours: until "
                    "then nothing is removed for its age; set the clock by NTP",
                    f"{jumped:+,.0f}", HELD_MS // 3_600_000,
                )  # fmt: skip
        is_held = uptime_ms < self._since_ms + HELD_MS
        if abs(seen_ms - self._ahead_ms) <= JUMP_MS or not is_held:
            self._ahead_ms = self._seen_ms = seen_ms
        ahead_ms, since_ms = self._written
        if abs(self._ahead_ms - ahead_ms) > JUMP_MS or self._since_ms != since_ms:
            self._keep()
        return uptime_ms + self._ahead_ms

    def _keep(self) -> None:
        self._written = (self._ahead_ms, self._since_ms)
        if self._kept is None or not self._boot:
            return
        found = {
            "boot": self._boot,
            "ahead_ms": self._ahead_ms,
            "seen_ms": self._seen_ms,
            "since_ms": self._since_ms,
        }
        with contextlib.suppress(OSError):  # then a restart believes the machine's clock
            self._kept.parent.mkdir(parents=True, exist_ok=True)
            partial = self._kept.with_suffix(f".{os.getpid()}")
            partial.write_bytes(json.dumps(found).encode())
            disk.replace(str(partial), str(self._kept))
