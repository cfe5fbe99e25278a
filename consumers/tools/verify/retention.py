"""What the log says it gave up to an archive, compared with the archive that is there.

The archive's own proof could be rewritten with its files; the digests in the log's Retained
records could not. They cover every byte of what was given up: also who submitted a transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from commitlog.adapters.reading import read_to
from commitlog.errors import Unavailable
from commitlog.model.records import Retained, RetainedSegment
from commitlog.ports import Log
from consumers.tools.archive.log import ArchivedLog
from consumers.tools.archive.proof import Archive, DecidedSegment
from consumers.tools.verify.findings import Problem, ProblemKind


class GivenUp:
    """What the log said last of each segment that it gave up.

    A segment that rows were erased from was given up once more, by its new digests.
    """

    def __init__(self) -> None:
        self.sequence = 0
        """The last outcome whose transaction was given up."""
        self._transactions_offset = 0
        """Before it, all transactions were given up."""
        self._last: dict[tuple[int, int], tuple[RetainedSegment, int]] = {}

    def take(self, said: list[tuple[Retained, int]]) -> None:
        """Take records with their offsets in the outcomes topic, and forget them there."""
        for retained, offset in said:
            self.sequence = max(self.sequence, retained.sequence)
            self._transactions_offset = retained.transactions_offset
            for named in retained.segments:
                self._last[named.first_sequence, named.last_sequence] = named, offset
        said.clear()

    def explained(self, problem: Problem, log: Log, partition: int) -> Problem:
        """Say of a missing transaction that it was given up, if the log says so anywhere.

        The record that says so is behind the place where a walk misses the transaction.
        """
        if problem.kind is not ProblemKind.TRANSACTION:
            return problem
        self._read(log, partition)
        if problem.sequence is None or problem.sequence > self.sequence:
            return problem
        text = (
            f"{problem.message}. The log says that transactions before offset "
            f"{self._transactions_offset} were given up to an archive: name the root that has it "
            "(--root)"
        )
        return replace(problem, message=text)

    def _read(self, log: Log, partition: int) -> None:
        with suppress(Unavailable):  # then it isn't known whether a record explains it
            for answered in read_to(log.read_outcomes(partition), records_max=2_000):
                if isinstance(answered.record, Retained):
                    self.take([(answered.record, answered.offset)])

    def problems(self, log: Log, partition: int) -> Iterator[Problem]:
        """Yield what is missing from a log's archive, or why nobody can tell."""
        if not isinstance(log, ArchivedLog):
            return
        if why := log.why_unread(partition):
            yield Problem(ProblemKind.ARCHIVE, why)
        elif log.has_archive:
            yield from self.compare(log.archive(partition))

    def compare(self, archive: Archive) -> Iterator[Problem]:
        """Yield the parts of it that are missing from the archive."""
        known = {(one.first_sequence, one.end.sequence): one for one in archive.segments}
        for (first, last), (named, offset) in self._last.items():
            segment = known.get((first, last))
            if segment is None:
                text = (
                    f"the log gave outcomes {first} to {last} and their transactions up to an "
                    f"archive, and {archive.folder} has no such segment; restore it"
                )
            elif differs := _differing(named, segment):
                text = (
                    f"segment {segment.name} of {archive.folder} isn't the one that the log gave "
                    f"its records up to: its {differs} are others than the log says; restore it"
                )
            else:
                continue
            yield Problem(ProblemKind.ARCHIVE, text, first, offset)

    def to_json(self) -> list[Any]:
        """Return it as JSON-able values."""
        return [
            [
                s.first_sequence,
                s.last_sequence,
                s.outcomes_digest.hex(),
                s.transactions_digest.hex(),
            ]
            + [offset, self.sequence]
            for s, offset in self._last.values()
        ]

    def restore(self, data: list[Any]) -> None:
        """Take back what `to_json` returned."""
        for first, last, outcomes, transactions, offset, sequence in data:
            digests = bytes.fromhex(outcomes), bytes.fromhex(transactions)
            self._last[first, last] = RetainedSegment(first, last, *digests), offset
            self.sequence = sequence


def _differing(named: RetainedSegment, segment: DecidedSegment) -> str:
    if named.transactions_digest.hex() != segment.transactions.digest:
        return "transactions"
    return "outcomes" if named.outcomes_digest.hex() != segment.outcomes.digest else ""
