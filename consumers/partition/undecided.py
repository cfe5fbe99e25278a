"""Transactions that wait for their decision, and the queues at the locks that they need."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from commitlog.core.decisions import BuildWanted, Found, Wanted
from commitlog.model.records import Submitted
from consumers.partition.obstacles import Obstacle


@dataclass(eq=False, slots=True)
class Undecided:
    """A transaction that isn't decided yet, and what it waits for."""

    submitted: Submitted
    keys: frozenset[object]
    observed: dict[Wanted, Found] = field(default_factory=dict)
    outstanding: int = 0
    """How many looks, writes and builds are under way for it."""
    error: Exception | None = None
    """Why one of them failed."""
    failures: int = 0
    retry_at: float = 0.0
    """Before then it isn't tried again; 0: at once."""
    awaits_until: float = 0.0
    """Until when it is looked for what somebody is about to write; 0: nothing was looked for."""
    unbuilt: list[BuildWanted] = field(default_factory=list)
    """What will be built once the version before has its file."""
    build_by: float = 0.0
    written: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Files that were written for it, by location and path, with their digests."""
    rewrites: int = 0
    """How often what was written had changed by the time when it was there."""
    in_the_way: dict[tuple[str, str], Obstacle] = field(default_factory=dict)
    """What had the names of its files."""
    read_at_offset: int = 0
    """Where the outcomes ended after that was read."""

    @property
    def is_free(self) -> bool:
        """Whether nothing outside keeps it waiting."""
        return not self.outstanding and not self.unbuilt and not self.retry_at


class LockQueues:
    """A queue per lock (a table or an id), first come, first served."""

    def __init__(self) -> None:
        """Start with no queue."""
        self._queues: dict[object, deque[Undecided]] = {}

    def enter(self, item: Undecided) -> None:
        """Append a transaction to the queue of each of its locks."""
        for key in item.keys:
            self._queues.setdefault(key, deque()).append(item)

    def is_first(self, item: Undecided) -> bool:
        """Return True if the transaction is first in the queue of each of its locks."""
        queues = self._queues
        for key in item.keys:  # noqa: SIM110 - a generator's frames cost more than this
            if queues[key][0] is not item:
                return False
        return True

    def leave(self, item: Undecided) -> Iterable[Undecided]:
        """Remove a transaction that is first; return those that are first at all locks now."""
        next_ones: dict[Undecided, None] = {}
        for key in item.keys:
            waiting = self._queues[key]
            waiting.popleft()
            if waiting:
                next_ones[waiting[0]] = None
            else:
                del self._queues[key]
        found = [one for one in next_ones if self.is_first(one)]
        return sorted(found, key=lambda one: one.submitted.offset) if len(found) > 1 else found
