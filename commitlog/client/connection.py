"""One socket to the leader of one partition, over which outcomes and answers come.

A reader thread owns the socket's life: it finds the leader's address in the outcomes topic,
connects, says hello, repeats every open watch and request, and reads. When the socket breaks it
begins again, with backoff, for as long as anybody waits for something. Callers only register what
they wait for and send; they never wait for the thread.

Watches are kept by transaction id. An outcome goes to every watch of its id that it satisfies, and
then the watch is over. A watch of an id that may have been used before names the content.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from commitlog import errors
from commitlog.codecs.avro import decode_outcome_record
from commitlog.errors import CommitLogError, CorruptLog, OutcomeUnknown, Unavailable
from commitlog.model.records import Answered, LeaderStarted, Outcome
from commitlog.wire import (
    WIRE_VERSION,
    FrameBuffer,
    Kind,
    OutcomeFrame,
    Watch,
    json_frame,
    parse_json,
    parse_outcome,
    watch_frame,
)

CONNECT_TIMEOUT_SECONDS = 2.0
BACKOFF_SECONDS = (0.02, 1.0)
SILENCE_SECONDS = 2.0
"""After this long without a byte, while something is awaited, the leader is pinged."""
_DEAD_AFTER_SECONDS = 3 * SILENCE_SECONDS
_RECEIVE_BYTES = 1 << 18

_log = logging.getLogger("commitlog")


class TailOfOutcomes(Protocol):
    """The part of the log that names the leader."""

    def last_outcome_records(self, partition: int, count: int = 1) -> list[Answered]:
        """Return the newest records of the outcomes topic."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A valid outcome and its offset: where a reader of the topic may begin."""

    offset: int
    epoch: int
    sequence: int
    hash: bytes


Deliver = Callable[[Outcome, bool], None]
"""Takes an outcome and whether its versions are readable. Called once per watch."""


@dataclass(eq=False, slots=True)
class Awaited:
    """Somebody waits for a transaction's outcome."""

    watch: Watch
    deliver: Deliver
    anchor: Anchor | None
    """The newest outcome known before the transaction was sent; None: its age is unknown."""


@dataclass(eq=False, slots=True)
class _Request:
    frame: bytes
    future: Future[Any]


