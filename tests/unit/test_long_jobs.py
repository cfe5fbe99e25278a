"""Does a command that takes minutes show how far it is?"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryLog
from consumers import cli
from consumers.commands import care, output
from consumers.commands.exit_codes import ExitCode
from consumers.runtime import progress
from consumers.runtime.progress import OnCount, Tally
from consumers.tools import move
from consumers.views.health import Check, Level
from tests.service import rows, service
from tests.waiting import wait_until


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a terminal shows."""
    told: list[tuple[str, int]] = []

    @contextmanager
    def counts(title: str) -> Iterator[OnCount]:
        yield lambda kind, done: told.append((kind, done))

    monkeypatch.setattr(output, "counts", counts)
    return told


def test_a_tally_tells_now_and_then_and_at_each_end(shown: list[tuple[str, int]]) -> None:
    with output.counts("coop") as bar:
        tally = Tally(bar)
        assert list(tally.of("eggs", range(2_500))) == list(range(2_500))
        assert list(tally.of("eggs", "ab")) == ["a", "b"]
        assert list(tally.of("hens", [])) == []
    assert shown == [
        *(("eggs", 1_000), ("eggs", 2_000), ("eggs", 2_500)),
        *(("eggs", 2_502), ("hens", 0)),
    ]


class Clock:
    """Stands still until the test lets a number of seconds pass."""

    def __init__(self) -> None:
        self.passed = threading.Semaphore(0)
        self.waits = 0

    def wait(self, ended: threading.Event, seconds: float) -> bool:
        self.waits += 1
        while not self.passed.acquire(timeout=0.01):
            if ended.is_set():
                return True
        return False

    def passes(self, times: int = 1) -> None:
        """Let one line after the other be said."""
        for _ in range(times):
            at = self.waits
            self.passed.release()
            wait_until(lambda at=at: self.waits > at, "the line was said")  # type: ignore[misc]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    one = Clock()
    monkeypatch.setattr(progress, "_wait", one.wait)
    return one


def test_without_a_terminal_a_line_now_and_then_says_how_far_a_job_is(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with output.counts("backup") as count:
        wait_until(lambda: clock.waits == 1, "the clock runs")
        clock.passes()
        count("transactions", 1_200)
        count("files", 3)
        count("files", 4)
        clock.passes(2)
    clock.waits = 0
    with output.progress("verify, partition 0") as bar:
        wait_until(lambda: clock.waits == 1, "the clock runs")
        bar(2_000, 5_000)
        clock.passes()
    said = capsys.readouterr()
    assert said.out == "", "scripts read it"
    assert said.err.splitlines() == [
        "backup: nothing done yet, after 30 s",
        "backup: 1,200 transactions, 4 files, after 60 s",
        "backup: 1,200 transactions, 4 files, after 90 s",
        "verify, partition 0: 2,000 of 5,000, after 30 s",
    ]


def test_a_short_job_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with output.counts("backup") as count:
        count("files", 3)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_shown", [False, True], ids=["log", "terminal"])
def test_a_slow_check_says_after_which_finding_it_still_looks(
    clock: Clock,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    is_shown: bool,
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_shown)

    def checks() -> Iterator[Check]:
        wait_until(lambda: clock.waits == 1, "the clock runs")
        clock.passes()
        yield Check("cluster", Level.OK, "answers")
        yield Check("log", Level.OK, "is there")
        clock.passes()

    care._shown("doctor", checks(), as_json=True)
    said = capsys.readouterr()
    assert [one["name"] for one in json.loads(said.out)] == ["cluster", "log"]
    assert said.err.splitlines() == [
        "doctor: the first check runs, after 30 s",
        "doctor: 2 done, the last is log, after 60 s",
    ]


def test_a_move_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, int]]
) -> None:
    """Writers wait for the most of it."""

    def moved(*given: Any, **named: Any) -> move.Moved:
        on_progress: OnCount = given[5]
        on_progress("records copied", 7)
        return move.Moved("commitlog", "new:1")

    monkeypatch.setattr(move, "move", moved)
    assert cli.main(["move", "new:1", "--bootstrap-servers", "old:1"]) == ExitCode.OK
    assert shown == [("records copied", 7)]


def test_a_search_for_unneeded_files_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, int]]
) -> None:
    """In a log of 100,000 records it takes minutes."""
    with service(tmp_path) as running:
        for table in ("a", "b"):
            running.client.create_table(table, rows().schema)
            running.client.append(table, rows(1, 2))
        log = MemoryLog(running.cluster)
        monkeypatch.setattr(care, "connect_to_files", lambda config: log)
        assert cli.main(["orphans", "--age", "0", "--root", str(tmp_path)]) == ExitCode.OK
    last = dict(shown)
    assert last["changes read"] >= 4
    assert last["tables listed"] == 2
    assert last.keys() >= {"metadata files read", "manifest lists read", "manifests read"}
