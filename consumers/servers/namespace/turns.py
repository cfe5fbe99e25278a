"""Queues clients that race for the same table, so that each commits in its turn.

Of many clients that staged the same version, one commits. The others wait here and are refused
without asking the log, so the log and its history aren't filled with attempts that were lost
before.

A client that lost has to redo its work. Meanwhile appends, which never lose, could commit before it
again and again. So the client that has been losing longest is promised the next turn, and appends
wait up to `PROMISE_SECONDS` for it. Other losers don't wait: how long Lance pauses before its next
try follows from how long its first one took.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from lance_namespace import ConcurrentModificationError

from consumers.servers.security.limits import count

PROMISE_SECONDS = 0.5
"""How long appends wait for a client that was promised the next turn."""
LOSER_SECONDS = 10.0
"""A client that sent nothing for this long has given up."""


class VersionTaken(ConcurrentModificationError):
    """Another transaction has the version, of the table as it stands."""


@dataclass(slots=True)
class _Race:
    """The clients that lost on one table, the oldest first, each with the time of its last request;
    and the one that was promised the next turn."""

    losers: OrderedDict[Hashable, float] = field(default_factory=OrderedDict)
    promised: Hashable | None = None
    until: float = 0.0

    def is_closed_to(self, client: Hashable, now: float) -> bool:
        """Return True while another client is waited for."""
        return self.promised is not None and self.promised != client and now < self.until

    def promise(self, now: float) -> None:
        """Promise the next turn to the client that has been losing longest."""
        for client in [c for c, seen in self.losers.items() if now - seen > LOSER_SECONDS]:
            del self.losers[client]
        self.promised, self.until = next(iter(self.losers), None), now + PROMISE_SECONDS


class KeyedLocks:
    """Locks by key, each there as long as somebody holds it or waits for it. Thread-safe."""

    def __init__(self) -> None:
        """No request waits."""
        self._lock = threading.Lock()
        self._is_open = threading.Condition(self._lock)
        self._beside: Counter[Hashable] = Counter()
        self._turns: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
        self._races: dict[Hashable, _Race] = {}

    def wait(self, table: Hashable, client: Hashable) -> None:
        """Wait a moment while the next turn at a table is promised to another client."""
        end = time.monotonic() + PROMISE_SECONDS
        with self._is_open:
            while (now := time.monotonic()) < end:
                race = self._races.get(table)
                if race is None or not race.is_closed_to(client, now):
                    return
                self._is_open.wait(min(race.until, end) - now)

    def lost(self, table: Hashable, client: Hashable) -> None:
        """Note that a client has to do its work again."""
        now = time.monotonic()
        with self._is_open:
            race = self._races.setdefault(table, _Race())
            race.losers[client] = now
            if race.promised == client:
                race.until = now + PROMISE_SECONDS
            elif race.promised is None or now >= race.until:
                race.promise(now)
                self._is_open.notify_all()

    def won(self, table: Hashable, client: Hashable) -> None:
        """Note that a client's work is done."""
        with self._is_open:
            race = self._races.get(table)
            if race is None or race.losers.pop(client, None) is None:
                return
            if race.promised == client:
                race.promise(time.monotonic())
                self._is_open.notify_all()
            if not race.losers:
                del self._races[table]

    @contextlib.contextmanager
    def beside(self, key: Hashable) -> Iterator[bool]:
        """Work beside the others, and learn whether there are none."""
        with self._lock:
            self._beside[key] += 1
            is_alone = self._beside[key] == 1
        try:
            yield is_alone
        finally:
            with self._lock:
                count(self._beside, key, -1)

    @contextlib.contextmanager
    def of(self, key: Hashable, patience_seconds: float) -> Iterator[None]:
        """Take this key's turn once it is free, or patience is over."""
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        is_held = turn.acquire(timeout=patience_seconds)
        try:
            yield
        finally:
            if is_held:
                turn.release()
