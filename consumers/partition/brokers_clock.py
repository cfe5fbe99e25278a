"""How far the clock of Kafka's brokers is from this machine's, as their acknowledgements tell."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

DIFFERENCE_MS_MAX = 60_000
HEARD_SECONDS = 3_600.0
"""For so long an acknowledgement says something about now."""

logger = logging.getLogger(__name__)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class BrokersClock:
    """What one term's acknowledgements said. Owned by the loop."""

    def __init__(self, clock: Callable[[], float], wall_ms: Callable[[], int] = _wall_ms) -> None:
        """Know nothing; `clock` never jumps, while `wall_ms` is this machine's."""
        self._clock, self._wall_ms = clock, wall_ms
        self._ahead_ms, self._heard_at = 0, float("-inf")

    def acknowledged(self, append_time_ms: int, took_seconds: float) -> None:
        """Take the time that a record got, which was on its way until now for so long."""
        latest_ms = self._wall_ms()
        earliest_ms = latest_ms - took_seconds * 1000
        before, self._heard_at = self._ahead_ms, self._clock()
        self._ahead_ms = round(append_time_ms - min(max(append_time_ms, earliest_ms), latest_ms))
        if abs(self._ahead_ms) > DIFFERENCE_MS_MAX >= abs(before):
            side = "ahead of" if self._ahead_ms > 0 else "behind"
            logger.warning(
                "the clock of Kafka's brokers is %s s %s this machine's; set both by NTP",
                f"{abs(self._ahead_ms) / 1000:,.0f}", side,
            )  # fmt: skip

    @property
    def ahead_ms(self) -> int | None:
        """By how many milliseconds the brokers are ahead; None: nothing was heard lately."""
        return self._ahead_ms if self._clock() < self._heard_at + HEARD_SECONDS else None
