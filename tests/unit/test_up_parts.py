"""Do the pieces of `commitlog up` keep their promises: lock, port, restarts, health, shutdown?"""

import errno
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.errors import Unavailable
from commitlog.ports import LogIdentity
from commitlog.protocol import outcomes_topic
from consumers.commands import parts
from consumers.commands.exit_codes import ExitCode, exit_code
from consumers.commands.parts import CommandProcess, Restarts
from consumers.commands.up import Supervisor
from consumers.runtime import process, roots
from consumers.runtime.config import ConfigurationError, load
from consumers.runtime.places import MARKS, RootMoved, check_unused, partitions_on
from consumers.runtime.roots import PartFailed, PortTaken, RootInUse, RootUnusable
from consumers.servers.metrics import Metrics
from consumers.servers.server import serve
from consumers.views import health
from consumers.views.health import Check, Health, Level, is_whole
from tests.child import ended
from tests.waiting import WAIT_SECONDS, meanwhile, wait_until


def test_a_root_has_one_owner(tmp_path: Path) -> None:
    root = tmp_path / "new" / "root"
    lock = roots.take(root)
    with pytest.raises(RootInUse, match=rf"on {root} \(process {os.getpid()}\)"):
        roots.take(root)
    os.close(lock)
    os.close(roots.take(root))


def test_a_killed_owners_children_are_waited_for(tmp_path: Path) -> None:
    lock = roots.take(tmp_path)
    # As if the owner were dead, and a child of it still ended.
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"4194304\n", 0)
    threading.Timer(0.3, os.close, (lock,)).start()
    os.close(roots.take(tmp_path))


def test_a_root_in_use_is_named_as_a_shell_takes_it(tmp_path: Path) -> None:
    root = tmp_path / "my root"
    lock = roots.take(root)
    with pytest.raises(RootInUse, match=f"use it with --root '{root}', stop it"):
        roots.take(root)
    os.close(lock)


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RootUnusable, match="file cannot be written because it is a file"):
        roots.take(tmp_path / "file")


def test_a_root_that_is_gone_is_to_be_put_back(tmp_path: Path) -> None:
    with pytest.raises(RootUnusable, match="put it back") as refused, roots.usable(tmp_path):
        (tmp_path / "gone").stat()
    assert exit_code(refused.value) == ExitCode.MACHINE


def test_a_root_that_is_read_only_is_to_be_mounted_for_writing(tmp_path: Path) -> None:
    with pytest.raises(RootUnusable, match="mount it for writing"), roots.usable(tmp_path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(tmp_path))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortTaken, match=f"127.0.0.1:{port}.*--port"):
            roots.listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_what_can_be_no_address_is_a_wrong_setting(host: str) -> None:
    with pytest.raises(ConfigurationError, match="host cannot be"):
        roots.listen(host, 0)


def test_an_address_of_another_machine_is_not_a_port_in_use() -> None:
    with pytest.raises(PortTaken, match="name an address of this machine") as refused:
        roots.listen("192.0.2.1", 0)  # of documentation
    assert "end the process" not in str(refused.value)


