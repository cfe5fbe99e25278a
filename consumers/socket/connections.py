"""The leader's socket as bytes: connections that are accepted, read and written without waiting.

The loop that decides calls `poll` once in each of its turns, so that no other thread has to wake
for what writers ask and hear. While no process leads, or the loop is busy with
something long, another thread attends to the sockets. One lock, the turn, makes that one after the
other; nothing under it waits.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile

from commitlog.errors import CommitLogError, InvalidSettings, Unavailable
from commitlog.wire import FrameBuffer, FrameKind
from consumers.runtime.roots import is_loopback

WRITE_BUFFER_MAX = 64 * 1024 * 1024
"""A writer that doesn't read its answers is cut off above this; it asks again by id."""
RECEIVE_BYTES = 1 << 16
HELLO_BYTES_MAX = 1 << 16
HELLO_SECONDS = 30.0
"""Whoever connects may be anybody until it has said hello: it gets so much memory, for so long."""

logger = logging.getLogger(__name__)


def check_address(host: str, token: str) -> None:
    """Reject an address that writers can't connect to, or that anybody could, without a token."""
    if host in ("", "0.0.0.0", "::"):
        raise InvalidSettings(
            f"socket_host is {host!r}, which other machines cannot connect to: writers get "
            "the leader's address from the log. Set COMMITLOG_SOCKET_HOST to this "
            "machine's address"
        )
    if not token and not is_loopback(host):
        raise InvalidSettings(
            f"socket_host is {host}, where every machine could reach the leader: set the "
            "same COMMITLOG_TOKEN for committers, parts and writers, or listen on 127.0.0.1"
        )


@dataclass(eq=False, slots=True)
class WriterConnection:
    """One writer."""

    socket: socket.socket
    buffer: FrameBuffer = field(default_factory=partial(FrameBuffer, HELLO_BYTES_MAX))
    unsent: bytearray = field(default_factory=bytearray)
    is_closing: bool = False
    """Nothing more is read, and it ends once everything is sent."""
    welcome: bool = False
    session: str = ""
    program: tuple[str, int] = ("", 0)
    hears_quotas: bool = False
    """Whether it can tell a principal's pause from its own."""
    watches: set[str] = field(default_factory=set)
    awaits_rows: set[str] = field(default_factory=set)
    """Transactions of its session whose outcome it wants once their rows are applied."""


