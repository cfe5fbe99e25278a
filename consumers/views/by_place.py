"""Rows of the version index by their place in the log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

Rows = list[dict[str, Any]]


class ByPlace:
    """Rows by partition and sequence, sorted out once.

    A client may try a transaction of a thousand operations a thousand times: to search all rows for
    those of each attempt would take a thousand million comparisons.
    """

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        """Sort rows out; those of one place stay in their order."""
        self._rows: defaultdict[tuple[Any, Any], Rows] = defaultdict(list)
        for row in rows:
            self._rows[row["partition"], row["sequence"]].append(row)

    def of(self, row: dict[str, Any]) -> Rows:
        """Return the rows that have the place of another row."""
        return self._rows.get((row["partition"], row["sequence"]), [])
