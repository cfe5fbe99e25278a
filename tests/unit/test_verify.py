"""Does `commitlog verify` find where a log is broken, and nothing where it isn't?"""

import dataclasses
import uuid

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.codecs.avro import encode_leader_started, payload_hash, seal_outcome
from commitlog.core.log.chain import first_hash
from commitlog.model.operations import DropTable
from commitlog.model.records import LeaderStarted, Outcome, Status, Transaction
from consumers.tools.verify import PartitionFindings, VerifyOptions, verify


class Hand:
    """Writes a log by hand, as a leader would."""

    def __init__(self) -> None:
        """Make an empty log."""
        self.log = MemoryLog()
        self.hash = first_hash(self.log.create())
        self.sequence = 0
        self.epoch = 0
        self.writer = self.log.outcomes_writer(0)

    def append(self, key: str, value: bytes) -> None:
        self.writer.append(key, value, lambda offset, error: None)
        self.writer.poll(0)

    def lead(self, epoch: int) -> None:
        self.epoch = epoch
        started = LeaderStarted(epoch, "here:1", str(uuid.uuid4()), self.sequence, self.hash, b"")
        self.append(f"leader/{epoch}", encode_leader_started(started))

    def submit(self, count: int) -> list[Transaction]:
        made = [
            Transaction(str(uuid.uuid4()), (DropTable((f"t{number}",)),)) for number in range(count)
        ]
        for transaction in made:
            self.log.transactions_writer().append(transaction, partition=0)
        return made

    def outcome(self, transaction: Transaction, offset: int) -> Outcome:
        return Outcome(
            sequence=self.sequence + 1,
            transaction_id=transaction.transaction_id,
            transaction_offset=offset,
            status=Status.COMMITTED,
            payload_hash=payload_hash(transaction),
        )

    def decide(self, outcome: Outcome) -> bytes:
        sealed, record = seal_outcome(
            outcome, previous_hash=self.hash, epoch=self.epoch, node="here:1"
        )
        self.append(f"{self.epoch}/{outcome.sequence}", record)
        self.sequence, self.hash = sealed.sequence, sealed.hash
        return record


@pytest.fixture
def hand() -> Hand:
    return Hand()


def first(hand: Hand) -> int:
    """Offset of the first transaction after what the log begins with."""
    return hand.log.read_transactions(0).end_offset()


def check(hand: Hand) -> PartitionFindings:
    return verify(hand.log, 0, VerifyOptions(chain_only=True))


def test_a_whole_log_is_whole(hand: Hand) -> None:
    offset = first(hand)
    made = hand.submit(5)
    hand.lead(1)
    for number, transaction in enumerate(made[:3]):
        hand.decide(hand.outcome(transaction, offset + number))
    verdict = check(hand)
    assert verdict.is_whole
    assert (verdict.outcomes, verdict.committed, verdict.terms) == (3, 3, 1)
    assert verdict.head == hand.hash.hex()


def test_what_a_deposed_leader_writes_is_void_and_harmless(hand: Hand) -> None:
    offset = first(hand)
    made = hand.submit(2)
    hand.lead(1)
    hand.lead(2)
    late, record = seal_outcome(
        hand.outcome(made[0], offset), previous_hash=hand.hash, epoch=1, node="there:1"
    )
    hand.append(f"1/{late.sequence}", record)
    hand.decide(hand.outcome(made[0], offset))
    verdict = check(hand)
    assert verdict.is_whole
    assert (verdict.outcomes, verdict.voids) == (1, 1)


def test_an_answer_to_other_content_is_found(hand: Hand) -> None:
    offset = first(hand)
    made = hand.submit(1)
    hand.lead(1)
    hand.decide(dataclasses.replace(hand.outcome(made[0], offset), payload_hash=bytes(32)))
    verdict = check(hand)
    assert verdict.first_bad_sequence == 1
    assert "other content" in verdict.problem
