"""What a leader says of writes of rows: which ones wait, and what came of one.

Who waits for a write is told when the transaction that applies it is acknowledged, or readable. Who
asks later is told from the state, and, for what that holds no more, from the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from commitlog.core.decisions import ChangeKind
from commitlog.core.partition.machine import Machine
from commitlog.core.tables.lance_tables import Table
from commitlog.core.tables.row_writes import AppliedRange
from commitlog.model.limits import ROWS_PENDING_MAX
from commitlog.model.operations import AppliedWrite, ApplyRows, WriteRows
from commitlog.model.records import Code, Status, Submitted, Transaction
from commitlog.model.table import parse_table_id
from consumers.partition.events import Event
from consumers.partition.session import Session

PENDING_MAX = 5_000
"""Writes of one table that are named at once; the next ones when these are applied."""
WAIT_SECONDS_MAX = 25.0
_ENDS = (ChangeKind.DROPPED, ChangeKind.DEREGISTERED)

Answer = list[Any]
"""A version, and what a write did in it: inserted, updated, deleted, refused, problem."""
T = TypeVar("T")
Params = Mapping[str, Any]


class Ask(Protocol):
    """Has the loop look something up."""

    def __call__(self, work: Callable[[Session], T], /) -> Awaitable[T]:
        """Return what `work` gives."""


class _Waiter(NamedTuple):
    readable: bool
    future: asyncio.Future[Answer]


_Read = dict[tuple[tuple[str, ...], AppliedRange], "asyncio.Task[Sequence[AppliedWrite]]"]
"""What was applied by ranges that one request is about, read once."""


class RowAnswers:
    """Answers `rows_pending` and `rows_applied`, on the thread of the leader's socket."""

    def __init__(self, ask: Ask, transaction_at: Callable[[int], Submitted]) -> None:
        """Ask the loop by `ask`; `transaction_at` reads one from the log, by its offset."""
        self._ask = ask
        self._transaction_at = transaction_at
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[tuple[str, int, int], list[_Waiter]] = {}
        self._accepted = asyncio.Event()

    def heard(self, events: Sequence[Event], *, readable: bool) -> None:
        """Take events that are acknowledged, or readable; from the loop's thread."""
        if self._loop is None:
            return
        told = [event for event in events if _is_about_rows(event)]
        if told:
            self._loop.call_soon_threadsafe(self._tell, told, readable)

    async def pending(self, params: Params) -> list[dict[str, Any]]:
        """Return what waits for a row writer, by table; waits up to `seconds` for something."""
        self._loop = asyncio.get_running_loop()
        only = parse_table_id(params["table"]) if params.get("table") else None
        until = self._loop.time() + _seconds(params)
        limit = min(int(params.get("limit") or PENDING_MAX), ROWS_PENDING_MAX)
        position = int(params.get("position") or 0)

        def look(session: Session) -> list[dict[str, Any]]:
            tables = session.follower.machine.tables
            chosen = tables.values() if only is None else [tables[only]] if only in tables else []
            return [
                _pending(table, session.published, limit, position)
                for table in chosen
                if only is not None or (table.rows is not None and table.rows.pending)
            ]

        while True:
            self._accepted.clear()
            found = await self._ask(look)
            left = until - self._loop.time()
            if any(one["pending"] for one in found) or left <= 0:
                return found
            try:
                await asyncio.wait_for(self._accepted.wait(), left)
            except TimeoutError:
                return found

    async def applied(self, params: Params) -> Answer | dict[str, list[Answer | None]] | None:
        """Return what came of a write; None if that isn't known within `seconds`.

        Of `each` of a transaction's writes, if those are named.
        """
        each = params.get("each")
        read: _Read = {}
        if each is None:
            return await self._applied(params, read)
        asked = (self._applied({**params, **one}, read) for one in each)
        return {"each": list(await asyncio.gather(*asked))}

    async def _applied(self, params: Params, read: _Read) -> Answer | None:
        self._loop = asyncio.get_running_loop()
        incarnation, sequence = str(params.get("incarnation", "")), int(params.get("sequence", 0))
        operation, readable = int(params.get("operation", 0)), bool(params.get("readable"))
        name = parse_table_id(params.get("table", ""))
        key = (incarnation, sequence, operation)
        waiter = _Waiter(readable, self._loop.create_future())
        self._waiting.setdefault(key, []).append(waiter)

        def look(session: Session) -> AppliedRange | Answer | None:
            return _known(session, name, incarnation, sequence, readable=readable)

        try:
            found = await self._ask(look)
            if isinstance(found, list):
                return found
            if found is not None:
                if (name, found) not in read:
                    read[name, found] = asyncio.create_task(self._writes(found, name))
                writes = await read[name, found]
                return _answer(writes, sequence, operation, found.version)
            async with asyncio.timeout(_seconds(params)):
                return await waiter.future
        except TimeoutError:
            return None
        finally:
            left = [one for one in self._waiting.get(key, ()) if one is not waiter]
            if left:
                self._waiting[key] = left
            else:
                self._waiting.pop(key, None)

    async def _writes(
        self, application: AppliedRange, name: tuple[str, ...]
    ) -> Sequence[AppliedWrite]:
        def recall(session: Session) -> tuple[AppliedWrite, ...] | None:
            table = session.follower.machine.tables.get(name)
            rows = table.rows if table is not None else None
            return rows.recent.get(application.through) if rows is not None else None

        kept = await self._ask(recall)
        if kept is not None:
            return kept
        submitted = await asyncio.to_thread(self._transaction_at, application.offset)
        record = submitted.record
        operations = record.operations if isinstance(record, Transaction) else ()
        return [
            write
            for operation in operations
            if isinstance(operation, ApplyRows) and operation.through == application.through
            for write in operation.writes
        ]

    def _tell(self, events: Sequence[Event], readable: bool) -> None:
        for event in events:
            for change in event.changes:
                if change.kind in _ENDS:
                    self._tell_end(change.incarnation)
            record = event.submitted.record
            if not isinstance(record, Transaction):
                continue
            for operation in record.operations:
                if isinstance(operation, WriteRows):
                    self._accepted.set()
                elif isinstance(operation, ApplyRows):
                    self._tell_applied(event, operation, readable or not event.awaits_files)

    def _tell_applied(self, event: Event, operation: ApplyRows, readable: bool) -> None:
        made = [r for r in event.outcome.results if r.incarnation == operation.incarnation]
        version = max((r.version or r.read_version for r in made), default=0)
        for write in operation.writes:
            key = (operation.incarnation, write.sequence, write.operation)
            for waiter in self._waiting.get(key, ()):
                is_it = readable or not waiter.readable
                if is_it and not waiter.future.done():
                    waiter.future.set_result(_described(write, version))

    def _tell_end(self, incarnation: str) -> None:
        for (of, *_), waiters in self._waiting.items():
            for waiter in waiters if of == incarnation else ():
                if not waiter.future.done():
                    waiter.future.set_result(_GONE)


