"""A submitted transaction and the wait for its outcome.

A ticket is decided once, and becomes readable once. Its transaction is appended under one id and
one attempt. Until an answer comes, the same record may be appended again (if its delivery is
unknown); the leader answers it with the first one's outcome. A timeout says nothing about the
transaction: `OutcomeUnknown` carries the id under which to ask again.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Literal, TypeVar

from commitlog.adapters.tracing import tracing
from commitlog.codecs.avro import decode_log_record
from commitlog.errors import (
    CommitLogError,
    InvalidRequest,
    InvalidTransaction,
    LogClosed,
    OutcomeUnknown,
)
from commitlog.model.records import Outcome, Status, Transaction

_lock = threading.Lock()
"""Of all tickets, since it is held for moments; a forked child gets a new one."""


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)

Wait = Literal["readable", "committed"]
RESULT_TIMEOUT_SECONDS = 30.0
WAIT_SECONDS_MIN = 1.0
"""So that a call whose time ends between its attempts still hears from a leader that is there."""

Returned = TypeVar("Returned")
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)


@contextlib.contextmanager
def until(deadline: float) -> Iterator[None]:
    """Have the waits of this thread or task end then (monotonic clock), or soon after."""
    token = _DEADLINE.set(min(deadline, _DEADLINE.get()))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def in_time(work: Callable[..., Returned]) -> Callable[..., Returned]:
    """Have all waits of a method end at the `_deadline` of its object, or soon after."""

    @wraps(work)
    def call(self: Any, *given: Any, **more: Any) -> Returned:
        with until(self._deadline):
            return work(self, *given, **more)

    return call


def deadline_after(timeout: float, name: str = "timeout") -> float:
    """Return when a timeout in seconds ends; InvalidRequest for one that isn't a number.

    NaN would break the wait of all who share a connection.
    """
    try:
        if timeout > -threading.TIMEOUT_MAX:  # which NaN is not
            now = time.monotonic()
            left = max(WAIT_SECONDS_MIN, _DEADLINE.get() - now)
            return now + min(timeout, left, threading.TIMEOUT_MAX)
    except TypeError:
        pass
    raise InvalidRequest(
        f"{name}={timeout!r} is not a number of seconds",
        field=name,
        value=timeout,
        advice="Give a number, such as 60",
    )


def time_left(timeout: float) -> float:
    """Return how long a wait may take that is part of a call: no longer than that."""
    return deadline_after(timeout) - time.monotonic()


def seconds_until(deadline: float) -> float:
    """Return how long a call may still wait for an answer: never less than a second."""
    return max(deadline - time.monotonic(), WAIT_SECONDS_MIN)


def check_wait(wait: str) -> None:
    """Refuse anything but the two ways to wait."""
    if wait not in ("readable", "committed"):
        raise InvalidTransaction(
            f"wait={wait!r} is unknown",
            field="wait",
            value=wait,
            advice="Use 'readable' (its version opens by path) or 'committed' (it is in the log)",
        )


Read = Callable[[Callable[[], bool], float], bool]
"""Read answers on the calling thread until the function returns True or the time is over. Return at
once if reading isn't possible now. Return whether the function returned True."""


Attended = Callable[[Callable[[], bool]], AbstractContextManager[None]]
"""Have another thread read answers until the function returns True, or the caller leaves."""


@contextlib.contextmanager
def _nobody(is_known: Callable[[], bool]) -> Iterator[None]:
    yield


