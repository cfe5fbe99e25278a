"""Turns of tables: one that takes too long continues alone, and the others get theirs.

A hanging store can't be interrupted. So each table is handled in its own thread, and the others
wait for it only for a limited time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from commitlog.errors import Unavailable

GLANCE_SECONDS = 0.25
LAST_SECONDS = 2.0
"""How long running work may take to complete when the process is to end."""

T = TypeVar("T")


class Turns:
    """Gives tables their turns, one after the other."""

    def __init__(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Wait this long for each table; once `stop` is set, only for a moment."""
        self._seconds, self._stop = seconds, stop or threading.Event()
        self._late: dict[str, threading.Thread] = {}
        """By incarnation: threads that are no longer waited for."""

    def take(self, incarnation: str, work: Callable[[], T]) -> T:
        """Do a table's work and return its result.

        Raises Unavailable if it isn't done in time, or if an earlier turn of the table isn't yet.
        """
        self._late = {name: one for name, one in self._late.items() if one.is_alive()}
        if incarnation in self._late:
            raise Unavailable("an earlier turn of it hasn't ended; does its store hang?")
        done = Future[T]()

        def turn() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        # A daemon: a process doesn't wait for it to end.
        thread = threading.Thread(target=turn, name="a table's turn", daemon=True)
        thread.start()
        end = time.monotonic() + self._seconds
        while thread.is_alive() and time.monotonic() < end and not self._stop.is_set():
            thread.join(min(GLANCE_SECONDS, self._seconds))
        if self._stop.is_set():
            thread.join(LAST_SECONDS)
        if thread.is_alive():
            self._late[incarnation] = thread
            raise Unavailable(
                f"its turn takes longer than {self._seconds:g} s and goes on beside the others'"
            )
        return done.result()
