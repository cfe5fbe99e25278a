"""Follows one partition: reads both topics, applies each valid outcome, tells what happened.

A standby does nothing else; a leader does it until its own LeaderStarted is valid. The machine
here holds exactly what the valid outcomes up to `replica.chain.sequence` say.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from commitlog.adapters.disk import or_no_files
from commitlog.adapters.recordings import Recordings
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.core.log.replica import Decided, Replica
from commitlog.core.partition.machine import Machine
from commitlog.errors import CommitLogError, CorruptLog, Unavailable
from commitlog.model.records import Answered, Genesis, Submitted
from commitlog.ports import PATIENT_SECONDS, Log, Reader
from consumers.partition.files.events import Event

TRANSACTION_WAIT_SECONDS = 30.0


class Follower:
    """One partition's log, read and applied."""

    def __init__(
        self,
        log: Log,
        genesis: Genesis,
        machine: Machine,
        replica: Replica,
        *,
        open_store: Callable[[str], ObjectStore] = store_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Continue from where `machine` and `replica` stand."""
        self.partition = genesis.partition
        self.machine = machine
        self.replica = replica
        self._clock = clock
        self._recordings = Recordings(genesis.tables_root, open_store)
        self._raw: dict[int, bytes] = {}
        """By offset, the bytes of outcomes whose transactions may be read in a later step."""
        partition = genesis.partition
        self.transactions: Reader[Submitted] = log.read_transactions(
            partition, replica.transactions_position
        )
        self._outcomes: Reader[Answered] = log.read_outcomes(
            partition, replica.outcomes_position, patient=PATIENT_SECONDS
        )

    def step(self, timeout_seconds: float) -> list[Event]:
        """Read what there is, waiting for something at most so long; return what was decided."""
        answered = self._outcomes.poll(timeout_seconds=timeout_seconds)
        for record in answered:
            self._raw[record.offset] = record.raw
            self.replica.receive_answered(record)
        self._read_transactions()
        events = []
        for decided in self.replica.drain():
            raw = self._raw.pop(decided.answered_offset)
            events.append(self._apply(decided, raw))
        if self.replica.waiting_for is None:
            self._raw.clear()  # of what is void, or is no outcome
        return events

    def catch_up(self, patience_seconds: float, take: Callable[[list[Event]], object]) -> None:
        """Read the outcomes topic to its present end; `take` gets what was decided on the way.

        A log of years takes hours to read, so it gives up only after this long without progress.
        """
        read_to, deadline = -1, 0.0
        end = self._outcomes.end_offset()
        if end < self._outcomes.position():
            raise CorruptLog(
                f"the outcomes topic ends at {end} and was read to {self._outcomes.position()} "
                "before: it lost its tail. Run `commitlog verify`"
            )
        while self._outcomes.position() < end or self.replica.waiting_for is not None:
            if self._outcomes.position() > read_to:
                read_to, deadline = self._outcomes.position(), self._clock() + patience_seconds
            elif self._clock() > deadline:
                advice = or_no_files("Check the cluster, then start again")
                raise Unavailable(
                    f"the outcomes topic was read to {read_to} of {end}, and no further for "
                    f"{patience_seconds:.0f} s. {advice}"
                )
            take(self.step(0.1))

    def rest_outcomes(self) -> None:
        """Fetch no outcomes until the next step: a leader knows its own."""
        self._outcomes.rest()

    def rest(self) -> None:
        """Let go of both connections until the next step."""
        self.transactions.rest()
        self._outcomes.rest()

    def end_offset(self) -> int:
        """Return the outcomes topic's end as Kafka says now."""
        return self._outcomes.end_offset()

    def close(self) -> None:
        """Close both readers."""
        self.transactions.close()
        self._outcomes.close()

    def _read_transactions(self) -> None:
        for submitted in self.transactions.poll(timeout_seconds=0):
            self.replica.receive_submitted(submitted)
        deadline = self._clock() + TRANSACTION_WAIT_SECONDS
        while True:
            needed = self.replica.waiting_for
            if needed is None or needed < self.replica.transactions_position:
                return
            for submitted in self.transactions.poll(timeout_seconds=0.1):
                self.replica.receive_submitted(submitted)
            if self._clock() > deadline:
                raise self._why_missing(needed)

    def _why_missing(self, needed: int) -> CommitLogError:
        """Return the error for an outcome whose transaction can't be read.

        A reader that is cut off reads nothing either, so the log itself is asked where it ends.
        """
        end = self.transactions.end_offset()
        if end > needed:
            return Unavailable(
                f"the transaction at offset {needed}, of {end}, was not read within"
                f" {TRANSACTION_WAIT_SECONDS:.0f} s"
            )
        return CorruptLog(
            f"an outcome answers the transaction at offset {needed}, and the transactions topic"
            f" ends at {end}: it lost its tail. Run `commitlog verify`"
        )

    def _apply(self, decided: Decided, record: bytes) -> Event:
        changes = self.machine.apply(
            decided.submitted,
            decided.outcome,
            recordings=self._recordings.of(decided.outcome),
        )
        return Event(
            submitted=decided.submitted,
            outcome=decided.outcome,
            record=record,
            changes=changes,
            offset=decided.answered_offset,
        )
