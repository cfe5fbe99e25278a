"""Is a test that passes at its second try shown, and may only a few?"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import second_tries
from tests.ci_report import report

pytest_plugins = ["pytester"]

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


def run(pytester: pytest.Pytester, tests: int, *flags: str) -> pytest.RunResult:
    pytester.makepyfile(FAILS_FIRST.format(tests=tests))
    root = Path(second_tries.__file__).parents[1]
    pytester.makeini(f"[pytest]\npythonpath = {root}")
    return pytester.runpytest_subprocess("-p", "tests.second_tries", "-p", "no:xdist", *flags)


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
