"""Waiting for a start for as long as it makes progress, on a machine however slow.

A process makes progress while it works or waits for a processor that others have: on a loaded
machine that takes many times as long, and ending it would only begin the work again. One that does
neither, and reports nothing new, is stuck.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from pathlib import Path

START_SECONDS = 120
"""How long a start may make no progress."""
LOOK_SECONDS = 5.0
SILENT_SECONDS = 3.0
"""After so long without an answer, who waits hears for what."""
BUSY = 0.5
"""The share of a stretch of time in which a process has to work, or want to."""

_NANOSECONDS = 1_000_000_000


def active_seconds(pid: int) -> float:
    """Return how long a process has run or waited for a processor; 0 if the system can't tell."""
    total = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            running, waiting, _ = task.read_text().split()
        except (OSError, ValueError):
            continue  # a thread that has just ended
        total += int(running) + int(waiting)
    return total / _NANOSECONDS


@contextlib.contextmanager
def told_if_slow(say: Callable[[str], None], text: Callable[[], str]) -> Iterator[None]:
    """Say what is waited for, if what is done here takes long."""
    waits = threading.Timer(SILENT_SECONDS, lambda: say(text()))
    waits.daemon = True
    waits.start()
    try:
        yield
    finally:
        waits.cancel()


def waiting_for(servers: str, seconds: float, trouble: str) -> str:
    """Say which Kafka is waited for, for how long, and what is wrong, as far as it is known."""
    if trouble:
        return f"waiting for Kafka at {servers} for up to {seconds:g} s: {trouble}"
    return f"waiting for Kafka at {servers}, which hasn't answered yet, for up to {seconds:g} s"


class Patience:
    """Says when a wait has gone on for too long without progress."""

    def __init__(
        self,
        seconds: float,
        news: Callable[[], Hashable],
        processes: Callable[[], Iterable[int]],
        *,
        clock: Callable[[], float] = time.monotonic,
        active: Callable[[int], float] = active_seconds,
    ) -> None:
        """Wait for so long from the last progress on: other `news`, or a process at work."""
        self.seconds = seconds
        self._news, self._processes = news, processes
        self._clock, self._active = clock, active
        self._last_news = news()
        self._progress_at = self._looked_at = clock()
        self._activity = self._measure()

    @property
    def left(self) -> float:
        """For how many seconds more to wait, as of now; 0 if it was long enough."""
        now, news = self._clock(), self._news()
        if news != self._last_news:
            self._last_news, self._progress_at = news, now
        elapsed = now - self._looked_at
        if elapsed >= min(LOOK_SECONDS, self.seconds / 2):
            activity = self._measure()
            worked = (seconds - self._activity.get(pid, 0.0) for pid, seconds in activity.items())
            if any(each >= BUSY * elapsed for each in worked):
                self._progress_at = now
            self._activity, self._looked_at = activity, now
        return max(0.0, self._progress_at + self.seconds - now)

    def _measure(self) -> dict[int, float]:
        return {pid: self._active(pid) for pid in self._processes()}