_GONE: Answer = [0, 0, 0, 0, Code.NO_SUCH_TABLE.value, "the table was dropped before"]


def _is_about_rows(event: Event) -> bool:
    outcome = event.outcome
    if outcome.status is not Status.COMMITTED or outcome.answers is not None:
        return False
    names = {"WriteRows", "ApplyRows"}
    return any(result.operation in names for result in outcome.results) or any(
        change.kind in _ENDS for change in event.changes
    )


def _pending(table: Table, published: int, limit: int, position: int) -> dict[str, Any]:
    rows = table.rows
    as_of = position or published
    found: list[Any] = []
    for sequence, one in rows.pending.items() if rows is not None else ():
        if sequence > published or len(found) == limit:
            break
        found.append([sequence, one.offset, list(one.operations)])
    return {
        "table": list(table.table_id),
        "incarnation": table.incarnation,
        "applied": rows.applied if rows is not None else 0,
        "version": table.version,
        "pending": found,
        "stale": [list(one) for one in rows.stale()] if rows is not None else [],
        "position": published,
        "is_settled": table.changed_at <= published,
        "applied_at": as_of if rows is None else rows.applied_at(as_of),
    }


def _table_of(machine: Machine, name: tuple[str, ...], incarnation: str) -> Table | None:
    named = machine.tables.get(name)
    if named is not None and named.incarnation == incarnation:
        return named
    renamed = (table for table in machine.tables.values() if table.incarnation == incarnation)
    return next(renamed, None)


def _known(
    session: Session, name: tuple[str, ...], incarnation: str, sequence: int, *, readable: bool
) -> AppliedRange | Answer | None:
    """Return by what a write was applied, or what is said of it if that is unknown."""
    machine = session.follower.machine
    table = _table_of(machine, name, incarnation)
    rows = table.rows if table is not None else None
    ended = machine.catalogue.ended_rows.get(incarnation)
    is_known = rows is not None and (sequence in rows.pending or sequence <= rows.applied)
    if ended is not None and sequence > ended and not is_known:
        return _GONE
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


def _answer(writes: Sequence[AppliedWrite], sequence: int, operation: int, version: int) -> Answer:
    of_it = [write for write in writes if write.sequence == sequence]
    found = next((write for write in of_it if write.operation == operation), None)
    found = found or (of_it[0] if of_it else AppliedWrite(sequence, operation))
    return _described(found, version)


def _described(write: AppliedWrite, version: int) -> Answer:
    counts = (write.inserted, write.updated, write.deleted)
    return [version, *counts, write.refused, write.problem]


def _seconds(params: Params) -> float:
    return min(max(float(params.get("seconds", 0)), 0.0), WAIT_SECONDS_MAX)