class Connection:
    """What is awaited from one partition's leader."""

    def __init__(self, log: TailOfOutcomes, *, name: str, log_id: str, partition: int, token: str):
        """Take the log's identity; nothing is connected before somebody waits."""
        self._log = log
        self._hello = {
            "protocol": WIRE_VERSION,
            "log": name,
            "log_id": log_id,
            "partition": partition,
            "token": token,
        }
        self.partition = partition
        self.anchor: Anchor | None = None
        self.connected_since = 0.0
        self.disconnected_since = time.monotonic()
        self.last_error = ""
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._send_lock = threading.Lock()
        self._awaited: dict[str, list[Awaited]] = {}
        self._requests: dict[int, _Request] = {}
        self._request_numbers = itertools.count(1)
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the leader has greeted and the socket still stands."""
        return self._socket is not None

    def open_early(self) -> None:
        """Begin to connect before anybody waits."""
        with self._lock:
            self._start()

    def watch(self, watch: Watch, deliver: Deliver, *, is_new: bool) -> Awaited:
        """Ask for an outcome; `is_new` says that nothing was sent under this id before."""
        with self._lock:
            awaited = Awaited(watch, deliver, self.anchor if is_new else None)
            self._awaited.setdefault(watch.transaction_id, []).append(awaited)
            connected = self._start()
        if connected:
            self._send(watch_frame(watch))
        return awaited

    def forget(self, awaited: Awaited) -> None:
        """Stop waiting."""
        with self._lock:
            self._remove(awaited)

    def outstanding(self) -> list[Awaited]:
        """Return who waits for an outcome now."""
        with self._lock:
            return [awaited for group in self._awaited.values() for awaited in group]

    def request(self, method: str, params: Mapping[str, Any], timeout: float) -> Any:
        """Ask the leader something that may be asked twice; raise the error it answers."""
        number = next(self._request_numbers)
        body = {"request": number, "method": method, "params": dict(params)}
        entry = _Request(json_frame(Kind.REQUEST, body), Future())
        with self._lock:
            self._requests[number] = entry
            connected = self._start()
        if connected:
            self._send(entry.frame)
        try:
            return entry.future.result(timeout)
        except TimeoutError as error:
            raise Unavailable(
                f"the leader of partition {self.partition} did not answer `{method}` within"
                f" {timeout:g} s{self._why()}; make the same call again, or see whether"
                " `commitlog committer` runs"
            ) from error
        finally:
            with self._lock:
                self._requests.pop(number, None)

    def close(self) -> None:
        """End the thread and the socket; who still waits is told that nobody will answer."""
        with self._lock:
            self._closed = True
            requests = list(self._requests.values())
            self._requests.clear()
            self._awaited.clear()
            self._wake.notify_all()
            thread = self._thread
            self._shut()
        for request in requests:
            with contextlib.suppress(Exception):
                request.future.set_exception(Unavailable("the client was closed"))
        if thread is not None and thread is not threading.current_thread():
            thread.join(CONNECT_TIMEOUT_SECONDS)

    def offer(self, outcome: Outcome, *, readable: bool, offset: int) -> None:
        """Give an outcome to those who wait for it, wherever it was read."""
        if outcome.hash:
            anchor = Anchor(offset, outcome.epoch, outcome.sequence, outcome.hash)
            if self.anchor is None or anchor.offset > self.anchor.offset:
                self.anchor = anchor
        with self._lock:
            group = [
                awaited
                for awaited in self._awaited.get(outcome.transaction_id, ())
                if outcome.attempt >= awaited.watch.attempt
                and (readable or not awaited.watch.readable)
                and awaited.watch.payload_hash in (b"", outcome.payload_hash)
            ]
        for awaited in group:
            self.forget(awaited)
            awaited.deliver(outcome, readable)

    def _remove(self, awaited: Awaited) -> None:
        group = self._awaited.get(awaited.watch.transaction_id)
        if group and awaited in group:
            group.remove(awaited)
            if not group:
                del self._awaited[awaited.watch.transaction_id]

    def _start(self) -> bool:
        """Have a thread (called with the lock held); return whether the socket is up."""
        if self._closed:
            raise Unavailable("the client was closed")
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name=f"commitlog-answers-{self.partition}", daemon=True
            )
            self._thread.start()
        self._wake.notify_all()
        return self._socket is not None

    def _send(self, data: bytes) -> None:
        with self._send_lock:
            open_socket = self._socket
            if open_socket is None:
                return
            try:
                open_socket.sendall(data)
            except OSError:
                # The reader thread notices too, connects again and repeats what is open.
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        pid = os.getpid()
        delay = BACKOFF_SECONDS[0]
        while not self._closed and os.getpid() == pid:
            started = time.monotonic()
            try:
                self._serve()
                self.last_error = "the leader closed the connection"
            except (OSError, Unavailable, CorruptLog) as error:
                self.last_error = str(error) or type(error).__name__
            except CommitLogError as error:
                self._fail(error)
            except Exception as error:
                _log.exception("the connection to the leader failed")
                self.last_error = repr(error)
            with self._lock:
                self._shut()
                if time.monotonic() - started > 1:
                    delay = BACKOFF_SECONDS[0]
                if not self._closed:
                    self._wake.wait_for(lambda: self._closed, delay * random.uniform(0.5, 1))
                    self._wake.wait_for(self._is_wanted)
            delay = min(2 * delay, BACKOFF_SECONDS[1])

    def _is_wanted(self) -> bool:
        return self._closed or bool(self._awaited) or bool(self._requests)

    def _shut(self) -> None:
        if self._socket is not None:
            self.disconnected_since = time.monotonic()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None

    def _serve(self) -> None:
        """Connect and read until the socket ends."""
        host, port = self._leader_address()
        opened = socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS)
        buffer = FrameBuffer()
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.settimeout(SILENCE_SECONDS)
            opened.sendall(json_frame(Kind.HELLO, self._hello))
            rest = self._welcome(opened, buffer)
            repeat = self._take_over(opened)
        except BaseException:
            opened.close()
            raise
        self._send(repeat)
        for kind, body in rest:
            self._on_frame(kind, body)
        self._read(opened, buffer)

    def _take_over(self, opened: socket.socket) -> bytes:
        with self._lock:
            self._socket = opened
            self.connected_since = time.monotonic()
            frames = [watch_frame(a.watch) for group in self._awaited.values() for a in group]
            frames += [request.frame for request in self._requests.values()]
        return b"".join(frames)

    def _welcome(self, opened: socket.socket, buffer: FrameBuffer) -> list[tuple[Kind, bytes]]:
        frames: list[tuple[Kind, bytes]] = []
        while not frames:
            data = opened.recv(_RECEIVE_BYTES)
            if not data:
                raise Unavailable("the leader closed the connection without a greeting")
            frames = buffer.feed(data)
        kind, body = frames[0]
        if kind is Kind.ERROR:
            raise _error_from(parse_json(body))
        if kind is not Kind.WELCOME:
            raise CorruptLog(f"the leader greets with {kind.name}")
        return frames[1:]

    def _read(self, opened: socket.socket, buffer: FrameBuffer) -> None:
        heard = time.monotonic()
        while not self._closed:
            try:
                data = opened.recv(_RECEIVE_BYTES)
            except TimeoutError:
                silence = time.monotonic() - heard
                if not self._is_wanted():
                    heard = time.monotonic()
                elif silence > _DEAD_AFTER_SECONDS:
                    raise Unavailable(f"the leader is silent for {silence:.0f} s") from None
                else:
                    self._send(json_frame(Kind.REQUEST, {"request": 0, "method": "ping"}))
                continue
            if not data:
                return
            heard = time.monotonic()
            for kind, body in buffer.feed(data):
                self._on_frame(kind, body)

    def _on_frame(self, kind: Kind, body: bytes) -> None:
        if kind is Kind.OUTCOME:
            self._on_outcome(parse_outcome(body))
        elif kind is Kind.REPLY:
            self._on_reply(parse_json(body))
        elif kind is Kind.ERROR:
            raise _error_from(parse_json(body))
        else:
            raise CorruptLog(f"the leader sends {kind.name}")

    def _on_outcome(self, answer: OutcomeFrame) -> None:
        outcome = decode_outcome_record(answer.record)
        if not isinstance(outcome, Outcome):
            raise CorruptLog("the leader answers with a record that is no outcome")
        self.offer(outcome, readable=answer.readable, offset=answer.offset)

    def _on_reply(self, reply: Mapping[str, Any]) -> None:
        with self._lock:
            request = self._requests.pop(reply.get("request", 0), None)
        if request is None:
            return
        if "error" in reply:
            request.future.set_exception(_error_from(reply["error"]))
        else:
            request.future.set_result(reply.get("result"))

    def _leader_address(self) -> tuple[str, int]:
        for answered in reversed(self._log.last_outcome_records(self.partition, 1)):
            if isinstance(answered.record, LeaderStarted | Outcome) and answered.record.node:
                host, _, port = answered.record.node.rpartition(":")
                return host.strip("[]"), int(port)
        raise Unavailable("no leader has started yet")

    def _fail(self, error: CommitLogError) -> None:
        """Tell who asks that there is no use in waiting."""
        self.last_error = str(error)
        with self._lock:
            requests = list(self._requests.values())
            self._requests.clear()
        for request in requests:
            request.future.set_exception(error)

    def _why(self) -> str:
        if self._socket is not None or not self.last_error:
            return ""
        return f" (not connected: {self.last_error})"


def _error_from(body: Mapping[str, Any]) -> CommitLogError:
    """Make the error that the leader names."""
    kind = getattr(errors, str(body.get("type", "")), None)
    message = str(body.get("message", "")) or "the leader refused without a reason"
    if kind is errors.Overloaded:
        return errors.Overloaded(message, float(body.get("retry_after_seconds", 1)))
    if kind is OutcomeUnknown:
        return OutcomeUnknown(message, str(body.get("transaction_id", "")))
    if isinstance(kind, type) and issubclass(kind, CommitLogError):
        if issubclass(kind, errors.CommitConflict):
            return Unavailable(message)
        return kind(message)
    return Unavailable(f"{body.get('type')}: {message}")
