"""How many transactions took how long: by step, by table, by principal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

BOUNDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper ends of the histograms' buckets, in seconds."""
COARSE_BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
"""The same for a table's or a principal's steps, of which there are a hundred times as many."""


class Histogram:
    """How many transactions took how long, by bucket, and how long they took together."""

    __slots__ = ("counts", "seconds")

    def __init__(self, buckets: int) -> None:
        """Begin empty."""
        self.counts = [0] * buckets
        self.seconds = 0.0


class Durations:
    """A histogram for each name: of a step, a table or a principal."""

    def __init__(self, names: Iterable[str] = (), bounds: Sequence[float] = BOUNDS) -> None:
        """Begin empty, with these names."""
        self._bounds = bounds
        self._by_name: dict[str, Histogram] = {}
        for name in names:
            self.of(name)

    def of(self, name: str) -> Histogram:
        """Return a name's histogram, which stays the same."""
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = Histogram(len(self._bounds) + 1)
        return found

    def took(self, seconds: float, *names: str) -> None:
        """Count one transaction under each of these names."""
        count_in(map(self.of, names), self._bounds, seconds)

    def forget(self, name: str) -> None:
        """Count nothing more under a name."""
        self._by_name.pop(name, None)

    def to_json(self) -> dict[str, Any]:
        """Return per name the counts by bucket, not cumulated, and the sum."""
        return {
            name: {"counts": list(one.counts), "sum": round(one.seconds, 6)}
            for name, one in self._by_name.items()
        }


def count_in(histograms: Iterable[Histogram], bounds: Sequence[float], seconds: float) -> None:
    """Count one transaction in histograms that all have these bounds."""
    seconds = seconds if seconds > 0 else 0.0
    bucket = bisect_left(bounds, seconds)
    for one in histograms:
        one.counts[bucket] += 1
        one.seconds += seconds
