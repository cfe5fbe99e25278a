"""Processes that are forked: are they as if they had been started by their command lines?"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from consumers.commands.parts import CommandProcess
from consumers.runtime.forking import CAN_FORK
from tests.child import ended
from tests.waiting import wait_until

pytestmark = [pytest.mark.skipif(not CAN_FORK, reason="only Linux's libraries may be forked")]

WAIT_SECONDS = 120.0
PARENT = """
import json, os, pathlib, signal, subprocess, sys, time
from consumers.runtime import forking
{before}
sys.modules["work"] = work = type(sys)("work")
work.do = lambda argument: {work}
template = forking.Template(["colorsys"], is_fork={is_fork})
{then}
"""
TELLS = """(
    pathlib.Path(argument).write_text(json.dumps({
        "imported": "colorsys" in sys.modules,
        "words": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
        "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpid(),
        "read": os.read(NUMBER, 5).decode(),
        "open": [n for n in range(256) if os.path.exists(f"/proc/self/fd/{n}")],
    })),
    sys.exit(7),
)"""


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def program(work: str, then: str, *, before: str = "", is_fork: bool = True) -> str:
    """Return a program that forks what does the work."""
    return PARENT.format(work=work or None, then=then, before=before, is_fork=is_fork)


def run(work: str, then: str, *, before: str = "", is_fork: bool = True) -> str:
    """Run a program that forks what does the work; return what it prints."""
    code = program(work, then, before=before, is_fork=is_fork)
    done = ended([sys.executable, "-c", code], timeout=WAIT_SECONDS)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_what_is_forked_is_as_if_it_had_been_started(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    then = f"""
os.write(ours[1], b"hello")
child = template.fork("work:do", {str(told)!r}, inherited=[ours[0]], shown=["-m", "it", "x y"])
template.close()
print(json.dumps([os.getpid(), child.pid, child.wait(60), child.poll()]))
"""
    work = TELLS.replace("NUMBER", "ours[0]")
    parent, pid, *codes = json.loads(run(work, then, before="ours = os.pipe()"))
    found = json.loads(told.read_text())
    assert codes == [7, 7]
    assert pid != parent
    assert found == {
        "imported": True,
        "words": [sys.executable, "-m", "it", "x y"],
        "parent": parent,
        "leads": True,
        "read": "hello",
        "open": [0, 1, 2, found["open"][-1]],
    }


@pytest.mark.slow
@pytest.mark.parametrize("is_fork", [False, True])
def test_what_is_forked_outlives_its_template_and_ends_as_others_do(is_fork: bool) -> None:
    then = """
children = [
    template.fork("time:sleep", 600, inherited=[], shown=["-m", "it"]) for _ in range(3)
]
template.close()
assert [child.poll() for child in children] == [None] * 3
os.kill(children[0].pid, signal.SIGKILL)
children[1].terminate()
try:
    children[2].wait(0.05)
except subprocess.TimeoutExpired:
    children[2].kill()
print(json.dumps([child.wait(60) for child in children]))
children[2].terminate()
"""
    codes = json.loads(run("", then, is_fork=is_fork))
    assert codes == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGKILL]


def test_what_is_forked_ends_with_its_parent_and_the_template_too(tmp_path: Path) -> None:
    then = """
child = template.fork("time:sleep", 600, inherited=[], shown=[])
print(json.dumps([child.pid, template._process.pid]), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    code = program("", then)
    # Its output ends when nobody has it any more.
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    for pid in json.loads(done.stdout):
        wait_until(partial(is_gone, pid), "its end")


def test_a_bug_in_what_is_forked_is_told_and_its_code_is_1() -> None:
    then = "print(template.fork('work:do', 0, inherited=[], shown=[]).wait(60)); template.close()"
    code = program("1 / 0", then)
    done = ended([sys.executable, "-c", code], check=True)
    assert done.stdout == "1\n"
    assert "ZeroDivisionError" in done.stderr


def test_a_short_command_line_names_what_there_is_room_for(tmp_path: Path) -> None:
    told = tmp_path / "told"
    work = f"open({str(told)!r}, 'w').write(open('/proc/self/cmdline').read())"
    shown = ["-m", "consumers.cli", "committer", "--partition", "0"]
    then = f"template.fork('work:do', 0, inherited=[], shown={shown}).wait(60); template.close()"
    (tmp_path / "it.py").write_text(program(work, then))
    folder = Path(__file__).resolve().parents[2]
    # Python looks for itself there, by the first word.
    environment = {**os.environ, "PATH": os.path.dirname(sys.executable), "PYTHONPATH": str(folder)}
    command = ["python", "it.py", "up", "and", "more"]
    subprocess.run(
        command, executable=sys.executable, cwd=tmp_path, env=environment, timeout=60, check=True
    )
    words = told.read_text().rstrip("\0").split("\0")
    assert words == [Path(sys.executable).name, "-m", "consumers.cli"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["it was killed", "it imports for ever", "it can't import"])
def test_a_template_that_can_not_fork_is_an_error(how: str) -> None:
    names = {"it was killed": "json", "it imports for ever": "slow_one", "it can't import": "none"}
    then = f"""
template.close()
sys.meta_path.insert(0, type("Finder", (), {{"find_spec": lambda self, name, path, target=None:
    time.sleep(600) if name == "slow_one" else None}})())
forking.START_SECONDS = 0.2
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
template = forking.Template([{names[how]!r}], is_fork=True)
if {how == "it was killed"}:
    os.kill(template._process.pid, signal.SIGKILL)
try:
    template.fork("time:sleep", 600, inherited=[], shown=[])
except (OSError, EOFError):
    forking.START_SECONDS = 60
    template.close()
    print(template.is_running)
"""
    assert run("", then) == "False\n"


class _Gone:
    """A template that has ended."""

    def fork(self, *_: object, **__: object) -> None:
        raise EOFError


@pytest.mark.slow
def test_a_part_whose_template_has_ended_is_started_by_its_command_line() -> None:
    part = CommandProcess("it", ["--version"], environment=os.environ, inherited=())
    part.start(_Gone())  # type: ignore[arg-type]
    assert part.pid is not None
    assert part.end(time.monotonic() + WAIT_SECONDS)


def test_a_template_whose_parent_is_gone_once_it_has_imported_ends_without_a_word() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    with theirs:
        command = [sys.executable, "-m", "consumers.runtime.forking", str(theirs.fileno())]
        done = ended(command, pass_fds=[theirs.fileno()])
    assert (done.returncode, done.stderr) == (0, "")
