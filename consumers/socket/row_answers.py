"""The leader's answers about writes of rows: which ones wait, and the result of one.

A client that waits for a write gets its result when the transaction that applies it is
acknowledged, or readable. A client that asks later gets it from the state, or from the log if the
state has forgotten it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import Any, NamedTuple

from commitlog.codecs.avro import encode_transaction
from commitlog.core.decisions import ENDS
from commitlog.core.tables.row_writes import AppliedRange
from commitlog.messages import base64_text
from commitlog.model.limits import ROWS_PENDING_MAX
from commitlog.model.operations import AppliedWrite, ApplyRows, WriteRows
from commitlog.model.records import Submitted, Transaction, is_commit
from commitlog.model.table import parse_table_id
from consumers.partition.files.events import Event
from consumers.partition.mailbox import PendingReply, Reply
from consumers.partition.readable import keep
from consumers.partition.session import Session
from consumers.socket.row_states import (
    GONE,
    Answer,
    Ask,
    Params,
    answer_of,
    described,
    is_about_rows,
    known_of,
    pending_of,
    table_of,
)

PENDING_MAX = 5_000
"""How many writes of one table an answer names; it names the next ones when these are applied."""
WAIT_SECONDS_MAX = 25.0
HOLD_SECONDS = 1.0
"""How long the outcome of a write of rows is held back at most, to be sent with its results."""
HANDED_BYTES_MAX = 32 * 1024 * 1024
ANSWER_BYTES_MAX = 1024 * 1024
"""How many bytes of waiting rows are kept in memory for row writers, and how many one answer has;
row writers read others from the log."""
QUIET_SECONDS = 0.005
"""If nothing was accepted for this long, a burst of writes is complete."""
_RECORD_BYTES = 2_000
"""About how much memory a record takes besides its rows."""


class _Waiter(NamedTuple):
    readable: bool
    reply: Reply[Answer | None]
    deadline: float


_Read = dict[tuple[tuple[str, ...], AppliedRange], "asyncio.Task[Sequence[AppliedWrite]]"]
"""The results of ranges that one request is about, read once."""


class RowAnswers:
    """Answers `rows_pending` and `rows_applied`.

    The loop owns the waiting clients and gets the events that end their wait. A worker reads the
    log, for a coroutine on the thread of the leader's socket.
    """

    def __init__(self, ask: Ask, transaction_at: Callable[[int], Submitted]) -> None:
        """Query the loop by `ask`; `transaction_at` reads the log at an offset."""
        self._ask = ask
        self._transaction_at = transaction_at
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[tuple[str, int, int], list[_Waiter]] = {}
        self.due_at = inf
        """When the first waiting client has waited long enough, or earlier."""
        self._now = 0.0
        """When the loop last called `tick`."""
        self._accepted = asyncio.Event()
        self._count = 0
        """Writes that were accepted since this process began."""
        self._wanted = inf
        """The count at which row writers get an answer."""
        self._records: dict[int, tuple[Submitted, frozenset[str]]] = {}
        """By position, the newest of those that wait, with the incarnations that they write to."""
        self._records_bytes = 0
        self._oldest = 0, 0.0
        """The position of the oldest write that waits, and when it was first seen to be that."""

    def awaited(self) -> int:
        """Return how many writes clients wait for; on the loop."""
        return len(self._waiting)

    def lag_seconds(self, session: Session) -> float:
        """Return for how long the oldest write that waits has been the oldest; on the loop."""
        queues = (table.rows for table in session.follower.machine.tables.values())
        waiting = (next(iter(one.pending)) for one in queues if one is not None and one.pending)
        oldest, now = min(waiting, default=0), session.now()
        if oldest != self._oldest[0]:
            self._oldest = oldest, now
        return now - self._oldest[1] if oldest else 0.0

    def heard(self, events: Sequence[Event], *, readable: bool) -> None:
        """Take events that are acknowledged, or readable; on the loop."""
        told = [event for event in events if is_about_rows(event)]
        if told:
            self._tell(told, readable)

    def tick(self, now: float) -> None:
        """Answer clients that have waited too long; on the loop."""
        self._now = now
        if now < self.due_at:
            return
        for key, waiters in list(self._waiting.items()):
            for waiter in waiters:
                if waiter.deadline <= now:
                    waiter.reply.give(None)
            keep(self._waiting, key, [one for one in waiters if not one.reply.is_given])
        left = (waiter.deadline for waiters in self._waiting.values() for waiter in waiters)
        self.due_at = min(left, default=inf)

    def end(self) -> None:
        """Make all clients ask again: the term is over, and so is the loop."""
        waiting, self._waiting, self.due_at = self._waiting, {}, inf
        self._records, self._records_bytes = {}, 0
        for waiter in (waiter for waiters in waiting.values() for waiter in waiters):
            waiter.reply.give(None)

    def hold(self, event: Event, tell: Callable[[list[Any] | None], None]) -> bool:
        """Call `tell` with the results of a transaction's writes, or None after a while.

        Runs on the loop. Each result is an operation's number and an answer. Returns False if there
        is nothing to wait for.
        """
        outcome, came = event.outcome, dict[int, Answer | None]()
        if not is_commit(outcome):
            return False
        writes = [n for n, one in enumerate(outcome.results) if one.operation == "WriteRows"]

        def take(number: int, answer: Answer | None, _: object) -> None:
            came[number] = answer
            if len(came) == len(writes):
                known = [[n, *said] for n in writes if (said := came[n]) is not None]
                tell(known if len(known) == len(writes) else None)

        deadline = self._now + HOLD_SECONDS
        self.due_at = min(self.due_at, deadline)
        for number in writes:
            key = (outcome.results[number].incarnation, outcome.sequence, number)
            waiter = _Waiter(True, Reply(partial(take, number)), deadline)
            self._waiting.setdefault(key, []).append(waiter)
        return bool(writes)

    def take(self, session: Session, params: Params, answer: Callable[[Any], None]) -> bool:
        """Answer `rows_applied`, now or later, on the loop; False if the log has to be read."""
        if params.get("each") is not None:
            return False
        found = self._look(session, params, Reply(lambda value, error: answer(value)))
        if isinstance(found, list):
            answer(found)
        return not isinstance(found, AppliedRange)

    async def pending(self, params: Params) -> list[dict[str, Any]]:
        """Return the writes that wait for a row writer, by table; wait up to `seconds` for some.

        With `more`, first wait up to `age` seconds for that many writes, unless some have come and
        then none for `quiet` seconds. The answer includes the transactions from `from_offset` on,
        as far as they are in memory. Tables in `busy` are only named.
        """
        self._loop = asyncio.get_running_loop()
        quiet = max(QUIET_SECONDS, _seconds(params, "quiet"))
        await self._gather(int(params.get("more") or 0), _seconds(params, "age"), quiet)
        only = parse_table_id(params["table"]) if params.get("table") else None
        until = self._loop.time() + _seconds(params)
        limit = min(int(params.get("limit") or PENDING_MAX), ROWS_PENDING_MAX)
        position = int(params.get("position") or 0)
        from_offset = params.get("from_offset")
        busy = dict.fromkeys(params.get("busy", ()), int(from_offset or 0))

        def look(session: Session) -> list[dict[str, Any]]:
            tables = session.follower.machine.tables
            chosen = tables.values() if only is None else [tables[only]] if only in tables else []
            self._wanted = self._count + 1
            awaited = Counter(incarnation for incarnation, *_ in self._waiting)
            return [
                pending_of(
                    table,
                    session.published,
                    limit,
                    position,
                    awaited,
                    busy.get(table.incarnation, 0),
                )
                for table in chosen
                if only is not None or (table.rows is not None and table.rows.pending)
            ]

        while True:
            self._accepted.clear()
            found = await self._ask(look)
            left = until - self._loop.time()
            if any(one["pending"] for one in found) or left <= 0:
                if from_offset is not None:
                    self._hand_over(found, int(from_offset))
                return found
            try:
                await asyncio.wait_for(self._accepted.wait(), left)
            except TimeoutError:
                return found

    def _hand_over(self, found: list[dict[str, Any]], from_offset: int) -> None:
        """Add the records of pending writes, as far as they are in memory here."""
        left = ANSWER_BYTES_MAX
        for one in found:
            one["records"] = []
            for sequence, offset, _ in one["pending"]:
                if offset < from_offset or sequence not in self._records or left <= 0:
                    continue
                submitted, _ = self._records[sequence]
                if isinstance(submitted.record, Transaction):
                    value = encode_transaction(submitted.record)
                    left -= len(value)
                    one["records"].append([offset, submitted.key.decode(), base64_text(value)])

    async def _gather(self, more: int, seconds: float, quiet: float) -> None:
        loop, first = asyncio.get_running_loop(), self._count
        until = loop.time() + seconds
        while self._count < first + more and loop.time() < until:
            seen = self._count
            self._accepted.clear()
            self._wanted = first + more
            with suppress(TimeoutError):
                await asyncio.wait_for(self._accepted.wait(), quiet)
            if first < seen == self._count:
                return

    async def applied(self, params: Params) -> Answer | dict[str, list[Answer | None]] | None:
        """Return the result of a write; None if it isn't known within `seconds`.

        With `each`, the results of these writes of the transaction.
        """
        each = params.get("each")
        read: _Read = {}
        if each is None:
            return await self._applied(params, read)
        asked = (self._applied({**params, **one}, read) for one in each)
        return {"each": list(await asyncio.gather(*asked))}

    async def _applied(self, params: Params, read: _Read) -> Answer | None:
        pending = PendingReply[Answer | None]()
        found = await self._ask(lambda session: self._look(session, params, pending.reply))
        if isinstance(found, AppliedRange):
            name = parse_table_id(params.get("table", ""))
            if (name, found) not in read:
                read[name, found] = asyncio.create_task(self._writes(found))
            return answer_of(await read[name, found], params, found.version)
        if found is not None:
            return found
        try:
            return await pending.result(WAIT_SECONDS_MAX)
        except TimeoutError:
            return None

    def _look(
        self, session: Session, params: Params, reply: Reply[Answer | None]
    ) -> AppliedRange | Answer | None:
        """Return what is known of a write; if nothing is, `reply` hears of it in time.

        A range is returned if what it did isn't remembered here.
        """
        incarnation, sequence = str(params.get("incarnation", "")), int(params.get("sequence", 0))
        operation, readable = int(params.get("operation", 0)), bool(params.get("readable"))
        name = parse_table_id(params.get("table", ""))
        table = table_of(session.follower.machine, name, incarnation)
        found = known_of(session, table, incarnation, sequence, readable=readable)
        if isinstance(found, AppliedRange):
            rows = table.rows if table is not None else None
            kept = rows.recent.get(found.through) if rows is not None else None
            return found if kept is None else answer_of(kept, params, found.version)
        if found is None:
            deadline = session.now() + _seconds(params)
            self.due_at = min(self.due_at, deadline)
            key = (incarnation, sequence, operation)
            self._waiting.setdefault(key, []).append(_Waiter(readable, reply, deadline))
        return found

    async def _writes(self, application: AppliedRange) -> Sequence[AppliedWrite]:
        submitted = await asyncio.to_thread(self._transaction_at, application.offset)
        return [
            write
            for operation in submitted.operations
            if isinstance(operation, ApplyRows) and operation.through == application.through
            for write in operation.writes
        ]

    def _tell(self, events: Sequence[Event], readable: bool) -> None:
        self._tell_of(events, readable)
        if self._count >= self._wanted and self._loop is not None:
            self._wanted = inf
            # Nothing waits in an event loop that has ended.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._accepted.set)

    def _tell_of(self, events: Sequence[Event], readable: bool) -> None:
        for event in events:
            for change in event.changes:
                if change.kind in ENDS:
                    self._tell_end(change.incarnation)
            for operation in event.submitted.operations:
                if isinstance(operation, WriteRows) and not readable:
                    self._count += 1
                    self._keep_record(event)
                elif isinstance(operation, ApplyRows):
                    self._tell_applied(event, operation, readable or not event.awaits_files)

    def _keep_record(self, event: Event) -> None:
        sequence, results = event.outcome.sequence, event.outcome.results
        if sequence in self._records:
            return
        written = frozenset(one.incarnation for one in results if one.operation == "WriteRows")
        self._records[sequence] = event.submitted, written
        self._records_bytes += _bytes_of(event.submitted)
        while self._records_bytes > HANDED_BYTES_MAX:
            self._forget_record(next(iter(self._records)))

    def _forget_record(self, sequence: int) -> None:
        if (known := self._records.pop(sequence, None)) is not None:
            self._records_bytes -= _bytes_of(known[0])

    def _tell_applied(self, event: Event, operation: ApplyRows, readable: bool) -> None:
        made = [r for r in event.outcome.results if r.incarnation == operation.incarnation]
        version = max((r.version or r.read_version for r in made), default=0)
        for write in operation.writes:
            self._forget_record(write.sequence)
            key = (operation.incarnation, write.sequence, write.operation)
            waiters = self._waiting.get(key)
            if waiters is None:
                continue
            due = [one for one in waiters if readable or not one.readable]
            keep(self._waiting, key, [one for one in waiters if one not in due])
            for waiter in due:
                waiter.reply.give(described(write, version))

    def _tell_end(self, incarnation: str) -> None:
        for key in [key for key in self._waiting if key[0] == incarnation]:
            for waiter in self._waiting.pop(key):
                waiter.reply.give(GONE)
        for sequence in [n for n, (_, written) in self._records.items() if incarnation in written]:
            self._forget_record(sequence)


def _bytes_of(submitted: Submitted) -> int:
    return sum(map(len, getattr(submitted.record, "payloads", ()))) + _RECORD_BYTES


def _seconds(params: Params, name: str = "seconds") -> float:
    return min(max(float(params.get(name) or 0), 0.0), WAIT_SECONDS_MAX)
