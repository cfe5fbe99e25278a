"""The leader's socket: writers are told their outcomes here, without reading a topic.

An asyncio server on a thread of its own. The committer hands it events after Kafka acknowledged
them, and again when their files can be read; a watch is answered from what is remembered, or when
its transaction is decided. Ids that were decided long ago are looked up in the log.

It listens on loopback unless told otherwise; elsewhere a token and TLS are demanded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import ssl
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from commitlog import wire
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    InvalidRequest,
    InvalidSettings,
    Unavailable,
)
from commitlog.model.records import Outcome
from commitlog.protocol import session_in_key
from commitlog.wire import FrameBuffer, Kind, Watch
from consumers.partition.events import Event
from consumers.partition.quotas import Pause
from consumers.runtime.loopback import is_loopback
from consumers.socket.remembered import Answer, Remembered

WRITE_BUFFER_MAX = 64 * 1024 * 1024
"""A writer that doesn't read its answers is cut off above this; it asks again by id."""

logger = logging.getLogger(__name__)

Handler = Callable[[str, dict[str, Any]], Awaitable[Any]]
Finder = Callable[[str, int], None]
"""Has an id's outcome of up to a sequence looked up; `found` is called, again with its files."""


@dataclass(eq=False, slots=True)
class _Connection:
    """One writer."""

    transport: asyncio.Transport
    buffer: FrameBuffer = field(default_factory=FrameBuffer)
    welcome: bool = False
    session: str = ""
    program: tuple[str, int] = ("", 0)
    hears_quotas: bool = False
    """Whether it can tell a principal's pause from its own."""
    watches: set[str] = field(default_factory=set)


