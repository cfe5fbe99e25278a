"""Runs an older program and this one over one log, each from a wheel in an environment of its own.

Committers, standbys and writers of both; the lead is taken from the one to the other and back by
`kill -9`, and each program also continues with the root that the other one left. At last the log's
protocol is upgraded, which ends the older program's part in it, and the whole log is verified.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from commitlog import CommitLog
from consumers.broker.embedded import EmbeddedBroker
from consumers.commands.exit_codes import ExitCode
from consumers.tools.bench.against import HERE, tree_of
from tests.child import ended
from tests.upgrades.writer import OTHER, SCHEMA, SHARED
from tests.waiting import wait_until

SHOW = """
from importlib.metadata import version
import commitlog
from commitlog.model.limits import PROTOCOL_SUPPORTED
print(version("lance-commitlog"), PROTOCOL_SUPPORTED, commitlog.__file__)
"""
WRITER = Path(__file__).with_name("writer.py")
BUILD_SECONDS, COMMAND_SECONDS, END_SECONDS = 300.0, 300.0, 120.0
COMMITS = 8
"""How much each writer commits under each leader."""

Report = Callable[[str], None]


class Program:
    """One version of the program, installed as a wheel."""

    def __init__(self, name: str, tree: Path, folder: Path) -> None:
        """Build the wheel of a tree, and install it where its libraries are this program's."""
        self.name = name
        home = folder / f"program-{name}"
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(home)]
        environment = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
        _ended(build, cwd=tree, env=environment)
        [wheel] = home.glob("*.whl")
        venv.create(home / "venv", with_pip=False, symlinks=True)
        self._bin = home / "venv" / "bin"
        uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--offline"]
        _ended([*uv, "--no-deps", "--python", str(self._bin / "python"), str(wheel)], cwd=folder)
        [packages] = (home / "venv" / "lib").glob("python*/site-packages")
        (packages / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.version, protocol, place = _ended([self.python, "-c", SHOW], cwd=folder).split()
        self.protocol = int(protocol)
        assert Path(place).is_relative_to(packages), place

    def __str__(self) -> str:
        """Say which one it is."""
        return f"{self.version}, protocol {self.protocol}"

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self._bin / "python")

    def command(self, *words: str) -> list[str]:
        """Return a command line of its `commitlog`."""
        return [str(self._bin / "commitlog"), *words]


