"""How a long job tells how far it has come."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

OnProgress = Callable[[int, int], None]
"""Told how many are done, of how many in all."""
OnCount = Callable[[str, int], None]
"""Told of what kind how many are done, where nobody knows how many there are."""


NEWS_SECONDS = 30
"""Between two lines about a long job that no terminal shows."""
_wait = threading.Event.wait


@contextlib.contextmanager
def told_now_and_then(how_far: Callable[[], str], say: Callable[[str], None]) -> Iterator[None]:
    """Say now and then how far a job is, also while it waits for something.

    Who reads it in the log of a timer or a pod sees that it works, and since when it stands still.
    """
    ended = threading.Event()

    def tell() -> None:
        seconds = 0
        while not _wait(ended, NEWS_SECONDS):
            seconds += NEWS_SECONDS
            say(f"{how_far()}, after {seconds:,} s")

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join(1)  # nobody may be reading what it says


def untold(*_: object) -> None:
    """Tell nobody."""


class Tally:
    """Counts what parts of a job pass through it, and tells of it now and then."""

    def __init__(self, on_count: OnCount) -> None:
        """Tell `on_count`."""
        self._on_count = on_count
        self._done = Counter[str]()

    def of(self, kind: str, items: Iterable[T], each: int = 1_000) -> Iterator[T]:
        """Pass items on, each of which is one more of a kind; tell of one of so many."""
        for one in items:
            self._done[kind] += 1
            if not self._done[kind] % each:
                self._on_count(kind, self._done[kind])
            yield one
        self._on_count(kind, self._done[kind])


SILENT = Tally(untold)
