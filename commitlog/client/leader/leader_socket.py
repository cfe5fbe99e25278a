"""The socket to a partition's leader: it is opened, read and reopened here.

A thread owns the socket's life. It finds the leader's address in the outcomes topic, connects and
sends a greeting. If the socket breaks, the thread reconnects with backoff for as long as a caller
waits for an answer.

Waiting callers read the socket themselves. A caller that finds the socket unread takes it and
delivers each frame to its owner, until its own answer comes: that saves two thread switches per
commit. The thread reads for callers that can't (`attended`: a second caller, an event loop) until
they have their answers, and polls now and then while no caller waits.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from commitlog.adapters.places import heed
from commitlog.client.leader.leader_errors import error_from
from commitlog.client.leader.moved import where_moved
from commitlog.client.leader.socket_times import Gate, have_system_wait, is_readable
from commitlog.errors import CommitLogError, CorruptLog, LogClosed, Unavailable
from commitlog.model.records import LeaderStarted, Outcome
from commitlog.ports import Log
from commitlog.wire import FrameBuffer, FrameKind, json_frame, parse_json

# Of its own: a program that seeds `random` gets from it what it would without us. Without state:
# processes that one forks don't wait alike.
_chance = random.SystemRandom()
CONNECT_TIMEOUT_SECONDS = 2.0
BACKOFF_SECONDS = (0.02, 1.0)
SILENCE_SECONDS = 2.0
"""After this long without a byte, while something is awaited, the leader is pinged."""
_DEAD_AFTER_SECONDS = 3 * SILENCE_SECONDS
_RECEIVE_BYTES = 1 << 16
_SLICE_SECONDS = 0.25
"""How long a caller reads before it checks whether its answer came another way."""
_WRITERS_ASKED_MAX = 8
"""How many nodes that wrote the newest outcomes are asked whether they lead."""
_RECORDS, _LATE_RECORDS, _LATE_EVERY = 32, 6_000, 8
"""How many of the newest records are read to find the leader; every eighth failed attempt reads as
many as a deposed leader may have had in flight."""
_UNATTENDED_SECONDS = 0.05
"""How often the thread polls for answers that no caller waits for; while callers read, it does so
every `SILENCE_SECONDS`."""

Frames = list[tuple[FrameKind, bytes]]
_log = logging.getLogger("commitlog")


class Listener(Protocol):
    """The user of the socket. Any thread that reads may call any method."""

    def is_wanted(self) -> bool:
        """Return True if an answer is awaited."""

    def open_frames(self) -> bytes:
        """Return the frames that a new leader must get: open requests."""

    def on_frame(self, kind: FrameKind, body: bytes) -> None:
        """Handle a frame after the greeting; an exception ends the socket."""

    def on_refusal(self, error: CommitLogError) -> None:
        """Handle an error that no retry can mend."""

    def on_lost(self) -> None:
        """Handle the end of the socket: the leader may have got the sent frames, or not."""


class LeaderSocket:
    """One socket at a time to the leader of one partition."""

    def __init__(
        self, log: Log, partition: int, hello: Mapping[str, Any], listener: Listener
    ) -> None:
        """Take the log's identity; nothing is connected before `start`."""
        self._log, self._partition = log, partition
        self._hello, self._listener = hello, listener
        self.disconnected_since = time.monotonic()
        self.last_error, self.knows_session = "", False
        """Whether the leader that greeted sends a session its outcomes unasked."""
        self.takes_records_from = float("inf")
        """From when on it appends records for their senders, by the monotonic clock."""
        self.was_tried = Gate()
        """Opens once it is known whether a leader greets."""
        self._make_locks()
        self.opened: socket.socket | None = None
        """On which the leader has greeted, while it stands."""
        self._buffer = FrameBuffer()
        self._heard = self._pinged = 0.0
        self._asked_in_vain = 0
        """Failed attempts to find the leader since the last greeting."""
        self._broken: Exception | None = None
        """The error of a caller that read; the thread continues from there."""
        self._attending: dict[object, Callable[[], bool]] = {}
        """For each caller that waits without reading, a function that says whether it knows."""
        self._has_callers = False
        """Whether a caller read since the thread looked last."""
        self._thread: threading.Thread | None = None
        self._closed = self._is_left = False

    def start(self) -> None:
        """Connect soon, if no socket is open."""
        if self.opened is not None:
            return
        with self._waking:
            if self._closed:
                raise LogClosed
            if self._thread is None:
                self._thread = self._begin()
            self._wake.notify_all()

    def send(self, data: bytes) -> bool:
        """Return True if sent; else the frames are among the `open_frames` of the next socket."""
        with self._sending:
            if (opened := self.opened) is None:
                return False
            try:
                opened.sendall(data)
            except BaseException as error:  # Ctrl-C may have left half a frame
                # The reader notices too, and the thread connects again and repeats open requests.
                with contextlib.suppress(OSError):
                    opened.shutdown(socket.SHUT_RDWR)
                if not isinstance(error, OSError):
                    raise
            return True

    def read_until(self, is_known: Callable[[], bool], deadline: float) -> bool:
        """Read on the calling thread until something is known or the time is over.

        Returns at once if another thread reads, or no socket is open; returns whether it is known.
        """
        while True:
            opened, remaining = self.opened, deadline - time.monotonic()
            if remaining <= 0 or opened is None:
                return is_known()
            try:  # Ctrl-C may come right after the lock was acquired.
                if not self._reading.acquire(blocking=False):
                    return is_known()
                self._has_callers = True
                if opened is not self.opened or self._broken is not None:
                    return is_known()
                if is_known():
                    return True
                self._receive(opened, min(remaining, _SLICE_SECONDS))
                if is_known():
                    return True
            except Exception as error:
                self._broken = error
                return False
            except BaseException:  # Ctrl-C: what was just read may be lost, and is asked for again
                self._broken = ConnectionResetError("reading was interrupted")
                raise
            finally:
                try:
                    self._reading.release()
                except RuntimeError:
                    pass  # another thread reads
                else:
                    if self._attending or self._broken is not None:
                        with self._waking:
                            self._wake.notify_all()

    @contextlib.contextmanager
    def attended(self, is_known: Callable[[], bool]) -> Iterator[None]:
        """Let the thread read until something is known: the caller waits for it elsewhere."""
        waiter = object()
        if self._is_left:
            raise LogClosed
        with self._waking:
            self._attending[waiter] = is_known
            self._wake.notify_all()
        try:
            yield
        finally:
            with self._waking:
                del self._attending[waiter]

    def close(self) -> None:
        """End the socket and the thread."""
        with self._waking:
            self._closed = True
            thread = self._thread
            self._wake.notify_all()
        self._shut()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CONNECT_TIMEOUT_SECONDS)

    def leave(self) -> None:
        """Leave the socket to the parent of a forked child: it would miss what is read here."""
        # Whoever held a lock at the moment of the fork isn't here.
        self._make_locks()
        self._closed = self._is_left = True
        opened, self.opened = self.opened, None
        if opened is not None:
            opened.close()

    def _make_locks(self) -> None:
        # Ctrl-C within `Condition.__enter__` would leave its lock held; those of locks are in C.
        self._waking = threading.RLock()
        self._wake = threading.Condition(self._waking)
        self._sending, self._reading = threading.Lock(), threading.RLock()

    def _begin(self) -> threading.Thread:
        name = f"commitlog-answers-{self._partition}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        pid = os.getpid()
        delay = BACKOFF_SECONDS[0]
        while not self._closed and os.getpid() == pid:
            started = time.monotonic()
            with self._heeding_errors():
                self._read(self._open())
            self._shut()
            self.was_tried.open()
            if time.monotonic() - started > 1:
                delay = BACKOFF_SECONDS[0]
            with self._waking:
                self._wake.wait_for(lambda: self._closed, delay * _chance.uniform(0.5, 1))
                self._wake.wait_for(lambda: self._closed or self._listener.is_wanted())
            delay = min(2 * delay, BACKOFF_SECONDS[1])

    def _shut(self) -> None:
        with self._waking:
            opened, self.opened, self._broken = self.opened, None, None
            if opened is None:
                return
            self.disconnected_since = time.monotonic()
        with contextlib.suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)
        # The reading thread wakes now and releases the lock before the descriptor can be reused.
        with self._reading, self._sending:
            opened.close()
        self._listener.on_lost()

    @contextlib.contextmanager
    def _heeding_errors(self) -> Iterator[None]:
        """Note an error that ends the socket; fail open requests if no retry can help."""
        try:
            yield
        except (OSError, Unavailable, CorruptLog) as error:
            self.last_error = str(error) or type(error).__name__
            self._see_whether_it_moved()
        except CommitLogError as error:
            self.last_error = str(error)
            self._listener.on_refusal(error)
        except Exception as error:
            _log.exception("the connection to the leader failed")
            self.last_error = repr(error)

    def _open(self) -> socket.socket:
        """Connect to the leader and send it the open requests."""
        opened, rest = self._find_leader()
        self._heard = time.monotonic()
        # From here callers send what they register, so nothing that is awaited goes unsaid.
        self.opened = opened
        self.was_tried.open()
        self.send(self._listener.open_frames())
        for kind, body in rest:
            self._listener.on_frame(kind, body)
        return opened

    def _see_whether_it_moved(self) -> None:
        """Fail open requests if the log was moved to another cluster."""
        if (moved := where_moved(self._log)) is not None:
            self.last_error = str(moved)
            self._listener.on_refusal(moved)

    def _find_leader(self) -> tuple[socket.socket, Frames]:
        """Return a socket on which the leader has greeted, and the frames that came with that.

        The newest record names the leader, unless it is void: from a lost campaign, or sent late by
        a deposed leader. So the writers of older records are asked too.
        """
        refusals: list[Exception] = []
        for address in self._addresses():
            try:
                found = self._greet(address)
                self._asked_in_vain = 0
                return found
            except (OSError, CommitLogError) as error:
                refusals.append(error)
        self._asked_in_vain += 1
        raise refusals[0] if refusals else Unavailable("no leader has started yet")

    def _addresses(self) -> list[tuple[str, int]]:
        """Return possible addresses of the leader, the likeliest first."""
        count = _RECORDS if self._asked_in_vain else 1
        if self._asked_in_vain % _LATE_EVERY == _LATE_EVERY - 1:
            count = _LATE_RECORDS
        nodes: dict[tuple[str, int], None] = {}
        for answered in reversed(self._log.last_outcome_records(self._partition, count)):
            if isinstance(answered.record, LeaderStarted | Outcome) and answered.record.node:
                host, _, port = answered.record.node.rpartition(":")
                nodes[host.strip("[]"), int(port)] = None
        return list(nodes)[:_WRITERS_ASKED_MAX]

    def _greet(self, address: tuple[str, int]) -> tuple[socket.socket, Frames]:
        opened = self._connect(address)
        self._buffer = FrameBuffer()
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.settimeout(SILENCE_SECONDS)
            opened.sendall(json_frame(FrameKind.HELLO, self._hello))
            rest = self._welcome(opened, self._buffer)
            have_system_wait(opened, receive_seconds=_SLICE_SECONDS, send_seconds=SILENCE_SECONDS)
            return opened, rest
        except BaseException:
            opened.close()
            raise

    def _connect(self, address: tuple[str, int]) -> socket.socket:
        return socket.create_connection(address, CONNECT_TIMEOUT_SECONDS)

    _is_readable = staticmethod(is_readable)

    def _welcome(self, opened: socket.socket, buffer: FrameBuffer) -> Frames:
        frames: Frames = []
        while not frames:
            data = opened.recv(_RECEIVE_BYTES)
            if not data:
                raise Unavailable("the leader closed the connection without a greeting")
            frames = buffer.feed(data)
        kind, body = frames[0]
        if kind is FrameKind.ERROR:
            raise error_from(parse_json(body))
        if kind is not FrameKind.WELCOME:
            raise CorruptLog(f"the leader greeted with an unexpected {kind.name} frame")
        said = parse_json(body)
        self.knows_session = bool(said.get("session"))
        self.takes_records_from = 0.0 if said.get("appends") else float("inf")
        heed(str(said.get("tables_root", "")), said.get("places", {}), said.get("roots", {}))
        return frames[1:]

    def _read(self, opened: socket.socket) -> None:
        """Read whenever no caller does, until the socket ends."""
        while not self._closed:
            with self._waking:
                attended = self._is_attended()
                if not attended and self._broken is None and not self._closed:
                    quiet = self._has_callers or not self._listener.is_wanted()
                    self._has_callers = False
                    self._wake.wait(SILENCE_SECONDS if quiet else _UNATTENDED_SECONDS)
                    attended = self._is_attended()
                broken = self._broken
            if broken is not None:
                raise broken
            if self._reading.acquire(timeout=_UNATTENDED_SECONDS):
                try:
                    if self.opened is opened:
                        self._receive(opened, SILENCE_SECONDS if attended else 0.0)
                finally:
                    self._reading.release()

    def _is_attended(self) -> bool:
        # A waiter that was just answered has not left yet, and may be the next to read.
        return any(not is_known() for is_known in self._attending.values())

    def _receive(self, opened: socket.socket, timeout_seconds: float) -> None:
        """Handle frames within a time (with `_reading` held); OSError when the socket ended."""
        # For a slice `recv` waits by itself, which saves a call to the system per answer.
        is_due = timeout_seconds == _SLICE_SECONDS or self._is_readable(opened, timeout_seconds)
        try:
            data = opened.recv(_RECEIVE_BYTES) if is_due else None
        except BlockingIOError:
            data = None
        if data is None:
            self._note_silence()
            return
        if not data:
            raise ConnectionResetError("the leader closed the connection")
        self._heard = time.monotonic()
        for kind, body in self._buffer.feed(data):
            self._listener.on_frame(kind, body)

    def _note_silence(self) -> None:
        now = time.monotonic()
        if not self._listener.is_wanted():
            self._heard = now
        elif now - self._heard > _DEAD_AFTER_SECONDS:
            raise Unavailable(f"the leader has sent nothing for {now - self._heard:.0f} s")
        elif now - max(self._heard, self._pinged) > SILENCE_SECONDS:
            self._pinged = now
            self.send(json_frame(FrameKind.REQUEST, {"request": 0, "method": "ping"}))