def test_a_misspelt_variable_is_told_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A new log took the default for good: only `doctor` said so, and nobody asked it."""
    monkeypatch.setenv("COMMITLOG_TABLE_ROOT", "/srv/lake")
    monkeypatch.setattr(roots, "listen", Mock(side_effect=process.Stopped))
    with pytest.raises(process.Stopped):
        Supervisor(load({"root": str(tmp_path)}), say=print)._start()
    assert "no setting is named COMMITLOG_TABLE_ROOT" in caplog.text


def test_a_port_that_was_picked_is_kept(tmp_path: Path) -> None:
    with roots.listen("127.0.0.1", 0, root=tmp_path) as first:
        port = first.getsockname()[1]
        with roots.listen("127.0.0.1", 0, root=tmp_path) as other:
            assert other.getsockname()[1] != port
    (tmp_path / roots.HTTP_PORT_FILE).write_text(f"{port}\n")
    with roots.listen("127.0.0.1", 0, root=tmp_path) as again:
        assert again.getsockname()[1] == port


def test_restarts_get_rarer_and_come_to_an_end() -> None:
    restarts = Restarts("it")
    pauses = [restarts.after_death(float(now)) for now in range(parts.RESTARTS_MAX)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    with pytest.raises(PartFailed, match="it died"):
        restarts.after_death(10.0)
    assert restarts.after_death(10_000.0) == pauses[0]


class Script(CommandProcess):
    """A part that runs a piece of Python instead of a command."""

    def __init__(self, code: str) -> None:
        """Run the code."""
        super().__init__("script", [], environment=dict(os.environ), inherited=())
        self._command = [sys.executable, "-c", code]


READY = """
import threading
from pathlib import Path
from consumers.runtime.process import run_part
import sys
run_part("script", Path(sys.argv[1]), lambda stop, on_ready: (on_ready("here:1"), stop.wait()))
"""


@pytest.fixture
def part(tmp_path: Path) -> Iterator[Script]:
    script = Script(READY)
    script._command.append(str(tmp_path))
    script.start()
    yield script
    script.end(time.monotonic())


def test_a_part_tells_its_address_and_ends_when_asked(part: Script, tmp_path: Path) -> None:
    wait_until(lambda: part.address == "here:1", "its address")
    part.ask_to_end()
    assert part.end(time.monotonic() + WAIT_SECONDS)
    assert "script has ended" in (tmp_path / "script.log").read_text()


SILENT = """
import sys
import threading
from pathlib import Path
from consumers.runtime import process
process.SUPERVISED_END_SECONDS = 0.1
def work(stop, on_ready):
    on_ready("here:1")
    threading.Event().wait()
process.run_part("script", Path(sys.argv[1]), work)
"""


def test_a_part_that_waits_for_what_is_silent_ends_when_asked(tmp_path: Path) -> None:
    script = Script(SILENT)
    script._command.append(str(tmp_path))
    script.start()
    wait_until(lambda: script.address == "here:1", "its address")
    script.ask_to_end()
    assert script.end(time.monotonic() + WAIT_SECONDS)
    assert "script ends: it waited" in (tmp_path / "script.log").read_text()


@pytest.mark.slow
def test_what_a_part_waits_for_is_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(process, "WAIT_SECONDS", 0)
    work = Mock(side_effect=[Unavailable("cannot write:\n\nIO Error: full\n  later"), None])
    process._work_patiently("index", work, threading.Event(), lambda _: None, is_patient=True)
    assert caplog.messages == ["index starts again in 0 s: cannot write: IO Error: full later"]


FOLDER_GONE = """
import sys
from pathlib import Path
from consumers.runtime.process import run_part
tries = []
def work(stop, on_ready):
    tries.append(1)
    if len(tries) == 1:
        on_ready("")
    if len(tries) < 3:
        Path("/none/file").write_text("")
    on_ready(f"after:{len(tries)}")
    stop.wait()
run_part("script", Path(sys.argv[1]), work)
"""


@pytest.mark.slow
def test_a_part_that_ran_goes_on_once_its_files_can_be_written_again(tmp_path: Path) -> None:
    script = Script(FOLDER_GONE)
    script._command.append(str(tmp_path))
    script.start()
    try:
        log = tmp_path / "script.log"
        wait_until(lambda: log.exists() and "after:3" in log.read_text(), "the third try")
        assert "starts again in 0.25 s: [Errno 2] No such file or directory" in log.read_text()
    finally:
        script.end(time.monotonic())


FILES = """
import resource
import sys
from pathlib import Path
from consumers.runtime.process import run_part
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
def work(stop, on_ready):
    on_ready("all" if resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most) else "few")
    stop.wait()
