"""Says which tests take long while they run, so that a run that is cut off shows where it was.

Tests cost very differently: a share of their number says little. For workers a line comes every few
minutes with what runs, and one for each test that has run for long. A test that took long is named
when it ends, in a run of one process too.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import pytest

LATE_SECONDS = 120.0
NEWS_SECONDS = 300.0
LOOK_SECONDS = 5.0


class Progress:
    """Tests that run now, in seconds since the run began."""

    def __init__(self, reporter: Any) -> None:
        """Know of none."""
        self._reporter = reporter
        self._began = time.monotonic()
        self._running: dict[str, float] = {}
        self._told: set[str] = set()
        self._done = 0
        self._news = NEWS_SECONDS

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note when a test, or another try, begins."""
        self._running[nodeid] = self._now()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Name a test that took long."""
        took = self._now() - self._running.pop(nodeid, self._now())
        self._told.discard(nodeid)
        self._done += 1
        if took > LATE_SECONDS:
            self._say(f"{nodeid} took {took:.0f} s")

    def look(self) -> None:
        """Tell of what runs for long, and now and then of all that runs."""
        now, running = self._now(), dict(self._running)
        for nodeid in running.keys() - self._told:
            if now - running[nodeid] > LATE_SECONDS:
                self._told.add(nodeid)
                self._say(f"{nodeid} has run for {now - running[nodeid]:.0f} s")
        if now > self._news:
            self._news += NEWS_SECONDS
            self._say(f"{self._done} tests ended; now {', '.join(sorted(running))}")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _say(self, text: str) -> None:
        minutes, seconds = divmod(int(self._now()), 60)
        newline = "\n" if self._reporter._tw.width_of_current_line else ""
        self._reporter.write(f"{newline}[{minutes}:{seconds:02}] {text}\n", flush=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Look at the tests of workers; in a run of one process what a thread says is captured."""
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput"):
        return
    progress = Progress(reporter)
    config.pluginmanager.register(progress, "progress")
    if not config.getoption("numprocesses", None):
        return
    ended = threading.Event()
    config.add_cleanup(ended.set)

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            with suppress(OSError, ValueError):  # nobody reads any more
                progress.look()

    threading.Thread(target=look, daemon=True, name="progress").start()
