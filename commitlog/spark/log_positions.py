"""Where a reader of the log stands, so that another process can continue there and trust it.

A record of the outcomes topic is valid by what came before it, so a position holds the head of
the chain beside the offset. The driver walks the chain once and hands out stretches of it; a task
checks its own stretch again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from commitlog.adapters.reading import SILENCE_SECONDS, end_of, read_to
from commitlog.client.leader.transactions_by_offset import TransactionsByOffset
from commitlog.core.log.chain import BEGINNING, ChainPlace, chain_at
from commitlog.core.log.replica import Decided
from commitlog.errors import CorruptLog, InvalidRequest, WrongLog
from commitlog.model.records import LeaderStarted, Outcome, Unreadable
from commitlog.ports import Log

RECORDS_PER_POLL = 2_000
ANOTHER = (
    "this isn't the log that the query began with, or was restored as of an earlier position, start"
    " the query with a new checkpoint"
)


@dataclass(frozen=True)
class Stretch:
    """A part of one partition that one task reads."""

    partition: int
    start: ChainPlace
    end_offset: int


def another_sources(offset: object) -> InvalidRequest:
    """Return the error of a query whose checkpoint has no offset of the source that it reads."""
    return InvalidRequest(
        f"the checkpoint is another source's: its offset is {offset}", field="checkpointLocation",
        advice="Read what the query read before (options 'read' and 'table'), or start it with a"
        " new checkpoint",
    )  # fmt: skip


def beginning(log: Log) -> dict[int, ChainPlace]:
    """Return the first position of each partition."""
    return dict.fromkeys(range(log.partitions()), BEGINNING)


def outcomes_end(log: Log, partition: int) -> int:
    """Return where a partition's outcomes end now."""
    return end_of(log.read_outcomes(partition))


def walk(
    log: Log,
    partition: int,
    start: ChainPlace,
    end_offset: int,
    *,
    silence_seconds: float = SILENCE_SECONDS,
    on_leader: Callable[[LeaderStarted], None] = lambda leader: None,
) -> Iterator[tuple[Outcome | None, ChainPlace]]:
    """Yield each record's valid outcome (None: another record) and the position behind it.

    `on_leader` is called with each valid start of a leader.
    Raises CorruptLog where the chain is broken: by an unreadable record, or by one of the current
    epoch, or of one that hasn't begun, that does not follow. Raises WrongLog if the log ends before
    the start, and Unavailable if Kafka sends nothing for `silence_seconds`.
    """
    if end_offset < start.outcomes_offset:
        raise WrongLog(
            f"partition {partition} ends at offset {end_offset}, and was read up to"
            f" {start.outcomes_offset}. If {ANOTHER}"
        )
    chain = chain_at(start, log.genesis(partition))
    outcomes = log.read_outcomes(partition, start.outcomes_offset)
    for answered in read_to(
        outcomes, end_offset, silence_seconds=silence_seconds, records_max=RECORDS_PER_POLL
    ):
        record = answered.record
        expected, epoch = chain.sequence + 1, chain.epoch
        void = chain.admit(record)
        if void and _is_break(record, epoch, expected):
            raise CorruptLog(
                f"partition {partition} is broken at sequence {expected} (offset"
                f" {answered.offset}): {void}. Run `commitlog verify`; or, if {ANOTHER}"
            )
        valid = record if isinstance(record, Outcome) and not void else None
        if isinstance(record, LeaderStarted) and not void:
            on_leader(record)
        yield valid, ChainPlace(chain.sequence, answered.offset + 1, chain.epoch, chain.hash)


def stretches(
    log: Log,
    partition: int,
    start: ChainPlace,
    end_offset: int,
    *,
    outcomes_max: int,
    silence_seconds: float = SILENCE_SECONDS,
) -> Iterator[tuple[Stretch, ChainPlace]]:
    """Cut a range into stretches of at most so many outcomes, each with the position behind it."""
    begin, behind, count = start, start, 0
    for outcome, behind in walk(log, partition, start, end_offset, silence_seconds=silence_seconds):
        count += outcome is not None
        if count >= outcomes_max:
            yield Stretch(partition, begin, behind.outcomes_offset), behind
            begin, count = behind, 0
    if behind.outcomes_offset > begin.outcomes_offset:
        yield Stretch(partition, begin, behind.outcomes_offset), behind


def decided_in(
    log: Log,
    stretch: Stretch,
    *,
    silence_seconds: float = SILENCE_SECONDS,
    on_leader: Callable[[LeaderStarted], None] = lambda leader: None,
) -> Iterator[Decided]:
    """Yield a stretch's outcomes with their transactions, in the order of the chain.

    `on_leader` is called with each valid start of a leader, before the outcomes that follow it.
    """
    partition, start, end = stretch.partition, stretch.start, stretch.end_offset
    records = walk(log, partition, start, end, silence_seconds=silence_seconds, on_leader=on_leader)
    with closing(TransactionsByOffset(log, partition, seconds=silence_seconds)) as transactions:
        for outcome, position in records:
            if outcome is None:
                continue
            try:
                submitted = transactions.at(outcome.transaction_offset)
            except CorruptLog as error:
                raise CorruptLog(
                    f"outcome {outcome.sequence} of partition {partition} answers the"
                    f" transaction at offset {outcome.transaction_offset}, which is not in the log."
                    " If it was given up to an archive, use a command with --root, since Spark"
                    " reads no archive; otherwise run `commitlog verify`"
                ) from error
            yield Decided(submitted, outcome, position.outcomes_offset - 1)


def _is_break(record: Any, epoch: int, expected: int) -> bool:
    if isinstance(record, Unreadable):
        return True
    return isinstance(record, Outcome) and (
        record.epoch > epoch or (record.epoch == epoch and record.sequence >= expected)
    )
