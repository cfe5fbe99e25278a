"""Walks a log from its Genesis and says whether it is whole: chain, answers, nothing missing.

Each outcome's own hash is checked by the decoder, its place by the chain, its transaction by the
replica. A void record of an earlier epoch is what a deposed leader wrote, and harmless; one of
the current epoch, or one that cannot be read, is where the log is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from commitlog.core.replica import Replica
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import Answered, Outcome, Status, Unreadable
from commitlog.ports import Log, Reader

SILENCE_SECONDS = 30.0


@dataclass(slots=True)
class Verdict:
    """What was found in one partition."""

    partition: int
    outcomes: int = 0
    committed: int = 0
    terms: int = 0
    voids: int = 0
    undecided: int = 0
    head: str = ""
    first_bad_sequence: int | None = None
    first_bad_offset: int | None = None
    problem: str = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"ok": self.is_whole, **asdict(self)}


def verify(
    log: Log, partition: int, *, on_progress: Callable[[int, int], None] | None = None
) -> Verdict:
    """Read both topics of a partition to their present ends."""
    transactions = log.read_transactions(partition, 0)
    outcomes = log.read_outcomes(partition, 0)
    replica = Replica()
    verdict = Verdict(partition)
    try:
        # In this order: what is answered now was appended before.
        outcomes_end = outcomes.end_offset()
        transactions_end = transactions.end_offset()
        _read(
            replica,
            transactions,
            transactions_end,
            lambda found: replica.receive_submitted(found),
        )
        done = 0

        def receive(answered: Answered) -> None:
            nonlocal done
            _judge(replica, answered, verdict)
            done += 1
            if on_progress is not None:
                on_progress(done, outcomes_end)

        _read(replica, outcomes, outcomes_end, receive)
        if replica.waiting_for is not None and verdict.is_whole:
            _found_bad(
                verdict,
                verdict.outcomes + 1,
                None,
                f"the transaction at offset {replica.waiting_for} is answered and missing",
            )
    finally:
        transactions.close()
        outcomes.close()
    verdict.terms = replica.chain.epoch
    verdict.voids = replica.void_count
    verdict.undecided = len(replica.undecided)
    verdict.head = replica.chain.hash.hex()
    return verdict


def _judge(replica: Replica, answered: Answered, verdict: Verdict) -> None:
    if not verdict.is_whole:
        return
    expected = replica.chain.sequence + 1
    reason = replica.receive_answered(answered)
    record = answered.record
    is_broken = isinstance(record, Unreadable) or (
        isinstance(record, Outcome)
        and record.epoch == replica.chain.epoch
        and record.sequence >= expected
    )
    if reason and is_broken:
        _found_bad(verdict, expected, answered.offset, reason)
        return
    try:
        for decided in replica.drain():
            verdict.outcomes += 1
            verdict.committed += decided.outcome.status is Status.COMMITTED
    except CorruptLog as error:
        _found_bad(verdict, expected, answered.offset, str(error))


def _found_bad(verdict: Verdict, sequence: int, offset: int | None, problem: str) -> None:
    verdict.first_bad_sequence = sequence
    verdict.first_bad_offset = offset
    verdict.problem = problem


def _read(
    replica: Replica, reader: Reader[Any], end: int, receive: Callable[[Any], object]
) -> None:
    heard = time.monotonic()
    while reader.position() < end:
        found = reader.poll(records_max=5000, timeout_seconds=0.5)
        for record in found:
            receive(record)
        if found:
            heard = time.monotonic()
        elif time.monotonic() - heard > SILENCE_SECONDS:
            raise Unavailable(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s; try again later")
