"""Fails a test that leaves something running: a thread, a child process, a client of Kafka.

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
from pathlib import Path
from typing import Any

import pytest

LOOKED_AT = ("tests/contract/", "tests/properties/", "tests/scenarios/", "tests/unit/")
"""Folders that are known to leave nothing."""

END_SECONDS = 30.0
"""So long may end what was told to end: only a failing test waits for all of it."""
PAUSE_SECONDS = 0.02

THREAD, CLIENT, PROCESS = "thread", "client of Kafka", "process"

Running = dict[tuple[str, int], str]
"""What runs, by kind and number, with its name."""

EXCEPTIONS = (
    # AnyIO ends them with the loop that they work for, or when they were idle for long.
    "AnyIO worker thread",
    # One for this process, which multiprocessing keeps.
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
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
        for task in os.listdir(tasks) if has_children or "confluent_kafka" in sys.modules else ():
            if _text(f"{tasks}/{task}/comm") == "rdk:main\n":
                found[CLIENT, int(task)] = "librdkafka"
            for child in _text(f"{tasks}/{task}/children").split() if has_children else ():
                command = _text(f"/proc/{child}/cmdline")  # a zombie's is empty
                found[PROCESS, int(child)] = command.replace("\0", " ").strip() or "a zombie"
    return {
        key: name for key, name in found.items() if not any(part in name for part in EXCEPTIONS)
    }


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _text(path: str) -> str:
    with suppress(OSError):  # it ended meanwhile
        return Path(path).read_text()
    return ""


class Leaks:
    """What ran before a test, before its module, and on behalf of fixtures of wider scopes."""

    def __init__(self) -> None:
        """Know of nothing."""
        self._is_on = False
        self._test: Running = {}
        self._last: Running | None = None
        self._module: Running | None = None
        self._fixtures: Running = {}
        self._session: Running = {}
        self._told: Running = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what runs before a test."""
        self._is_on = item.nodeid.startswith(LOOKED_AT)
        if not self._is_on:
            self._last = None
            return (yield)
        # Nothing happens between two tests.
        self._test = running() if self._last is None else self._last
        if self._module is None:
            self._module = self._test
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Note what a fixture starts that outlives the test."""
        if not self._is_on or fixturedef.scope == "function":
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
        """Fail for what the test left, or its module."""
        result = yield
        if not self._is_on:
            return result
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
        deadline = time.monotonic() + END_SECONDS
        while left := [key for key in now if key not in before and key[0] in kinds]:
            if time.monotonic() > deadline:
                self._told.update((key, now[key]) for key in left)
                self._last = now
                names = ", ".join(f"{key[0]} {now[key]!r}" for key in left)
                pytest.fail(f"{whose} left running: {names}", pytrace=False)
            time.sleep(PAUSE_SECONDS)
            now = running()
        self._last = now
        return result


def pytest_configure(config: pytest.Config) -> None:
    """Look at each test."""
    config.pluginmanager.register(Leaks(), "leaks")
