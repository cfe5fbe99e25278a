"""Transactions that wait for their decision, and the queues at the locks that they need."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from commitlog.adapters.storage import sha256_of
from commitlog.core.decisions import BuildWanted, Decision, FileToWrite, Found, Wanted
from commitlog.model.records import Submitted
from consumers.partition.files.trouble import Trouble
from consumers.partition.obstacles import Obstacle

RETRY_SECONDS_MAX = 5.0


class Seen(dict[Wanted, Found]):
    """What was seen for a transaction; what needs no look counts as seen when it is asked for."""

    __slots__ = ("known",)

    def __init__(
        self, known: Callable[[Wanted], Found | None], seen: Mapping[Wanted, Found]
    ) -> None:
        """Start with what was `seen`; `known` returns what needs no look, None if it does."""
        super().__init__(seen)
        self.known = known

    def get(self, wanted: Wanted, default: Any = None) -> Any:
        """Return what was seen or is known."""
        found = super().get(wanted)
        if found is None:
            found = self.known(wanted)
            if found is None:
                return default
            self[wanted] = found
        return found


class Written(NamedTuple):
    """What came of writing a decision's files."""

    in_the_way: dict[tuple[str, str], Obstacle]
    end_offset: int
    """Where the outcomes ended after that was read."""
    seconds: float
    """How long it took."""

    @classmethod
    def by(
        cls, write: Callable[[], dict[tuple[str, str], Obstacle]], end_offset: Callable[[], int]
    ) -> Written:
        """Write; ask where the outcomes end if something is in the way."""
        began = time.monotonic()
        in_the_way = write()
        seconds = time.monotonic() - began
        return cls(in_the_way, end_offset() if in_the_way else 0, seconds)


@dataclass(eq=False, slots=True)
class Undecided:
    """A transaction that isn't decided yet, and what it waits for."""

    submitted: Submitted
    keys: frozenset[object]
    observed: Seen
    outstanding: int = 0
    """How many looks, writes and builds are under way for it."""
    error: Exception | None = None
    """Why one of them failed."""
    failures: int = 0
    trouble: Trouble | None = None
    """That its store fails."""
    retry_at: float = 0.0
    """Before then it isn't tried again; 0: at once."""
    awaits_until: float = 0.0
    """Until when it is looked for what somebody is about to write; 0: nothing was looked for."""
    unbuilt: list[BuildWanted] = field(default_factory=list)
    """What will be built once the version before has its file."""
    build_by: float = 0.0
    decision: Decision | None = None
    """What was decided last: it holds until another transaction is applied."""
    written: dict[tuple[str, str], bytes] = field(default_factory=dict)
    """Files that were written for it, by location and path, with their digests."""
    rewrites: int = 0
    """How often what was written had changed by the time when it was there."""
    in_the_way: dict[tuple[str, str], Obstacle] = field(default_factory=dict)
    """What had the names of its files."""
    read_at_offset: int = 0
    """Where the outcomes ended after that was read."""

    def unwritten(
        self, decision: Decision
    ) -> tuple[dict[tuple[str, str], FileToWrite], list[bytes]]:
        """Return a decision's files, by place, and recordings that weren't written like this."""
        written = self.written
        missing = {
            (file.location, file.path): file
            for file in decision.files
            if written.get((file.location, file.path)) != file.digest
        }
        recordings = [one for one in decision.recordings if ("", sha256_of(one)) not in written]
        return missing, recordings

    def note_written(self, decision: Decision) -> None:
        """Remember a decision's files and recordings, but for what something is in the way of."""
        for file in decision.files:
            place = (file.location, file.path)
            if place not in self.in_the_way:
                self.written[place] = file.digest
        for one in decision.recordings:
            self.written["", sha256_of(one)] = b""

    def try_later(self, error: Exception, now: float) -> None:
        """Have it tried again later, since its store fails."""
        seconds = min(RETRY_SECONDS_MAX, 0.05 * 2 ** min(self.failures, 10))
        self.failures += 1
        self.retry_at = now + seconds
        self.trouble = self.trouble or Trouble(now)
        what = f"transaction {self.submitted.record.transaction_id} waits for its store"
        self.trouble.failed(what, error, now, seconds)

    def is_through(self, now: Callable[[], float]) -> None:
        """Note that it is decided, and has its files."""
        if self.trouble is not None:
            name = self.submitted.record.transaction_id
            self.trouble.over(f"transaction {name} waits for its store no more", now())

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
