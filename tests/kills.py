"""Ends a program of a test at one of its steps, as `kill -9` does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


class Killed(BaseException):
    """Ends what runs where it is."""


class Kills:
    """Counts calls that change something: a record, a file that is written, moves or goes.

    From the one that kills on, none does anything: nothing cleans up after `kill -9`.
    """

    def __init__(self, patch: pytest.MonkeyPatch, *steps: tuple[type, str]) -> None:
        """Count the calls of these methods in this thread; what runs beside the program goes on."""
        self._left: int | None = None
        for owner, name in steps:
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, inner: Callable[..., object]) -> Callable[..., object]:
        caller = threading.current_thread()

        def call(*arguments: object, **options: object) -> object:
            if self._left is not None and threading.current_thread() is caller:
                self._left = max(self._left - 1, 0)
                if not self._left:
                    raise Killed
            return inner(*arguments, **options)

        return call

    def at(self, step: int, work: Callable[[], object]) -> Killed | None:
        """Do some work; return what killed it at that step, None if it came to its end before."""
        self._left = step
        try:
            work()
        except Killed as killed:
            return killed
        finally:
            self._left = None
        return None


def killed_after(count: int) -> Callable[[int, int], None]:
    """Return what is told of a job's progress, and kills it once so many are done."""

    def told(done: int, total: int) -> None:
        if done >= count:
            raise Killed

    return told
