"""Walks both topics of a partition in step and stops at the first outcome that cannot be trusted.

A reader of the log ignores what is void, so most damage would only look like a shorter log. What
tells damage from a harmless void record is who wrote it, and what came after:

- A record of an earlier epoch is what a deposed leader wrote. Harmless.
- A record of the current epoch that doesn't follow may be what a leader had in flight when it
  lost its connection; then the next LeaderStarted stands on the same outcome as the chain here. If
  none comes, or that leader stood on a later outcome, then outcomes are missing from where the
  chain stopped.
- A record that cannot be read may be a stranger's; then the chain continues after it.
- A record of a later epoch is impossible: a leader writes after its LeaderStarted was valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from commitlog.adapters.reading import read_on
from commitlog.codecs.avro_chain import DIGEST_BYTES
from commitlog.core.log.replica import Decided, Replica
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import Answered, Genesis, LeaderStarted, Outcome, Retained, Submitted
from commitlog.ports import Reader
from consumers.runtime.progress import OnProgress
from consumers.tools.verify.findings import Problem, ProblemKind

SILENCE_SECONDS = 30.0
RECORDS_PER_POLL = 2_000
HASHES_KEPT = 10_000
"""Outcomes between a leader's campaign and its start; few, but a paused one may take its time."""


class Hashes:
    """Of the newest outcomes of a chain."""

    def __init__(self) -> None:
        self._end = 0
        """The sequence after the last one."""
        self._kept = bytearray()

    def add(self, first: int, hashes: bytes) -> None:
        """Add the outcomes that follow: 32 bytes of each, from sequence `first` on."""
        self._kept += hashes
        self._end = first + len(hashes) // DIGEST_BYTES
        # Twice as many may gather, so that what is kept isn't moved each time.
        if len(self._kept) > 2 * HASHES_KEPT * DIGEST_BYTES:
            del self._kept[: -HASHES_KEPT * DIGEST_BYTES]

    def of(self, sequence: int) -> bytes:
        """Return an outcome's hash; empty if it isn't one of the newest."""
        behind = self._end - sequence
        at = len(self._kept) - behind * DIGEST_BYTES
        is_kept = 0 < behind <= HASHES_KEPT and at >= 0
        return bytes(self._kept[at : at + DIGEST_BYTES]) if is_kept else b""


class TopicReaders(Protocol):
    """The part of a log that is walked."""

    def read_outcomes(self, partition: int, offset: int = 0) -> Reader[Answered]:
        """Read the outcomes topic from an offset on."""

    def read_transactions(self, partition: int, offset: int = 0) -> Reader[Submitted]:
        """Read the transactions topic from an offset on."""


