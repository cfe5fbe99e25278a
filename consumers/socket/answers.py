"""The leader's socket: sends writers their outcomes, so that they needn't read a topic.

The deciding loop reads the sockets itself, in `poll`, and writes answers as outcomes arise, so
no other thread has to wake up. The committer passes events here after Kafka acknowledged them, and
again when their files can be read. A watch is answered from memory, or when its
transaction is decided. Ids that were decided long ago are looked up in the log.

A second thread handles requests. It also serves the sockets while the loop is busy: so a
leader in a long task still answers a ping, and a committer that doesn't lead says so.

The connection isn't encrypted. Beyond loopback the socket listens only if it requires a token,
in a network that the operator restricts to the log's own programs.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Any

from commitlog import wire
from commitlog.adapters.log_records import check_size
from commitlog.errors import CommitLogError, CorruptLog, RecordTooLarge
from commitlog.model.records import Outcome
from commitlog.protocol import session_in_key
from commitlog.wire import FrameKind, Watch
from consumers.partition.files.events import Event, RecordSent
from consumers.partition.quotas import Pause
from consumers.socket.connections import Connections, WriterConnection, check_address
from consumers.socket.hello import check_hello, failed
from consumers.socket.remembered import Answer, Remembered, Watches

ATTEND_SECONDS = 0.25
"""If the loop is away from the sockets for this long, another thread serves them."""


Handler = Callable[[str, dict[str, Any]], Awaitable[Any]]
Lookup = Callable[[str, dict[str, Any], Callable[..., None]], bool]
"""Lets the loop answer a request, now or later; False if the handler has to answer it."""
Taker = Callable[[RecordSent], None]
"""Appends a record."""
Holder = Callable[[Event, Callable[[list[Any] | None], None]], bool]
"""Calls the function with the results of a transaction's rows once they are known, or with None
after a while; False if the transaction has no rows."""
Finder = Callable[[str, int], None]
"""Looks up an id's outcome up to a sequence; calls `found`, and again with its files."""