run_part("script", Path(sys.argv[1]), work)
"""


def test_a_part_may_have_as_many_files_open_as_the_system_allows(tmp_path: Path) -> None:
    script = Script(FILES)
    script._command.append(str(tmp_path))
    script.start()
    try:
        wait_until(lambda: script.address, "its address")
        assert script.address == "all"
    finally:
        script.end(time.monotonic())


def test_a_part_ends_with_its_supervisor(part: Script) -> None:
    wait_until(lambda: part.address == "here:1", "its address")
    process = part._process
    assert process is not None
    assert part._lifeline is not None
    part._lifeline.close()
    assert process.wait(120) == 0


def test_a_part_that_dies_is_started_again(part: Script, caplog: pytest.LogCaptureFixture) -> None:
    wait_until(lambda: part.address == "here:1", "its address")
    first = part.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        part.check(time.monotonic())
        return part.pid not in (None, first) and part.address == "here:1"

    wait_until(is_back, "another process", state=lambda: (first, part.pid, part.address))
    assert "signal SIGKILL, as the system ends what takes too much memory" in caplog.text


AWAY = """
import sys
from pathlib import Path
from commitlog.errors import Unavailable
from commitlog.ports import LogIdentity
from consumers.runtime.process import run_part
tries = []
def work(stop, on_ready):
    tries.append(1)
    if len(tries) < 4 or len(tries) == 5:
        raise Unavailable("the broker is away")
    on_ready(f"after:{len(tries)}")
    if len(tries) > 5:
        stop.wait()
    else:
        raise Unavailable("the broker went away")
run_part("script", Path(sys.argv[1]), work)
"""


@pytest.mark.slow
def test_a_part_waits_inside_for_a_broker_that_is_away(tmp_path: Path) -> None:
    script = Script(AWAY)
    script._command.append(str(tmp_path))
    script.start()
    first = script.pid
    try:
        log = tmp_path / "script.log"
        wait_until(lambda: log.exists() and "after:6" in log.read_text(), "the sixth try")
        assert "s: the broker went away" in log.read_text()
        script.check(time.monotonic())
        assert script.pid == first, "it died"
    finally:
        script.end(time.monotonic())


def test_why_a_part_died_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Script("raise SystemExit(70)")
    script._environment = {**os.environ, "COMMITLOG_ROOT": str(tmp_path)}
    (tmp_path / "script.log").write_text("script starts\nERROR script: script ends: no such key\n")
    script.start()

    def is_told() -> bool:
        script.check(time.monotonic())
        return "no such key" in caplog.text

    wait_until(is_told, "the reason in the log", state=lambda: caplog.text)
    script.end(time.monotonic())


def test_a_part_that_would_fail_again_is_not(tmp_path: Path) -> None:
    script = Script(f"raise SystemExit({int(ExitCode.STOP)})")
    script.start()
    with pytest.raises(PartFailed) as ended:
        wait_until(lambda: script.check(time.monotonic()), "its end")
    assert exit_code(ended.value) is ExitCode.STOP


DEAF = """
import os, signal, socket, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
socket.socket(fileno=int(os.environ["COMMITLOG_SUPERVISOR_FD"])).sendall(b"deaf\\n")
time.sleep(60)
"""


def test_a_part_that_does_not_end_is_killed() -> None:
    script = Script(DEAF)
    script.start()
    wait_until(lambda: script.address == "deaf", "its address")
    script.ask_to_end()
    assert not script.end(time.monotonic() + 0.2)


FLOOD = """
import logging, sys
from pathlib import Path
from consumers.runtime.process import configure_logging
configure_logging("flood", Path(sys.argv[1]))
for number in range(5000):  # several times what a pipe holds
    logging.info("line %d", number)
print("done", flush=True)
"""


NAMES = r"""
import logging, sys
from pathlib import Path
from consumers.runtime.process import run_part
run_part("part", Path(sys.argv[1]), lambda *_: logging.error("gone: %s", "/a/\udcff"))
"""


def test_a_line_with_a_name_that_is_no_text_is_logged(tmp_path: Path) -> None:
    done = ended([sys.executable, "-c", NAMES, str(tmp_path)], timeout=WAIT_SECONDS, check=True)
    assert r"gone: /a/\udcff" in done.stderr
    assert r"gone: /a/\udcff" in (tmp_path / "part.log").read_text()


STARTING = """
import sys, time
from consumers.broker import embedded as broker
from consumers.commands import run
from consumers.commands.options import Where
from pathlib import Path

