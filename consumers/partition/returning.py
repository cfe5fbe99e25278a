"""When records that a leader refused for the moment come back: as many as it decides.

Each refusal takes time in which the leader would decide, and a client sends a refused record again
after the delay that the leader names. With one delay for all, the refusals of a second grow with
the number of records, until little is decided. So each record gets a moment of its own: as many a
second as were decided of late, in equal shares of the sessions that were refused. Who has one
record may soon try again, however many the others have. An HTTP server has one session for all its
callers, so the principals of a session have shares of their own, up to a number of them.
"""

from __future__ import annotations

import zlib

RETURN_SECONDS_MIN, RETURN_SECONDS_MAX = 0.2, 15.0
"""The shortest and the longest delay. More records than come back within the longest one are spread
evenly over it, since the leader may soon decide faster."""
RETURNS_MIN = 500.0
"""How many may come back in a second if fewer were decided: they cost little."""
MEASURE_SECONDS = 1.0
SHARES_PER_SESSION = 16
"""A session can name any principals, so more of them don't make it more shares than these."""


class Returning:
    """The moments at which refused records come back. Owned by the loop."""

    def __init__(self) -> None:
        """Start with nothing refused."""
        self._last: dict[tuple[str, int], float] = {}
        """By share, when its record comes back that was refused last."""
        self._per_second = RETURNS_MIN
        self._measured_at, self._decided = 0.0, 0

    def delay(self, session: str, principal: str, decided: int, now: float) -> float:
        """Return after how many seconds a session may send a principal's record again.

        `decided` counts the decided transactions, from any number on.
        """
        if now >= self._measured_at + MEASURE_SECONDS:
            per_second = (decided - self._decided) / (now - self._measured_at)
            self._per_second = max(RETURNS_MIN, per_second if self._measured_at else 0.0)
            self._measured_at, self._decided = now, decided
            self._last = {one: at for one, at in self._last.items() if at > now}
        share = session, zlib.crc32(principal.encode()) % SHARES_PER_SESSION
        last = self._last.setdefault(share, 0.0)
        late = last + len(self._last) / self._per_second - (now + RETURN_SECONDS_MIN)
        wait = RETURN_SECONDS_MIN + max(0.0, late) % (RETURN_SECONDS_MAX - RETURN_SECONDS_MIN)
        self._last[share] = now + wait
        return wait
