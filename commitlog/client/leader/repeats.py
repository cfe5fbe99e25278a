"""What is said of an application's sequence that an earlier transaction answers.

The log commits the first content of a sequence and answers repeats with it. A client that died
before it noted its commit wants that; a client that reused a sequence for other rows by accident
doesn't. So a transaction under a sequence notes how many rows it brings, and what
they are in a digest; if an earlier one answers it, the two notes are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from commitlog.adapters.reading import end_of, read_to, record_at
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import CommitLogError, InvalidTransaction
from commitlog.model.records import Application, Outcome, Status, Transaction
from commitlog.ports import Log

logger = logging.getLogger("commitlog.repeats")

COUNT_PROPERTY = "commitlog.rows."
DIGEST = "digest of "
"""How the names of digests begin: they are compared only if both transactions have them."""
FIRST_SECONDS = 20.0
CHUNK_RECORDS = 1000


@dataclass(frozen=True)
class Repeat:
    """A transaction that an earlier one of the same application and sequence answers."""

    application: Application
    versions: Mapping[str, int]
    """The version of each table that the earlier one made."""
    first: Mapping[str, int] | None
    """What the earlier one noted; None if that can't be read any more."""
    now: Mapping[str, int]

    @property
    def is_other(self) -> bool:
        """Return True if the rows surely differ from those that were committed."""
        if self.first is None:
            return False
        return any(
            self.now.get(what, 0) != self.first.get(what, 0)
            for what in {**self.first, **self.now}
            if not what.startswith(DIGEST) or (what in self.now and what in self.first)
        )

    @property
    def rows(self) -> tuple[int | None, int]:
        """Return how many rows were committed, None if unknown, and how many came now."""
        return None if self.first is None else _rows(self.first), _rows(self.now)

    def __str__(self) -> str:
        """Say what was committed and what wasn't."""
        made = ", ".join(f"version {v} of {table}" for table, v in sorted(self.versions.items()))
        first = "an unknown number of rows" if self.first is None else _shown(self.first)
        said = (
            f"sequence {self.application.sequence} of application "
            f"{self.application.application_id!r} was committed before as {made} ({first}); "
            f"this batch ({_shown(self.now)}) was not written"
        )
        same_counts = self.first is not None and _shown(self.first) == _shown(self.now)
        return f"{said}, and its values differ" if self.is_other and same_counts else said


def digest_name(table: str) -> str:
    """Return the name of a table's digest; an earlier one, computed otherwise, had another name."""
    return f"{DIGEST}rows for {table}"


def noted(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return the properties that hold what a transaction brings."""
    return [(COUNT_PROPERTY + what, str(rows)) for what, rows in counts.items()]


def noted_counts(properties: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the counts that a transaction's properties hold."""
    return {
        name.removeprefix(COUNT_PROPERTY): int(value)
        for name, value in properties
        if name.startswith(COUNT_PROPERTY)
    }


def tell_repeat(
    runtime: Runtime, transaction: Transaction, outcome: Outcome, *, strict: bool = False
) -> Repeat | None:
    """Log a warning if an earlier transaction with other rows answers this one; return it.

    Raises:
        InvalidTransaction: the same, if that is what the caller wants (`strict`).
    """
    if outcome.answers is None:
        return None
    repeat = _compared(runtime, runtime.partition_of(transaction), transaction, outcome)
    if repeat is None:
        return None
    if not repeat.is_other:
        logger.info("%s", repeat)
        return repeat
    if strict:
        raise InvalidTransaction(
            str(repeat), field="strictRepeats", value=repeat.application.sequence,
            advice="To write these rows, use a new sequence or application id; to keep"
            " the first commit, leave strictRepeats out",
        )  # fmt: skip
    logger.warning("%s", repeat)
    return repeat


def repeat_of(runtime: Runtime, partition: int, outcome: Outcome) -> Repeat | None:
    """Return what the log's records say of a repeat; None if an outcome is of none."""
    if outcome.answers is None:
        return None
    transaction = _transaction_at(runtime.log, partition, outcome.transaction_offset)
    return None if transaction is None else _compared(runtime, partition, transaction, outcome)


def _compared(
    runtime: Runtime, partition: int, transaction: Transaction, outcome: Outcome
) -> Repeat | None:
    application = transaction.application
    if outcome.answers is None or outcome.status is not Status.COMMITTED or application is None:
        return None
    first = _first(runtime.log, partition, outcome.answers)
    if first is not None and first.transaction_id == transaction.transaction_id:
        return None
    return Repeat(
        application,
        outcome.versions(),
        None if first is None else noted_counts(first.properties) or None,
        noted_counts(transaction.properties),
    )


def _first(log: Log, partition: int, sequence: int) -> Transaction | None:
    try:
        answer = next(outcomes_before(log, partition, sequence), None)
        if answer is None or answer.sequence != sequence:
            return None
        return _transaction_at(log, partition, answer.transaction_offset)
    except CommitLogError as error:
        # Only a note is missing: the commit itself is known.
        logger.info("outcome %d can't be read any more: %s", sequence, error)
    return None


def _transaction_at(log: Log, partition: int, offset: int) -> Transaction | None:
    found = record_at(log.read_transactions(partition, offset), offset, seconds=FIRST_SECONDS)
    return found.record if found is not None and isinstance(found.record, Transaction) else None


def outcomes_before(log: Log, partition: int, position: int) -> Iterator[Outcome]:
    """Yield what was committed up to a position, the newest first.

    An outcome's offset is its sequence plus the number of other records before it, of which there
    are few, so the search starts there and goes back chunk by chunk.
    """
    end = end_of(log.read_outcomes(partition))
    high, newest = end, position + 1
    # The offset is at least the sequence, so the first chunk holds all from there to the end.
    low = min(position, end)
    while high > 0:
        found: dict[int, Outcome] = {}
        for outcome in _outcomes(log, partition, low, high):
            known = found.get(outcome.sequence)
            # A deposed leader may have written the same sequence, in an earlier epoch.
            if known is None or outcome.epoch > known.epoch:
                found[outcome.sequence] = outcome
        if high == end and position > max(found, default=0):
            last = _outcomes(log, partition, max(0, end - CHUNK_RECORDS), end)
            raise InvalidTransaction(
                f"position {position} is in the future: the log's position is "
                f"{max((outcome.sequence for outcome in last), default=0)}",
                field="positionAsOf",
                value=position,
                advice="Give the sequence of an outcome",
            )
        for sequence in sorted((s for s in found if s < newest), reverse=True):
            newest = sequence
            if found[sequence].status is Status.COMMITTED:
                yield found[sequence]
        high, low = low, max(0, low - CHUNK_RECORDS)


def version_made(outcome: Outcome, incarnation: str) -> int:
    """Return the newest version of a table that an outcome made; 0 if it made none."""
    if outcome.answers is not None:
        return 0  # it names what an earlier one made
    return max((r.version for r in outcome.results if r.incarnation == incarnation), default=0)


def _outcomes(log: Log, partition: int, low: int, high: int) -> Iterator[Outcome]:
    for answered in read_to(log.read_outcomes(partition, low), high, records_max=CHUNK_RECORDS):
        if isinstance(answered.record, Outcome):
            yield answered.record


def _rows(counts: Mapping[str, int]) -> int:
    return sum(rows for what, rows in counts.items() if not what.startswith(DIGEST))


def _shown(counts: Mapping[str, int]) -> str:
    shown = [
        f"{rows} row{'' if rows == 1 else 's'} {what}"
        for what, rows in counts.items()
        if not what.startswith(DIGEST)
    ]
    return ", ".join(shown) or "no rows"
