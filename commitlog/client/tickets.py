"""A submitted transaction and the wait for its outcome.

A ticket is decided once, and becomes readable once. Its transaction was appended under one id and
one attempt; until an answer comes it may be appended again as it is (an unknown delivery), which
the leader answers with the first one's outcome. Running out of time says nothing about the
transaction: `OutcomeUnknown` carries the id under which to ask again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Literal

from commitlog.errors import CommitLogError, InvalidTransaction, OutcomeUnknown
from commitlog.model.records import Outcome, Status, Transaction

Wait = Literal["readable", "committed"]
RESULT_TIMEOUT_SECONDS = 30.0


def check_wait(wait: str) -> None:
    """Refuse anything but the two ways to wait."""
    if wait not in ("readable", "committed"):
        raise InvalidTransaction(
            f"wait={wait!r} is unknown",
            field="wait",
            value=wait,
            advice="Use 'readable' (its version opens by path) or 'committed' (it is in the log)",
        )


def _future() -> Future[Outcome]:
    future: Future[Outcome] = Future()
    # Whoever awaits it may be cancelled; the answer still belongs to the others.
    future.set_running_or_notify_cancel()
    return future


class Ticket:
    """The pending outcome of one transaction. Thread-safe, and awaitable."""

    def __init__(
        self,
        transaction: Transaction,
        ask: Callable[[Ticket, bool], None],
        *,
        payload_hash: bytes = b"",
    ) -> None:
        """Take the transaction and how to ask the leader for its outcome.

        `payload_hash` is given where the id may have been used before, with other content.
        """
        self.transaction = transaction
        self.payload_hash = payload_hash
        self.offset = -1
        """The record's offset in the transactions topic, once Kafka acknowledged it."""
        self.delivery_error = ""
        """Why the last append was not acknowledged; empty if it was, or isn't known yet."""
        self._ask = ask
        self._decided = _future()
        self._readable = _future()
        self._asked_readable = False
        self._asked = False
        self._lock = threading.Lock()

    @property
    def transaction_id(self) -> str:
        """The id by which anybody may ask for the outcome."""
        return self.transaction.transaction_id

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._decided.done()

    def result(self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: Wait = "readable") -> Outcome:
        """Wait for the outcome; OutcomeUnknown if it doesn't come in time.

        With `wait="readable"` a committed version can be opened by path when this returns.
        """
        future = self._future_for(wait)
        try:
            return future.result(timeout)
        except TimeoutError:
            raise self._unknown(timeout, wait) from None

    def __await__(self) -> Generator[Any, None, Outcome]:
        """Wait as `result()` does, without blocking the event loop."""
        return self.result_async().__await__()

    async def result_async(
        self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: Wait = "readable"
    ) -> Outcome:
        """Wait as `result` does, without blocking the event loop."""
        future = asyncio.wrap_future(self._future_for(wait))
        done, _ = await asyncio.wait({future}, timeout=timeout)
        if not done:
            future.cancel()
            raise self._unknown(timeout, wait)
        return future.result()

    def __repr__(self) -> str:
        """Show the id and what is known."""
        state = "readable" if self._readable.done() else "decided" if self.done() else "pending"
        return f"Ticket({self.transaction_id!r}, {state})"

    def ask_ahead(self, *, readable: bool) -> None:
        """Have the outcome sent as soon as there is one, before anybody waits."""
        with self._lock:
            if self._asked:
                return
            self._asked, self._asked_readable = True, readable
        self._ask(self, readable)

    def deliver(self, outcome: Outcome, readable: bool) -> None:
        """Take an answer from the leader or the topic."""
        with self._lock:
            if not self._decided.done():
                self._decided.set_result(outcome)
            is_final = readable or outcome.status is not Status.COMMITTED
            if is_final and not self._readable.done():
                self._readable.set_result(outcome)

    def fail(self, error: CommitLogError) -> None:
        """Note that the transaction surely wasn't appended."""
        with self._lock:
            for future in (self._decided, self._readable):
                if not future.done():
                    future.set_exception(error)

    def _future_for(self, wait: Wait) -> Future[Outcome]:
        check_wait(wait)
        future = self._readable if wait == "readable" else self._decided
        if not future.done():
            with self._lock:
                wants_readable = wait == "readable"
                ask = not self._asked or wants_readable != self._asked_readable
                self._asked, self._asked_readable = True, wants_readable
            if ask:
                self._ask(self, wants_readable)
        return future

    def _unknown(self, timeout: float, wait: Wait) -> OutcomeUnknown:
        if self._decided.done():
            known = self._decided.result()
            where = f"it is {known.status} in the log (sequence {known.sequence}), but not readable"
        elif self.offset >= 0:
            where = f"it is in the log at offset {self.offset}, undecided as far as this client saw"
        elif self.delivery_error:
            where = f"its delivery to Kafka is not acknowledged: {self.delivery_error}"
        else:
            where = "its delivery to Kafka is not acknowledged yet"
        return OutcomeUnknown(
            f"transaction {self.transaction_id} has no answer after {timeout:g} s (wait={wait}):"
            f" {where}. Ask again with log.outcome(id), or submit the same again under this id",
            self.transaction_id,
        )