class Answers:
    """Serves outcomes and requests for one partition's leader."""

    def __init__(
        self,
        *,
        identity: dict[str, Any],
        handler: Handler,
        finder: Finder,
        taker: Taker,
        lookup: Lookup = lambda method, params, answer: False,
        holder: Holder = lambda event, tell: False,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        connections: Callable[..., Connections] = Connections,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Serve as `identity` (log, log_id, partition); `handler` computes the results of requests.

        `lookup` may answer a request first. `holder` answers writers that wait for rows.
        `connections` carries bytes, an event `loop` other requests.
        """
        check_address(host, token)
        self._identity = identity
        self._handler, self._lookup = handler, lookup
        self._finder, self._taker, self._holder = finder, taker, holder
        self._host, self.port = host, port
        self._token = token
        self._loop = loop or asyncio.new_event_loop()
        self._connections = connections(
            on_frame=self._handle, on_refused=self._refuse, on_closed=self._left
        )
        self._turn = self._connections.turn
        self._write = self._connections.write
        self.wake = self._connections.wake
        self._sessions: dict[str, WriterConnection] = {}
        self._watches = Watches()
        self._remembered = Remembered()
        self._term: dict[str, Any] | None = None
        self._untold: list[Event] = []
        """Committed; nobody waits for them before they can be read."""
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._polls = 0
        self._is_attended = False
        """Whether the loop waits on the sockets."""
        self.is_over: Callable[[], bool] = lambda: False
        """Called every `ATTEND_SECONDS`; True ends the loop's wait."""

    def start(self) -> str:
        """Listen; return `host:port`."""
        self.port = self._connections.listen(self._host, self.port)
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()
        return f"{self._host}:{self.port}"

    def poll(self, timeout_seconds: float) -> None:
        """Handle what has come to the sockets; wait at most this long for something."""
        self._is_attended = True
        try:
            self._connections.poll(timeout_seconds)
        finally:
            self._is_attended = False
            self._polls += 1

    def begin_term(
        self, epoch: int, node: str, sequence: int, version: str, *, appends: bool = False
    ) -> None:
        """Welcome writers from now on; the leader appends their records if it `appends`."""
        term = {"epoch": epoch, "node": node, "sequence": sequence, "version": version}
        with self._turn:
            self._set_term({**term, "appends": appends})

    def programs(self) -> Counter[tuple[str, int]]:
        """Count the connected programs, by version and by the protocol that they know."""
        return Counter(one.program for one in self._connections.all() if one.welcome)

    def end_term(self) -> None:
        """Disconnect all writers: another process leads, or none."""
        with self._turn:
            self._set_term(None)

    def committed(self, events: list[Event]) -> None:
        """Answer for events that Kafka acknowledged.

        Most writers wait for files, which follow immediately; they get no answer yet.
        """
        with self._turn:
            self._untold.extend(events)
            if self._watches.committed_wanted or not all(event.awaits_files for event in events):
                self._tell_committed()

    def readable(self, events: list[Event]) -> None:
        """Answer for events whose files can be read."""
        # What has no files to wait for is told of as committed.
        filed = [event for event in events if event.awaits_files]
        with self._turn:
            self._tell_committed({event.outcome.sequence for event in filed})
            self._tell(filed, True)

    def found(self, outcome: Outcome, offset: int, record: bytes, *, readable: bool) -> None:
        """Answer with an outcome that was looked up: from before this term, or long ago.

        Outcomes of this term need no search, even if they are still on their way to Kafka.
        """
        answer = Answer(outcome, offset, record, readable)
        with self._turn:
            if not self._remembered.of(outcome.transaction_id):
                for connection in self._watches.satisfied(answer):
                    self._write(connection, answer.frame())

    def pace(
        self, waiting: Mapping[str, int], waiting_max: int, retry_after_seconds: float
    ) -> None:
        """Ask each session with too many waiting transactions to pause."""
        late = {name: count for name, count in waiting.items() if count > waiting_max}
        if not late:
            return
        with self._turn:
            for session, count in late.items():
                if (connection := self._sessions.get(session)) is not None:
                    text = f"{count} of your transactions are waiting; at most {waiting_max} may"
                    self._write(connection, wire.overloaded_frame(text, retry_after_seconds))

    def pace_principals(self, pauses: Mapping[str, Pause]) -> None:
        """Ask every writer to send nothing for a while on behalf of some principals."""
        if not pauses:
            return
        frames = b"".join(
            wire.overloaded_frame(pause.message, pause.seconds, name)
            for name, pause in pauses.items()
        )
        with self._turn:
            for connection in self._connections.all():
                if connection.hears_quotas:
                    self._write(connection, frames)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Stop listening and disconnect all writers."""
        if self._thread is None:
            return
        with self._turn:
            self._set_term(None)
            self._connections.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_seconds)
        self._connections.release()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._attend(self._polls)
        try:
            self._loop.run_forever()
        finally:
            self._loop.remove_reader(self._connections.fileno())
            while self._tasks:  # giving up lets others begin that were asked for meanwhile
                for task in self._tasks:
                    task.cancel()
                self._loop.run_until_complete(asyncio.wait(self._tasks))
            self._loop.close()

    def _attend(self, polls: int) -> None:
        """Serve the sockets while the loop is away; `polls` is its number of polls so far."""
        self._loop.remove_reader(self._connections.fileno())
        if not self._is_attended and polls == self._polls:
            self._loop.add_reader(self._connections.fileno(), self._stand_in)
        self._connections.drop_silent()
        self._connections.accept_again()
        if self.is_over():
            self.wake()
        self._loop.call_later(ATTEND_SECONDS, self._attend, self._polls)

    def _stand_in(self) -> None:
        self._connections.poll(0)
        if self._is_attended:
            # It came back; what was taken from under its eyes may have been its wake-up.
            self._loop.remove_reader(self._connections.fileno())
            self.wake()

    def _set_term(self, term: dict[str, Any] | None) -> None:
        self._term = term
        self._remembered.begin(term["sequence"] if term else 0)
        if term is None:
            for connection in self._connections.all():
                self._connections.end(connection)
            self._watches.clear()
            self._untold.clear()

    def _tell_committed(self, but: Container[int] = ()) -> None:
        events = [event for event in self._untold if event.outcome.sequence not in but]
        self._untold.clear()
        self._tell(events, False)

    def _tell(self, events: list[Event], readable: bool) -> None:
        pieces: dict[WriterConnection, list[bytes]] = {}
        for event in events:
            at_once = readable or not event.awaits_files
            answer = Answer(event.outcome, event.offset, event.record, at_once)
            self._remembered.add(answer)
            due = self._watches.satisfied(answer)
            # Its writer gets the answer unasked.
            session = self._sessions.get(session_in_key(event.submitted.key)) if at_once else None
            is_due = session is None or session in due
            if session is not None and not (is_due or self._hold(session, event, answer)):
                due.append(session)
            for connection in due:
                pieces.setdefault(connection, []).append(answer.frame())
        for connection, frames in pieces.items():
            self._write(connection, b"".join(frames))

    def _hold(self, connection: WriterConnection, event: Event, answer: Answer) -> bool:
        """Return True if an outcome is sent later, together with the results of its rows."""
        transaction_id = event.outcome.transaction_id
        if transaction_id not in connection.awaits_rows:
            return False
        connection.awaits_rows.discard(transaction_id)

        def tell(applied: list[Any] | None) -> None:
            frames = answer.frame()
            if applied is not None:
                said = {"transaction_id": transaction_id, "applied": applied}
                frames = wire.json_frame(FrameKind.ROWS, said) + frames
            with self._turn:
                self._write(connection, frames)

        return self._holder(event, tell)

    def _left(self, connection: WriterConnection) -> None:
        """Forget a connection and its watches."""
        if self._sessions.get(connection.session) is connection:
            del self._sessions[connection.session]
        self._watches.left(connection)

    def _handle(self, connection: WriterConnection, kind: FrameKind, body: bytes) -> None:
        if not connection.welcome:
            self._greet(connection, kind, body)
        elif kind is FrameKind.WATCH:
            self._watch(connection, wire.parse_watch(body))
        elif kind is FrameKind.REQUEST:
            self._request(connection, wire.parse_json(body))
        elif kind is FrameKind.APPEND:
            self._append(connection, wire.parse_append(body))
        else:
            raise CorruptLog(f"the leader does not accept {kind.name} frames")

    def _greet(self, connection: WriterConnection, kind: FrameKind, body: bytes) -> None:
        if kind is not FrameKind.HELLO:
            raise CorruptLog("the first frame is not HELLO")
        hello = wire.parse_json(body)
        check_hello(hello, self._identity, self._token, leads=self._term is not None)
        assert self._term is not None
        connection.welcome = True
        connection.hears_quotas = bool(hello.get("quotas"))
        connection.program = (str(hello.get("version", "")), int(hello.get("knows", 0)))
        connection.session = str(hello.get("session") or "")
        if connection.session:
            self._sessions[connection.session] = connection
        welcome = {**self._identity, **self._term, "session": connection.session}
        self._write(connection, wire.json_frame(FrameKind.WELCOME, welcome))

    def _append(self, connection: WriterConnection, append: wire.AppendFrame) -> None:
        """Have a record appended; one that is too large isn't even read."""
        session = connection.session if append.is_told else ""

        def refuse(error: CommitLogError, appended: bool | None) -> None:
            with self._turn:
                connection.awaits_rows.discard(append.transaction_id)
                frame = wire.refused_frame(append.transaction_id, error, appended)
                self._write(connection, frame)

        try:
            check_size(f"transaction {append.transaction_id}", append.record)
        except RecordTooLarge as error:
            refuse(error, False)
        else:
            if session and append.awaits_rows:
                connection.awaits_rows.add(append.transaction_id)
            self._taker(RecordSent(append.transaction_id, append.record, session, refuse))

    def _watch(self, connection: WriterConnection, watch: Watch) -> None:
        if not watch.readable:
            self._tell_committed()
        answers = self._remembered.of(watch.transaction_id)
        for answer in answers:
            if answer.satisfies(watch):
                self._write(connection, answer.frame())
                return
        self._watches.add(connection, watch)
        if not answers:
            self._finder(watch.transaction_id, self._remembered.none_through)

    def _request(self, connection: WriterConnection, body: dict[str, Any]) -> None:
        def answer(result: Any = None, error: Exception | None = None) -> None:
            reply = {"result": result} if error is None else failed(error)
            self._send_reply(connection, body, reply)

        method, params = str(body.get("method")), body.get("params") or {}
        try:
            if method == "ping":
                answer({})
            elif not self._lookup(method, params, answer):
                # Made by the loop: one that has ended would leave it unawaited.
                self._loop.call_soon_threadsafe(self._spawn_reply, connection, body)
        except Exception as error:
            self._send_reply(connection, body, failed(error))

    async def _reply(self, connection: WriterConnection, body: dict[str, Any]) -> None:
        reply: dict[str, Any]
        try:
            params = body.get("params") or {}
            reply = {"result": await self._handler(str(body.get("method")), params)}
        except Exception as error:
            reply = failed(error)
        self._send_reply(connection, body, reply)

    def _send_reply(
        self, connection: WriterConnection, body: dict[str, Any], reply: dict[str, Any]
    ) -> None:
        frame = wire.json_frame(FrameKind.REPLY, {"request": body.get("request"), **reply})
        with self._turn:
            self._write(connection, frame)

    def _refuse(self, connection: WriterConnection, error: CommitLogError) -> None:
        self._write(connection, wire.json_frame(FrameKind.ERROR, wire.error_body(error)))
        self._connections.end(connection)

    def _spawn_reply(self, connection: WriterConnection, body: dict[str, Any]) -> None:
        task = self._loop.create_task(self._reply(connection, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
