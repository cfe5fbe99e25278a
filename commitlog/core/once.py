"""Which transactions were decided: an id commits at most once, whatever is sent again.

Ids are kept for the horizon of log time that the rules set; what may be older than that, by its
own account, is refused, since nobody here could tell whether it committed. Sequences of an
application live with the table that they committed to, and are known as long as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from commitlog.model.records import Code, FailedRequirement, OperationResult, Outcome, Status

APPLICATION_SEQUENCES_MAX = 10_000
"""Sequences of one application that a table can answer for; older ones are refused."""

CHUNK_OUTCOMES = 4096
"""Ids whose last outcomes lie in one such range are saved together."""

_UUID_LENGTH = 36
_UUID_VERSION_AT = 14


class Decided(NamedTuple):
    """What is remembered of an id."""

    sequence: int
    """Of its outcome, or of the one that it repeats."""
    status: Status
    attempt: int
    payload_hash: bytes
    time_ms: int
    code: Code = Code.NONE
    results: tuple[OperationResult, ...] = ()
    noted: int = 0
    """The sequence of the outcome that was noted last for the id."""
    failed_requirements: tuple[FailedRequirement, ...] = ()


def uuid_time_ms(transaction_id: str) -> int:
    """Return the time inside a UUIDv7, 0 for every other id."""
    if len(transaction_id) != _UUID_LENGTH or transaction_id[_UUID_VERSION_AT] != "7":
        return 0
    try:
        return int(transaction_id[:8] + transaction_id[9:13], 16)
    except ValueError:
        return 0


class Once:
    """The ids of the horizon, in chunks of which most don't change any more."""

    def __init__(self) -> None:
        self._ids: dict[str, Decided] = {}
        self._chunks: dict[int, list[str]] = {}
        self._changed: dict[int, int] = {}
        self.forgotten_ms = -1
        """Up to this time, ids have been let go."""

    def get(self, transaction_id: str) -> Decided | None:
        """Return what is known of an id."""
        return self._ids.get(transaction_id)

    def is_too_old(self, transaction_id: str, submitted_at_ms: int, floor_ms: int) -> bool:
        """Say whether an unknown id may have been decided and forgotten."""
        floor = max(floor_ms, self.forgotten_ms + 1)
        born = uuid_time_ms(transaction_id)
        return 0 < submitted_at_ms < floor or 0 < born < floor

    def remember(self, outcome: Outcome) -> None:
        """Note an outcome under its id."""
        before = self._ids.pop(outcome.transaction_id, None)
        if before is not None:
            self._changed[before.noted // CHUNK_OUTCOMES] = outcome.sequence
        decided = Decided(
            outcome.sequence if outcome.answers is None else outcome.answers,
            outcome.status,
            outcome.attempt,
            outcome.payload_hash,
            outcome.time_ms,
            outcome.code,
            _compact(outcome.results),
            outcome.sequence,
            outcome.failed_requirements,
        )
        self._note(outcome.transaction_id, decided, outcome.sequence)

    def prune(self, floor_ms: int, sequence: int) -> None:
        """Let go of ids that were decided before `floor_ms`, as of outcome `sequence`."""
        ids = self._ids
        while ids:
            transaction_id = next(iter(ids))
            decided = ids[transaction_id]
            if decided.time_ms >= floor_ms:
                return
            del ids[transaction_id]
            chunk = decided.noted // CHUNK_OUTCOMES
            self._changed[chunk] = sequence
            self.forgotten_ms = decided.time_ms
            for old in [number for number in self._chunks if number < chunk]:
                del self._chunks[old], self._changed[old]

    def chunks(self) -> Iterable[tuple[int, int]]:
        """Return the chunks' numbers, each with the sequence of the outcome that changed it."""
        return self._changed.items()

    def chunk(self, number: int) -> list[tuple[str, Decided]]:
        """Return a chunk's ids, in the order in which they were decided last."""
        found = ((name, self._ids.get(name)) for name in dict.fromkeys(self._chunks[number]))
        mine = [
            (name, decided)
            for name, decided in found
            if decided is not None and decided.noted // CHUNK_OUTCOMES == number
        ]
        return sorted(mine, key=lambda item: item[1].noted)

    def restore(self, number: int, items: Iterable[tuple[str, Decided]], changed: int) -> None:
        """Take a chunk back, the oldest first; `changed` is its counter."""
        # A chunk whose ids were all decided again later is empty, and a part all the same.
        self._chunks.setdefault(number, [])
        self._changed[number] = changed
        for transaction_id, decided in items:
            self._note(transaction_id, decided, changed)

    def _note(self, transaction_id: str, decided: Decided, changed: int) -> None:
        chunk = decided.noted // CHUNK_OUTCOMES
        self._ids[transaction_id] = decided
        self._chunks.setdefault(chunk, []).append(transaction_id)
        self._changed[chunk] = changed


def _compact(results: tuple[OperationResult, ...]) -> tuple[OperationResult, ...]:
    """Leave out the bytes, which an answer to a duplicate doesn't repeat."""
    if all(not r.images and not r.files and r.delta is None for r in results):
        return results
    return tuple(replace(result, images=(), files=(), delta=None) for result in results)


class Answer(NamedTuple):
    """What a table remembers of an application's sequence."""

    outcome_sequence: int
    version: int
    operation: str


class ApplicationLog:
    """One application's sequences on one table, ascending."""

    __slots__ = ("_answers", "_sequences", "run")

    def __init__(self, run: str = "") -> None:
        self.run = run
        self._sequences: list[int] = []
        self._answers: list[Answer] = []

    @property
    def last(self) -> int:
        """The newest sequence that committed, -1 if none did."""
        return self._sequences[-1] if self._sequences else -1

    @property
    def first(self) -> int:
        """The oldest sequence that is remembered."""
        return self._sequences[0]

    def get(self, sequence: int) -> Answer | None:
        """Return what committed as `sequence`, None if that isn't known."""
        position = bisect_left(self._sequences, sequence)
        if position < len(self._sequences) and self._sequences[position] == sequence:
            return self._answers[position]
        return None

    def note(self, sequence: int, run: str, answer: Answer) -> None:
        """Add the next sequence."""
        self.run = run
        if sequence == self.last:
            self._answers[-1] = answer
            return
        self._sequences.append(sequence)
        self._answers.append(answer)
        if len(self._sequences) > APPLICATION_SEQUENCES_MAX * 1.25:
            del self._sequences[:-APPLICATION_SEQUENCES_MAX]
            del self._answers[:-APPLICATION_SEQUENCES_MAX]

    def items(self) -> Iterable[tuple[int, Answer]]:
        """Return what is remembered."""
        return zip(self._sequences, self._answers, strict=True)


Applications = dict[str, ApplicationLog]
