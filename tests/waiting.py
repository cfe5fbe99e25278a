"""How tests wait: for something to happen, never for a time to pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

WAIT_SECONDS = 240.0
"""Only a failing test waits so long: a machine may be slow, and others may use it."""

PAUSE_SECONDS = 0.02
PAUSE_SECONDS_MAX = 0.5


class Clock:
    """A clock that a test sets."""

    now = 1_000.0

    def __call__(self) -> float:
        """Return its time."""
        return self.now


def wait_until(
    holds: Callable[[], T],
    what: str,
    *,
    state: Callable[[], object] | None = None,
    seconds: float = WAIT_SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> T:
    """Return what `holds` returns once it is true.

    Between two looks it pauses as long as a look takes: what is awaited needs the processor, too.
    Fail after `seconds` with what was awaited and the last state: of `state`, or else of `holds`.
    """
    began = time.monotonic()
    deadline = began + seconds
    while not (found := holds()):
        ended = time.monotonic()
        if ended > deadline:
            last = found if state is None else state()
            raise AssertionError(f"waited {seconds:g} s for {what}; at last: {last!r}")
        time.sleep(max(pause_seconds, min(ended - began, PAUSE_SECONDS_MAX)))
        began = time.monotonic()
    return found


@contextmanager
def meanwhile(
    work: Callable[[threading.Event], object], stop: threading.Event | None = None
) -> Iterator[None]:
    """Run some work on a thread until the block ends; then the event that it was given is set."""
    stop = stop or threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def at_once(work: Callable[[T], object], each: Sequence[T]) -> None:
    """Call a function with several values, each on a thread; return once all have returned."""
    with ThreadPoolExecutor(len(each)) as threads:
        list(threads.map(work, each))


def up_to_end() -> dict[str, Any]:
    """Return the options by which who follows a log stops when it has all of it."""
    stop = threading.Event()

    def on_progress(done: int, total: int) -> None:
        if done >= total:
            stop.set()

    return {"stop": stop, "on_progress": on_progress}