def start(*_, **__):
    print("starting", flush=True)
    time.sleep(600)

broker.EmbeddedBroker.start = start
run.broker(where=Where(root=Path(sys.argv[1])))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_broker_that_starts_can_be_stopped(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "starting\n"
            process.send_signal(number)
            assert process.wait(WAIT_SECONDS) == 0
        finally:
            process.kill()


@pytest.mark.slow
def test_nobody_who_reads_the_log_stops_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FLOOD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            assert "line 4999" in (tmp_path / "flood.log").read_text()
        finally:
            process.kill()


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[Health]:
    log = MemoryLog()
    log.create()
    made = Health(log, None)
    status: dict[str, Any] = {"node": "here:1", "epoch": 1, "sequence": 5, "undecided": 0}
    monkeypatch.setattr(made._connections[0], "request", lambda *_: status)
    made.status = status  # type: ignore[attr-defined]
    yield made
    made.close()


def levels(checks: tuple[Check, ...]) -> dict[str, Level]:
    return {check.name: check.level for check in checks}


def test_a_log_with_a_leader_is_whole(whole: Health) -> None:
    assert levels(whole.check()) == dict.fromkeys(("broker", "leader", "topics"), Level.OK)
    assert is_whole(whole.check())


def test_the_metrics_say_that_a_leader_is_silent(
    whole: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> dict[str, float]:
        text = Metrics(whole.leaders).text().decode()
        families = text_string_to_metric_families(text)
        return {one.name: one.value for each in families for one in each.samples}

    whole.status |= {"ready": True, "outcomes": {"committed": 5}}  # type: ignore[attr-defined]
    whole.check()
    before = told()
    assert (before["commitlog_leader_ready"], before["commitlog_queue_transactions"]) == (1, 0)
    monkeypatch.setattr(whole, "_thread", Mock())
    assert told()["commitlog_leader_ready"] == 1

    def silent() -> LogIdentity:
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", lambda: now + health.STALE_SECONDS + 1)
        raise Unavailable("no broker answers")

    # Kafka hangs a look for longer than what the leader said before is true.
    with monkeypatch.context() as patch:
        patch.setattr(whole._log, "identity", silent)
        assert levels(whole.check())["broker"] is Level.FAIL
        assert told()["commitlog_leader_ready"] == 0
        assert "commitlog_queue_transactions" not in told()
    monkeypatch.setattr(whole._connections[0], "request", Mock(side_effect=Unavailable("frozen")))
    whole.check()
    after = told()
    assert after["commitlog_leader_ready"] == 0, "an alert pages for this"
    assert "commitlog_queue_transactions" not in after, "nobody knows how many wait"
    assert after["commitlog_outcomes_total"] == 5


def test_the_cluster_is_asked_only_when_its_leaders_do_not_show_that_it_answers(
    whole: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def refuse() -> LogIdentity:
        asked.append(1)
        raise Unavailable("no broker answers")

    status = whole.status  # type: ignore[attr-defined]
    status["outcomes"] = {"committed": 5}
    assert levels(whole.check())["broker"] is Level.OK
    monkeypatch.setattr(whole._log, "identity", refuse)
    status["outcomes"] = {"committed": 5, "rejected": 1}
    assert levels(whole.check())["broker"] is Level.OK
    assert not asked, "Kafka took an outcome since the last look"
    status["sequence"] = 6  # decided, and not acknowledged
    assert levels(whole.check())["broker"] is Level.FAIL
    status["outcomes"] = {"committed": 6, "rejected": 1}
    assert levels(whole.check())["broker"] is Level.OK
    monkeypatch.setattr(whole, "_cluster_due", 0.0)  # ten seconds are over
    status["outcomes"] = {"committed": 7, "rejected": 1}
    assert levels(whole.check())["broker"] is Level.FAIL


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({"undecided": health.UNDECIDED_MAX + 1}, Level.FAIL),
        ({"ready": False}, Level.FAIL),
        ({"decision_lag_seconds": health.LAG_SECONDS_MAX + 1}, Level.FAIL),
        ({"deciding_silence_seconds": health.SILENCE_SECONDS_MAX + 1}, Level.FAIL),
        ({"failing_tables": ["ns$t"]}, Level.WARN),
        ({"full_tables": ["ns$t"], "unwritten_versions": 20_000}, Level.WARN),
        ({"rows_lag_seconds": health.LAG_SECONDS_MAX + 1}, Level.WARN),
    ],
)
def test_a_leader_in_trouble_is_told(whole: Health, change: dict[str, Any], level: Level) -> None:
    whole.status.update(change)  # type: ignore[attr-defined]
    assert levels(whole.check())["leader"] is level


def test_a_silent_leader_is_a_finding(whole: Health, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise Unavailable("nobody answers")

    monkeypatch.setattr(whole._connections[0], "request", silent)
    found = whole.check()
    assert not is_whole(found)
    assert "nobody answers" in found[1].message


def test_an_index_that_stands_still_is_late(
    whole: Health, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "_root", tmp_path)
    monkeypatch.setattr("consumers.history.status", lambda root: [{"partition": 0, "sequence": 3}])
    monkeypatch.setattr(health, "INDEX_LAG_SECONDS", 0.05)
    assert levels(whole.check())["index"] is Level.OK
    wait_until(lambda: levels(whole.check())["index"] is Level.FAIL, "an index that is late")


def get(port: int, path: str) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@pytest.mark.slow
def test_the_server_tells_health_and_readiness(
    whole: Health, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever asks has it look, however long it would rest by itself.
    monkeypatch.setattr(health, "QUIET_SECONDS", 3600.0)
    listener = roots.listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    ready: list[str] = []
    with meanwhile(lambda stop: serve(whole, listener, stop=stop, on_ready=ready.append)):
        wait_until(lambda: ready, "a server")
        assert ready == [f"127.0.0.1:{port}"]
        assert get(port, "/healthz") == (200, {"status": "ok"})
        wait_until(lambda: get(port, "/readyz")[0] == 200, "a server that is ready")
        assert whole.problem() == ""
        whole.status["ready"] = False  # type: ignore[attr-defined]
        wait_until(lambda: get(port, "/readyz")[0] == 503, "a server that isn't ready")
        body = get(port, "/readyz")[1]
        assert "leader: " in whole.problem()
        assert "is not ready yet" in whole.problem()
        assert [c["level"] for c in body["checks"]] == ["ok", "fail", "ok"]


def test_a_root_whose_mark_cannot_be_read_is_not_taken_for_an_unused_one(tmp_path: Path) -> None:
    mark = tmp_path / "tables" / MARKS / "id.json"
    mark.parent.mkdir(parents=True)
    check_unused(tmp_path, "log")
    mark.write_bytes(b"")  # as a power cut may leave it
    with pytest.raises(RootMoved, match="is the root of a log 'log'"):
        check_unused(tmp_path, "log")


def test_a_log_that_lost_its_records_is_not_begun_again(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    log = MemoryLog(cluster)
    assert partitions_on(tmp_path, log) == 0
    log.create(tables_root="/tables")
    outcomes = cluster.partition(outcomes_topic(log.name), 0).records
    (tmp_path / "index.duckdb").touch()
    assert partitions_on(tmp_path, log) == 1
    outcomes.clear()  # as after a power cut
    with pytest.raises(RootMoved, match="none of its records"):
        partitions_on(tmp_path, log)


def test_an_address_of_ipv6_stands_in_brackets_before_a_port() -> None:
    assert [roots.host_in_url(one) for one in ("::1", "10.0.0.1", "a.b")] == [
        *("[::1]", "10.0.0.1", "a.b")
    ]
