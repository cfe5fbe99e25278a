"""A client's resources in one process: the writer, its connections to the leaders, its threads.

Nothing here survives a fork; `CommitLog` makes a new runtime in a child. All threads are daemons:
a program can end without closing anything, and submitted records get a moment to reach Kafka.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from commitlog.adapters.tracing import tracing
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.fallback import Fallback
from commitlog.client.leader.sending import Sending
from commitlog.client.leader.tickets import Ticket, time_left
from commitlog.codecs.avro import payload_hash
from commitlog.core.log.attribution import attributed
from commitlog.errors import InvalidSettings, InvalidTransaction, LogClosed, Overloaded
from commitlog.model.operations import deciding_name, target
from commitlog.model.records import Genesis, Outcome, Transaction
from commitlog.model.table import DomainMap, TableId, format_table_id
from commitlog.ports import Log
from commitlog.wire import Watch

EXIT_FLUSH_SECONDS = 5.0
OVERLOAD_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """A client's settings, apart from Kafka's own."""

    token: str = ""
    fallback_after_seconds: float = 3.0
    by_leader: bool = True
    """Whether records go to the leader, if it takes them, instead of Kafka."""
    request_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        """Reject what can't be sent as a token."""
        if not isinstance(self.token, str):
            raise InvalidSettings(f"a token is text, not {type(self.token).__name__}")


