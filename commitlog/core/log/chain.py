"""Which records of an outcomes partition are valid: one epoch, a dense sequence, a chain of hashes.

An outcome is valid if its epoch is the current valid leader's, its sequence the last valid one
plus 1, and its previous hash the head of the chain. Every reader ignores everything else as void,
so a paused leader that wakes up can do no harm.

The decoder has checked that a record's hash fits its content; here the records are compared with
each other.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from commitlog.model.records import (
    Genesis,
    LeaderStarted,
    Outcome,
    OutcomeRecord,
    Retained,
    Unreadable,
)


def first_hash(genesis: Genesis) -> bytes:
    """Return the head of an empty chain: it binds all later hashes to this log and partition."""
    return hashlib.sha256(f"{genesis.log_id}/{genesis.partition}".encode()).digest()


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """Behind a valid outcome: from here on the chain can be checked without what is before it."""

    sequence: int
    outcomes_offset: int
    """Of the record after it."""
    epoch: int
    hash: bytes


BEGINNING = ChainPlace(0, 0, 0, b"")


class Chain:
    """The head of one partition's valid outcomes, and who may extend it."""

    __slots__ = ("epoch", "genesis", "hash", "leader", "sequence")

    def __init__(self) -> None:
        """Start before the Genesis record."""
        self.genesis: Genesis | None = None
        self.leader: LeaderStarted | None = None
        self.epoch = 0
        self.sequence = 0
        self.hash = b""

    def admit(self, record: OutcomeRecord | Unreadable) -> str:
        """Add the next record of the partition; return "" if it is valid, else why it is void."""
        if isinstance(record, Outcome):
            return self._admit_outcome(record)
        if isinstance(record, LeaderStarted):
            return self._admit_leader(record)
        if isinstance(record, Genesis):
            return self._admit_genesis(record)
        if isinstance(record, Retained):
            return self._check_retained(record)
        return record.reason

    def _admit_outcome(self, outcome: Outcome) -> str:
        if self.leader is None:
            return "no leader has started"
        if outcome.epoch != self.epoch:
            return f"epoch {outcome.epoch} is not the current {self.epoch}"
        if outcome.sequence != self.sequence + 1:
            return f"sequence {outcome.sequence} does not follow {self.sequence}"
        if outcome.previous_hash != self.hash:
            return f"previous hash {outcome.previous_hash.hex()[:16]} is not the chain's head"
        self.sequence = outcome.sequence
        self.hash = outcome.hash
        return ""

    def _admit_leader(self, leader: LeaderStarted) -> str:
        if self.genesis is None:
            return "no genesis"
        if leader.epoch != self.epoch + 1:
            return f"epoch {leader.epoch} does not follow {self.epoch}"
        self.epoch = leader.epoch
        self.leader = leader
        return ""

    def _check_retained(self, retained: Retained) -> str:
        # It extends nothing, so that archiving needs no term.
        if retained.sequence > self.sequence:
            return f"outcome {retained.sequence} is not there yet, {self.sequence} is the last"
        if retained.sequence == self.sequence and retained.hash != self.hash:
            return f"outcome {retained.sequence} has another hash"
        return ""

    def _admit_genesis(self, genesis: Genesis) -> str:
        if self.genesis is not None:
            return "a genesis stands already"
        self.genesis = genesis
        self.hash = first_hash(genesis)
        return ""


def chain_at(place: ChainPlace, genesis: Genesis) -> Chain:
    """Return the chain as it stands at a place that is known to be valid."""
    chain = Chain()
    if place.outcomes_offset:
        # Without it, the next leader's start would be taken for another log's.
        chain.genesis = genesis
        chain.epoch, chain.sequence, chain.hash = place.epoch, place.sequence, place.hash
        chain.leader = LeaderStarted(
            epoch=place.epoch,
            node="",
            leader_id="",
            sequence=place.sequence,
            previous_hash=b"",
            state_digest=b"",
        )
    return chain
