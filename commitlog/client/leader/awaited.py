"""What a client keeps about a transaction until the leader has answered it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commitlog.client.leader.tickets import Ticket
from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import CommitLogError
from commitlog.model.records import Outcome
from commitlog.wire import Watch

Deliver = Callable[[Outcome, bool], None]
"""Takes an outcome and whether its versions are readable. Called once per watch."""


@dataclass(eq=False, slots=True)
class Awaited:
    """Somebody waits for a transaction's outcome."""

    watch: Watch
    deliver: Deliver
    fail: Callable[[CommitLogError], None]
    """Called if no answer will come on this connection."""
    known: tuple[Outcome, int] | None
    """The newest outcome known before the transaction was sent, and its offset; None: its age is
    unknown."""

    @property
    def anchor(self) -> ChainPlace:
        """From where on to look for the outcome in its topic."""
        if self.known is None:
            return BEGINNING
        outcome, offset = self.known
        return ChainPlace(outcome.sequence, offset + 1, outcome.epoch, outcome.hash)


@dataclass(eq=False, slots=True)
class SentRecord:
    """A record that the leader was asked to append, and that has no outcome yet."""

    ticket: Ticket
    failed: Callable[[CommitLogError], None]
    """Called if it wasn't appended, or may not have been."""
