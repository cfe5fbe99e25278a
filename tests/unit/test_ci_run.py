"""Does the output of `.ci/run` end with what failed, whatever else was written?"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FIRST, ONE_SESSION, SHARED

ROOT = Path(__file__).parents[2]
CLOSING = "==== 2 failed, 1 passed in 3.00s ===="
PRINTED = f"""
==== FAILURES ====
____ test_one ____
>       assert 1 == 2
E       assert 1 == 2
---- Captured stderr call ----
%3|FAIL|rdkafka#producer-557| Connection refused
____ test_two ____
E       ValueError: two
==== short test summary info ====
SKIPPED [1] tests/test_a.py:1: no browser
FAILED tests/test_a.py::test_one
FAILED tests/test_a.py::test_two
{CLOSING}
"""


def run(folder: Path, printed: str, code: int, check: int = 0) -> tuple[int, list[str]]:
    """Run it with a `make` that prints this; return the exit code and the lines."""
    for made in (".ci", "infra", "bin", ".venv/bin"):
        (folder / made).mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "tests").symlink_to(ROOT / "tests")
    (folder / "printed").write_text(printed)
    noise = "for i in $(seq 500); do echo '%3|FAIL|rdkafka#producer-557|' >&2; done"
    testing = f"cat printed; {noise}; exit {code}"
    scripts = {
        "infra/browser.sh": "",
        "bin/make": f"case $1 in check) exit {check};; test) {testing};; esac",
        ".venv/bin/python": f'exec {sys.executable} "$@"',
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [folder / ".ci/run"],
        env={"PATH": f"{folder}/bin:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_the_end_tells_what_failed_and_closes_as_pytest_did(tmp_path: Path) -> None:
    code, lines = run(tmp_path, PRINTED, 2)
    assert code == 2
    assert lines[-8:] == [
        "FAILED tests/test_a.py::test_one",
        "FAILED tests/test_a.py::test_two",
        "____ test_one ____",
        ">       assert 1 == 2",
        "E       assert 1 == 2",
        "____ test_two ____",
        "E       ValueError: two",
        CLOSING,
    ]


@pytest.mark.slow
def test_a_failed_check_fails_what_passed(tmp_path: Path) -> None:
    closing = "==== 3 passed in 3.00s ===="
    code, lines = run(tmp_path, closing + "\n", 0, check=1)
    assert (code, lines[-1]) == (1, closing)
    assert "FAILED: make check; see above" in lines


@pytest.mark.slow
def test_a_run_without_a_closing_line_fails_and_shows_the_errors(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "", 0)
    assert code == 1
    assert "closing line" in lines[-1]
    assert "rdkafka" in lines[-2]


def test_modules_that_workers_begin_with_exist() -> None:
    named = {*FIRST, *SHARED} - {ONE_SESSION}
    assert [path for path in named if not (ROOT / path).is_file()] == []