def _ended(command: list[str], *, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = ended(command, cwd=cwd, env=env, timeout=BUILD_SECONDS)
    assert done.returncode == 0, f"{command}: {done.stderr[-3_000:]}"
    return done.stdout


class Child:
    """A process with its output in a file."""

    def __init__(self, name: str, command: list[str], folder: Path, servers: str) -> None:
        """Start it."""
        self.name = name
        self.output = folder / f"{name}.log"
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("COMMITLOG_", "PYTHON"))}
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=folder,
                env={**kept, "COMMITLOG_BOOTSTRAP_SERVERS": servers},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def await_leading(self) -> None:
        """Wait until a committer leads."""
        wait_until(self._leads, f"{self.name} to lead", state=self.output.read_text)

    def _leads(self) -> bool:
        assert self.process.poll() is None, self.output.read_text()[-3_000:]
        return "ready committer" in self.output.read_text()

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.wait(END_SECONDS)

    def stop(self) -> int:
        """End it cleanly; return what it ended with."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(END_SECONDS)


class Trial:
    """A log, and who runs on it."""

    def __init__(self, folder: Path, servers: str, old: Program, new: Program) -> None:
        """Have the older program make the log."""
        self.folder, self.servers = folder, servers
        self.old, self.new = old, new
        self.writers: list[tuple[Child, Path]] = []
        self.committers: list[Child] = []
        self._starts = 0
        self.run(old, "init", "--tables-root", str(folder / "tables"))

    def run(self, program: Program, *words: str, code: int = ExitCode.OK) -> str:
        """Run a command of a program to its end."""
        done = self._ended(program, *words)
        said = f"{program.name}: {' '.join(words)}: {done.stdout[-3_000:]}{done.stderr[-3_000:]}"
        assert done.returncode == code, said
        return done.stdout

    def refused(self, program: Program, *words: str) -> str:
        """Run a command that ends with a refusal, and return what it says."""
        done = self._ended(program, *words)
        said = done.stdout + done.stderr
        assert done.returncode in (ExitCode.REFUSED, ExitCode.STOP), said[-3_000:]
        assert "Traceback" not in said, said[-3_000:]
        return said

    def _ended(self, program: Program, *words: str) -> subprocess.CompletedProcess[str]:
        kept = {n: v for n, v in os.environ.items() if not n.startswith(("COMMITLOG_", "PYTHON"))}
        return ended(
            program.command(*words),
            cwd=self.folder,
            env={**kept, "COMMITLOG_BOOTSTRAP_SERVERS": self.servers},
            timeout=COMMAND_SECONDS,
        )

    def committer(self, program: Program, root: str) -> Child:
        """Start a committer of a program on a root."""
        self._starts += 1
        command = program.command("committer", "--root", str(self.folder / root))
        name = f"committer-{self._starts}-{program.name}-on-{root}"
        self.committers.append(Child(name, command, self.folder, self.servers))
        return self.committers[-1]

    def write(self, *, later: bool = False) -> None:
        """Start writers of both programs; `later` ones have ids of their own."""
        for program in (self.old, self.new):
            journal = self.folder / f"{program.name}.journal"
            journal.touch()
            name = program.name.upper() if later else program.name
            command = [program.python, str(WRITER), self.servers, name, str(journal)]
            name = f"writer-{program.name}"
            self.writers.append((Child(name, command, self.folder, self.servers), journal))

    def await_commits(self) -> None:
        """Wait until both writers got answers, all of them from who leads now."""
        due = [(child, path, _lines(path) + COMMITS) for child, path in self.writers]
        for child, path, lines in due:

            def wrote(child: Child = child, path: Path = path, lines: int = lines) -> bool:
                assert child.process.poll() is None, child.output.read_text()[-3_000:]
                return _lines(path) >= lines

            wait_until(wrote, f"{child.name} to commit", state=lambda p=path: _lines(p))  # type: ignore[misc]

    def close(self) -> None:
        """End everything."""
        for child in [*self.committers, *(child for child, _ in self.writers)]:
            if child.process.poll() is None:
                child.kill()


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def run(ref: str, folder: Path, report: Report = print) -> None:
    """Try the program of a commit, or of another checkout, beside this one."""
    with tree_of(ref) as tree:
        old = Program("old", tree, folder)
    new = Program("new", HERE, folder)
    report(f"{ref} is {old}; this tree is {new}")
    with EmbeddedBroker.start(folder / "broker") as broker, _trial(folder, broker, old, new) as one:
        _take_turns(one, report)
        _upgrade(one, report)


@contextlib.contextmanager
def _trial(folder: Path, broker: EmbeddedBroker, old: Program, new: Program) -> Iterator[Trial]:
    trial = Trial(folder, broker.bootstrap_servers, old, new)
    try:
        yield trial
    finally:
        trial.close()


def _take_turns(trial: Trial, report: Report) -> None:
    """Pass the lead around while both kinds of writers commit."""
    old, new = trial.old, trial.new
    leader = trial.committer(old, "a")
    leader.await_leading()
    with CommitLog.connect(trial.servers) as log:
        log.create_table(SHARED, SCHEMA, primary_key="id")
        log.create_table(OTHER, SCHEMA, policy="latest")
    trial.write()
    trial.await_commits()
    # Who stands by, on which root, and how the leader goes.
    for program, root, end in (
        (new, "b", Child.kill),
        (old, "a", Child.kill),
        (new, "b", Child.stop),
        # Each continues with the checkpoint that the other one left.
        (new, "a", Child.stop),
        (old, "b", Child.stop),
    ):
        standby = trial.committer(program, root) if leader.name[-1] != root else None
        end(leader)
        leader = standby or trial.committer(program, root)
        leader.await_leading()
        trial.await_commits()
        report(f"{leader.name} leads; {[_lines(path) for _, path in trial.writers]} lines")
    for child, _ in trial.writers:
        assert child.stop() == 0, child.output.read_text()[-3_000:]
    _check_rows(trial)
    report("each row that was acknowledged is there once")
    trial.run(old, "verify", "--root", str(trial.folder / "b"))
    trial.run(new, "verify", "--root", str(trial.folder / "b"))
    report("both programs verify the log")


def _check_rows(trial: Trial) -> None:
    """Compare the tables with what the journals say."""
    due: dict[str, set[int]] = {SHARED: set(), OTHER: set()}
    for _, path in trial.writers:
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            due[entry["table"]] |= set(entry["gained"])
            due[entry["table"]] -= set(entry["lost"])
    with CommitLog.connect(trial.servers) as log:
        for table, ids in due.items():
            found = log.open(table).to_table(columns=["id"]).column("id").to_pylist()
            assert sorted(found) == sorted(ids), table


def _upgrade(trial: Trial, report: Report) -> None:
    """Upgrade by the steps of the documentation."""
    [leader] = [one for one in trial.committers if one.process.poll() is None]
    root = str(trial.folder / "b")
    is_older = trial.old.protocol < trial.new.protocol
    said = trial.run(trial.new, "upgrade", "--check", "--root", root, code=int(is_older))
    assert not is_older or "install this program where committers run" in said, said
    report(said.strip())
    leader.stop()
    leader = trial.committer(trial.new, "b")
    leader.await_leading()
    if is_older:
        trial.run(trial.new, "rules", "--upgrade")
        late = trial.committer(trial.old, "a")
        assert late.process.wait(END_SECONDS) == ExitCode.STOP, late.output.read_text()
        report(late.output.read_text().strip().splitlines()[-1])
        _former_beyond(trial, report)
    trial.run(trial.new, "upgrade", "--check", "--root", root)
    trial.writers.clear()
    _write_more(trial)
    trial.run(trial.new, "verify", "--root", root, "--contents")
    report("this program verifies the whole log, with rows")


def _former_beyond(trial: Trial, report: Report) -> None:
    """See what the older program's writers and readers make of rules that it doesn't know."""
    trial.writers.clear()
    trial.write(later=True)
    trial.await_commits()
    for child, _ in trial.writers:
        assert child.stop() == 0, child.output.read_text()[-3_000:]
    _check_rows(trial)
    report("writers of both programs commit under the newer protocol, too")
    for words in (("verify",), ("replay", str(trial.folder / "replayed"))):
        root = str(trial.folder / "a")
        said = trial.refused(trial.old, *words, "--root", root)
        assert f"protocol {trial.new.protocol}" in said, said
        report(f"{words[0]}: {said.strip().splitlines()[-1]}")


def _write_more(trial: Trial) -> None:
    with CommitLog.connect(trial.servers) as log:
        made = log.delete(SHARED, "id >= 0")
        assert log.open(SHARED, made.version).count_rows() == 0
