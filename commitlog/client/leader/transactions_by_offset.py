"""The transactions that outcomes answer, fetched from the log by their offsets."""

from __future__ import annotations

import time

from commitlog.adapters.reading import record_at
from commitlog.core.log.replica import check_answers
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import Outcome, Submitted
from commitlog.ports import Log, Reader

LOOK_UP_SECONDS = 30.0
SLICE_SECONDS = 0.2
"""How long a poll waits at once: how late it may notice that time is up."""
AHEAD_MAX = 10_000
"""Transactions that were read ahead of their outcomes, and are kept."""


class TransactionsByOffset:
    """Transactions by offset: read along while they are asked for in order, else one by one."""

    def __init__(
        self,
        log: Log,
        partition: int,
        *,
        patient: float = 0.0,
        seconds: float = LOOK_UP_SECONDS,
    ) -> None:
        """Take where to read, and how long to wait for Kafka; nothing is read before a call."""
        self._log, self._partition, self._patient = log, partition, patient
        self._seconds = seconds
        self._reader: Reader[Submitted] | None = None
        self._ahead: dict[int, Submitted] = {}

    def of(self, outcome: Outcome) -> Submitted:
        """Return the transaction that an outcome answers.

        Raises:
            CorruptLog: the log lacks it, or it isn't the one that the outcome names.
            Unavailable: Kafka took longer than `seconds`.
        """
        submitted = self.at(outcome.transaction_offset)
        check_answers(outcome, submitted)
        return submitted

    def at(self, offset: int) -> Submitted:
        """Return the transaction at an offset, which is in the log: its outcome was read.

        Raises as `of` does.
        """
        found = self._ahead.pop(offset, None)
        if found is not None:
            return found
        if self._reader is None:
            self._reader = self._log.read_transactions(
                self._partition, offset, patient=self._patient
            )
        if offset < self._reader.position():
            return self._alone(offset)
        deadline = time.monotonic() + self._seconds
        while self._reader.position() <= offset:
            for submitted in self._reader.poll(timeout_seconds=SLICE_SECONDS):
                self._ahead[submitted.offset] = submitted
            self._check_time(deadline, offset)
        while len(self._ahead) > AHEAD_MAX:
            del self._ahead[next(one for one in self._ahead if one != offset)]
        return self._found(self._ahead.pop(offset, None), offset)

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()

    def _alone(self, offset: int) -> Submitted:
        # Decided late, after others that were submitted later.
        reader = self._log.read_transactions(self._partition, offset)
        found = record_at(reader, offset, seconds=self._seconds)
        return self._found(found, offset)

    def _check_time(self, deadline: float, offset: int) -> None:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"Kafka did not return the transaction at offset {offset} of partition"
                f" {self._partition} within {self._seconds:g} s; try again"
            )

    def _found(self, submitted: Submitted | None, offset: int) -> Submitted:
        if submitted is None:
            raise CorruptLog(
                f"partition {self._partition}: the transaction at offset {offset}, which has an "
                "outcome, is not in the log. If it was archived, name the root that has the "
                "archive (--root); otherwise run `commitlog verify`"
            )
        return submitted
