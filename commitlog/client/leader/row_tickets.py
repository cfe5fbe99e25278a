"""Waiting for the results of writes of rows, after they are accepted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from commitlog.client.leader.runtime import Runtime
from commitlog.client.leader.tickets import RESULT_TIMEOUT_SECONDS, Ticket, Wait, deadline_after
from commitlog.errors import (
    CommitLogError,
    InvalidTransaction,
    LogClosed,
    OutcomeUnknown,
    Unavailable,
)
from commitlog.model.limits import ROWS_SINCE
from commitlog.model.operations import WriteRows
from commitlog.model.records import Code, Outcome, Status, Transaction

RowsWait = Literal["accepted", "committed", "readable"]
REQUEST_SECONDS = 20.0
"""How long the leader is asked at once for what came of a write."""
PAUSE_SECONDS = 0.1
HELD_SECONDS_MIN = 5.0
"""Who has less time asks for an outcome that its leader holds back, to know at least that."""
_WRITE = WriteRows.__name__
_FIELDS = tuple(one.name for one in fields(Outcome))
_VALUES = attrgetter(*_FIELDS)


class RowsApplied(NamedTuple):
    """The result of one write of rows."""

    operation: int
    """The number of its operation in the transaction."""
    version: int
    """The table's version that has it; 0 if the leader has forgotten that."""
    inserted: int
    updated: int
    deleted: int
    refused: str = ""
    """The code of a refusal; empty: it was applied."""
    problem: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class RowsOutcome(Outcome):
    """The outcome of a transaction that writes rows, with their results."""

    writes: tuple[RowsApplied, ...] = ()
    """One for each write of rows in it; empty while they are only accepted."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows were inserted, updated and deleted."""
        return {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}

    @property
    def inserted(self) -> int:
        """How many rows were inserted."""
        return sum(write.inserted for write in self.writes)

    @property
    def updated(self) -> int:
        """How many rows were updated."""
        return sum(write.updated for write in self.writes)

    @property
    def deleted(self) -> int:
        """How many rows were deleted."""
        return sum(write.deleted for write in self.writes)


def check_rows_wait(wait: str) -> None:
    """Reject anything but the three ways to wait."""
    if wait not in ("accepted", "committed", "readable"):
        raise InvalidTransaction(
            f"wait={wait!r} is unknown",
            field="wait",
            value=wait,
            advice="Use 'accepted' (it is in the log), 'committed' (a version has it) or"
            " 'readable' (that version opens by path)",
        )


NO_ROWS = (
    f"If the log's protocol is older than {ROWS_SINCE}, records cannot hold rows: use "
    "log.append or log.merge_insert, or run `commitlog rules --upgrade` once all "
    "programs that follow the log are upgraded"
)


class RowsTicket:
    """The pending outcome of a write of rows. Thread-safe, and awaitable."""

    def __init__(
        self, runtime: Runtime, ticket: Ticket, on_stale: Callable[[], object] = lambda: None
    ) -> None:
        """Take the ticket of the transaction that has the rows.

        `on_stale` is called if the table turns out to differ from what the writer knew.
        """
        self._runtime = runtime
        self._ticket = ticket
        self._on_stale = on_stale

    @property
    def transaction_id(self) -> str:
        """The id under which anyone may ask for the outcome."""
        return self._ticket.transaction_id

    @property
    def transaction(self) -> Transaction:
        """The transaction that has the rows."""
        return self._ticket.transaction

    def done(self) -> bool:
        """Return True once it is known whether the rows are accepted."""
        return self._ticket.done()

    def result(
        self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: RowsWait = "readable"
    ) -> RowsOutcome:
        """Wait until the rows are accepted, a version has them, or that version opens by path.

        Raises OutcomeUnknown after `timeout` seconds.
        """
        check_rows_wait(wait)
        deadline = deadline_after(timeout)
        outcome = self._ticket.result(timeout, self._accepted(timeout, wait))
        return self._settled(outcome, wait, deadline)

    def __await__(self) -> Generator[Any, None, RowsOutcome]:
        """Wait as `result()` does, without blocking the event loop."""
        return self.result_async().__await__()

    async def result_async(
        self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: RowsWait = "readable"
    ) -> RowsOutcome:
        """Wait as `result` does, without blocking the event loop."""
        import asyncio

        check_rows_wait(wait)
        deadline = deadline_after(timeout)
        ticket = self._ticket
        outcome = await ticket.result_async(timeout, self._accepted(timeout, wait))
        is_known = outcome.status is Status.COMMITTED
        if is_known and (wait == "accepted" or ticket.applied is not None):
            return self._settled(outcome, wait, deadline)
        # The leader has to be asked.
        return await asyncio.to_thread(self._settled, outcome, wait, deadline)

    def _accepted(self, timeout: float, wait: RowsWait) -> Wait:
        self._runtime.rows_hint = wait == "readable"
        return _wait_for(self._ticket, timeout, is_held=self._runtime.rows_hint)

    def _settled(self, outcome: Outcome, wait: RowsWait, deadline: float) -> RowsOutcome:
        if outcome.code in (Code.WRONG_SCHEMA, Code.TABLE_REPLACED):
            with contextlib.suppress(CommitLogError):
                self._on_stale()
        return settled(self._runtime, outcome, wait, deadline, self._ticket.applied)

    def __repr__(self) -> str:
        """Show the id and what is known."""
        return f"RowsTicket({self.transaction_id!r}, {'accepted' if self.done() else 'pending'})"


