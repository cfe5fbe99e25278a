"""What happened: a decided transaction on its way from the log to files, index and writers."""

from __future__ import annotations

from dataclasses import dataclass

from commitlog.core.decisions import Change
from commitlog.model.records import Outcome, Status, Submitted


@dataclass(slots=True)
class Event:
    """A transaction whose outcome Kafka holds, with the changes that follow from both."""

    submitted: Submitted
    outcome: Outcome
    record: bytes
    """The outcome as it stands in the topic."""
    changes: tuple[Change, ...]
    offset: int = -1
    """In the outcomes topic; -1 until it is acknowledged."""
    unwritten: int = 0
    """How many of its changes have no file yet (the materializer's count)."""
    readable: bool = False
    """Whether its versions can be opened by path."""

    @property
    def awaits_files(self) -> bool:
        """Whether it made versions whose files come after the outcome, as Iceberg's don't."""
        committed = self.outcome.status is Status.COMMITTED
        return committed and any(change.iceberg is None for change in self.changes)
