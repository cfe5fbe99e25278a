"""Which writes of rows a table has accepted, and through which one they are applied.

A write's position is the sequence of its outcome. Writes are applied in the order of their
positions, range after range, each exactly once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from commitlog.model.limits import ROWS_ANSWERS_KEPT, ROWS_APPLICATIONS_KEPT
from commitlog.model.operations import AppliedWrite, ApplyRows, WriteRows


class Accepted(NamedTuple):
    """The writes of one transaction into one table, not applied yet."""

    offset: int
    """The transaction's offset in its topic."""
    operations: tuple[int, ...]
    """Which of the transaction's operations they are."""
    rows: int
    size: int
    """Of their rows, in bytes."""
    columns: tuple[tuple[int, ...], ...] = ()
    """Of each operation: the field ids of its rows' columns. None before protocol 5."""
    stale: tuple[int, ...] = ()
    """Operations with a column that was dropped since."""


class AppliedRange(NamedTuple):
    """A range of writes that were applied by one transaction."""

    after: int
    """The position through which writes were applied before."""
    through: int
    """The position of the last one."""
    sequence: int
    """Of the outcome by which they were."""
    offset: int
    """The offset of the transaction that applied them."""
    version: int
    """The version that has all of them."""


class RowQueue:
    """The writes that one table has accepted."""

    __slots__ = ("applications", "applied", "pending", "recent", "recent_count", "size")

    def __init__(self) -> None:
        """Have accepted nothing."""
        self.pending: dict[int, Accepted] = {}
        """By position, in order."""
        self.size = 0
        """Of all rows that are pending, in bytes."""
        self.applied = 0
        """The position through which writes are applied."""
        self.applications: list[AppliedRange] = []
        """The newest ones, oldest first."""
        self.recent: dict[int, tuple[AppliedWrite, ...]] = {}
        """What came of the newest ones' writes, by the last one's position: kept to answer
        sooner, and no part of the state."""
        self.recent_count = 0

    def accept(
        self,
        sequence: int,
        offset: int,
        index: int,
        operation: WriteRows,
        *,
        with_columns: bool = False,
    ) -> None:
        """Take a write of a committed transaction."""
        known = self.pending.get(sequence, Accepted(offset, (), 0, 0))
        columns = (tuple(column.field_id for column in operation.columns),)
        self.pending[sequence] = known._replace(
            operations=(*known.operations, index),
            rows=known.rows + operation.rows,
            size=known.size + operation.size,
            columns=known.columns + columns if with_columns else (),
        )
        self.size += operation.size

    def apply(self, operation: ApplyRows, sequence: int, offset: int, version: int) -> None:
        """Take a range as applied."""
        for position in [p for p in self.pending if p <= operation.through]:
            self.size -= self.pending.pop(position).size
        application = AppliedRange(
            after=self.applied,
            through=operation.through,
            sequence=sequence,
            offset=offset,
            version=version,
        )
        self.applications.append(application)
        self.applied = operation.through
        del self.applications[:-ROWS_APPLICATIONS_KEPT]
        self.recent[operation.through] = operation.writes
        self.recent_count += len(operation.writes)
        while self.recent_count > ROWS_ANSWERS_KEPT and len(self.recent) > 1:
            self.recent_count -= len(self.recent.pop(next(iter(self.recent))))

    def drop_columns(self, gone: Set[int]) -> None:
        """Take writes that name one of these columns, by field id, as stale."""
        for position, one in self.pending.items():
            each = zip(one.operations, one.columns, strict=False)
            found = {index for index, ids in each if not gone.isdisjoint(ids)}
            if found:
                self.pending[position] = one._replace(stale=tuple(sorted(found.union(one.stale))))

    def through(self, position: int) -> list[tuple[int, int]]:
        """Return the writes that are pending up to a position, by position and operation."""
        return [
            (sequence, index)
            for sequence, accepted in self.pending.items()
            if sequence <= position
            for index in accepted.operations
        ]

    def stale(self) -> Iterator[tuple[int, int]]:
        """Yield the pending writes that are stale, by position and operation."""
        for sequence, one in self.pending.items():
            for index in one.stale:
                yield sequence, index

    def application_of(self, position: int) -> AppliedRange | None:
        """Return by what a write was applied; None if it wasn't, or so long ago."""
        at = bisect_left(self.applications, position, key=lambda one: one.through)
        found = self.applications[at] if at < len(self.applications) else None
        return found if found is not None and found.after < position else None

    def applied_at(self, position: int) -> int | None:
        """Return through which write rows were applied as of a position; None: it is forgotten."""
        at = bisect_right(self.applications, position, key=lambda one: one.sequence)
        if at:
            return self.applications[at - 1].through
        if not self.applications:
            return next(iter(self.pending), position + 1) - 1
        return None if self.applications[0].after else 0

    def to_json(self) -> list[Any]:
        """Return the state as JSON-able values."""
        pending = [
            [
                sequence,
                one.offset,
                list(one.operations),
                one.rows,
                one.size,
                *([list(map(list, one.columns))] if one.columns else []),
                *([list(one.stale)] if one.stale else []),
            ]
            for sequence, one in self.pending.items()
        ]
        return [self.applied, pending, [list(one) for one in self.applications]]

    @classmethod
    def of_json(cls, state: list[Any]) -> RowQueue:
        """Return what `to_json` gave."""
        rows = cls()
        rows.applied = state[0]
        for sequence, offset, operations, count, size, *more in state[1]:
            columns = tuple(map(tuple, more[0])) if more else ()
            stale = tuple(more[1]) if len(more) > 1 else ()
            rows.pending[sequence] = Accepted(
                offset, tuple(operations), count, size, columns, stale
            )
            rows.size += size
        rows.applications = [AppliedRange(*one) for one in state[2]]
        return rows