class Connections:
    """All writers' connections."""

    def __init__(
        self,
        *,
        on_frame: Callable[[WriterConnection, FrameKind, bytes], None],
        on_refused: Callable[[WriterConnection, CommitLogError], None],
        on_closed: Callable[[WriterConnection], None],
    ) -> None:
        """Hand frames over; what is wrong with one goes to `on_refused`. Called with the turn."""
        self.turn = threading.RLock()
        """Held while a thread uses what the sockets own."""
        self._on_frame, self._on_refused = on_frame, on_refused
        self._on_closed = on_closed
        self._selector = selectors.DefaultSelector()
        self._all: dict[int, WriterConnection] = {}
        self._new: dict[WriterConnection, float] = {}
        """Those that were accepted of late, and when: some haven't said hello."""
        self._listening: socket.socket | None = None
        self._is_full = False
        """Whether no more files may be open: no connection is accepted until `accept_again`."""
        self._ends: tuple[socket.socket, socket.socket] | None = None
        """A byte written into the second wakes the thread that waits for the first."""

    def listen(self, host: str, port: int) -> int:
        """Listen; return the port."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            listening = socket.create_server((host, port), family=family, backlog=1024)
        except OSError as error:
            raise Unavailable(
                f"the leader's socket cannot listen on {host}:{port}: {error}. Choose "
                "another port, or end the process that uses it"
            ) from error
        listening.setblocking(False)
        self._listening = listening
        self._selector.register(listening, selectors.EVENT_READ)
        self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)
        self._selector.register(self._ends[0], selectors.EVENT_READ)
        return int(listening.getsockname()[1])

    def fileno(self) -> int:
        """Return what can be read once `poll` has something to do."""
        fileno = getattr(self._selector, "fileno", None)
        return int(fileno()) if fileno is not None else -1

    def accept_again(self) -> None:
        """Accept connections, if that failed a while ago."""
        with self.turn:
            if self._is_full and self._listening is not None:
                self._is_full = False
                self._selector.register(self._listening, selectors.EVENT_READ)

    def drop_silent(self) -> None:
        """Close connections that haven't said hello in time; called several times a second."""
        with self.turn:
            late = time.monotonic() - HELLO_SECONDS
            silent = list(takewhile(lambda one: self._new[one] <= late, self._new))
            for connection in silent:
                del self._new[connection]
                if not connection.welcome:
                    self.abort(connection)

    def wake(self) -> None:
        """End the wait of the thread in `poll`; callable from any thread."""
        with contextlib.suppress(OSError):  # full: it is awake
            if self._ends is not None:
                self._ends[1].send(b"\0")

    def poll(self, timeout_seconds: float) -> None:
        """Take all that has come, waiting for something at most so long."""
        ready = self._selector.select(timeout_seconds)
        if ready:
            with self.turn:
                for key, events in ready:
                    self._serve(key.fd, events)

    def all(self) -> list[WriterConnection]:
        """Return the connections that exist."""
        return list(self._all.values())

    def write(self, connection: WriterConnection, data: bytes) -> None:
        """Send something, what the socket doesn't take now as soon as it does; with the turn."""
        if connection.is_closing:
            return
        if not connection.unsent:
            try:
                sent = connection.socket.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.abort(connection)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:].tobytes()
            self._await(connection, selectors.EVENT_READ | selectors.EVENT_WRITE)
        connection.unsent += data
        if len(connection.unsent) > WRITE_BUFFER_MAX:
            logger.warning("a writer doesn't read its answers; its connection is closed")
            self.abort(connection)

    def end(self, connection: WriterConnection) -> None:
        """Close a connection, after what is still to be sent."""
        connection.is_closing = True
        if not connection.unsent:
            self.abort(connection)
        else:
            self._await(connection, selectors.EVENT_WRITE)

    def abort(self, connection: WriterConnection) -> None:
        """Close a connection now."""
        connection.is_closing = True
        connection.unsent.clear()
        self._new.pop(connection, None)
        if self._all.pop(connection.socket.fileno(), None) is None:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        self._on_closed(connection)

    def close(self) -> None:
        """Stop listening and end all connections."""
        with self.turn:
            if self._listening is not None:
                if not self._is_full:
                    self._selector.unregister(self._listening)
                self._listening.close()
                self._listening = None
            for connection in self.all():
                self.end(connection)

    def release(self) -> None:
        """Give back what is left; `poll` must not be called any more."""
        with self.turn:
            for connection in self.all():
                self.abort(connection)
            self._selector.close()
            ends, self._ends = self._ends, None
        for end in ends or ():
            end.close()

    def _serve(self, fd: int, events: int) -> None:
        connection = self._all.get(fd)
        if connection is not None:
            if events & selectors.EVENT_WRITE:
                self._send_on(connection)
            if events & selectors.EVENT_READ and not connection.is_closing:
                self._receive(connection)
        elif self._ends is not None and fd == self._ends[0].fileno():
            with contextlib.suppress(OSError):
                self._ends[0].recv(4096)
        elif self._listening is not None and fd == self._listening.fileno():
            self._accept(self._listening)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                accepted, _ = listening.accept()
                accepted.setblocking(False)
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # the client gave up before this
            except OSError as error:
                logger.warning("no more connections are accepted for a moment: %s", error)
                self._selector.unregister(listening)
                self._is_full = True
                return
            connection = self._all[accepted.fileno()] = WriterConnection(accepted)
            self._new[connection] = time.monotonic()
            self._selector.register(accepted, selectors.EVENT_READ)

    def _receive(self, connection: WriterConnection) -> None:
        try:
            data = connection.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.abort(connection)
            return
        try:
            for kind, body in connection.buffer.feed(data):
                self._on_frame(connection, kind, body)
        except CommitLogError as error:
            self._on_refused(connection, error)
        except Exception:
            # Whatever one writer sends, the loop continues for all others.
            logger.exception("a writer's frame could not be handled; its connection is closed")
            self.abort(connection)

    def _send_on(self, connection: WriterConnection) -> None:
        try:
            sent = connection.socket.send(connection.unsent)
        except BlockingIOError:
            return
        except OSError:
            self.abort(connection)
            return
        del connection.unsent[:sent]
        if connection.unsent:
            return
        if connection.is_closing:
            self.abort(connection)
        else:
            self._await(connection, selectors.EVENT_READ)

    def _await(self, connection: WriterConnection, events: int) -> None:
        self._selector.modify(connection.socket, events)
