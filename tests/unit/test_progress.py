"""Does a run that is cut off show where it was?"""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from tests import progress
from tests.unit.test_second_tries import LEAN

pytest_plugins = ["pytester"]


def shown(monkeypatch: pytest.MonkeyPatch) -> tuple[progress.Progress, list[float], io.StringIO]:
    """Return a progress, its clock, and what it prints."""
    now, printed = [100.0], io.StringIO()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reporter = SimpleNamespace(
        _tw=SimpleNamespace(width_of_current_line=0), write=lambda text, flush: printed.write(text)
    )
    return progress.Progress(reporter), now, printed


def test_what_takes_long_is_named_once_while_it_runs_and_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running, now, printed = shown(monkeypatch)
    running.pytest_runtest_logstart("a::slow")
    running.pytest_runtest_logstart("a::quick")
    running.pytest_runtest_logfinish("a::quick")
    for seconds in (10, 200, 230):
        now[0] = 100.0 + seconds
        running.look()
    running.pytest_runtest_logfinish("a::slow")
    assert printed.getvalue().splitlines() == [
        "[3:20] a::slow has run for 200 s",
        "[3:50] a::slow took 230 s",
    ]


def test_now_and_then_all_that_runs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    running, now, printed = shown(monkeypatch)
    for name in ("c", "b", "a"):
        running.pytest_runtest_logstart(name)
    running.pytest_runtest_logfinish("c")
    running._told |= {"a", "b"}
    for seconds in (299, 301, 302, 601):
        now[0] = 100.0 + seconds
        running.look()
    assert printed.getvalue().splitlines() == [
        "[5:01] 1 tests ended; now a, b",
        "[10:01] 1 tests ended; now a, b",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_names_what_took_long(pytester: Any, workers: str) -> None:
    pytester.makeini(f"[pytest]\npythonpath = {progress.__file__.rpartition('/tests/')[0]}")
    pytester.makeconftest(
        "from tests import progress\n"
        "progress.LATE_SECONDS = progress.LOOK_SECONDS = progress.NEWS_SECONDS = 0.3\n"
    )
    pytester.makepyfile("import time\ndef test_it():\n    time.sleep(1.5)\n")
    done = pytester.runpytest_subprocess(*LEAN, "-p", "tests.progress", "-n", workers)
    assert done.ret == 0
    test = "test_a_run_names_what_took_long.py::test_it"
    done.stdout.re_match_lines([rf"\[\d+:\d\d\] {test} took \d+ s"])
    if workers != "0":
        done.stdout.re_match_lines([rf"\[\d+:\d\d\] {test} has run for \d+ s", r".* ended; now .*"])
