"""Does every command that takes `--log` ask that log, or refuse it, and refuse bad places?"""

import inspect
import re
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from cyclopts import App

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.errors import Unavailable, WrongLog
from consumers import cli
from consumers.commands import http_options, rows, run, up, upkeep
from consumers.commands.app import app
from consumers.commands.exit_codes import ExitCode
from consumers.runtime import patience, roots
from consumers.runtime.endpoints import read_endpoints, write_endpoints
from consumers.runtime.process import OnReady
from consumers.tools.backup.saved import Backup
from consumers.tools.bench.made_log import MadeLog
from consumers.tools.verify import VerifyOptions, verify
from consumers.views import health
from consumers.views.health import Level
from consumers.views.version_index import VersionIndex

ARGUMENTS = {
    "archive": [], "backup": ["PLACE"], "bench all": ["--only", "commit"], "blame": ["t"],
    "diff": ["t", "1", "2"], "erase": ["t"], "explain": [str(uuid.UUID(int=1))], "history": ["t"],
    "move": ["127.0.0.1:2", "--timeout", "0.5"], "plot": ["commits"], "properties": ["t"],
    "replay": ["PLACE"], "restore": ["BACKUP"],
    "rollback": ["t", "--to", "1"], "show": [str(uuid.UUID(int=1))], "sql": ["SELECT 1"],
    "undrop": ["t"], "upgrade": ["--check"],
}  # fmt: skip
"""What commands need beside the log."""
SERVES_ANY = {"acl", "broker"}
"""What serves whichever log is asked of it, or only prints what to run."""


@pytest.mark.parametrize("flag", ["--partitions", "--replication-factor"])
@pytest.mark.parametrize("count", ["0", "-1", "1000000"])
def test_a_log_of_no_partition_or_copy_is_wrong_usage(
    flag: str, count: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kafka's client took -1 for the broker's default, and -2 and a million for a bug of ours."""
    nobody = ["--bootstrap-servers", "127.0.0.1:1", "--tables-root", "/nowhere"]
    assert cli.main(["init", flag, count, *nobody]) == ExitCode.USAGE
    assert flag in capsys.readouterr().err


def _commands(of: App, prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in of:
        if name.startswith("-"):
            continue
        command = of[name]
        if command.default_command is None:
            found |= _commands(command, f"{name} ")
        elif "where" in inspect.signature(command.default_command).parameters:
            found[prefix + name] = command
    return found


def _stay_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep parts from what changes their process: signals, niceness, an end by force."""

    def run_part(_: str, __: Path, work: Callable[[Event, OnReady], None], **___: Any) -> None:
        work(Event(), lambda _: None)

    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.0)
    for module in (run, rows, upkeep):
        monkeypatch.setattr(module, "run_part", run_part)
    for name in ("stop_on_signals", "configure_logging"):
        monkeypatch.setattr(up, name, lambda *_, **__: None)
    monkeypatch.setattr(up.Supervisor, "_end_by_force", lambda _: None)
    for module in (up, http_options):
        monkeypatch.setattr(module, "CAN_FORK", False)
    listener = SimpleNamespace(getsockname=lambda: ("127.0.0.1", 1), close=lambda: None)
    monkeypatch.setattr(roots, "listen", lambda *_, **__: listener)


