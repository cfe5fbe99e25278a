"""Does `commitlog up` start, serve a second process, stop, go on, and leave nothing behind?"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from consumers.commands.exit_codes import ExitCode
from consumers.runtime.forking import CAN_FORK
from consumers.tools.bench.environment import descendants
from tests import forked
from tests.disks import small_disk
from tests.feed_reading import HttpFollower
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker]

START_SECONDS = 180.0
STOP_SECONDS = 60.0
EVENTS = 5
"""The log's own, that a table was made, and three additions."""
COMMAND = [sys.executable, "-m", "consumers.cli"]
NO_ROW_PROCESSES = ("--row-processes", "0")
"""For tests that ask nothing about rows over HTTP."""
LEAN = ("--no-maintain", *NO_ROW_PROCESSES)
"""Without what tests of other things don't need."""


def log_on(broker: Any) -> tuple[str, ...]:
    """Return flags for a service with a log of its own on the broker that all tests share.

    A broker is half of the CPU of a start. What asks nothing of Kafka itself has no need of one;
    topics, root and processes are its own all the same.
    """
    name = f"up-{os.getpid()}-{time.time_ns()}"
    return ("--bootstrap-servers", broker.bootstrap_servers, "--log", name)


class Service:
    """A `commitlog up` in a process of its own."""

    def __init__(self, root: Path, *arguments: str, is_fork: bool = CAN_FORK) -> None:
        """Start it; `is_fork`: with imports that were done before, not by a command line."""
        self.root = root
        self.log = arguments[arguments.index("--log") + 1] if "--log" in arguments else "commitlog"
        self.errors = root.parent / f"{root.name}.stderr"
        command = [*COMMAND[1:], "up", "--root", str(root), "--port", "0", *arguments]
        reading, writing = os.pipe()
        self.stdout = open(reading)  # noqa: SIM115
        with self.errors.open("ab") as sink, open(writing, "wb"):
            self.process = forked.start(
                command, stdout=writing, stderr=sink.fileno(), is_fork=is_fork
            )
        self.line = ""

    def await_ready(self) -> "Service":
        ready = wait([self.stdout.fileno()], START_SECONDS)
        self.line = self.stdout.readline().strip() if ready else ""
        assert self.line, self.errors.read_text()[-4000:]
        return self

    @property
    def port(self) -> int:
        return int(self.line.split()[1].rpartition(":")[2])

    @property
    def kafka(self) -> str:
        return self.line.split()[3]

    def connect(self) -> CommitLog:
        """Return a client of its log."""
        return CommitLog.connect(self.kafka, self.log)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Return its exit code and how long it took."""
        began = time.monotonic()
        self.process.send_signal(how)
        code = self.process.wait(STOP_SECONDS + 5)
        return code, time.monotonic() - began

    def get(self, path: str, method: str = "GET") -> tuple[int, dict[str, object]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


@contextlib.contextmanager
def service(root: Path, *arguments: str, is_fork: bool = CAN_FORK) -> Iterator[Service]:
    """Run one; a test of the start itself has it started by its command line, as users do."""
    running = Service(root, *arguments, is_fork=is_fork)
    try:
        yield running.await_ready()
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            try:
                running.process.wait(STOP_SECONDS + 5)
            except subprocess.TimeoutExpired:
                running.process.kill()
        running.stdout.close()


def run(*arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
    return forked.run([*COMMAND[1:], *arguments], timeout=timeout)


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


WRITER = """
import sys
import pyarrow as pa
from commitlog import CommitLog
slow = {"timeout": 240.0}  # a leader or a broker may just be coming back
log = CommitLog.connect(sys.argv[1], sys.argv[3], **slow)
schema = pa.schema([("id", pa.int64())])
log.create_table("shop$orders", schema, exist_ok=True, **slow)
outcome = log.append("shop$orders", pa.table({"id": [int(sys.argv[2])]}, schema=schema), **slow)
print(outcome.status, outcome.version, log.open("shop$orders").count_rows())
"""


def write(running: Service, number: int, log: str = "commitlog") -> list[str]:
    done = forked.run(["-c", WRITER, running.kafka, str(number), log])
    assert done.returncode == 0, done.stderr + running.errors.read_text()[-4000:]
    return done.stdout.split()


@pytest.mark.slow
def test_a_service_starts_serves_stops_and_goes_on(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with service(root, is_fork=False) as running:
        words = running.line.split()
        assert [words[0], words[2], words[4:]] == ["ready", "kafka", ["root", str(root)]]
        assert running.get("/healthz")[0] == 200
        assert running.get("/readyz")[0] == 200
        assert write(running, 1) == ["committed", "2", "1"]

        refused = run("up", "--root", str(root), "--port", "0")
        assert refused.returncode == ExitCode.MACHINE
        assert f"process {running.process.pid}" in refused.stderr
        assert refused.stdout == ""

        def versions() -> list[int]:
            shown = run("history", "shop$orders", "--root", str(root), "--json")
            return [row["version"] for row in json.loads(shown.stdout or "[]")]

        wait_until(lambda: versions() == [2, 1], "both versions in the index", state=versions)
        doctor = run("doctor", "--root", str(root), "--json")
        assert doctor.returncode == ExitCode.OK, doctor.stdout
        assert run("verify", "--root", str(root)).returncode == ExitCode.OK
        changed = run("rules", "--root", str(root), "--history-versions", "5000", "--json")
        assert [row["history_versions"] for row in json.loads(changed.stdout)] == [5000]
        refused = run("rules", "--root", str(root), "--operations-max", "0")
        assert refused.returncode == ExitCode.USAGE
        assert "above 0" in refused.stderr
        logged = json.loads(run("log", "--root", str(root), "--json").stdout)
        assert [row["kind"] for row in logged][-1] == "outcome"
        assert run("show", logged[-1]["transaction_id"], "--root", str(root)).returncode == 0

        first = running.line
        code, seconds = running.stop()
        assert (code, running.stdout.read()) == (0, "")
        assert seconds < STOP_SECONDS
    with service(root) as running:
        assert running.line == first
        assert write(running, 2) == ["committed", "3", "2"]
        assert running.stop(signal.SIGINT)[0] == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_part_that_is_killed_comes_back_and_a_killed_supervisor_leaves_none(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    with (
        service(root, is_fork=False) as running,
        contextlib.closing(HttpFollower(running.port, "*")) as feed,
    ):
        pid = running.process.pid
        wait_until(lambda: feed.sequences, "a feed that has begun")
        # The leader and the server of the feed, which goes on where it was cut off.
        for child in descendants(pid):
            if {b"committer", b"server"} & set(cmdline(child).split(b"\0")):
                os.kill(child, signal.SIGKILL)
        assert write(running, 1) == ["committed", "2", "1"]
        wait_until(lambda: running.get("/readyz")[0] == 200, "a service that is ready")

        parts = {child for child in descendants(pid) if b"consumers.cli" in cmdline(child)}
        assert len(parts) == 5
        broker = int((root / "kafka" / "lock").read_text().split()[1])
        os.kill(broker, signal.SIGKILL)
        assert write(running, 2) == ["committed", "3", "2"]
        wait_until(lambda: running.get("/readyz")[0] == 200, "a service that is ready")
        assert parts <= {*descendants(pid)}, "they wait for the broker instead of dying"
        assert "broker.log. It is started again" in (root / "up.log").read_text()

        children = descendants(pid)
        assert len(children) >= 4
        running.process.kill()
        running.process.wait(120)
        wait_until(lambda: not any(map(is_alive, children)), "the end of all", seconds=STOP_SECONDS)
        with service(root) as again:
            assert write(again, 3) == ["committed", "4", "3"]
            with contextlib.closing(HttpFollower(again.port, "*")) as fresh:
                wait_until(lambda: len(fresh.sequences) >= EVENTS, "all events")
                wait_until(lambda: feed.sequences == fresh.sequences, "each of them, and once")
            assert (feed.refused, fresh.sequences) == ("", sorted(set(fresh.sequences)))


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_service_on_a_named_cluster_starts_no_broker_and_its_root_is_its_log_s(
    broker: object, tmp_path: Path
) -> None:
    servers = broker.bootstrap_servers  # type: ignore[attr-defined]
    root = tmp_path / "root"
    names = [f"up-{os.getpid()}-{time.time_ns()}-{number}" for number in range(2)]
    on_named = ("--bootstrap-servers", servers, "--log", names[0])
    with service(root, *on_named, is_fork=False) as running:
        assert running.kafka == servers
        assert not (root / "kafka").exists()
        shown = run("tables", "--root", str(root), "--json")
        assert json.loads(shown.stdout) == []
    arguments = ["--root", str(root), "--port", "0", "--bootstrap-servers", servers]
    refused = run("up", *arguments, "--log", names[1])
    assert refused.returncode == ExitCode.STOP, refused.stderr
    assert refused.stdout == ""
    assert names[0] in refused.stderr


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "64k") as made:
        yield made


def test_a_full_disk_is_named(disk: Path) -> None:
    refused = run("up", "--root", str(disk / "root"), "--port", "0")
    assert refused.returncode == ExitCode.MACHINE, refused.stderr
    assert "free some" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_stop_while_starting_is_clean(tmp_path: Path) -> None:
    running = Service(tmp_path / "root", is_fork=False)
    try:
        wait_until((tmp_path / "root" / "kafka" / "broker.log").exists, "a broker that starts")
        code, seconds = running.stop()
        assert code == 0
        assert seconds < STOP_SECONDS
    finally:
        running.process.kill()
        running.process.wait(STOP_SECONDS)
        running.stdout.close()


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = run("up", "--root", str(tmp_path / "root"), "--port", port)
    assert refused.returncode == ExitCode.MACHINE
    assert f"127.0.0.1:{port}" in refused.stderr
    assert "--port" in refused.stderr
    assert not (tmp_path / "root" / "kafka").exists()


def test_a_tables_root_that_cannot_be_is_refused_before_a_broker_starts(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    root = tmp_path / "root"
    refused = run(
        "up", "--root", str(root), "--port", "0", "--tables-root", str(tmp_path / "file/t")
    )
    assert refused.returncode == ExitCode.MACHINE
    assert "no log was made" in refused.stderr
    assert not (root / "kafka" / "data").exists()
    assert "starting Kafka" not in refused.stderr


def test_no_java_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLOG_JAVA", str(tmp_path / "none"))
    refused = run("up", "--root", str(tmp_path / "root"), "--port", "0")
    assert refused.returncode == ExitCode.MACHINE
    assert "Install a JDK" in refused.stderr