def accepted(ticket: Ticket, timeout: float) -> Outcome:
    """Wait until the rows of a transaction are in the log, or readable if the outcome is held."""
    return ticket.result(timeout, _wait_for(ticket, timeout, is_held=True))


def _wait_for(ticket: Ticket, timeout: float, *, is_held: bool) -> Wait:
    """Return for what to wait, so that rows are in the log, or readable if the outcome `is_held`.

    A caller that waits for files gets the outcome unasked; without files, that is at once.
    """
    if not is_held or timeout < HELD_SECONDS_MIN:
        ticket.ask_at_once()
    has_files = any(not isinstance(one, WriteRows) for one in ticket.transaction.operations)
    return "committed" if has_files else "readable"


def writes_rows(outcome: Outcome) -> bool:
    """Return True if a committed transaction wrote rows."""
    return any(result.operation == _WRITE for result in outcome.results)


def settled_if_rows(runtime: Runtime, outcome: Outcome, wait: RowsWait, deadline: float) -> Outcome:
    """Return an outcome, with the results of its rows if it has any."""
    return settled(runtime, outcome, wait, deadline) if writes_rows(outcome) else outcome


def settled(
    runtime: Runtime,
    outcome: Outcome,
    wait: RowsWait,
    deadline: float,
    applied: list[Any] | None = None,
) -> RowsOutcome:
    """Return an outcome with the results of its rows, once a row writer has applied them.

    The leader is asked for them if it hasn't sent them.
    """
    if wait == "accepted" and outcome.status is Status.COMMITTED:
        return RowsOutcome(*_VALUES(outcome))
    known = dict(zip(_FIELDS, _VALUES(outcome), strict=True))
    if outcome.code is Code.MALFORMED_RECORD:
        known["message"] = f"{outcome.message}. {NO_ROWS}"
    if outcome.status is not Status.COMMITTED:
        return RowsOutcome(**known)
    results = list(outcome.results)
    if applied is not None:
        writes = [RowsApplied(*one) for one in applied]
    else:
        writes = _applied(runtime, outcome, wait, deadline)
    for write in writes:
        index = write.operation
        results[index] = replace(results[index], version=write.version)
    known |= {"results": tuple(results), "writes": tuple(writes)}
    if refused := next((write for write in writes if write.refused), None):
        code = Code(refused.refused) if refused.refused in set(Code) else Code.ROWS_REFUSED
        problem = f"the rows were accepted, but refused when they were applied: {refused.problem}"
        known |= {"status": Status.REJECTED, "code": code, "message": problem}
    return RowsOutcome(**known)


def _applied(
    runtime: Runtime, outcome: Outcome, wait: RowsWait, deadline: float
) -> list[RowsApplied]:
    """Ask the leader what came of a transaction's writes: of all of them at once."""
    sequence = outcome.answers or outcome.sequence
    missing: list[dict[str, Any]] = [
        {"table": list(result.table), "incarnation": result.incarnation, "operation": index}
        for index, result in enumerate(outcome.results)
        if result.operation == _WRITE
    ]
    about = {"sequence": sequence, "readable": wait == "readable"}
    found: list[RowsApplied] = []
    unknown = f"transaction {outcome.transaction_id} is accepted at position {sequence}, but "
    while missing:
        left = deadline - time.monotonic()
        if left <= 0:
            raise OutcomeUnknown(
                f"{unknown}was not {wait} in time; check that a row writer is "
                "running (`commitlog rows`), and ask again with log.outcome(id)",
                outcome.transaction_id,
            )
        first: dict[str, Any] = {**about, **missing[0]}
        more = {"each": missing} if len(missing) > 1 else {}
        partition = runtime.domains.partition(tuple(first["table"]))
        try:
            seconds = min(left, REQUEST_SECONDS)
            answer = runtime.request(partition, "rows_applied", **first, **more, seconds=seconds)
        except LogClosed:
            raise OutcomeUnknown(
                f"{unknown}the client was closed before it was {wait}; ask for it with"
                " log.outcome(id)",
                outcome.transaction_id,
            ) from None
        except Unavailable:
            time.sleep(min(PAUSE_SECONDS, max(left, 0)))
            continue
        # A leader that knows no `each` answers for the first one.
        answers = answer["each"] if isinstance(answer, dict) else [answer]
        waiting = []
        for one, said in zip_longest(missing, answers):
            if said is None:
                waiting.append(one)
            else:
                found.append(RowsApplied(one["operation"], *said))
        missing = waiting
    return sorted(found)
