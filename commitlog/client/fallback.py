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
from typing import Any, Protocol

from commitlog.client.connection import Anchor, Awaited, Connection
from commitlog.core.chain import Chain
from commitlog.errors import CommitLogError
from commitlog.model.records import Answered, Genesis, LeaderStarted, Outcome, Status
from commitlog.ports import Reader

_log = logging.getLogger("commitlog")
_POLL_SECONDS = 0.2


class OutcomesSource(Protocol):
    """The part of the log that is read here."""

    def read_outcomes(self, partition: int, offset: int = 0) -> Reader[Answered]:
        """Read the outcomes topic from an offset on."""

    def genesis(self, partition: int = 0) -> Genesis:
        """Return a partition's Genesis."""


def chain_at(anchor: Anchor | None, genesis: Genesis) -> Chain:
    """Return the chain as it stands behind an outcome that is known to be valid."""
    chain = Chain()
    if anchor is not None:
        # Without it, the next leader's start would be taken for another log's.
        chain.genesis = genesis
        chain.epoch, chain.sequence, chain.hash = anchor.epoch, anchor.sequence, anchor.hash
        chain.leader = LeaderStarted(anchor.epoch, "", "", anchor.sequence, b"", b"")
    return chain


class Fallback:
    """Watches a connection; reads the topic while it has been down for too long."""

    def __init__(
        self,
        log: OutcomesSource,
        connection: Connection,
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
        anchors = [awaited.anchor for awaited in seen]
        start = (
            None
            if None in anchors
            else min(
                (anchor for anchor in anchors if anchor),
                key=lambda anchor: anchor.offset,
                default=None,
            )
        )
        chain = chain_at(start, self._log.genesis(self._connection.partition))
        first = start.offset if start else -1
        unreadable: list[tuple[Outcome, int]] = []
        reader = self._log.read_outcomes(self._connection.partition, first + 1)
        try:
            while not self._closed.is_set() and not self._connection.is_connected:
                awaited = self._connection.outstanding()
                if not awaited:
                    return
                if any(self._is_late(each, first, seen) for each in awaited):
                    return  # somebody asks for what was passed already: begin again
                seen.update(awaited)
                for answered in reader.poll(timeout_seconds=_POLL_SECONDS):
                    record: Any = answered.record
                    if chain.admit(record) == "" and isinstance(record, Outcome):
                        unreadable.append((record, answered.offset))
                ids = {each.watch.transaction_id for each in awaited}
                unreadable = [
                    (outcome, offset)
                    for outcome, offset in unreadable
                    if outcome.transaction_id in ids and not self._offer(outcome, offset)
                ]
        finally:
            reader.close()

    @staticmethod
    def _is_late(awaited: Awaited, first: int, seen: set[Awaited]) -> bool:
        if awaited in seen:
            return False
        return awaited.anchor is None or awaited.anchor.offset < first

    def _offer(self, outcome: Outcome, offset: int) -> bool:
        readable = outcome.status is not Status.COMMITTED or self._is_readable(outcome)
        self._connection.offer(outcome, readable=readable, offset=offset)
        return readable
