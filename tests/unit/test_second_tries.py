"""Is a test that passes at its second try shown, and may only a few?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import second_tries
from tests.ci_report import report

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

LEAN = ("-p", "no:schemathesis", "-p", "no:hypothesispytest")
"""Without plugins that take most of a short run's time."""

FAILS_FIRST = """
import pathlib
import pytest

@pytest.mark.parametrize("number", range({tests}))
def test_it(number):
    seen = pathlib.Path(f"seen-{{number}}")
    if not seen.exists():
        seen.touch()
        raise ValueError(f"first try of {{number}}")
"""


HANGS_AT = """
import pathlib
import time
import pytest

@pytest.fixture
def opened():
    yield
    if {teardown}:
        time.sleep({seconds})

def test_it(opened):
    with pathlib.Path("tries").open("a") as file:
        print("try", file=file)
    if {later} and len(pathlib.Path("tries").read_text().split()) == 1:
        raise ValueError("first try")
    if not {teardown}:
        time.sleep({seconds})
    raise ValueError("not in time")
"""


def run(pytester: pytest.Pytester, tests: int, *flags: str) -> pytest.RunResult:
    return run_text(pytester, FAILS_FIRST.format(tests=tests), *flags)


def run_text(pytester: pytest.Pytester, text: str, *flags: str) -> pytest.RunResult:
    pytester.makepyfile(text)
    root = Path(second_tries.__file__).parents[1]
    pytester.makeini(f"[pytest]\npythonpath = {root}")
    return pytester.runpytest_subprocess(*LEAN, "-p", "tests.second_tries", "-n", "0", *flags)


def test_a_second_try_passes_and_the_first_one_is_shown(pytester: pytest.Pytester) -> None:
    done = run(pytester, 2, "--reruns", "1")
    assert done.ret == 0
    shown = report(done.stdout.str())
    assert "E           ValueError: first try of 1" in shown
    assert "2 passed, 2 rerun" in shown[-1]


def test_without_the_flag_it_fails(pytester: pytest.Pytester) -> None:
    assert run(pytester, 1).ret == pytest.ExitCode.TESTS_FAILED


def test_a_run_that_needs_too_many_fails(pytester: pytest.Pytester) -> None:
    done = run(pytester, second_tries.TESTS_MAX + 1, "--reruns", "1")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*tests needed another try, 10 may"])


@pytest.mark.parametrize("teardown", [False, True])
def test_another_try_and_the_end_of_one_that_failed_have_timeouts(
    pytester: pytest.Pytester, teardown: bool
) -> None:
    text = HANGS_AT.format(teardown=teardown, later=True, seconds=600)
    done = run_text(pytester, text, "--reruns", "1", "--timeout", "1")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*Timeout (>1.0s)*"])
    assert done.duration < 300


def test_a_try_that_waited_for_long_takes_another_one_with_it(pytester: pytest.Pytester) -> None:
    text = HANGS_AT.format(teardown=False, later=False, seconds=0.2)
    done = run_text(pytester, text, "--reruns", "2")
    assert "1 failed, 2 rerun" in report(done.stdout.str())[-1]
    (pytester.path / "tries").unlink()
    pytester.makeconftest("from tests import second_tries\nsecond_tries.LONG_SECONDS = 0.1")
    done = run_text(pytester, text, "--reruns", "2")
    assert "1 failed, 1 rerun" in report(done.stdout.str())[-1]


DEAF = """
import signal
import time

def test_it():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    time.sleep(600)

def test_another():
    pass
"""


def test_a_worker_that_hears_no_signal_is_ended(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests import second_tries\nsecond_tries.DEAF_SECONDS = 1")
    done = run_text(pytester, DEAF, "-n", "1", "--timeout", "2")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*::test_it*", "*1 passed*"])
    assert done.duration < 300