class Walk:
    """From a position to the present ends of both topics."""

    def __init__(
        self,
        log: TopicReaders,
        partition: int,
        replica: Replica,
        *,
        is_beyond: Callable[[Answered], bool] = lambda answered: False,
    ) -> None:
        """Continue from where `replica` stands; nothing may wait in it.

        The walk ends before the first record that `is_beyond` says so of.
        """
        self.replica = replica
        self._is_beyond = is_beyond
        self._is_cut = False
        self.problem: Problem | None = None
        """What ended the walk before the log's end."""
        self.terms: list[tuple[LeaderStarted, int]] = []
        """Valid terms that began since this was emptied last, with their offsets."""
        self.retained: list[tuple[Retained, int]] = []
        """What the log says was given up, since this was emptied last, with the offsets."""
        self.sequence = replica.chain.sequence
        """The last outcome that was handed out with its transaction."""
        self._suspect: Problem | None = None
        self._is_strange = False
        """Whether what is suspicious is a record that cannot be read."""
        self.hashes = Hashes()
        self._outcomes = log.read_outcomes(partition, replica.outcomes_position)
        self._ahead: list[Any] = []
        """Read, and beyond the end to walk to."""
        self._transactions = log.read_transactions(partition, replica.transactions_position)
        # In this order: what is answered now was appended before.
        self.end = self._outcomes.end_offset()
        self._transactions_end = self._transactions.end_offset()

    @property
    def is_even(self) -> bool:
        """Whether each transaction that was taken has its outcome, and nothing is suspicious."""
        replica = self.replica
        is_paired = not replica.undecided and replica.waiting_for is None
        return is_paired and self._suspect is None and self.problem is None

    @property
    def is_settled(self) -> bool:
        """Whether the walk may be interrupted here and continue later."""
        return self._suspect is None and self.problem is None

    def extend(self) -> None:
        """Take the topics' present ends for those to walk to."""
        self.end = self._outcomes.end_offset()
        self._transactions_end = self._transactions.end_offset()

    def batches(self) -> Iterator[list[Decided]]:
        """Yield decided transactions in sequence order, up to the first bad one."""
        heard = time.monotonic()
        while self.problem is None and self._position() < self.end:
            records, self._ahead = self._ahead, []
            if not records:
                records = self._outcomes.poll(records_max=RECORDS_PER_POLL, timeout_seconds=0.5)
            if not records:
                _expect_soon(heard)
                continue
            heard = time.monotonic()
            yield self._pass(records)
        if self.problem is None and not (self._is_cut or self._suspect is None):
            self.problem = self._suspect
        if not self._is_cut:
            self._read_the_rest()

    def decided(self, on_progress: OnProgress) -> Iterator[Decided]:
        """Yield what `batches` does one by one, and tell how far the outcomes were read."""
        for batch in self.batches():
            yield from batch
            on_progress(self.replica.outcomes_position, self.end)

    def check(self, act: str = "followed") -> None:
        """Raise CorruptLog if a bad outcome ended the walk: from there on the log can't be used."""
        if self.problem is not None:
            raise CorruptLog(
                f"outcome {self.problem.sequence} cannot be {act}: {self.problem.message}. Run "
                "`commitlog verify`"
            )

    def _may_end(self) -> bool:
        """Return True if the walk may end before the next record.

        Otherwise the start of a term may explain what is suspicious so far.
        """
        return self._suspect is None or self._is_strange

    def _pass(self, records: list[Any]) -> list[Decided]:
        """Judge records, each with the transaction that it answers before the next one."""
        batch: list[Decided] = []
        for number, one in enumerate(records):
            if one.offset >= self.end or self.problem is not None:
                # The log grows meanwhile, and its end may be moved on later.
                self._ahead = records[number:]
                break
            if self._may_end() and self._is_beyond(one):
                self.end, self._is_cut = one.offset, True
                break
            self._judge(one)
            batch += self._decided()
        return batch

    def _position(self) -> int:
        """Return the first offset of the outcomes that was not judged."""
        return self._ahead[0].offset if self._ahead else self._outcomes.position()

    def close(self) -> None:
        """Let go of the readers."""
        self._outcomes.close()
        self._transactions.close()

    def _judge(self, answered: Answered) -> None:
        chain, record = self.replica.chain, answered.record
        expected = chain.sequence + 1
        void = self.replica.receive_answered(answered)
        if isinstance(record, LeaderStarted):
            self._judge_term(record, void, expected, answered.offset)
        elif isinstance(record, Outcome):
            if not void:
                self._end_suspicion(answered.offset)
                self.hashes.add(record.sequence, record.hash)
                self._check_node(record, answered.offset)
            elif record.epoch > chain.epoch:
                self._stop(expected, answered.offset, f"{void}: the start of its term is missing")
            elif record.epoch == chain.epoch and record.sequence >= expected:
                self._suspicious(expected, answered.offset, void)
        elif isinstance(record, Retained) and not void:
            self._judge_retained(record, expected, answered.offset)
        elif void and not isinstance(record, Genesis):
            self._suspicious(expected, answered.offset, void, is_strange=True)

    def _judge_term(self, leader: LeaderStarted, void: str, expected: int, offset: int) -> None:
        chain = self.replica.chain
        if void:
            if leader.epoch > chain.epoch + 1:
                self._stop(expected, offset, f"{void}: the start of a term is missing")
            return
        self.terms.append((leader, offset))
        if leader.sequence > chain.sequence:
            self._stop(
                expected,
                offset,
                f"the leader of epoch {leader.epoch} stood on outcome {leader.sequence}, and the "
                f"log has none after {chain.sequence} before it",
            )
            return
        known = chain.hash if leader.sequence == chain.sequence else self.hashes.of(leader.sequence)
        if known not in (b"", leader.previous_hash):
            self._stop(
                leader.sequence,
                offset,
                f"the leader of epoch {leader.epoch} stood on another outcome {leader.sequence}",
            )
            return
        self._suspect = None

    def _judge_retained(self, retained: Retained, expected: int, offset: int) -> None:
        if self.hashes.of(retained.sequence) in (b"", retained.hash):
            self.retained.append((retained, offset))
        else:
            text = f"what was given up ends with another outcome {retained.sequence}"
            self._suspicious(expected, offset, text, is_strange=True)

    def _check_node(self, outcome: Outcome, offset: int) -> None:
        leader = self.replica.chain.leader
        if leader is not None and outcome.node != leader.node:
            self._stop(
                outcome.sequence,
                offset,
                f"outcome {outcome.sequence} names the node {outcome.node!r}, and epoch "
                f"{leader.epoch} is led by {leader.node!r}",
            )

    def _suspicious(
        self, sequence: int, offset: int, reason: str, *, is_strange: bool = False
    ) -> None:
        if self._suspect is None:
            self._suspect = Problem(ProblemKind.CHAIN, reason, sequence, offset)
            self._is_strange = is_strange

    def _end_suspicion(self, offset: int) -> None:
        """The chain continues: over a stranger's record it may, over one of this term it may
        not."""
        if self._suspect is not None and not self._is_strange:
            self._stop(0, offset, "")
        self._suspect = None

    def _stop(self, sequence: int, offset: int, reason: str) -> None:
        # What was suspicious before this is where it began.
        suspect = self._suspect
        self.problem = suspect or Problem(ProblemKind.CHAIN, reason, sequence, offset)

    def _decided(self) -> list[Decided]:
        """Pair what was read with its transactions."""
        replica = self.replica
        batch: list[Decided] = []
        heard = time.monotonic()
        while True:
            try:
                for decided in replica.drain():
                    batch.append(decided)
                    self.sequence = decided.outcome.sequence
            except CorruptLog as error:
                self._answer_is_bad(str(error))
                return batch
            needed = replica.waiting_for
            if needed is None:
                return batch
            if needed >= self._transactions_end:
                self._answer_is_bad(
                    f"the transaction at offset {needed} is answered and missing: the topic ends "
                    f"at {self._transactions_end}"
                )
                return batch
            records = self._transactions.poll(records_max=RECORDS_PER_POLL, timeout_seconds=0.5)
            for submitted in records:
                replica.receive_submitted(submitted)
            if records:
                heard = time.monotonic()
            elif self._transactions.position() > needed:
                # Passed without a record: the next turn says that it is missing.
                replica.transactions_position = self._transactions.position()
            else:
                _expect_soon(heard)

    def _answer_is_bad(self, reason: str) -> None:
        # It comes before whatever was found further on in the outcomes.
        self.problem = Problem(ProblemKind.TRANSACTION, reason, self.sequence + 1)

    def _read_the_rest(self) -> None:
        """Read the transactions to their end: what is left is undecided."""
        if self.problem is None:
            end, most = self._transactions_end, RECORDS_PER_POLL
            for submitted in read_on(self._transactions, end, records_max=most):
                self.replica.receive_submitted(submitted)


def _expect_soon(heard: float) -> None:
    if time.monotonic() - heard > SILENCE_SECONDS:
        raise Unavailable(f"Kafka sent nothing for {SILENCE_SECONDS:.0f} s; try again later")
