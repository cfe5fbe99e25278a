"""Finds what is there already among values with ids, whatever their number.

A record adds a thousand of them to thousands: each is looked up, not compared with all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from heapq import heappop, heappush
from typing import Any

Value = Mapping[str, Any]


class ByContent:
    """Ids of values by what the values say, in the order in which they were added."""

    def __init__(
        self, member: str, values: Iterable[Value], content: Callable[[Value], Hashable]
    ) -> None:
        """Know `values`; `content` returns what is equal if two of them are the same."""
        self._member, self._content = member, content
        self._ids: dict[Hashable, dict[int, None]] = {}
        self._known: dict[int, tuple[Value, Hashable]] = {}
        self._descending: list[int] = []
        """A heap of the negative ids, those among them that were removed."""
        for value in values:
            self.add(value)

    def add(self, value: Value) -> None:
        """Know one more value."""
        number, content = value[self._member], self._content(value)
        self._known[number] = value, content
        self._ids.setdefault(content, {})[number] = None
        heappush(self._descending, -number)

    def remove(self, ids: Iterable[int]) -> None:
        """Forget values; unknown ids are ignored."""
        for number in ids:
            if number in self._known:
                del self._ids[self._known.pop(number)[1]][number]

    def find(self, value: Value) -> int | None:
        """Return the id of the first value that says the same, or None."""
        return next(iter(self._ids.get(self._content(value), ())), None)

    def get(self, number: int) -> Value | None:
        """Return the value of an id, or None."""
        return self._known[number][0] if number in self._known else None

    def following(self, lowest: int) -> int:
        """Return an id that is higher than all of them, and no lower than this."""
        while self._descending and -self._descending[0] not in self._known:
            heappop(self._descending)
        return max(lowest, 1 - self._descending[0]) if self._descending else lowest


def frozen(value: Any) -> Hashable:
    """Return JSON as something that can be looked up; it is equal where the JSON is."""
    if isinstance(value, dict):
        return frozenset((name, frozen(one)) for name, one in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list) else value
