"""Which of an application's sequences committed: they live with the table that they committed to.

They are known as long as the table is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

APPLICATION_SEQUENCES_MAX = 10_000
"""Sequences of one application that a table can answer for; older ones are refused."""


class ApplicationAnswer(NamedTuple):
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
        self._answers: list[ApplicationAnswer] = []

    @property
    def last(self) -> int:
        """The newest sequence that committed, -1 if none did."""
        return self._sequences[-1] if self._sequences else -1

    @property
    def first(self) -> int:
        """The oldest sequence that is remembered."""
        return self._sequences[0]

    def get(self, sequence: int) -> ApplicationAnswer | None:
        """Return what committed as `sequence`, None if that isn't known."""
        position = bisect_left(self._sequences, sequence)
        if position < len(self._sequences) and self._sequences[position] == sequence:
            return self._answers[position]
        return None

    def note(self, sequence: int, run: str, answer: ApplicationAnswer) -> None:
        """Add the next sequence."""
        self.run = run
        if self._answers and sequence == self.last:
            self._answers[-1] = answer
            return
        self._sequences.append(sequence)
        self._answers.append(answer)
        if len(self._sequences) > APPLICATION_SEQUENCES_MAX * 1.25:
            del self._sequences[:-APPLICATION_SEQUENCES_MAX]
            del self._answers[:-APPLICATION_SEQUENCES_MAX]

    def items(self) -> Iterable[tuple[int, ApplicationAnswer]]:
        """Return what is remembered."""
        return zip(self._sequences, self._answers, strict=True)


Applications = dict[str, ApplicationLog]
