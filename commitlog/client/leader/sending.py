"""How a record leaves a client: through its leader's socket, or else by a producer of its own.

The leader appends what many writers send in one request, so a writer whose leader takes records
opens no producer. What a leader was sent is in Kafka once there is an outcome; what has none when
the socket ends, or what a leader refuses, is sent again under its id, by whichever way there is
then. So one id may come by both ways, and gets one answer.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from commitlog.adapters.log_records import encode_to_append
from commitlog.client.leader.awaited import SentRecord
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.moved import ASK_SECONDS, where_moved
from commitlog.client.leader.tickets import Ticket
from commitlog.errors import (
    CommitLogError,
    LogClosed,
    LogMoved,
    Overloaded,
    Unavailable,
    WrongLog,
)
from commitlog.model.records import Transaction
from commitlog.ports import DeliveryFailed, Log, TransactionsWriter
from commitlog.wire import AppendFrame

DELIVERY_SECONDS = 0.5
"""How often Kafka's acknowledgements are polled while some are due and nothing is sent. Outcomes
come by the socket, so only failures wait for this poll; a thread that woke for each acknowledgement
would cost more than the commit."""
IDLE_SECONDS = 60.0
CHECK_SECONDS = 60.0
"""How often a producer that is used asks whether its log is still the same one."""
RESEND_FOR_SECONDS = 300.0
"""How long a transaction whose delivery failed is sent again under its id."""
FULL_TABLE_SECONDS = 10.0
"""The same while the leader takes no more for its table: the store may be away for hours."""
GREETING_SECONDS = 1.0
"""How long the first record waits for a leader to greet, before a producer is opened for it."""
SETTLE_SECONDS = 2.0
"""How long a flush waits for outcomes of what the leader has, before it appends that by itself."""
_RESEND_DELAYS = (0.1, 2.0)

_log = logging.getLogger("commitlog")


@dataclass(order=True, slots=True)
class _Resend:
    due: float
    number: int
    ticket: Ticket = field(compare=False)
    tries: Tries = field(compare=False)


@dataclass(frozen=True, slots=True)
class Tries:
    """What is known of a record that was sent before."""

    delay: float = _RESEND_DELAYS[0]
    """Before the next time, in seconds."""
    until: float = 0.0
    """When to give up, by the monotonic clock; 0 before the first failure."""
    may_be_appended: bool = False
    why: CommitLogError | None = None
    """What the leader said the last time, if it takes no more for the moment."""


FIRST = Tries()


class Sending:
    """Sends the records of one process. Thread-safe."""

    def __init__(
        self,
        log: Log,
        connection_of: Callable[[Transaction], LeaderConnection],
        *,
        forget: Callable[[Ticket], None],
        by_leader: bool = True,
    ) -> None:
        """Send through the connection of a transaction's partition, if `by_leader`.

        Once nothing more is tried for a ticket, `forget` it.
        """
        self._log, self._connection_of, self._forget = log, connection_of, forget
        self._by_leader = by_leader
        self._lock = threading.Lock()
        self._writer: TransactionsWriter | None = None
        self._checked = 0.0
        """When the producer's log was seen to be the same one, by the monotonic clock."""
        self._resends: list[_Resend] = []
        self._numbers = itertools.count()
        self._closed = threading.Event()
        self._on_its_way = 0
        self._sent = threading.Event()
        self._pump: threading.Thread | None = None

    def send(self, ticket: Ticket, connection: LeaderConnection, tries: Tries = FIRST) -> None:
        """Have the leader append a record; where none would, append it here.

        Raises:
            Overloaded: too much is on its way to Kafka; nothing was sent.
            LogClosed: the client was closed.
        """
        if self._pump is None:
            self._begin()
        if self._by_leader:
            append = AppendFrame(
                ticket.transaction_id,
                bool(ticket.session),
                ticket.record or encode_to_append(ticket.transaction),
                ticket.awaits_rows,
            )
            sent = SentRecord(ticket, partial(self._failed, ticket, tries))
            if connection.append(append, sent, GREETING_SECONDS):
                return
        self._produce(ticket, connection.partition, tries)

    def flush(self, connections: Sequence[LeaderConnection], timeout_seconds: float) -> None:
        """Wait until Kafka has what was sent.

        Of what a leader was sent, the outcome says so; what gets none soon is appended here.
        """
        deadline = time.monotonic() + timeout_seconds
        patience = min(deadline, time.monotonic() + SETTLE_SECONDS)
        left = [one.ticket for connection in connections for one in connection.unsettled()]
        for ticket in left:
            with contextlib.suppress(CommitLogError):
                ticket.result(max(0.0, patience - time.monotonic()), wait="committed")
        with self._lock:
            left += [resend.ticket for resend in self._resends]
        for ticket in left:
            if not ticket.done():
                partition = self._connection_of(ticket.transaction).partition
                with contextlib.suppress(CommitLogError):
                    self._produce(ticket, partition, replace(FIRST, may_be_appended=True))
        writer = self._writer
        if writer is not None:
            writer.flush(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Give up what is on its way."""
        self._closed.set()
        self._sent.set()
        with self._lock:
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _begin(self) -> None:
        """Have what is sent from now on looked after."""
        with self._lock:
            if self._closed.is_set():
                raise LogClosed
            if self._pump is None:
                self._pump = self._begin_pump()

    def _begin_pump(self) -> threading.Thread:
        pump = threading.Thread(target=self._run_pump, name="commitlog-deliveries", daemon=True)
        pump.start()
        return pump

    def _open_writer(self) -> TransactionsWriter:
        writer = self._writer
        if writer is None:
            if not self._closed.is_set():
                self._check_log()  # without the lock, which whoever takes acknowledgements needs
            with self._lock:
                if self._closed.is_set():
                    raise LogClosed
                if self._writer is None:
                    self._writer = self._log.transactions_writer()
                writer = self._writer
        return writer

    def _check_log(self) -> None:
        """Raise WrongLog if another log has this one's name, which a leader would say by itself.

        A log that was moved away takes no records, and its tickets say where it is.
        """
        self._checked = time.monotonic()
        with contextlib.suppress(Unavailable, LogMoved):
            self._log.check_here(ASK_SECONDS)

    def _check_log_again(self) -> None:
        """Close a producer whose log isn't there any more; the next record is told why."""
        try:
            self._check_log()
        except WrongLog:
            with self._lock:
                writer, self._writer = self._writer, None
            if writer is not None:
                writer.close()

    def _produce(self, ticket: Ticket, partition: int, tries: Tries) -> None:
        """Append a record by a producer of our own."""

        def delivered(offset: int, error: Exception | None) -> None:
            with self._lock:
                self._on_its_way -= 1
            if error is None:
                ticket.offset, ticket.delivery_error = offset, ""
            else:
                self._failed(ticket, tries, error)

        writer = self._writer or self._open_writer()
        writer.append(
            ticket.transaction, partition=partition, on_delivery=delivered, session=ticket.session
        )
        with self._lock:
            self._on_its_way += 1
        writer.poll(0)
        if not self._sent.is_set():
            self._sent.set()

    def _failed(self, ticket: Ticket, tries: Tries, error: Exception) -> None:
        """Have a record sent again that wasn't acknowledged."""
        ticket.delivery_error = str(error)
        why = error if isinstance(error, Overloaded) else None
        wait = why.retry_after_seconds if why is not None else 0.0
        is_sure = bool(wait) or (isinstance(error, DeliveryFailed) and error.appended is False)
        now = time.monotonic()
        is_full = why is not None and bool(why.table)
        again = Tries(
            delay=min(2 * tries.delay, _RESEND_DELAYS[1]),
            until=tries.until or now + (FULL_TABLE_SECONDS if is_full else RESEND_FOR_SECONDS),
            may_be_appended=tries.may_be_appended or not is_sure,
            why=why,
        )
        resend = _Resend(now + max(tries.delay, wait), next(self._numbers), ticket, again)
        with self._lock:
            heapq.heappush(self._resends, resend)
        self._sent.set()

    def _run_pump(self) -> None:
        while not self._closed.is_set():
            self._sent.wait(IDLE_SECONDS)
            self._sent.clear()
            self._closed.wait(DELIVERY_SECONDS)
            self._deliver()
            if self._on_its_way or self._resends:
                self._sent.set()

    def _deliver(self) -> None:
        """Take Kafka's acknowledgements, and send again what it didn't take."""
        try:
            if (writer := self._writer) is not None:
                writer.poll(0)
                if time.monotonic() - self._checked > CHECK_SECONDS:
                    self._check_log_again()
            self._resend_due()
        except Exception:
            _log.exception("sending records again failed")

    def _resend_due(self) -> None:
        """Send again, under the same id, what Kafka didn't acknowledge."""
        while self._resends and self._resends[0].due <= time.monotonic():
            resend = self._resends[0]
            due = self._resend(resend)
            with self._lock:
                # Kept until now, so that nothing that goes wrong on the way loses it. It is still
                # the first one: what others added meanwhile is due later.
                heapq.heappop(self._resends)
                if due:
                    heapq.heappush(self._resends, replace(resend, due=due))

    def _resend(self, resend: _Resend) -> float:
        """Send a transaction again if it still matters; return when to try again, else 0."""
        ticket, tries = resend.ticket, resend.tries
        if ticket.done() or self._was_moved(ticket):
            return 0.0
        if resend.due > tries.until:
            if not tries.may_be_appended:
                why = f"Kafka did not take the record: {ticket.delivery_error}"
                ticket.fail(tries.why or Unavailable(why))
                self._forget(ticket)
            return 0.0
        try:
            self.send(ticket, self._connection_of(ticket.transaction), tries)
        except Overloaded as error:
            return time.monotonic() + error.retry_after_seconds
        except CommitLogError as error:
            ticket.delivery_error = str(error)
            return time.monotonic() + tries.delay
        return 0.0

    def _was_moved(self, ticket: Ticket) -> bool:
        """Tell a ticket if the log takes no record here any more, because it is elsewhere."""
        moved = where_moved(self._log)
        if moved is not None:
            ticket.fail(moved.about(ticket.transaction_id))
            self._forget(ticket)
        return moved is not None
