"""Is a forked program a process as any other: arguments, environment, output, exit code, end?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.waiting import wait_until

SAY = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ["SAID"])
print("é", file=sys.stderr)
sys.exit(3)
"""


def test_it_has_arguments_folder_and_environment_and_its_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAID", "here")
    done = forked.run(["-c", SAY, "a", "b c"])
    assert (done.returncode, done.stderr) == (3, "é\n")
    assert done.stdout == f"['a', 'b c'] {tmp_path} here\n"
    given = {"SAID": "there", "PATH": os.environ["PATH"]}
    assert forked.run(["-c", SAY], env=given).stdout == f"[] {tmp_path} there\n"


def test_a_module_runs_as_the_main_one() -> None:
    done = forked.run(["-m", "consumers.cli", "--version"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, ""),
        ("raise ValueError('so it is')", 1, "ValueError: so it is\n"),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("import sys; sys.exit()", 0, ""),
    ],
)
def test_how_it_ended_is_told(program: str, code: int, said: str) -> None:
    done = forked.run(["-c", program])
    assert done.returncode == code
    assert done.stderr.endswith(said)


def test_one_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    note = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    pid = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(["-c", note, str(pid)], timeout=0.5)
    assert forked.run(["-c", "pass"]).returncode == 0, "others go on"
    if pid.exists():  # a slow machine's was killed before it could say so
        wait_until(lambda: not Path("/proc", pid.read_text()).exists(), "its end")


def test_both_its_outputs_may_be_one_file(tmp_path: Path) -> None:
    program = "import sys; print(1, flush=True); print(2, file=sys.stderr)"
    with (tmp_path / "said").open("wb") as said:
        number = said.fileno()
        assert forked.start(["-c", program], stdout=number, stderr=number).wait(60) == 0
    assert (tmp_path / "said").read_text() == "1\n2\n"


def test_one_beside_the_test_is_heard_and_ends_with_its_block() -> None:
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with forked.beside(["-c", program]) as (running, said):
        assert int(said.readline()) == running.pid
        assert running.poll() is None
    assert running.poll() == -signal.SIGKILL


USER = """
import sys
from tests import forked
forked.run(["-c", "import os, sys, time; print(os.getpid()); sys.stdout.flush(); time.sleep(600)"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_it_ends_with_whom_it_was_forked_for(tmp_path: Path) -> None:
    from consumers.tools.bench.environment import descendants
    from tests.integration.test_up import is_alive

    with subprocess.Popen([sys.executable, "-c", USER], cwd=forked.REPOSITORY) as user:
        # What forks, and the program.
        wait_until(lambda: len(descendants(user.pid)) >= 2, "a program that runs")
        found = descendants(user.pid)
        user.kill()
    wait_until(lambda: not any(map(is_alive, found)), "the end of all")
