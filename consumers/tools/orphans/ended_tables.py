"""Dropped tables of which nothing is left: a log has ever more, and they needn't be looked at."""

from __future__ import annotations

from collections.abc import Iterable

from commitlog.model.limits import GRACE_DAYS
from consumers.tools.orphans.file_ledger import LifeFiles

_DAY_MS = 86_400_000


class EndedTables:
    """What is known of dropped tables without files."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.bare: set[str] = set()
        """Incarnations of those that had no file at the last look."""
        self._over: dict[str, int] = {}
        """Those that aren't looked at any more, with the records that dropped them."""

    def is_over(self, life: LifeFiles) -> bool:
        """Return True if nothing is left of a table since it was dropped, long ago."""
        dropped = life.dropped
        return dropped is not None and self._over.get(life.incarnation) == dropped.sequence

    def note(self, empty: Iterable[LifeFiles], now_ms: int) -> list[LifeFiles]:
        """Note tables without files; return those that are over by now.

        That is one that was seen so twice, long after its drop: a table that was dropped lately may
        have a writer that doesn't know it yet.
        """
        before, self.bare = self.bare, set()
        over = []
        for life in empty:
            if life.dropped is None:
                continue
            self.bare.add(life.incarnation)
            is_old = now_ms - life.dropped.time_ms > GRACE_DAYS * _DAY_MS
            if is_old and life.incarnation in before:
                self._over[life.incarnation] = life.dropped.sequence
                over.append(life)
        return over
