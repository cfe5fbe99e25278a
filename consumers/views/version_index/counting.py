"""How many rows, bytes and fragments each operation added and took away, for any committer.

What a client says of itself isn't asked: other programs say nothing, and a compaction's new
fragments hold rows that were there before. What a fragment had is kept for tables whose rows were
changed lately, and read from the index for others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from commitlog.model.limits import INT64_MAX
from commitlog.model.operations import CreateTableVersion, LanceCommit
from consumers.views.version_index.contents import Row, without_fragment
from consumers.views.version_index.operation_results import (
    Counts,
    DoneAppend,
    DoneOperation,
    Told,
    beside_appends,
)

FRAGMENTS_MAX = 500_000
"""So many fragments are kept in all; those of the table that was changed longest ago go first."""
ONLY_NEW = {"Append", "CreateTable"}
"""Operations all of whose fragments are new."""
MOVES_ROWS = {"Rewrite", "RegisterTable"}
"""Operations whose new fragments may hold rows of those that they remove."""
_FRAGMENT_ID, _REMOVED, _ROWS, _DELETED, _BYTES = range(7, 12)
"""Columns of `fragment_changes`."""


class Fragment(NamedTuple):
    """What a fragment holds."""

    rows: int
    deleted: int
    bytes: int

    @property
    def live(self) -> int:
        """How many of its rows are there."""
        return self.rows - self.deleted


Fragments = dict[int, Fragment]
Load = Callable[[list[str]], Iterable[Row]]
"""Returns (incarnation, fragment, rows, deleted, bytes) of all fragments of these tables."""


def nothing(_: list[str]) -> Iterable[Row]:
    """Know of no fragment: for an index that is empty."""
    return ()


class Counting:
    """Folds fragments, in the order of the log."""

    def __init__(self, load: Load = nothing, fragments_max: int = FRAGMENTS_MAX) -> None:
        """Take what reads the fragments of tables from the index, as it was before the batch."""
        self._load = load
        self._max = fragments_max
        self._tables: OrderedDict[str, Fragments] = OrderedDict()

    def prepare(self, told: Iterable[Told]) -> None:
        """Have the fragments of all tables whose rows a batch changes."""
        wanted = dict.fromkeys(
            one.incarnation
            for _, one in beside_appends(told)
            if _counts(one) and one.name not in ONLY_NEW and one.incarnation is not None
        )
        for incarnation in wanted:
            if incarnation in self._tables:
                self._tables.move_to_end(incarnation)
        missing = [one for one in wanted if one not in self._tables]
        kept = sum(map(len, self._tables.values())) if missing else 0
        while kept > self._max and len(self._tables) > len(wanted):
            kept -= len(self._tables.popitem(last=False)[1])
        self._tables.update((one, {}) for one in missing)
        if missing:
            for table, number, *counts in self._load(missing):
                self._tables[table][number] = Fragment(*(one or 0 for one in counts))

    def is_new(self, append: DoneAppend) -> bool:
        """Return True if none of an append's fragments was there before the batch."""
        known = self._tables.get(append.incarnation, {})
        return not any(number in known for number, _, _ in append.fragments)

    def note(self, append: DoneAppend) -> None:
        """Note the fragments of an append."""
        known = self._tables.get(append.incarnation)
        if known is not None:
            known.update((one, Fragment(rows, 0, size)) for one, rows, size in append.fragments)

    def count(self, one: DoneOperation, changes: Sequence[Row]) -> None:
        """Note on a committed operation what it added and removed, by its rows of changes."""
        if not _counts(one):
            return
        known = self._tables.get(one.incarnation or "")
        if known and one.lists_all:  # of a table that came back, what differs counts
            changes = [*_gone(known, changes), *changes]
        added = removed = size = 0
        fragments = dict.fromkeys(("added", "updated", "removed"), 0)
        for change in changes:
            number = change[_FRAGMENT_ID]
            before = known.get(number) if known is not None else None
            after = None if change[_REMOVED] else _after(change, before)
            difference = (after.live if after else 0) - (before.live if before else 0)
            if not (one.lists_all and after == before):
                fragments["removed" if after is None else "updated" if before else "added"] += 1
            added += max(difference, 0)
            removed += max(-difference, 0)
            size += max((after.bytes if after else 0) - (before.bytes if before else 0), 0)
            if known is not None and after is not None:
                known[number] = after
            elif known is not None:
                known.pop(number, None)
        if one.name in MOVES_ROWS:
            moved = min(added, removed)
            added, removed = added - moved, removed - moved
        one.counts = Counts(
            rows_added=min(added, INT64_MAX),
            rows_removed=min(removed, INT64_MAX),
            bytes_added=min(size, INT64_MAX),
            fragments_added=fragments["added"],
            fragments_updated=fragments["updated"],
            fragments_removed=fragments["removed"],
        )


def _counts(one: DoneOperation) -> bool:
    if one.result is None:
        return False
    is_lance = isinstance(one.operation, LanceCommit | CreateTableVersion)
    return is_lance or one.name in ONLY_NEW or one.lists_all


def _gone(known: Fragments, changes: Iterable[Row]) -> list[Row]:
    """Return a row for each fragment that a list of all fragments doesn't have."""
    found = {change[_FRAGMENT_ID] for change in changes}
    head = (None,) * _FRAGMENT_ID
    return [(*head, *without_fragment(number)) for number in known if number not in found]


def _after(change: Row, before: Fragment | None) -> Fragment:
    """Return a fragment behind a change; what the change doesn't say is as before."""
    rows, deleted, size = (change[column] for column in (_ROWS, _DELETED, _BYTES))
    known = before or Fragment(0, 0, 0)
    return Fragment(
        known.rows if rows is None else rows,
        known.deleted if deleted is None else deleted,
        known.bytes if size is None else size,
    )
