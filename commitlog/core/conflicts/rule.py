"""A rule of the grid: which commits of one kind a late candidate conflicts with, and how badly."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import wraps

from commitlog.core.conflicts.candidate import Candidate, Finding, Nearest, Verdict
from commitlog.core.conflicts.history import History

Rule = Callable[[Candidate, History, int, str], Finding | None]
"""(candidate, history, the version that the candidate read, a kind of operation) -> the first later
version of this kind that conflicts."""


class Missed(Nearest):
    """The commits of one kind that a candidate missed, and the first one that conflicts with it."""

    def __init__(
        self,
        candidate: Candidate,
        history: History,
        after: int,
        kind: str,
        rule: str,
        verdict: Verdict,
    ) -> None:
        """Begin without a conflict; `rule` and `verdict` are the defaults of those offered."""
        super().__init__(rule, verdict)
        self.candidate, self.history = candidate, history
        self.after, self.kind = after, kind

    def first(self, how: str, which: Hashable) -> int:
        """Return the first missed version that touched this, 0 if none did."""
        return self.history.first(how, which, self.after)

    def offer_any(self, rule: str = "", verdict: Verdict | None = None) -> None:
        """Take the first missed version, whatever it touched."""
        self.offer(self.history.first_of_kind(self.kind, self.after), rule=rule, verdict=verdict)

    def offer_first(
        self,
        how: str,
        which: Hashable,
        *,
        fragment: int | None = None,
        key: Hashable | None = None,
        rule: str = "",
        verdict: Verdict | None = None,
    ) -> None:
        """Take the first missed version that touched this, if any did."""
        if version := self.history.first(how, which, self.after):
            self.offer(version, fragment=fragment, key=key, rule=rule, verdict=verdict)

    def offer_on_fragments(self, *hows: str, fragments: Iterable[int] | None = None) -> None:
        """Take the first versions that touched fragments: the candidate's, or those given."""
        for fragment_id in self.candidate.fragments if fragments is None else fragments:
            for how in hows:
                self.offer_first(how, fragment_id, fragment=fragment_id)


def rule(
    name: str, verdict: Verdict = Verdict.RETRYABLE
) -> Callable[[Callable[[Missed], None]], Rule]:
    """Make a rule of a function that offers conflicts, with their default name and verdict."""

    def made(offer_conflicts: Callable[[Missed], None]) -> Rule:
        @wraps(offer_conflicts)
        def find(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
            missed = Missed(candidate, history, after, kind, name, verdict)
            offer_conflicts(missed)
            return missed.finding

        return find

    return made
