"""Transactions and outcomes find each other, in sequence order, across restarts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from commitlog.core.log.chain import first_hash
from commitlog.core.log.replica import Decided, Replica
from commitlog.errors import CorruptLog
from commitlog.model.records import (
    Answered,
    Genesis,
    LeaderStarted,
    Outcome,
    OutcomeRecord,
    Status,
    Submitted,
    Transaction,
)
from tests.kept import kept

GENESIS = Genesis(log="commitlog", log_id="a-log", cluster_id="a-cluster", partition=0)


def submitted(offset: int) -> Submitted:
    transaction = Transaction(f"t{offset}", (), payload_hash=b"content of %d" % offset)
    return Submitted(0, offset, 1_000 + offset, transaction)


def answered_log(order: list[int]) -> list[Answered]:
    """Outcomes for the transactions at these offsets, in this order."""
    records: list[OutcomeRecord] = [GENESIS, LeaderStarted(1, "127.0.0.1:1", "l", 0, b"", b"")]
    head = first_hash(GENESIS)
    for sequence, offset in enumerate(order, 1):
        hashed = b"%d" % sequence
        records.append(
            Outcome(
                sequence=sequence,
                transaction_id=f"t{offset}",
                transaction_offset=offset,
                status=Status.COMMITTED,
                payload_hash=b"content of %d" % offset,
                epoch=1,
                previous_hash=head,
                hash=hashed,
            )
        )
        head = hashed
    return [Answered(0, offset, 0, record) for offset, record in enumerate(records)]


def sequences(decided: list[Decided]) -> list[int]:
    return [d.outcome.sequence for d in decided]


def test_an_outcome_waits_for_its_transaction() -> None:
    replica = Replica()
    for record in answered_log([0, 2, 1]):
        replica.receive_answered(record)
    assert list(replica.drain()) == []
    assert replica.waiting_for == 0
    replica.receive_submitted(submitted(0))
    assert sequences(list(replica.drain())) == [1]
    replica.receive_submitted(submitted(1))
    assert sequences(list(replica.drain())) == []
    replica.receive_submitted(submitted(2))
    assert sequences(list(replica.drain())) == [2, 3]
    assert replica.waiting_for is None


def test_what_nobody_decided_is_left_for_the_next_leader() -> None:
    replica = Replica()
    for offset in range(4):
        replica.receive_submitted(submitted(offset))
    for record in answered_log([1, 3]):
        replica.receive_answered(record)
    assert sequences(list(replica.drain())) == [1, 2]
    assert list(replica.undecided) == [0, 2]
    assert replica.resume_point() == (0, [1, 3])


def test_nothing_is_kept_of_what_was_decided_behind_one_that_waits() -> None:
    replica = Replica(decided_beyond=[2])
    sizes = set()
    for offset in range(1_000):
        replica.receive_submitted(submitted(offset))
        if offset not in (0, 2):
            replica.decide(replica.undecided[offset])
        sizes.add(sum(kept(replica).values()))
    assert len(sizes) <= 3, "the first one waits all the time; the third was decided before"
    assert replica.resume_point() == (0, list(range(1, 1_000)))


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_anywhere_leaves_nothing_out_and_repeats_nothing(seed: int) -> None:
    rng = random.Random(seed)
    count = 30
    order = list(range(count))
    for _ in range(10):  # let some pass their neighbours, as parked transactions do
        position = rng.randrange(count - 1)
        order[position], order[position + 1] = order[position + 1], order[position]
    log = answered_log(order)
    seen: list[int] = []
    replica = Replica()
    for _ in range(200):
        if replica.outcomes_position < len(log) and rng.random() < 0.6:
            replica.receive_answered(log[replica.outcomes_position])
        elif replica.transactions_position < count:
            replica.receive_submitted(submitted(replica.transactions_position))
        seen += [d.submitted.offset for d in replica.drain()]
        if rng.random() < 0.3 and replica.waiting_for is None:
            first, beyond = replica.resume_point()
            replica = Replica(
                replica.chain,
                transactions_position=first,
                outcomes_position=replica.outcomes_position,
                decided_beyond=beyond,
            )
    assert seen == order[: len(seen)]
    assert len(seen) >= count - 1 or replica.outcomes_position < len(log)


def test_an_outcome_for_other_content_is_a_corrupt_log() -> None:
    replica = Replica()
    transaction = submitted(0).record
    assert isinstance(transaction, Transaction)
    replica.receive_submitted(
        Submitted(0, 0, 0, replace(transaction, payload_hash=b"something else"))
    )
    for record in answered_log([0]):
        replica.receive_answered(record)
    with pytest.raises(CorruptLog, match="outcome 1 answers the transaction at offset 0"):
        list(replica.drain())


def test_a_second_outcome_for_one_transaction_is_a_corrupt_log() -> None:
    replica = Replica()
    replica.receive_submitted(submitted(0))
    for record in answered_log([0, 0]):
        replica.receive_answered(record)
    with pytest.raises(CorruptLog, match="outcome 2"):
        list(replica.drain())


def test_voids_are_counted_and_kept_with_their_reasons() -> None:
    replica = Replica()
    log = answered_log([0])
    for record in (*log, log[-1]):
        replica.receive_answered(record)
    assert replica.void_count == 1
    assert replica.voids[0].offset == log[-1].offset
    assert "sequence" in replica.voids[0].reason
