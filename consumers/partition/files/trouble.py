"""What is tried until it succeeds, and how often the log of a program says so."""

from __future__ import annotations

import logging

from commitlog.adapters.disk import with_advice

SAID_AGAIN_SECONDS, SAID_AGAIN_SECONDS_MAX = 5.0, 300.0

logger = logging.getLogger(__name__)


class Trouble:
    """Something that fails time after time: said at first, ever more rarely, and at its end."""

    __slots__ = ("_pause", "_say_at", "_since")

    def __init__(self, now: float) -> None:
        """Begin."""
        self._since = self._say_at = now
        self._pause = SAID_AGAIN_SECONDS

    def failed(self, what: str, error: Exception, now: float, again_seconds: float) -> None:
        """Say what failed, if it is time for that."""
        if now < self._say_at:
            return
        self._say_at = now + self._pause
        self._pause = min(2 * self._pause, SAID_AGAIN_SECONDS_MAX)
        lasts = f", for {now - self._since:.0f} s so far" if now > self._since else ""
        logger.warning(
            "%s (%s)%s; trying again in %.2f s", what, with_advice(error), lasts, again_seconds
        )

    def over(self, what: str, now: float) -> None:
        """Say what goes on."""
        logger.warning("%s, after %.0f s", what, now - self._since)
