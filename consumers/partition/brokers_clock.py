"""How far the clock of Kafka's brokers is ahead of others, as their acknowledgements tell."""

from __future__ import annotations

import logging
from collections.abc import Callable

from consumers.runtime.steady_clock import uptime_ms, wall_ms

DIFFERENCE_MS_MAX, COMPARE_MS = 60_000, 1_000

logger = logging.getLogger(__name__)


class BrokersClock:
    """What one term's acknowledgements said. Owned by the loop."""

    def __init__(
        self, wall: Callable[[], int] = wall_ms, uptime: Callable[[], int] = uptime_ms
    ) -> None:
        """Know nothing; `uptime` never jumps, while `wall` is this machine's clock, both in ms."""
        self._wall, self._uptime = wall, uptime
        self._least: int | None = None
        self._most = 0
        """By how much the brokers' clock is beyond the uptime, at least and at most."""
        self._is_told, self._compared_ms = False, -COMPARE_MS

    def acknowledged(self, append_time_ms: int, took_seconds: float) -> None:
        """Take the time that a record got, which was on its way until now for so long."""
        now_ms = self._uptime()
        self._least = append_time_ms - now_ms
        self._most = self._least + round(took_seconds * 1000)
        if now_ms >= self._compared_ms + COMPARE_MS:
            self._compared_ms = now_ms
            self._tell()

    def _tell(self) -> None:
        ahead_ms = self.ahead_of(self._wall()) or 0
        was_told, self._is_told = self._is_told, abs(ahead_ms) > DIFFERENCE_MS_MAX
        if self._is_told and not was_told:
            logger.warning(
                "the clock of Kafka's brokers is %s s %s this machine's; set both by NTP",
                f"{abs(ahead_ms) / 1000:,.0f}",
                "ahead of" if ahead_ms > 0 else "behind",
            )

    def ahead_of(self, told_ms: int) -> int | None:
        """Return by how many ms at least the brokers are ahead of a clock that now says `told_ms`.

        Below 0 they are behind. None if they acknowledged nothing yet.
        """
        if self._least is None:
            return None
        ours = told_ms - self._uptime()
        return max(self._least - ours, 0) or min(self._most - ours, 0)
