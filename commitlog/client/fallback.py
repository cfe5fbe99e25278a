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

from commitlog.client.connection import Awaited, LeaderConnection
from commitlog.client.valid_outcomes import OutcomesSource, Valid, ValidOutcomes
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import CommitLogError
from commitlog.model.records import Outcome, Status

_log = logging.getLogger("commitlog")
_POLL_SECONDS = 0.2


class Fallback:
    """Watches a connection; reads the topic while it has been down for too long."""

    def __init__(
        self,
        log: OutcomesSource,
        connection: LeaderConnection,
        *,
        is_readable: Callable[[Outcome], bool],
        after_seconds: float,
    ) -> None:
        """Begin to watch, in a daemon thread."""
        self._log = log
        self._connection = connection
        self._is_readable = is_readable
        self._after_seconds = after_seconds
        self._closed = threading.Event()
        self.is_active = False
        threading.Thread(
            target=self._run, name=f"commitlog-fallback-{connection.partition}", daemon=True
        ).start()

    def close(self) -> None:
        """Stop; the thread ends by itself within a poll."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._after_seconds / 3):
            if not self._is_needed():
                continue
            self.is_active = True
            try:
                self._follow()
            except CommitLogError as error:
                _log.warning("cannot follow the outcomes topic: %s", error)
                self._closed.wait(1)
            except Exception:
                _log.exception("following the outcomes topic failed")
                self._closed.wait(5)
            finally:
                self.is_active = False

    def _is_needed(self) -> bool:
        connection = self._connection
        return (
            not connection.is_connected
            and time.monotonic() - connection.disconnected_since >= self._after_seconds
            and bool(connection.outstanding())
        )

    def _follow(self) -> None:
        seen = set(self._connection.outstanding())
        places = [awaited.anchor or BEGINNING for awaited in seen]
        start = min(places, key=lambda place: place.outcomes_offset, default=BEGINNING)
        unreadable: list[Valid] = []
        outcomes = ValidOutcomes(self._log, self._connection.partition, start)
        try:
            while not self._closed.is_set() and not self._connection.is_connected:
                awaited = self._connection.outstanding()
                if not awaited:
                    return
                if any(self._is_late(each, start, seen) for each in awaited):
                    return  # somebody asks for what was passed already: begin again
                seen.update(awaited)
                unreadable += outcomes.poll(_POLL_SECONDS)
                ids = {each.watch.transaction_id for each in awaited}
                unreadable = [
                    valid
                    for valid in unreadable
                    if valid.outcome.transaction_id in ids and not self._offer(valid)
                ]
        finally:
            outcomes.close()

    @staticmethod
    def _is_late(awaited: Awaited, start: ChainPlace, seen: set[Awaited]) -> bool:
        place = awaited.anchor or BEGINNING
        return awaited not in seen and place.outcomes_offset < start.outcomes_offset

    def _offer(self, valid: Valid) -> bool:
        outcome = valid.outcome
        readable = outcome.status is not Status.COMMITTED or self._is_readable(outcome)
        self._connection.offer(outcome, readable=readable, offset=valid.offset)
        return readable
