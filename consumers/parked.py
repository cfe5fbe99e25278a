"""A transaction that cannot be decided yet, and what it waits for outside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from commitlog.core.decisions import BuildWanted, Decision, Found, Wanted
from commitlog.model.records import Submitted
from consumers.mailbox import Reply


class Observer(Protocol):
    """Looks at what a decision needs outside the log."""

    def observe(self, wanted: Wanted) -> Found:
        """Fetch bytes or existence; raise OSError when the store fails."""

    def build(self, wanted: BuildWanted, reply: Reply[Found]) -> None:
        """Let pylance build a manifest in a side worker, on a version that has its file."""

    def write(self, decision: Decision) -> None:
        """Put the decision's files; raise OSError when the store fails."""

    def forget(self, location: str) -> None:
        """Keep nothing of a table that is gone."""


@dataclass(slots=True)
class Parked:
    """A transaction that cannot be decided yet."""

    submitted: Submitted
    keys: frozenset[object]
    observed: dict[Wanted, Found] = field(default_factory=dict)
    failures: int = 0
    retry_at: float = 0.0
    builds: set[BuildWanted] = field(default_factory=set)
    """What is being built for it."""
    unbuilt: list[BuildWanted] = field(default_factory=list)
    """What will be built once the version before has its file."""
    build_by: float = 0.0
    error: Exception | None = None
    """Why one of its builds failed."""
    active: bool = False
    """Whether it waits for a build or a retry itself, not only for another transaction."""

    def is_due(self, now: float) -> bool:
        """Return True if it can be tried now."""
        return not self.builds and not self.unbuilt and now >= self.retry_at