class Runtime:
    """One process's part of a client. Thread-safe."""

    def __init__(
        self, log: Log, settings: RuntimeSettings, is_readable: Callable[[Outcome], bool]
    ) -> None:
        """Take a log that exists; raises WrongLog if it doesn't."""
        self.log = log
        self.genesis: Genesis = log.genesis(0)
        self.partitions = log.partitions()
        self.domains = DomainMap(self.genesis.domains)
        self._settings = settings
        self._session = secrets.token_hex(8)
        """Names this client to the leader, which sends it outcomes before it asks for them."""
        self._is_readable = is_readable
        self._lock = threading.Lock()
        self._connections: dict[int, LeaderConnection] = {}
        self._fallbacks: list[Fallback] = []
        self._closed = threading.Event()
        # The threads hold their parts, and not the client: if nobody else has it, they end.
        self._reference = weakref.ref(self)
        self._sending = Sending(
            log,
            partial(_connection_of, self._reference),
            forget=partial(_forget, self._reference),
            by_leader=settings.by_leader,
        )
        self._end = partial(_end, self._closed, self._connections, self._fallbacks, self._sending)
        flush_at_exit(self)
        _leave_in_children(self)
        self.readable_hint = True
        """Whether the last wait was for the readable version; the next submit requests the same."""
        self.rows_hint = True
        """Whether the last wait for rows was until they can be read."""

    def connection(self, partition: int) -> LeaderConnection:
        """Return the connection to a partition's leader, beginning to connect on first use."""
        with self._lock:
            if self._closed.is_set():
                raise LogClosed
            found = self._connections.get(partition)
            if found is None:
                found = LeaderConnection(
                    self.log,
                    name=self.log.name,
                    log_id=self.genesis.log_id,
                    partition=partition,
                    token=self._settings.token,
                    session=self._session,
                    home=self.log.home(),
                )
                self._connections[partition] = found
                self._fallbacks.append(
                    Fallback(
                        self.log,
                        found,
                        is_readable=self._is_readable,
                        after_seconds=self._settings.fallback_after_seconds,
                        end_if_alone=partial(_end_if_alone, self._reference, self._end),
                    )
                )
                found.open_early()
        return found

    def partition_of(self, transaction: Transaction) -> int:
        """Return the partition that decides a transaction; refuse one that would need two."""
        if not self.domains.partitions:
            return 0
        first: dict[int, TableId] = {}
        for operation in transaction.operations:
            partition = self.domains.partition(deciding_name(operation))
            first.setdefault(partition, target(operation))
        if len(first) > 1:
            (one, a), (two, b), *_ = sorted(first.items())
            raise InvalidTransaction(
                f"{format_table_id(a)} is decided by partition {one} and {format_table_id(b)} by "
                f"partition {two}: one transaction cannot change both",
                field="operations",
                value=(format_table_id(a), format_table_id(b)),
                advice=(
                    "Split the transaction, or put tables that commit together into one top-level "
                    "namespace"
                ),
            )
        return next(iter(first), 0)

    def partitions_of(self, namespace: TableId | None) -> Sequence[int]:
        """Return the partitions that know what is in a namespace; without one, all."""
        if namespace is None:
            return range(self.partitions)
        return (self.domains.partition((*namespace, "")),)

    def request(self, partition: int, method: str, **params: Any) -> Any:
        """Ask a partition's leader."""
        return self.ask(partition, method, **params)()

    def leader_time_ms(self, table: TableId) -> int:
        """Return what the clock of a table's leader says, in milliseconds since 1970.

        Ages and leases count by it, since this machine's clock may be wrong.
        """
        status = self.request(self.domains.partition(table), "status")
        return int(status.get("clock_ms") or time.time_ns() // 1_000_000)

    def request_all(self, method: str, within: TableId | None, **params: Any) -> Iterator[Any]:
        """Ask for what is in a namespace, or for all; older leaders always tell all they have."""
        if within:
            params["within"] = list(within)
        for partition in self.partitions_of(within):
            yield from self.request(partition, method, **params)

    def ask(self, partition: int, method: str, **params: Any) -> Callable[[], Any]:
        """Send a request to a partition's leader; return a function that waits for the answer."""
        timeout = time_left(self._settings.request_timeout_seconds)
        return self.connection(partition).ask(method, params, timeout)

    def submit(
        self,
        transaction: Transaction,
        *,
        id_is_new: bool,
        any_content: bool = False,
        is_first: bool = False,
        awaits_rows: bool = False,
    ) -> Ticket:
        """Append a transaction; if it is invalid, raise before anything is sent.

        With `any_content`, a commit under this id counts whatever its content. `is_first` says that
        this process has sent nothing under the id. Another process may have, but then this record's
        own outcome says what became of that. With `awaits_rows`, the leader holds back the
        outcome of writes of rows until they can be read, which saves a request.
        """
        if transaction.principal:
            transaction = attributed(transaction)
        partition = self.partition_of(transaction) if self.domains.partitions else 0
        connection = self._connections.get(partition) or self.connection(partition)
        if connection.paused_until or connection.quotas:
            self._await_admission(connection, transaction.principal)
        is_told = id_is_new or is_first
        ticket = Ticket(
            transaction,
            partial(self._watch, connection),
            payload_hash=b"" if id_is_new or any_content else payload_hash(transaction),
            session=self._session if is_told else "",
            read=connection.read_until,
            attended=connection.attended,
            asked=self.readable_hint,
        )
        ticket.awaits_rows = awaits_rows and bool(ticket.session)
        watch = Watch(
            transaction.transaction_id, transaction.attempt, self.readable_hint, ticket.payload_hash
        )
        self._send(ticket, connection, watch, is_new=id_is_new)
        return ticket

    def submit_record(self, table: TableId, transaction_id: str, record: bytes) -> Ticket:
        """Append an encoded transaction on one table under a new id, as `submit` does."""
        partition = self.domains.partition(table) if self.domains.partitions else 0
        connection = self._connections.get(partition) or self.connection(partition)
        readable = self.readable_hint
        ticket = Ticket(
            None,
            partial(self._watch, connection),
            transaction_id=transaction_id,
            record=record,
            session=self._session,
            read=connection.read_until,
            attended=connection.attended,
            asked=readable,
        )
        if connection.paused_until or connection.quotas:
            self._await_admission(connection, ticket.transaction.principal)
        self._send(ticket, connection, Watch(transaction_id, 0, readable), is_new=True)
        return ticket

    def _send(
        self, ticket: Ticket, connection: LeaderConnection, watch: Watch, *, is_new: bool
    ) -> None:
        ticket.traced_from = time.monotonic() if tracing() is not None else 0.0
        # The leader knows who waits before it decides: no further round trip.
        is_told = bool(ticket.session)
        connection.watch(watch, ticket.deliver, ticket.fail, is_new=is_new, is_told=is_told)
        try:
            try:
                self._sending.send(ticket, connection)
            except Overloaded as error:
                self._send_patiently(ticket, connection, error)
        except BaseException:
            _stop_waiting(ticket, connection)
            raise

    def watch(self, transaction_id: str) -> Ticket:
        """Return a ticket for a transaction that was submitted before, here or elsewhere."""

        connections = [self.connection(partition) for partition in range(self.partitions)]

        # `owner` keeps the client, which ends once nothing refers to it, for as long as the ticket.
        def ask(ticket: Ticket, readable: bool, owner: Runtime = self) -> None:
            for connection in connections:
                watch = Watch(transaction_id, 0, readable)
                connection.watch(watch, ticket.deliver, ticket.fail, is_new=False)

        @contextlib.contextmanager
        def attended(is_known: Callable[[], bool]) -> Iterator[None]:
            with contextlib.ExitStack() as stack:
                for connection in connections:
                    stack.enter_context(connection.attended(is_known))
                yield

        return Ticket(Transaction(transaction_id, ()), ask, attended=attended)

    def forget(self, ticket: Ticket) -> None:
        """Stop waiting for a ticket."""
        with self._lock:
            connections = list(self._connections.values())
        for connection in connections:
            _stop_waiting(ticket, connection)

    def close(self, timeout_seconds: float) -> None:
        """Let records on their way reach Kafka, and end the threads."""
        self.flush(timeout_seconds)
        with self._lock:
            self._closed.set()  # from here on, no connection is added
        self._end()
        self.log.close()

    def is_closed(self) -> bool:
        """Return True once `close` was called."""
        return self._closed.is_set()

    def flush(self, timeout_seconds: float) -> None:
        """Wait until Kafka has all submitted records."""
        with self._lock:
            connections = list(self._connections.values())
        hint = self.readable_hint
        self._sending.flush(connections, timeout_seconds)
        self.readable_hint = hint

    def _watch(self, connection: LeaderConnection, ticket: Ticket, readable: bool) -> None:
        asked = ticket.transaction
        watch = Watch(asked.transaction_id, asked.attempt, readable, ticket.payload_hash)
        connection.watch(watch, ticket.deliver, ticket.fail, is_new=False)
        self.readable_hint = readable

    def _await_admission(self, connection: LeaderConnection, principal: str) -> None:
        """Wait while the leader asks for a pause; raise Overloaded if that takes too long."""
        deadline = time.monotonic() + OVERLOAD_PATIENCE_SECONDS
        while True:
            until, reason = connection.paused(principal)
            pause = until - time.monotonic()
            if pause <= 0:
                return
            if time.monotonic() + pause > deadline:
                raise Overloaded(
                    f"nothing was appended: {reason}; wait for answers, or try again in "
                    f"{pause:.1f} s",
                    pause,
                )
            if self._closed.wait(pause):
                raise LogClosed

    def _send_patiently(
        self, ticket: Ticket, connection: LeaderConnection, error: Overloaded
    ) -> None:
        """Send after the pause that was asked for; raise Overloaded if that takes too long."""
        deadline = time.monotonic() + OVERLOAD_PATIENCE_SECONDS
        while time.monotonic() + error.retry_after_seconds <= deadline:
            if self._closed.wait(error.retry_after_seconds):
                raise LogClosed
            try:
                return self._sending.send(ticket, connection)
            except Overloaded as again:
                error = again
        raise error


def _stop_waiting(ticket: Ticket, connection: LeaderConnection) -> None:
    for awaited in connection.outstanding():
        if awaited.deliver == ticket.deliver:
            connection.forget(awaited)


def _end_if_alone(reference: weakref.ref[Runtime], end: Callable[[], None]) -> None:
    if reference() is None:
        end()


def _connection_of(reference: weakref.ref[Runtime], transaction: Transaction) -> LeaderConnection:
    """Return a ticket's connection; tickets hold their client."""
    if (runtime := reference()) is None:
        raise LogClosed
    return runtime.connection(runtime.partition_of(transaction))


def _forget(reference: weakref.ref[Runtime], ticket: Ticket) -> None:
    if (runtime := reference()) is not None:
        runtime.forget(ticket)


def _end(
    closed: threading.Event,
    connections: dict[int, LeaderConnection],
    fallbacks: Sequence[Fallback],
    sending: Sending,
) -> None:
    """End a client's threads, from any of them or from another one."""
    closed.set()
    for fallback in fallbacks:
        fallback.close()
    while connections:
        connections.popitem()[1].close()
    sending.close()


def _leave_in_children(runtime: Runtime) -> None:
    """Have each forked child leave the sockets to its parent, also those of its tickets."""
    reference = weakref.ref(runtime)

    def leave() -> None:
        living = reference()
        for connection in living._connections.values() if living is not None else ():
            connection.leave()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=leave)


def flush_at_exit(runtime: Runtime) -> None:
    """Give submitted records a moment to leave, when the program ends without a close."""
    reference = weakref.ref(runtime)
    owner = os.getpid()

    def flush() -> None:
        living = reference()
        # A forked child has its parent's list of what to do at exit, and none of its threads.
        if living is not None and os.getpid() == owner:
            with contextlib.suppress(Exception):
                living.flush(EXIT_FLUSH_SECONDS)

    atexit.register(flush)