class Ticket:
    """The pending outcome of one transaction. Thread-safe, and awaitable."""

    def __init__(
        self,
        transaction: Transaction | None,
        ask: Callable[[Ticket, bool], None],
        *,
        transaction_id: str = "",
        record: bytes = b"",
        payload_hash: bytes = b"",
        session: str = "",
        read: Read | None = None,
        attended: Attended = _nobody,
        asked: bool | None = None,
    ) -> None:
        """Take the transaction and how to ask the leader for its outcome.

        Without a transaction, its id and its `record` identify it. `payload_hash` is for an id that
        may have been used before, with other content. `session` is for a new id only: the leader
        then sends the outcome unasked, whereas a used id may have several outcomes. The first
        waiter reads the answers itself (`read`). `attended` tells another thread to read, for a
        waiter that doesn't. If `asked` is given, the leader was already asked for the readable
        version (True) or for the decision.
        """
        self._transaction = transaction
        self.transaction_id = transaction_id or self.transaction.transaction_id
        """The id under which anyone may ask for the outcome."""
        self.record = record
        """What is appended; empty if it wasn't encoded yet."""
        self.payload_hash = payload_hash
        self.session = session
        self.offset = -1
        """The record's offset in the transactions topic, once Kafka acknowledged it."""
        self.delivery_error = ""
        """Why the last append was not acknowledged; empty if it was, or isn't known yet."""
        self._ask = ask
        self._read = read
        self._attended = attended
        self._decided: Outcome | None = None
        self._readable: Outcome | None = None
        self._failure: CommitLogError | None = None
        self._waiting: list[tuple[bool, Callable[[], object]]] = []
        """What tells callers that wait without reading; True: of the readable version."""
        self._asked = asked
        self.awaits_rows = False
        """Whether the leader holds the outcome back until its rows can be read."""
        self.applied: list[Any] | None = None
        """The results of its writes of rows, if the leader sent them with the outcome."""
        self.traced_from = 0.0
        """When it was submitted, if it is traced and its span wasn't reported yet."""

    @property
    def transaction(self) -> Transaction:
        """The submitted transaction."""
        if self._transaction is None:
            made = decode_log_record(self.transaction_id.encode(), self.record)
            assert isinstance(made, Transaction)  # this program encoded it
            self._transaction = made
        return self._transaction

    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self._decided is not None or self._failure is not None

    def result(self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: Wait = "readable") -> Outcome:
        """Wait for the outcome; OutcomeUnknown if it doesn't come within `timeout` seconds.

        With `wait="readable"` a committed version can be opened by path when this returns.
        """
        deadline = deadline_after(timeout)
        try:
            is_known = self._ask_for(wait)
            if not (is_known() if self._read is None else self._read(is_known, deadline)):
                # No Future: Ctrl-C within its methods would leave its lock held, for whom it waits.
                told: queue.SimpleQueue[None] = queue.SimpleQueue()
                with (
                    contextlib.suppress(queue.Empty),
                    self._attended(is_known),
                    self._told(wait, partial(told.put, None)),
                ):
                    told.get(timeout=max(0.0, deadline - time.monotonic()))
        except LogClosed:
            raise self._unreachable() from None
        return self._found(timeout, wait)

    def __await__(self) -> Generator[Any, None, Outcome]:
        """Wait as `result()` does, without blocking the event loop."""
        return self.result_async().__await__()

    async def result_async(
        self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: Wait = "readable"
    ) -> Outcome:
        """Wait as `result` does, without blocking the event loop."""
        import asyncio

        deadline = deadline_after(timeout)
        try:
            is_known = self._ask_for(wait)
            if not is_known():
                left = max(0.0, deadline - time.monotonic())
                future: Future[None] = Future()
                # One awaiting task may be cancelled; the answer still belongs to the others.
                future.set_running_or_notify_cancel()
                with self._attended(is_known), self._told(wait, partial(future.set_result, None)):
                    await asyncio.wait({asyncio.wrap_future(future)}, timeout=left)
        except LogClosed:
            raise self._unreachable() from None
        return self._found(timeout, wait)

    def __repr__(self) -> str:
        """Show the id and what is known."""
        state = "readable" if self._readable else "decided" if self.done() else "pending"
        return f"Ticket({self.transaction_id!r}, {state})"

    def ask_at_once(self) -> None:
        """Request an outcome that the leader holds back: a caller doesn't wait for its rows."""
        if self.awaits_rows and not self.done():
            self.awaits_rows = False
            try:
                self._ask(self, True)
            except LogClosed:
                raise self._unreachable() from None

    def deliver(self, outcome: Outcome, readable: bool) -> None:
        """Take an answer from the leader or the topic."""
        with _lock:
            self._decided = self._decided or outcome
            if readable or outcome.status is not Status.COMMITTED:
                self._readable = self._readable or outcome
        if self.traced_from and (self._readable or not self._asked):
            self._trace(outcome)
        if self._waiting:
            self._wake()

    def _trace(self, outcome: Outcome) -> None:
        """Report the whole trace of a traced transaction, once."""
        began, self.traced_from = self.traced_from, 0.0
        spans = tracing()
        if began and spans is not None:
            took, status = time.monotonic() - began, str(outcome.status)
            spans.first(self.transaction_id, "commit", took, status=status)

    def fail(self, error: CommitLogError) -> None:
        """Note that the transaction certainly wasn't appended, or that no answer will come."""
        with _lock:
            if self._decided is None or isinstance(error, OutcomeUnknown):
                self._failure = error
        self._wake()

    def _wake(self) -> None:
        if not self._waiting:
            return
        with _lock:
            due = [tell for readable, tell in self._waiting if self._knows(readable)]
            self._waiting = [each for each in self._waiting if each[1] not in due]
        for tell in due:
            tell()

    def _knows(self, readable: bool) -> bool:
        known = self._readable if readable else self._decided
        return known is not None or self._failure is not None

    def _ask_for(self, wait: Wait) -> Callable[[], bool]:
        """Ask the leader unless that was done; return a function that says whether it answered."""
        readable = wait == "readable"
        if not readable:
            check_wait(wait)
        if readable != self._asked and not self._knows(readable):
            with _lock:
                ask, self._asked = readable != self._asked, readable
            if ask:
                self._ask(self, readable)
        return partial(self._knows, readable)

    @contextlib.contextmanager
    def _told(self, wait: Wait, tell: Callable[[], object]) -> Iterator[None]:
        """Have a caller that waits meanwhile be told when the answer is there."""
        waiting = (wait == "readable", tell)
        with _lock:
            self._waiting.append(waiting)
        try:
            self._wake()
            yield
        finally:
            with _lock:
                self._waiting = [one for one in self._waiting if one is not waiting]

    def _found(self, timeout: float, wait: Wait) -> Outcome:
        found = self._readable if wait == "readable" else self._decided
        if found is not None:
            return found
        if self._failure is not None:
            raise self._failure
        raise self._unknown(timeout, wait)

    def _unreachable(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"the answer to transaction {self.transaction_id} doesn't come here: the client was "
            "closed, or this process was forked from the one that submitted it. Ask for it with "
            "log.outcome(id)",
            self.transaction_id,
        )

    def _unknown(self, timeout: float, wait: Wait) -> OutcomeUnknown:
        known = self._decided
        if known is not None:
            where = f"it is {known.status} in the log (sequence {known.sequence}), but not readable"
        elif not self.transaction.operations:
            where = "nothing has been decided under this id, if it was ever submitted"
        elif self.offset >= 0:
            where = f"it is in the log at offset {self.offset}, but this client has seen no outcome"
        elif self.delivery_error:
            where = f"its delivery to Kafka is not acknowledged: {self.delivery_error}"
        else:
            where = "it may not have reached Kafka"
            if wait == "readable":
                where += ", or be committed and lack its files (`commitlog doctor` says so)"
        return OutcomeUnknown(
            f"transaction {self.transaction_id} has no answer after {round(timeout, 2):g} s "
            f"(wait={wait}): {where}. Ask again with log.outcome(id), or submit it again with "
            "this id",
            self.transaction_id,
        )
