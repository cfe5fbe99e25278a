"""Values by name; to find those in a namespace costs by what is found, not by all there is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TypeVar

from commitlog.model.table import TableId

V = TypeVar("V")


class ByName(dict[TableId, V]):
    """Values by name, sorted from the first question about a namespace on.

    Add and remove names only by the methods below: a dict's others leave the order as it was.
    """

    _order: list[TableId] | None = None

    def within(self, namespace: TableId) -> list[TableId]:
        """Return the namespace, if it has a value itself, and the names in it, sorted."""
        if self._order is None:
            self._order = sorted(self)
        if not namespace:
            return list(self._order)
        first = bisect_left(self._order, namespace)
        end = bisect_left(self._order, (*namespace[:-1], namespace[-1] + "\0"), lo=first)
        return self._order[first:end]

    def below(self, namespace: TableId) -> list[TableId]:
        """Return the names in a namespace, at any depth, sorted."""
        return [name for name in self.within(namespace) if len(name) > len(namespace)]

    def directly_in(self, namespace: TableId, after: str) -> Iterator[TableId]:
        """Yield the names directly in a namespace that follow a name, sorted.

        Nothing may be added or removed meanwhile.
        """
        if self._order is None:
            self._order = sorted(self)
        order, depth = self._order, len(namespace)
        at = bisect_left(order, (*namespace, after + "\0"))
        while at < len(order) and order[at][:depth] == namespace:
            name = order[at]
            if len(name) == depth + 1:
                yield name
            # What is in a name comes before the next one.
            at = bisect_left(order, (*namespace, name[depth] + "\0"), lo=at)

    def __setitem__(self, name: TableId, value: V) -> None:
        """Give a name a value."""
        if self._order is not None and name not in self:
            self._order.insert(bisect_left(self._order, name), name)
        super().__setitem__(name, value)

    def __delitem__(self, name: TableId) -> None:
        """Forget a name."""
        super().__delitem__(name)
        if self._order is not None:
            del self._order[bisect_left(self._order, name)]

    def pop(self, name: TableId) -> V:  # type: ignore[override]
        """Forget a name; return its value."""
        value = self[name]
        del self[name]
        return value

    def setdefault(self, name: TableId, value: V) -> V:
        """Give a name a value unless it has one."""
        if name not in self:
            self[name] = value
        return self[name]