COMMANDS = sorted(set(_commands(app)) - SERVES_ANY)
ASKING_THE_INDEX = {
    *("blame", "conflicts", "diff", "explain", "history", "plot", "show", "sql", "tables", "top"),
}
"""What looks into the root and nowhere else."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the logs that commands tried to reach."""
    logs: list[str] = []

    def reach(_: ClientSettings, log: str, __: float) -> KafkaLog:
        logs.append(log)
        raise Unavailable("nobody is there")

    monkeypatch.setattr(KafkaLog, "reach", reach)
    _stay_harmless(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return logs


def _run(command: str, folder: Path, *flags: str) -> int:
    """Run a command with what it needs, and a backup of the log `other`."""
    backup = folder / "backup"
    backup.mkdir()
    (backup / "backup.json").write_bytes(Backup("other", "id", "cluster", "", []).to_bytes())
    places = {"PLACE": str(folder / "place"), "BACKUP": str(backup)}
    given = [places.get(one, one) for one in ARGUMENTS.get(command, [])]
    return cli.main([*command.split(), *given, *flags])


@pytest.mark.slow
@pytest.mark.parametrize("says", ["flag", "environment", "file", "root"])
@pytest.mark.parametrize("command", sorted({*COMMANDS} - {"restore"}))  # it asks the backup first
def test_the_log_that_is_named_is_asked_and_no_other(
    command: str,
    says: str,
    asked: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = tmp_path / "root"
    if says == "root":
        root.mkdir()
        write_endpoints(root, {"bootstrap_servers": "127.0.0.1:2", "log": "other"})
    elif says == "file":
        (tmp_path / "commitlog.toml").write_text('log = "other"\n')
    elif says == "environment":
        monkeypatch.setenv("COMMITLOG_LOG", "other")
    named = ["--log", "other"] if says == "flag" else []
    where = ["--root", str(root), "--bootstrap-servers", "127.0.0.1:1"]
    code = _run(command, tmp_path, *where, *named)
    told = capsys.readouterr()
    assert code != 0, told.out
    asked += re.findall(r"hasn't answered about log '(.*?)'", told.err)  # a move waits for that
    assert set(asked) == (set() if command in ASKING_THE_INDEX else {"other"}), told.err


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_root_of_another_log_is_refused(
    command: str, asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    left = {"bootstrap_servers": "127.0.0.1:1", "log": "mine"}
    write_endpoints(root, left)
    flags = ["--root", str(root), "--bootstrap-servers", "127.0.0.1:1", "--log", "other"]
    assert _run(command, tmp_path, *flags) == ExitCode.STOP
    told = capsys.readouterr().err
    assert "the root of log 'mine', not of 'other'" in told, told
    assert (asked, read_endpoints(root)) == ([], left)


@pytest.mark.slow
def test_a_root_of_another_log_is_neither_served_nor_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours = MemoryLog(MemoryCluster()), MemoryLog(MemoryCluster())
    theirs.create(tables_root=str(tmp_path / "theirs"))
    ours.create(tables_root=str(tmp_path / "ours"))
    with VersionIndex(tmp_path) as index:
        index.bind(asdict(theirs.identity()) | {"log_id": theirs.genesis().log_id})
        index.publish()
    with pytest.raises(WrongLog, match="the version index"):
        verify(ours, 0, VerifyOptions(root=tmp_path))
    monkeypatch.setattr(health, "LEADER_TIMEOUT_SECONDS", 0.0)  # nobody leads
    with closing(health.Health(ours, tmp_path)) as looking:
        assert looking.check()[-1].level is Level.FAIL
    monkeypatch.setattr(run, "connect", lambda _: ours)
    _stay_harmless(monkeypatch)
    flags = ["--root", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1"]
    assert cli.main(["server", *flags]) == ExitCode.STOP
    assert "name this log's root" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "broker",
        "committer",
        "index",
        "up",
        "init --tables-root /proc/none",
        "init --tables-root s3:/",
        "init --log ../x",
        "up --access-file /proc/none",
        "up --base-path lance",
        "up --row-memory 1",
        "up --row-processes -1",
        "up --start-seconds 0",
        "up --storage-file /proc/none",
        "up --places nowhere",
        "up --tls-certificate /proc/none --tls-key /proc/none",
    ],
)
def test_a_place_that_cannot_be_is_refused_before_anything_is_written(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connect(*_: Any, **__: Any) -> KafkaLog:
        raise AssertionError("the log was asked first")

    monkeypatch.setattr(KafkaLog, "connect", connect)
    _stay_harmless(monkeypatch)
    root = [] if command.startswith("init") else ["--root", "/proc/none"]
    code = cli.main([*command.split(), *root, "--bootstrap-servers", "127.0.0.1:1"])
    told = capsys.readouterr().err
    assert code in {ExitCode.MACHINE, ExitCode.USAGE}, told
    assert told.count("\n") == 1, told
    assert "Traceback" not in told


def test_a_committer_of_a_partition_that_the_log_lacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _stay_harmless(monkeypatch)
    monkeypatch.setattr(run, "connect_to_files", lambda _: MadeLog().log)
    where = ["--root", str(tmp_path), "--bootstrap-servers", "127.0.0.1:1"]
    assert cli.main(["committer", "--partition", "7", *where]) == ExitCode.USAGE
    assert "--partition 7 does not exist: the log has only partition 0" in capsys.readouterr().err
    before = set(tmp_path.iterdir())
    assert cli.main(["committer", "--partition", "-1", *where]) == ExitCode.USAGE
    assert "--partition. Must be >= 0" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before, "it had a log file"


def test_a_log_has_the_tables_root_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _stay_harmless(monkeypatch)
    log = MemoryLog()
    monkeypatch.setattr(run, "connect", lambda _: log)
    own, other = tmp_path / "tables", tmp_path / "other"
    init = ["init", "--bootstrap-servers", "127.0.0.1:1", "--tables-root"]
    assert cli.main([*init, str(own)]) == ExitCode.OK
    assert cli.main([*init, f"{own}/"]) == ExitCode.OK, "it is the same"
    assert cli.main([*init[:-1], "--root", str(tmp_path / "root")]) == ExitCode.OK
    capsys.readouterr()
    assert cli.main([*init, str(other)]) == ExitCode.USAGE
    told = capsys.readouterr()
    assert not told.out
    assert f"the tables root of log 'commitlog' is {own}, not {other}" in told.err
    assert log.genesis().tables_root == str(own)


@pytest.mark.parametrize(
    ("arguments", "advised"),
    [
        (["--bootstrap-servers", "127.0.0.1:1"], "--tables-root PLACE"),
        (["--root", "{root}"], "running `commitlog up` or `commitlog broker`"),
    ],
)
def test_who_makes_a_log_without_a_place_or_a_broker_is_told_which_flag_names_one(
    arguments: list[str],
    advised: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _stay_harmless(monkeypatch)
    given = [one.format(root=tmp_path) for one in arguments]
    assert cli.main(["init", *given]) == ExitCode.USAGE
    assert advised in capsys.readouterr().err
