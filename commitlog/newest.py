"""A map that keeps its newest entries, for what can be found out again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(OrderedDict[K, V]):
    """So many entries at most: the one that was set longest ago goes first."""

    def __init__(self, most: int) -> None:
        """Begin empty."""
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        # Not moved to the end: another thread may have let it go by then.
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)
