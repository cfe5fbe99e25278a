"""Finds tests that leave something running: a thread, a child process, a client of Kafka.

Where nothing is left, such a test fails. Where that isn't so yet, the end of a run names it.

What a fixture of a wider scope started runs on. What its services start meanwhile can't be told
from what a test leaves, so that is looked for when the module ends. Left is also what only the
garbage collector would end: until it comes, descriptors stay open.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import thread as pools
from contextlib import suppress
from typing import Any

import pytest

CLEAN = (
    "tests/contract/",
    "tests/histories/",
    "tests/properties/",
    "tests/scenarios/",
    "tests/simulation/",
    "tests/types/",
    "tests/unit/",
)
"""Folders whose tests leave nothing: here a test that does fails."""

END_SECONDS = 30.0
"""So long may end what was told to end: only a failing test waits for all of it."""
NAMED_SECONDS = 1.0
"""The same where a leftover is named, and nothing fails."""
LEFT = "left running"
"""A test's property: what it left."""
PAUSE_SECONDS = 0.02

THREAD, CLIENT, PROCESS = "thread", "client of Kafka", "process"

Running = dict[tuple[str, int], str]
"""What runs, by kind and number, with its name."""

EXCEPTIONS = (
    # AnyIO ends them with the loop that they work for, or when they were idle for long.
    "AnyIO worker thread",
    # One of each for this process, kept by multiprocessing, lancedb and tests that once used them.
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "LanceDBBackgroundEventLoop",
    " tests.forked ",
    " tests.spark_workers ",
)
"""Parts of the names of what may stay."""


def running() -> Running:
    """Return what runs in this process, and its children."""
    found: Running = {
        (THREAD, id(thread)): thread.name
        for thread in threading.enumerate()
        # A pool's idle threads hold nothing, and end with the pool. Threads of Lance that called
        # Python once are listed for ever.
        if thread not in pools._threads_queues and not isinstance(thread, threading._DummyThread)
    }
    tasks = "/proc/self/task"
    has_children = _has_children()
    with suppress(OSError):  # not Linux
        listed = os.listdir(tasks) if has_children or "confluent_kafka" in sys.modules else []
        _names.keep(listed)
        for task in listed:
            if _names.of(task) == "rdk:main\n":
                found[CLIENT, int(task)] = "librdkafka"
            for child in _text(f"{tasks}/{task}/children").split() if has_children else ():
                command = _text(f"/proc/{child}/cmdline")  # a zombie's is empty
                found[PROCESS, int(child)] = command.replace("\0", " ").strip() or "a zombie"
    return {
        key: name for key, name in found.items() if not any(part in name for part in EXCEPTIONS)
    }


class _Names:
    """The names of this process's threads, each read until it is twice the same."""

    def __init__(self) -> None:
        """Know none."""
        self._known: dict[str, tuple[str, bool]] = {}

    def keep(self, tasks: list[str]) -> None:
        """Forget all threads but these; a number may be another thread's later."""
        self._known = {task: self._known[task] for task in tasks if task in self._known}

    def of(self, task: str) -> str:
        """Return a thread's name; one that has just started may get another one."""
        before, is_final = self._known.get(task, ("", False))
        if is_final:
            return before
        now = _text(f"/proc/self/task/{task}/comm")
        self._known[task] = now, now == before
        return now


_names = _Names()


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _text(path: str) -> str:
    """Return what is in a small file: each test asks for that of each thread."""
    pieces = []
    with suppress(OSError):  # it ended meanwhile
        number = os.open(path, os.O_RDONLY)
        try:
            while piece := os.read(number, 4096):
                pieces.append(piece)
        finally:
            os.close(number)
    return b"".join(pieces).decode(errors="replace")


class Leaks:
    """What ran before a test, before its module, and on behalf of fixtures of wider scopes."""

    def __init__(self) -> None:
        """Know of nothing."""
        self._test: Running = {}
        self._last: Running | None = None
        self._module: Running | None = None
        self._fixtures: Running = {}
        self._session: Running = {}
        self._told: Running = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what runs before a test."""
        # Nothing happens between two tests.
        self._test = running() if self._last is None else self._last
        if self._module is None:
            self._module = self._test
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Note what a fixture starts that outlives the test."""
        if fixturedef.scope == "function":
            return (yield)
        owner = self._fixtures if fixturedef.scope in ("module", "class") else self._session
        before = running()
        try:
            return (yield)
        finally:
            known = {**before, **self._fixtures, **self._session}
            owner.update((key, name) for key, name in running().items() if key not in known)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Fail for what the test left, or its module, or name it."""
        result = yield
        is_clean = item.nodeid.startswith(CLEAN)
        before, whose = {**self._test, **self._fixtures, **self._session}, "the test"
        if nextitem is None or nextitem.path != item.path:
            before, whose = {**(self._module or {}), **self._session, **self._told}, "the module"
            self._module, self._fixtures = None, {}
        now = running()
        # Services that stay may start something at any time, in a thread of this process too.
        kept = {**self._fixtures, **self._session}
        kinds = (
            [PROCESS]
            if any(k[0] != PROCESS for k in now if k in kept)
            else [THREAD, CLIENT, PROCESS]
        )
        deadline = time.monotonic() + (END_SECONDS if is_clean else NAMED_SECONDS)
        while left := [key for key in now if key not in before and key[0] in kinds]:
            if time.monotonic() > deadline:
                self._told.update((key, now[key]) for key in left)
                self._last = now
                names = ", ".join(f"{key[0]} {now[key]!r}" for key in left)
                if is_clean:
                    pytest.fail(f"{whose} left running: {names}", pytrace=False)
                item.user_properties.append((LEFT, f"{item.nodeid}: {whose} left {names}"))
                return result
            time.sleep(PAUSE_SECONDS)
            now = running()
        self._last = now
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Look at each test."""
    config.pluginmanager.register(Leaks(), "leaks")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name what was left where nothing fails by it."""
    write_noted(terminalreporter, LEFT, "teardown", "what tests left running")


def write_noted(terminalreporter: Any, noted_as: str, when: str, title: str) -> None:
    """Write a section of what tests noted as properties of their reports, if any did."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = [
        str(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == noted_as and report.when == when
    ]
    if lines:
        terminalreporter.section(title)
        terminalreporter.write_line("\n".join(lines))
