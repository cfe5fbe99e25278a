"""Parts of a service that are forked instead of started by their command lines."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from consumers.commands import up
from consumers.commands.parts import CommandProcess
from consumers.runtime.config import load

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux's libraries may be forked"),
]

WAIT_SECONDS = 120.0
SUPERVISOR = """
import json, os, pathlib, signal, subprocess, sys, time
from consumers import cli
from consumers.commands import starter
cli.run = lambda: {work}
starting = starter.Starter(["colorsys"])
{then}
"""
TELLS = """(
    pathlib.Path(sys.argv[1]).write_text(json.dumps({
        "imported": "colorsys" in sys.modules,
        "words": open("/proc/self/cmdline").read().rstrip("\\0").split("\\0"),
        "parent": os.getppid(),
        "leads": os.getsid(0) == os.getpid(),
        "environment": dict(os.environ),
        "read": os.read(int(os.environ["NUMBER"]), 5).decode(),
        "open": [n for n in range(256) if os.path.exists(f"/proc/self/fd/{n}")],
    })),
    sys.exit(7),
)"""


def supervise(work: str, then: str, *arguments: str) -> str:
    """Run a program with one thread that forks parts, which do the work; return what it prints."""
    code = SUPERVISOR.format(work=work, then=then)
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_forked_part_is_as_if_it_had_been_started(tmp_path: Path) -> None:
    told = tmp_path / "told.json"
    then = """
ours, theirs = os.pipe()
os.write(theirs, b"hello")
part = starting.start([sys.argv[1]], {"NUMBER": str(ours)}, [ours])
starting.close()
print(json.dumps([os.getpid(), part.pid, ours, part.wait(60), part.poll()]))
"""
    supervisor, pid, number, *codes = json.loads(supervise(TELLS, then, str(told)))
    found = json.loads(told.read_text())
    assert codes == [7, 7]
    assert pid != supervisor
    assert found == {
        "imported": True,
        "words": [sys.executable, "-P", "-m", "consumers.cli", str(told)],
        "parent": supervisor,
        "leads": True,
        "environment": {"NUMBER": str(number)},
        "read": "hello",
        "open": [0, 1, 2, number],
    }


def test_forked_parts_outlive_their_starter_and_end_as_others_do() -> None:
    then = """
parts = [starting.start([], {}, []) for _ in range(3)]
starting.close()
assert [part.poll() for part in parts] == [None] * 3
os.kill(parts[0].pid, signal.SIGKILL)
parts[1].terminate()
try:
    parts[2].wait(0.05)
except subprocess.TimeoutExpired:
    parts[2].terminate()
print(json.dumps([part.wait(60) for part in parts]))
parts[2].terminate()
"""
    codes = json.loads(supervise("time.sleep(600)", then))
    assert codes == [-signal.SIGKILL, -signal.SIGTERM, -signal.SIGTERM]


def test_a_bug_in_a_forked_part_is_told_and_its_code_is_1() -> None:
    then = "print(starting.start([], {}, []).wait(60)); starting.close(); os.dup2(1, 2)"
    code = SUPERVISOR.format(work="1 / 0", then=then)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert "ZeroDivisionError" in done.stderr


def test_a_short_command_line_names_what_there_is_room_for(tmp_path: Path) -> None:
    told = tmp_path / "told"
    work = f"open({str(told)!r}, 'w').write(open('/proc/self/cmdline').read())"
    then = "starting.start(['committer', '--partition', '0'], {}, []).wait(60); starting.close()"
    script = tmp_path / "commit.py"
    script.write_text(SUPERVISOR.format(work=work, then=then))
    folder = Path(__file__).resolve().parents[2]
    subprocess.run(
        ["python", "commit.py"],
        executable=sys.executable,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(folder)},
        timeout=WAIT_SECONDS,
        check=True,
    )
    assert told.read_text().rstrip("\0").split("\0") == ["commitlog", "commit"]


@pytest.mark.parametrize("how", ["it was killed", "it imports for ever", "it can't import"])
def test_without_a_starter_parts_begin_by_their_command_lines(how: str) -> None:
    names = {"it was killed": "json", "it imports for ever": "slow_one", "it can't import": "none"}
    then = f"""
starting.close()
sys.meta_path.insert(0, type("Finder", (), {{"find_spec": lambda self, name, path, target=None:
    time.sleep(600) if name == "slow_one" else None}})())
starter.START_SECONDS = 0.2
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
starting = starter.Starter([{names[how]!r}])
if {how == "it was killed"}:
    os.kill(starting._pid, signal.SIGKILL)
try:
    starting.start([], {{}}, [])
except (OSError, EOFError):
    starting.close()
    print("by its command line")
"""
    assert supervise("None", then) == "by its command line\n"


class _Gone:
    """A starter that has ended."""

    is_closed = False

    def start(self, *_: object) -> None:
        raise EOFError

    def close(self) -> None:
        self.is_closed = True


def test_a_supervisor_whose_starter_has_ended_starts_the_part_itself(tmp_path: Path) -> None:
    supervisor = up.Supervisor(load({"root": str(tmp_path)}), say=lambda _: None)
    supervisor._starter = gone = _Gone()  # type: ignore[assignment]
    part = CommandProcess("it", ["--version"], environment=os.environ, inherited=())
    supervisor._start_first(part)
    assert gone.is_closed
    assert supervisor._starter is None
    assert part.end(time.monotonic() + WAIT_SECONDS)