class Answers:
    """Serves outcomes and requests for one partition's leader."""

    def __init__(
        self,
        *,
        identity: dict[str, Any],
        handler: Handler,
        finder: Finder,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Serve as `identity` (log, log_id, partition), asking `handler` for requests' results."""
        if not is_loopback(host) and (not token or tls is None):
            raise InvalidSettings(
                f"the leader's socket would listen on {host} without a token and TLS. Set both, or"
                " listen on 127.0.0.1"
            )
        self._identity = identity
        self._handler = handler
        self._finder = finder
        self._host, self._port = host, port
        self._token, self._tls = token, tls
        self._loop = asyncio.new_event_loop()
        self._connections: set[_Connection] = set()
        self._sessions: dict[str, _Connection] = {}
        self._watchers: dict[str, list[tuple[_Connection, Watch]]] = {}
        self._remembered = Remembered()
        self._term: dict[str, Any] | None = None
        self._untold: deque[Event] = deque()
        """Committed, and of no interest to anybody before they can be read."""
        self._committed_wanted = 0
        """How many watches don't wait for files."""
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, timeout_seconds: float = 10.0) -> str:
        """Listen; return `host:port`."""

        async def listen() -> int:
            self._server = await self._loop.create_server(
                lambda: _Protocol(self), self._host, self._port, ssl=self._tls
            )
            return int(self._server.sockets[0].getsockname()[1])

        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()
        try:
            listening_future = asyncio.run_coroutine_threadsafe(listen(), self._loop)
            self._port = listening_future.result(timeout_seconds)
        except OSError as error:
            raise Unavailable(
                f"the leader's socket cannot listen on {self._host}:{self._port}: {error}. "
                "Choose another port, or end the process that has it"
            ) from error
        return f"{self._host}:{self._port}"

    def begin_term(self, epoch: int, node: str, sequence: int, version: str) -> None:
        """Welcome writers from now on."""
        term = {"epoch": epoch, "node": node, "sequence": sequence, "version": version}
        self._loop.call_soon_threadsafe(self._set_term, term)

    def programs(self) -> Counter[tuple[str, int]]:
        """Count what is connected now, by version and by the protocol that it knows."""
        return Counter(one.program for one in list(self._connections) if one.welcome)

    def end_term(self) -> None:
        """Send all writers away: somebody else leads, or nobody."""
        self._loop.call_soon_threadsafe(self._set_term, None)

    def committed(self, events: list[Event]) -> None:
        """Tell of events that Kafka acknowledged."""
        self._untold.extend(events)
        # Most writers wait for files, which follow at once; not so after a refusal.
        if self._committed_wanted or not all(event.awaits_files for event in events):
            self._loop.call_soon_threadsafe(self._tell_committed)

    def readable(self, events: list[Event]) -> None:
        """Tell of events whose files can be read."""
        self._loop.call_soon_threadsafe(self._tell_readable, events)

    def found(self, outcome: Outcome, offset: int, record: bytes, *, readable: bool) -> None:
        """Tell of an outcome of before this term, or of long ago, that somebody asked for."""
        answer = Answer(outcome, offset, record, readable)
        self._loop.call_soon_threadsafe(self._tell_found, answer)

    def pace(
        self, waiting: Mapping[str, int], waiting_max: int, retry_after_seconds: float
    ) -> None:
        """Ask each session of which more transactions wait to send no more for a while."""
        late = {name: count for name, count in waiting.items() if count > waiting_max}
        if late:
            self._loop.call_soon_threadsafe(self._pace, late, waiting_max, retry_after_seconds)

    def pace_principals(self, pauses: Mapping[str, Pause]) -> None:
        """Ask every writer to send nothing for a while in the name of some principals."""
        if pauses:
            self._loop.call_soon_threadsafe(self._pace_principals, dict(pauses))

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening and send everybody away."""
        if self._thread is None:
            return

        def stop() -> None:
            if self._server is not None:
                self._server.close()
            self._set_term(None)
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def _set_term(self, term: dict[str, Any] | None) -> None:
        self._term = term
        self._remembered.begin(term["sequence"] if term else 0)
        if term is None:
            for connection in list(self._connections):
                connection.transport.close()
            self._watchers.clear()
            self._untold.clear()
            self._committed_wanted = 0

    def _tell_committed(self, but: Container[int] = ()) -> None:
        events = []
        with contextlib.suppress(IndexError):
            while True:
                events.append(self._untold.popleft())
        self._tell([event for event in events if event.outcome.sequence not in but], False)

    def _tell_readable(self, events: list[Event]) -> None:
        # What has no files to wait for is told of as committed.
        filed = [event for event in events if event.awaits_files]
        self._tell_committed({event.outcome.sequence for event in filed})
        self._tell(filed, True)

    def _tell(self, events: list[Event], readable: bool) -> None:
        pieces: dict[_Connection, list[bytes]] = {}
        for event in events:
            outcome = event.outcome
            at_once = readable or not event.awaits_files
            answer = Answer(outcome, event.offset, event.record, at_once)
            self._remembered.add(answer)
            waiting = self._watchers.get(outcome.transaction_id)
            due = self._satisfied(answer, waiting) if waiting else []
            # Who appended it hears of it unasked.
            session = self._sessions.get(session_in_key(event.submitted.key)) if at_once else None
            if session is not None and session not in due:
                due.append(session)
            for connection in due:
                pieces.setdefault(connection, []).append(answer.frame())
        for connection, frames in pieces.items():
            self._write(connection, b"".join(frames))

    def _satisfied(
        self, answer: Answer, waiting: list[tuple[_Connection, Watch]]
    ) -> list[_Connection]:
        """Take the watches that an answer satisfies away; return whom to send it to."""
        transaction_id = answer.outcome.transaction_id
        left = [(c, w) for c, w in waiting if not answer.satisfies(w)]
        due = []
        for connection, watch in waiting:
            if answer.satisfies(watch):
                due.append(connection)
                connection.watches.discard(transaction_id)
                self._committed_wanted -= not watch.readable
        for connection, _ in left:
            connection.watches.add(transaction_id)
        if left:
            self._watchers[transaction_id] = left
        else:
            self._watchers.pop(transaction_id, None)
        return due

    def _pace(self, late: Mapping[str, int], waiting_max: int, retry_after_seconds: float) -> None:
        for session, waiting in late.items():
            if (connection := self._sessions.get(session)) is not None:
                text = f"{waiting} of your transactions wait, and {waiting_max} may"
                self._write(connection, wire.overloaded_frame(text, retry_after_seconds))

    def _pace_principals(self, pauses: Mapping[str, Pause]) -> None:
        frames = b"".join(
            wire.overloaded_frame(pause.message, pause.seconds, name)
            for name, pause in pauses.items()
        )
        for connection in self._connections:
            if connection.hears_quotas:
                self._write(connection, frames)

    def _write(self, connection: _Connection, data: bytes) -> None:
        if connection.transport.is_closing():
            return
        connection.transport.write(data)
        if connection.transport.get_write_buffer_size() > WRITE_BUFFER_MAX:
            logger.warning("a writer doesn't read its answers; its connection is closed")
            connection.transport.abort()

    def connected(self, connection: _Connection) -> None:
        """Take a new connection."""
        self._connections.add(connection)

    def disconnected(self, connection: _Connection) -> None:
        """Forget a connection and its watches."""
        self._connections.discard(connection)
        if self._sessions.get(connection.session) is connection:
            del self._sessions[connection.session]
        for transaction_id in connection.watches:
            waiting = self._watchers.get(transaction_id, [])
            left = [watch for watch in waiting if watch[0] is not connection]
            gone = [watch for who, watch in waiting if who is connection]
            self._committed_wanted -= sum(not watch.readable for watch in gone)
            if left:
                self._watchers[transaction_id] = left
            else:
                self._watchers.pop(transaction_id, None)

    def received(self, connection: _Connection, data: bytes) -> None:
        """Handle what a writer sent."""
        try:
            for kind, body in connection.buffer.feed(data):
                self._handle(connection, kind, body)
        except CommitLogError as error:
            self._refuse(connection, error)

    def _handle(self, connection: _Connection, kind: Kind, body: bytes) -> None:
        if not connection.welcome:
            self._greet(connection, kind, body)
        elif kind is Kind.WATCH:
            self._watch(connection, wire.parse_watch(body))
        elif kind is Kind.REQUEST:
            self._spawn(self._reply(connection, wire.parse_json(body)))
        else:
            raise CorruptLog(f"a {kind.name} frame is not for the leader")

    def _greet(self, connection: _Connection, kind: Kind, body: bytes) -> None:
        if kind is not Kind.HELLO:
            raise CorruptLog("the first frame is not HELLO")
        hello = wire.parse_json(body)
        if hello.get("protocol") != wire.WIRE_VERSION:
            raise Unavailable(f"this leader speaks protocol {wire.WIRE_VERSION}")
        for name in ("log", "log_id", "partition"):
            asked = hello.get(name)
            if asked not in ("", None) and asked != self._identity[name]:
                raise Unavailable(f"this is {name} {self._identity[name]!r}, not {asked!r}")
        token = str(hello.get("token", ""))
        if self._token and not hmac.compare_digest(token.encode(), self._token.encode()):
            raise InvalidRequest("the token is wrong", field="token", advice="Correct it")
        if self._term is None:
            raise Unavailable("this committer doesn't lead; read the log's last outcome again")
        connection.welcome = True
        connection.hears_quotas = bool(hello.get("quotas"))
        connection.program = (str(hello.get("version", "")), int(hello.get("knows", 0)))
        connection.session = str(hello.get("session") or "")
        if connection.session:
            self._sessions[connection.session] = connection
        welcome = {**self._identity, **self._term, "session": connection.session}
        self._write(connection, wire.json_frame(Kind.WELCOME, welcome))

    def _watch(self, connection: _Connection, watch: Watch) -> None:
        if not watch.readable:
            self._committed_wanted += 1
            self._tell_committed()
        answers = self._remembered.of(watch.transaction_id)
        for answer in answers:
            if answer.satisfies(watch):
                self._committed_wanted -= not watch.readable
                self._write(connection, answer.frame())
                return
        connection.watches.add(watch.transaction_id)
        self._watchers.setdefault(watch.transaction_id, []).append((connection, watch))
        if not answers:
            self._finder(watch.transaction_id, self._remembered.none_through)

    def _tell_found(self, answer: Answer) -> None:
        """Answer the watches of a transaction that was decided before this term or long ago.

        What this term decides is told without a search, also if it is on its way to Kafka now.
        """
        transaction_id = answer.outcome.transaction_id
        if self._remembered.of(transaction_id):
            return
        waiting = self._watchers.get(transaction_id, [])
        for connection in self._satisfied(answer, waiting):
            self._write(connection, answer.frame())

    async def _reply(self, connection: _Connection, body: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"request": body.get("request")}
        try:
            params = body.get("params") or {}
            reply["result"] = await self._handler(str(body.get("method")), params)
        except CommitLogError as error:
            reply["error"] = {"type": type(error).__name__, "message": str(error)}
        except Exception as error:
            logger.exception("a request failed")
            reply["error"] = {"type": "Unavailable", "message": f"the leader failed: {error!r}"}
        self._write(connection, wire.json_frame(Kind.REPLY, reply))

    def _refuse(self, connection: _Connection, error: CommitLogError) -> None:
        body = {"type": type(error).__name__, "message": str(error)}
        self._write(connection, wire.json_frame(Kind.ERROR, body))
        connection.transport.close()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Protocol(asyncio.Protocol):
    """Hands a socket's bytes to the server."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._connection: _Connection | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._connection = _Connection(transport)
        self._answers.connected(self._connection)

    def data_received(self, data: bytes) -> None:
        assert self._connection is not None
        self._answers.received(self._connection, data)

    def connection_lost(self, exc: Exception | None) -> None:
        with contextlib.suppress(KeyError):
            assert self._connection is not None
            self._answers.disconnected(self._connection)
