"""One at a time, of those who race for the same thing.

Of many clients that staged the same version of a table, one commits. Who waits for that need not
ask the log as well, and neither the log nor its history is filled with what was lost before.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from lance_namespace import ConcurrentModificationError


class VersionTaken(ConcurrentModificationError):
    """Another transaction has the version, of the table as it stands."""


@dataclass(slots=True)
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class Turns:
    """Locks by key, each there as long as somebody holds it or waits for it. Thread-safe."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._lock = threading.Lock()
        self._beside: Counter[Hashable] = Counter()
        self._turns: dict[Hashable, _Turn] = {}

    @contextlib.contextmanager
    def beside(self, key: Hashable) -> Iterator[bool]:
        """Work beside the others, and learn whether there is nobody else."""
        with self._lock:
            self._beside[key] += 1
            is_alone = self._beside[key] == 1
        try:
            yield is_alone
        finally:
            with self._lock:
                self._beside[key] -= 1
                if not self._beside[key]:
                    del self._beside[key]

    @contextlib.contextmanager
    def of(self, key: Hashable, patience_seconds: float) -> Iterator[None]:
        """Wait until nobody else has this key's turn, or patience is over; then have it."""
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.users += 1
        is_held = turn.lock.acquire(timeout=patience_seconds)
        try:
            yield
        finally:
            if is_held:
                turn.lock.release()
            with self._lock:
                turn.users -= 1
                if not turn.users:
                    del self._turns[key]
