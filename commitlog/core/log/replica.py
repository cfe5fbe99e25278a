"""Joins the two topics of one partition: each valid outcome with the transaction that it answers.

A follower of the log (leader, standby, version index, materializer, verification) feeds both topics
in their own order and takes `Decided` pairs out in sequence order. An outcome waits
here until its transaction has been read. What is left in `undecided` is the next leader's work.

The order of outcomes is the order of effects. It may differ from the order of transactions'
offsets, since the leader lets other tables pass a transaction that waits for a build.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from commitlog.core.log.chain import Chain
from commitlog.errors import CorruptLog
from commitlog.model.records import Answered, LeaderStarted, LogRecord, Outcome, Submitted
from commitlog.model.values import made_fast


@made_fast
@dataclass(frozen=True, slots=True)
class Decided:
    """A transaction and its valid outcome, at the outcome's offset."""

    submitted: Submitted
    outcome: Outcome
    answered_offset: int


@dataclass(frozen=True, slots=True)
class Void:
    """A record of the outcomes topic that readers must ignore, and why."""

    offset: int
    reason: str


def has_content(record: LogRecord, digest: bytes) -> bool:
    """Return True if an outcome with this payload hash may answer a record.

    Rules that didn't know the record's schema had it decided as one that cannot be read.
    """
    unread = getattr(record, "unread", None)
    as_unread = unread is not None and unread.payload_hash == digest
    return as_unread or getattr(record, "payload_hash", b"") == digest


class Replica:
    """One partition, followed."""

    def __init__(
        self,
        chain: Chain | None = None,
        *,
        transactions_position: int = 0,
        outcomes_position: int = 0,
        outcome_offset: int = -1,
        decided_beyond: Iterable[int] = (),
    ) -> None:
        """Start at the given offsets, with the state that a checkpoint holds for them.

        `decided_beyond` names offsets at or after `transactions_position` that are decided already.
        """
        self.chain = chain or Chain()
        self.undecided: dict[int, Submitted] = {}
        self.transactions_position = transactions_position
        self.outcomes_position = outcomes_position
        self.answered_ms = 0
        """When the last record of the outcomes topic was appended, by the brokers' clock."""
        self.outcome_offset = outcome_offset
        """Of the last valid outcome; -1 before the first."""
        self.terms: deque[tuple[LeaderStarted, int]] = deque(maxlen=1000)
        """Valid terms with their offsets, newest last."""
        self.voids: deque[Void] = deque(maxlen=1000)
        self.void_count = 0
        self._decided_ahead = set(decided_beyond)
        """Offsets that a checkpoint has as decided and that weren't read since."""
        self._waiting: deque[tuple[Outcome, int]] = deque()

    def receive_submitted(self, submitted: Submitted) -> None:
        """Add the next record of the transactions topic."""
        self.transactions_position = submitted.offset + 1
        if submitted.offset in self._decided_ahead:
            self._decided_ahead.remove(submitted.offset)
        else:
            self.undecided[submitted.offset] = submitted

    def receive_answered(self, answered: Answered) -> str:
        """Add the next record of the outcomes topic; return "" or why it is void."""
        self.outcomes_position, self.answered_ms = answered.offset + 1, answered.append_time_ms
        reason = self.chain.admit(answered.record)
        if reason:
            self.void_count += 1
            self.voids.append(Void(answered.offset, reason))
        elif isinstance(answered.record, Outcome):
            self.outcome_offset = answered.offset
            self._waiting.append((answered.record, answered.offset))
        elif isinstance(answered.record, LeaderStarted):
            self.terms.append((answered.record, answered.offset))
        return reason

    def drain(self) -> Iterator[Decided]:
        """Yield what both topics agree on, in sequence order."""
        while self._waiting:
            outcome, offset = self._waiting[0]
            if outcome.transaction_offset >= self.transactions_position:
                return
            submitted = self.undecided.get(outcome.transaction_offset)
            self._check(outcome, submitted)
            assert submitted is not None
            self._waiting.popleft()
            self.decide(submitted)
            yield Decided(submitted, outcome, offset)

    def decide(self, submitted: Submitted) -> None:
        """Note that a transaction has its outcome (the leader calls this for its own)."""
        del self.undecided[submitted.offset]

    def resume_point(self) -> tuple[int, list[int]]:
        """Return where to read transactions again after a restart, and what to skip from there."""
        position = self.transactions_position
        first = next(iter(self.undecided), position)
        read = (offset for offset in range(first, position) if offset not in self.undecided)
        ahead = (offset for offset in self._decided_ahead if offset >= position)
        return first, [*read, *sorted(ahead)]

    @property
    def waiting_for(self) -> int | None:
        """The offset of the transaction without which nothing more can be drained."""
        return self._waiting[0][0].transaction_offset if self._waiting else None

    def _check(self, outcome: Outcome, submitted: Submitted | None) -> None:
        if submitted is None:
            raise CorruptLog(
                f"outcome {outcome.sequence} answers the transaction at offset"
                f" {outcome.transaction_offset}, which is not in the log or was decided"
                " before; stop and run `commitlog verify`"
            )
        check_answers(outcome, submitted)


def check_answers(outcome: Outcome, submitted: Submitted) -> None:
    """Raise CorruptLog unless an outcome is about the transaction at its offset."""
    record = submitted.record
    is_its = record.transaction_id == outcome.transaction_id
    if not is_its or not has_content(record, outcome.payload_hash):
        raise CorruptLog(
            f"outcome {outcome.sequence} answers the transaction at offset {submitted.offset} as"
            f" {outcome.transaction_id}, but there stands {record.transaction_id} with other"
            " content; stop and run `commitlog verify`"
        )
