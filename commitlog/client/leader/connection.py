"""A client's open requests to the leader of one partition: outcomes and answers, over one socket.

Callers register what they wait for and send it; `LeaderSocket` makes sure that a leader gets it,
whichever leads. Watches are kept by transaction id. An outcome goes to every watch of its id that
it satisfies, which ends the watch. A watch of an id that may have been used before names the
content.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from commitlog.client.leader.awaited import Awaited, Deliver, SentRecord
from commitlog.client.leader.leader_errors import error_from
from commitlog.client.leader.leader_socket import LeaderSocket
from commitlog.codecs.avro import decode_outcome_record
from commitlog.errors import (
    CommitLogError,
    CorruptLog,
    LogClosed,
    LogMoved,
    OutcomeUnknown,
    Overloaded,
    Unavailable,
)
from commitlog.model.records import Outcome
from commitlog.ports import DeliveryFailed, Log
from commitlog.wire import (
    AppendFrame,
    FrameKind,
    Watch,
    append_frame,
    hello,
    json_frame,
    parse_json,
    parse_outcome,
    watch_frame,
)

REFUSED_SECONDS = 60.0
"""For so long a leader that appended no record is sent none, unless it greets again."""


@dataclass(eq=False, slots=True)
class _Request:
    frame: bytes
    answers: queue.SimpleQueue[tuple[Any, Exception | None]]
    """No Future: Ctrl-C within its methods would leave its lock held, for whoever answers."""


class LeaderConnection:
    """The open requests to one partition's leader."""

    def __init__(
        self,
        log: Log,
        *,
        name: str,
        log_id: str,
        partition: int,
        token: str,
        session: str = "",
        home: str = "",
    ):
        """Take the log's identity; nothing is connected before a caller waits.

        `home` is where the log is; a leader of a copy elsewhere is refused. A leader sends the
        `session` the outcomes of its transactions, once they can be read, without a watch.
        """
        greeting = hello(
            token,
            log=name,
            log_id=log_id,
            partition=partition,
            session=session,
            home=home,
            quotas=True,
        )
        self.partition = partition
        self._newest: tuple[Outcome, int] | None = None
        self.paused_until = 0.0
        """Until then (monotonic clock), the leader asked this writer to send nothing."""
        self.pause_reason = ""
        self.quotas: dict[str, tuple[float, str]] = {}
        """By principal, until when the leader asked it to send nothing, and why."""
        self._socket = LeaderSocket(log, partition, greeting, self)
        self.read_until = self._socket.read_until
        self.attended = self._socket.attended
        self._lock = threading.Lock()
        self._awaited: dict[str, list[Awaited]] = {}
        self._sent: dict[str, list[SentRecord]] = {}
        self._requests: dict[int, _Request] = {}
        self._request_numbers = itertools.count(1)
        self._is_closed = False

    @property
    def is_connected(self) -> bool:
        """Whether the leader has greeted and the socket still stands."""
        return self._socket.opened is not None

    @property
    def disconnected_since(self) -> float:
        """When the last socket ended, by the monotonic clock."""
        return self._socket.disconnected_since

    def open_early(self) -> None:
        """Start connecting before the first call needs it."""
        self._socket.start()

    def watch(
        self,
        watch: Watch,
        deliver: Deliver,
        fail: Callable[[CommitLogError], None],
        *,
        is_new: bool,
        is_told: bool = False,
    ) -> Awaited:
        """Ask for an outcome; `is_new` says that nothing was sent under this id before.

        With `is_told` the record names this session, and its leader sends the outcome unasked.
        """
        awaited = Awaited(watch, deliver, fail, self._newest if is_new else None)
        with self._lock:
            self._check_open()
            self._awaited.setdefault(watch.transaction_id, []).append(awaited)
        if (leader := self._socket).opened is None:
            leader.start()
        if not (is_told and watch.readable and leader.knows_session):
            leader.send(watch_frame(watch))
        return awaited

    def append(self, append: AppendFrame, sent: SentRecord, patience_seconds: float) -> bool:
        """Let the leader append a record; return False if no leader takes it, and it wasn't sent.

        Until it is known whether a leader greets, wait for `patience_seconds`.
        """
        if (leader := self._socket).opened is None and not leader.was_tried.is_open:
            leader.start()
            leader.was_tried.wait(patience_seconds)
        if time.monotonic() < leader.takes_records_from:
            return False
        transaction_id = append.transaction_id
        with self._lock:
            self._sent.setdefault(transaction_id, []).append(sent)
        if leader.send(append_frame(append)):
            return True
        with self._lock:
            group = self._sent.get(transaction_id, [])
            if sent in group:
                group.remove(sent)
        return False

    def unsettled(self) -> list[SentRecord]:
        """Return the records that were sent to a leader and have no outcome."""
        with self._lock:
            sent = [one for group in self._sent.values() for one in group]
        return [one for one in sent if not one.ticket.done()]

    def forget(self, awaited: Awaited) -> None:
        """Stop waiting."""
        with self._lock:
            group = self._awaited.get(awaited.watch.transaction_id)
            if group and awaited in group:
                group.remove(awaited)
                if not group:
                    del self._awaited[awaited.watch.transaction_id]

    def outstanding(self) -> list[Awaited]:
        """Return the requests for outcomes that are open now."""
        with self._lock:
            return [awaited for group in self._awaited.values() for awaited in group]

    def request(self, method: str, params: Mapping[str, Any], timeout: float) -> Any:
        """Send the leader a request that may be repeated; raise the error of its answer."""
        return self.ask(method, params, timeout)()

    def ask(self, method: str, params: Mapping[str, Any], timeout: float) -> Callable[[], Any]:
        """Send a request as `request` does; return a function that waits for the answer."""
        number = next(self._request_numbers)
        body = {"request": number, "method": method, "params": dict(params)}
        entry = _Request(json_frame(FrameKind.REQUEST, body), queue.SimpleQueue())
        with self._lock:
            self._check_open()
            self._requests[number] = entry
        try:
            self._socket.start()
            self._socket.send(entry.frame)
        except BaseException:
            self._forget_request(number)
            raise
        # A leader waits for files longer than some callers do.
        check = "check that `commitlog committer` is running"
        if params.get("readable"):
            check = "run `commitlog doctor`: the table's store may be slow or away"
        return partial(self._answer, number, entry, method, timeout, check)

    def _answer(self, number: int, entry: _Request, method: str, timeout: float, check: str) -> Any:
        deadline = time.monotonic() + timeout
        is_known: Any = entry.answers.qsize
        try:
            if self.read_until(is_known, deadline):
                found, error = entry.answers.get()
            else:
                with self.attended(is_known):
                    seconds = max(0.0, deadline - time.monotonic())
                    found, error = entry.answers.get(timeout=seconds)
        except queue.Empty:
            raise Unavailable(
                f"the leader of partition {self.partition} did not answer `{method}` within "
                f"{timeout:.3g} s{self._why()}; make the same call again, or {check}"
            ) from None
        finally:
            self._forget_request(number)
        if error is None:
            return found
        raise error

    def _forget_request(self, number: int) -> None:
        with self._lock:
            self._requests.pop(number, None)

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogClosed

    def close(self) -> None:
        """Close the socket; calls that still wait fail at once."""
        with self._lock:
            self._is_closed = True
            requests = list(self._requests.values())
            self._requests.clear()
            awaited = [one for group in self._awaited.values() for one in group]
            self._awaited.clear()
        self._socket.close()
        for request in requests:
            request.answers.put((None, LogClosed()))
        for one in awaited:
            known = one.watch.transaction_id
            one.fail(
                OutcomeUnknown(
                    f"the client was closed before the outcome of transaction {known} came; ask for"
                    " it with log.outcome(id), or submit it again with this id",
                    known,
                )
            )

    def leave(self) -> None:
        """In a forked child, leave the socket and the open requests to the parent."""
        self._is_closed, self._lock = True, threading.Lock()
        self._socket.leave()

    def offer(self, outcome: Outcome, *, readable: bool, offset: int) -> None:
        """Give an outcome to its watches, wherever it was read."""
        if outcome.hash and (self._newest is None or offset > self._newest[1]):
            self._newest = (outcome, offset)
        transaction_id = outcome.transaction_id
        with self._lock:
            group = self._awaited.pop(transaction_id, [])
            due = []
            for awaited in group:
                watch = awaited.watch
                is_late = outcome.attempt >= watch.attempt and (readable or not watch.readable)
                if is_late and watch.payload_hash in (b"", outcome.payload_hash):
                    due.append(awaited)
            is_settled = len(due) == len(group)
            if is_settled:  # who sent a record awaits its outcome
                self._sent.pop(transaction_id, None)
            else:
                left = [awaited for awaited in group if awaited not in due]
                self._awaited[transaction_id] = left
        for awaited in due:
            awaited.deliver(outcome, readable)
        if not is_settled:
            self._settle(transaction_id)

    def _settle(self, transaction_id: str) -> None:
        with self._lock:
            sent = self._sent.pop(transaction_id, None)
            left = [one for one in sent or () if not one.ticket.done()]
            if left:
                self._sent[transaction_id] = left

    def on_lost(self) -> None:
        """Report all records that the leader may not have appended."""
        with self._lock:
            sent, self._sent = self._sent, {}
        error = DeliveryFailed("the leader's socket ended before its answer", appended=None)
        for group in sent.values():
            for one in group:
                if not one.ticket.done():
                    one.failed(error)

    def is_wanted(self) -> bool:
        """Return True if any caller waits for anything."""
        return bool(self._awaited) or bool(self._requests)

    def open_frames(self) -> bytes:
        """Return the frames of all open requests."""
        with self._lock:
            frames = [watch_frame(a.watch) for group in self._awaited.values() for a in group]
            frames += [request.frame for request in self._requests.values()]
        return b"".join(frames)

    def on_frame(self, kind: FrameKind, body: bytes) -> None:
        """Take an outcome or a reply; raise an error that ends the socket."""
        if kind is FrameKind.OUTCOME:
            readable, offset, record = parse_outcome(body)
            outcome = decode_outcome_record(record)
            if not isinstance(outcome, Outcome):
                raise CorruptLog("the leader answered with a record that is not an outcome")
            self.offer(outcome, readable=readable, offset=offset)
        elif kind is FrameKind.REPLY:
            self._on_reply(parse_json(body))
        elif kind is FrameKind.ROWS:
            self._on_rows(parse_json(body))
        elif kind is FrameKind.ERROR:
            raise error_from(parse_json(body))
        else:
            raise CorruptLog(f"the leader sent an unexpected {kind.name} frame")

    def on_refusal(self, error: CommitLogError) -> None:
        """Fail the callers for whom waiting is pointless."""
        with self._lock:
            requests = list(self._requests.values())
            self._requests.clear()
            awaited = [one for group in self._awaited.values() for one in group]
            if isinstance(error, LogMoved):
                self._awaited.clear()
        for request in requests:
            request.answers.put((None, error))
        if isinstance(error, LogMoved):
            for one in awaited:
                one.fail(error.about(one.watch.transaction_id))

    def _on_reply(self, reply: Mapping[str, Any]) -> None:
        if not reply.get("request") and "transaction_id" in reply:
            self._on_refused_record(reply)
            return
        if not reply.get("request") and "error" in reply:
            self._pause(error_from(reply["error"]), reply["error"].get("principal"))
            return
        with self._lock:
            request = self._requests.pop(reply.get("request", 0), None)
        if request is None:
            return
        if "error" in reply:
            request.answers.put((None, error_from(reply["error"])))
        else:
            request.answers.put((reply.get("result"), None))

    def _on_rows(self, said: Mapping[str, Any]) -> None:
        """What came of rows comes just before the outcome."""
        with self._lock:
            sent = list(self._sent.get(str(said["transaction_id"]), ()))
        for one in sent:
            one.ticket.applied = said["applied"]

    def _on_refused_record(self, reply: Mapping[str, Any]) -> None:
        """A record was not appended, or may not have been."""
        error = error_from(reply["error"])
        if not isinstance(error, Overloaded):
            # Whatever it is, the next records would meet it, too; the next leader may do better.
            self._socket.takes_records_from = time.monotonic() + REFUSED_SECONDS
            appended: Literal[False] | None = False if reply.get("appended") is False else None
            error = DeliveryFailed(str(error), appended=appended)
        with self._lock:
            sent = self._sent.pop(str(reply["transaction_id"]), [])
        if len(sent) > 1:
            # The reply doesn't say which of them: another one may be on its way.
            error = DeliveryFailed(str(error), appended=None)
        for one in sent:
            one.failed(error)

    def paused(self, principal: str) -> tuple[float, str]:
        """Return until when (monotonic clock) a principal is to send nothing here, and why."""
        here = (self.paused_until, self.pause_reason)
        return max(here, self.quotas.get(principal, here))

    def _pause(self, error: CommitLogError, principal: str | None) -> None:
        """The leader asks this writer, or one principal, to send nothing for a while."""
        if not isinstance(error, Overloaded):
            return
        until = time.monotonic() + error.retry_after_seconds
        if principal is not None:
            self.quotas[principal] = (until, str(error))
        else:
            self.pause_reason, self.paused_until = str(error), until

    def _why(self) -> str:
        if self.is_connected or not self._socket.last_error:
            return ""
        return f" (not connected: {self._socket.last_error})"
