"""What the state says of writes of rows, in the form of answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol, TypeVar

from commitlog.core.decisions import ENDS
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.lance_tables import Table
from commitlog.core.tables.row_writes import AppliedRange
from commitlog.model.operations import AppliedWrite
from commitlog.model.records import Code, is_commit
from consumers.partition.files.events import Event
from consumers.partition.session import Session

Answer = list[Any]
"""A version, and what a write did in it: inserted, updated, deleted, refused, problem."""
Params = Mapping[str, Any]
T = TypeVar("T")


class Ask(Protocol):
    """Makes the loop look something up."""

    def __call__(self, work: Callable[[Session], T], /) -> Awaitable[T]:
        """Return the result of `work`."""


_ABOUT_ROWS = frozenset({"WriteRows", "ApplyRows"})
GONE: Answer = [0, 0, 0, 0, Code.NO_SUCH_TABLE.value, "the table was dropped before"]


def is_about_rows(event: Event) -> bool:
    """Return True if an outcome accepts or applies rows, or ends a table that has some."""
    outcome = event.outcome
    if not is_commit(outcome):
        return False
    for result in outcome.results:
        if result.operation in _ABOUT_ROWS:
            return True
    for change in event.changes:  # noqa: SIM110 - a generator's frames cost more than this
        if change.kind in ENDS:
            return True
    return False


def pending_of(
    table: Table,
    published: int,
    limit: int,
    position: int,
    awaited: Mapping[str, int],
    from_offset: int = 0,
) -> dict[str, Any]:
    """Return the writes of rows that wait in a table, of those that were published.

    Transactions before `from_offset` are left out.
    """
    rows = table.rows
    as_of = position or published
    pending = rows.pending if rows is not None else {}
    newer = takewhile(lambda one: one[1].offset >= from_offset, reversed(pending.items()))
    listed = reversed([*newer]) if from_offset else iter(pending.items())
    found: list[Any] = []
    for sequence, one in listed:
        if sequence > published or len(found) == limit:
            break
        found.append([sequence, one.offset, list(one.operations)])
    return {
        "table": list(table.table_id),
        "incarnation": table.incarnation,
        "applied": rows.applied if rows is not None else 0,
        "version": table.version,
        "pending": found,
        "awaited": awaited.get(table.incarnation, 0),
        "stale": [list(one) for one in rows.stale()] if rows is not None else [],
        "position": published,
        "is_settled": table.changed_at <= published,
        "applied_at": as_of if rows is None else rows.applied_at(as_of),
    }


def table_of(machine: Machine, name: tuple[str, ...], incarnation: str) -> Table | None:
    """Return the table of an incarnation, whatever its name is by now; None if it is gone."""
    named = machine.tables.get(name)
    if named is not None and named.incarnation == incarnation:
        return named
    renamed = (table for table in machine.tables.values() if table.incarnation == incarnation)
    return next(renamed, None)


def known_of(
    session: Session, table: Table | None, incarnation: str, sequence: int, *, readable: bool
) -> AppliedRange | Answer | None:
    """Return by what a write was applied, or what is said of it if that is unknown."""
    rows = table.rows if table is not None else None
    ended = session.follower.machine.catalogue.ended_rows.get(incarnation)
    is_known = rows is not None and (sequence in rows.pending or sequence <= rows.applied)
    if ended is not None and sequence > ended and not is_known:
        return GONE
    if table is None:
        return [0, 0, 0, 0, "", ""]
    if rows is None or sequence > rows.applied:
        return None
    application = rows.application_of(sequence)
    if application is None:
        return [0, 0, 0, 0, "", ""]  # so long ago that the log has to be searched
    if application.sequence > session.published:
        return None
    is_there = session.readable.newest(incarnation) >= application.version
    return application if is_there or not readable else None


def answer_of(writes: Sequence[AppliedWrite], params: Params, version: int) -> Answer:
    """Return what came of the write that a request asks for, of those of one record."""
    sequence, operation = int(params.get("sequence", 0)), int(params.get("operation", 0))
    of_it = [write for write in writes if write.sequence == sequence]
    found = next((write for write in of_it if write.operation == operation), None)
    found = found or (of_it[0] if of_it else AppliedWrite(sequence, operation))
    return described(found, version)


def described(write: AppliedWrite, version: int) -> Answer:
    """Return what a write of rows did, as answers have it."""
    counts = (write.inserted, write.updated, write.deleted)
    return [version, *counts, write.refused, write.problem]
