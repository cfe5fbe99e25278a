"""Which tables the materializer looks at next: those with news, and those whose time has come.

A step costs what there is to do, however many tables wait for their stores.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from math import inf


class Agenda:
    """Incarnations to look at. Owned by the materializer's thread, but for `tell`."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.now: dict[str, None] = {}
        """What is looked at in the next step; callers may add to it."""
        self._later: list[tuple[float, str]] = []
        """A heap. An entry counts only if `_times` has the same time for it."""
        self._times: dict[str, float] = {}
        self._told: deque[str] = deque()

    def tell(self, incarnation: str) -> None:
        """Have a table looked at in the next step; callable from any thread."""
        self._told.append(incarnation)

    def put_off(self, incarnation: str, until: float) -> None:
        """Have a table looked at again at that time, or earlier if it is due earlier already."""
        if until < self._times.get(incarnation, inf):
            self._times[incarnation] = until
            heapq.heappush(self._later, (until, incarnation))

    @property
    def due_at(self) -> float:
        """When the next table is due, if no news comes before."""
        return 0.0 if self.now else self._later[0][0] if self._later else inf

    def take(self, now: float) -> Iterator[str]:
        """Yield what is due, taking it off one by one: a caller that stops leaves the rest."""
        while self._told:
            self.now[self._told.popleft()] = None
        while self._later and self._later[0][0] <= now:
            at, incarnation = heapq.heappop(self._later)
            if self._times.get(incarnation) == at:
                del self._times[incarnation]
                self.now[incarnation] = None
        for incarnation in list(self.now):
            del self.now[incarnation]
            yield incarnation
