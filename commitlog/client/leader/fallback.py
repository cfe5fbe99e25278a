"""The outcomes topic read by a client whose socket to the leader is down.

The topic is the truth and the socket its shortcut. Reading starts behind the newest outcome that
was known before the oldest awaited transaction was sent, or at the beginning if there is none:
from there the chain of epochs, sequences and hashes is checked as every reader checks it, so a
paused leader's records are not taken for answers.

Whether a version is readable is not in the topic; it is looked up where the manifests lie.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.valid_outcomes import Valid, ValidOutcomes
from commitlog.core.log.chain import BEGINNING
from commitlog.errors import CommitLogError
from commitlog.model.records import Outcome, Status
from commitlog.ports import Log

_log = logging.getLogger("commitlog")
_POLL_SECONDS = 0.2
PASSED_KEPT = 1_000
"""Outcomes that were read: who asks for one just then, or just after it, needn't begin again."""


class Fallback:
    """Watches a connection; reads the topic while it has been down for too long."""

    def __init__(
        self,
        log: Log,
        connection: LeaderConnection,
        *,
        is_readable: Callable[[Outcome], bool],
        after_seconds: float,
        end_if_alone: Callable[[], None] = lambda: None,
    ) -> None:
        """Start to watch, in a daemon thread.

        It wakes every second or so, and has the client end if nobody has that any more.
        """
        self._log = log
        self._connection = connection
        self._is_readable = is_readable
        self._after_seconds = after_seconds
        self._end_if_alone = end_if_alone
        self._closed = threading.Event()
        self._following: _Following | None = None
        self._told = ""
        """Why it can't be followed, as was logged last: it is tried every second."""
        self._begin()

    def close(self) -> None:
        """Stop; the thread ends by itself within a poll."""
        self._closed.set()

    def _begin(self) -> None:
        threading.Thread(
            target=self._run, name=f"commitlog-fallback-{self._connection.partition}", daemon=True
        ).start()

    def _run(self) -> None:
        while not self._closed.wait(self._step()):
            self._end_if_alone()
        self._leave()

    def _step(self) -> float:
        """Read on if the topic has to be read; return for how long there is nothing to do."""
        try:
            if self._following is None:
                if not self._is_needed():
                    return self._after_seconds / 3
                self._following = _Following(self._log, self._connection, self._is_readable)
            if self._following.step():
                self._told = ""
                return 0.0
            pause = 0.0
        except CommitLogError as error:
            if str(error) != self._told:
                self._told = str(error)
                _log.warning("cannot follow the outcomes topic: %s", error)
            pause = 1.0
        except Exception:
            _log.exception("following the outcomes topic failed")
            pause = 5.0
        self._leave()
        return pause

    def _leave(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            following.close()

    def _is_needed(self) -> bool:
        connection = self._connection
        return (
            not connection.is_connected
            and time.monotonic() - connection.disconnected_since >= self._after_seconds
            and bool(connection.outstanding())
        )


class _Following:
    """Reads on from before the oldest that is awaited, and hands out what it finds."""

    def __init__(
        self,
        log: Log,
        connection: LeaderConnection,
        is_readable: Callable[[Outcome], bool],
    ) -> None:
        self._connection = connection
        self._is_readable = is_readable
        self._seen = set(connection.outstanding())
        places = [awaited.anchor for awaited in self._seen]
        start = min(places, key=lambda place: place.outcomes_offset, default=BEGINNING)
        self._passed: list[Valid] = []
        self._passed_from = start.outcomes_offset
        self._unreadable: list[Valid] = []
        self._outcomes = ValidOutcomes(log, connection.partition, start)

    def step(self) -> bool:
        """Read what there is; return False if there is no use in reading on from here."""
        awaited = set(self._connection.outstanding())
        if self._connection.is_connected or not awaited:
            return False
        new, self._seen = awaited - self._seen, awaited
        if any(each.anchor.outcomes_offset < self._passed_from for each in new):
            return False  # somebody asks for what was passed long ago: begin again
        found = self._outcomes.poll(_POLL_SECONDS)
        asked = {each.watch.transaction_id for each in new}
        due = [
            valid
            for valid in self._passed
            if valid.outcome.transaction_id in asked and valid not in self._unreadable
        ]
        ids = {each.watch.transaction_id for each in awaited}
        self._unreadable = [
            valid
            for valid in (*self._unreadable, *due, *found)
            if valid.outcome.transaction_id in ids and not self._offer(valid)
        ]
        self._keep(found)
        return True

    def _keep(self, found: list[Valid]) -> None:
        self._passed += found
        if len(self._passed) > PASSED_KEPT:
            del self._passed[:-PASSED_KEPT]
            self._passed_from = self._passed[0].offset

    def close(self) -> None:
        self._outcomes.close()

    def _offer(self, valid: Valid) -> bool:
        outcome = valid.outcome
        readable = outcome.status is not Status.COMMITTED or self._is_readable(outcome)
        self._connection.offer(outcome, readable=readable, offset=valid.offset)
        return readable
