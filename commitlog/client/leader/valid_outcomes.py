"""Reads old outcomes from a place on, along the chain of hashes.

Records that the chain doesn't admit (a deposed leader's late records, copies, foreign bytes) are
skipped here, so no caller has to tell them apart: answers by id, older versions, feeds, and the
fallback of a client whose leader is away.
"""

from __future__ import annotations

from typing import NamedTuple

from commitlog.core.log.chain import ChainPlace, chain_at
from commitlog.model.records import Outcome
from commitlog.ports import Log


class Valid(NamedTuple):
    """A valid outcome."""

    outcome: Outcome
    place: ChainPlace
    """Behind it."""
    record: bytes
    """As it is in the topic."""

    @property
    def offset(self) -> int:
        """Its offset in the outcomes topic."""
        return self.place.outcomes_offset - 1


class ValidOutcomes:
    """Reads one partition's valid outcomes, from a place on. For one thread at a time."""

    def __init__(
        self,
        log: Log,
        partition: int,
        place: ChainPlace,
        *,
        patient: float = 0.0,
    ) -> None:
        """Start behind an outcome that is known to be valid, or at the beginning."""
        self._chain = chain_at(place, log.genesis(partition))
        self._reader = log.read_outcomes(partition, place.outcomes_offset, patient=patient)

    def poll(self, timeout_seconds: float) -> list[Valid]:
        """Return what is there, as soon as anything is; perhaps nothing of it is valid."""
        found = []
        for answered in self._reader.poll(timeout_seconds=timeout_seconds):
            record = answered.record
            if self._chain.admit(record) == "" and isinstance(record, Outcome):
                place = ChainPlace(record.sequence, answered.offset + 1, record.epoch, record.hash)
                found.append(Valid(record, place, answered.raw))
        return found

    def is_at(self, end: int) -> bool:
        """Return True if everything before an offset was read."""
        return self._reader.position() >= end

    def end_offset(self) -> int:
        """Return where the outcomes topic ends now."""
        return self._reader.end_offset()

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()
