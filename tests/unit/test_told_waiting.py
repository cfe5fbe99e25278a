"""Does a move, or any command, say what it waits for, and end in time?"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest

from commitlog.adapters.kafka_settings import ClientSettings
from commitlog.errors import Unavailable
from consumers import cli
from consumers.commands import options
from consumers.commands.exit_codes import ExitCode
from consumers.runtime import patience, places
from consumers.runtime.endpoints import write_endpoints
from consumers.tools import doctor, move
from tests.waiting import WAIT_SECONDS


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_named_at_once_and_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.0)
    said: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        settings = ClientSettings(address, {})
        with pytest.raises(Unavailable, match=address):
            move.move(settings, settings, "log", address, answer_seconds=1.0, say=said.append)
    assert said == [
        f"waiting for the old cluster at {address}, which hasn't answered"
        " about log 'log' yet, for up to 1 s"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code"), [("log", ExitCode.UNAVAILABLE), ("doctor", ExitCode.REFUSED)]
)
def test_a_command_says_which_cluster_it_waits_for(
    command: str,
    code: ExitCode,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(options, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(doctor, "CONNECT_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert cli.main([command, "--bootstrap-servers", address]) == code
    first, *_ = capsys.readouterr().err.splitlines()
    assert first == f"waiting for Kafka at {address}, which hasn't answered yet, for up to 1 s"


@pytest.mark.slow
def test_a_start_says_that_it_waits_for_the_store_of_the_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    said = threading.Event()

    def warn(text: str) -> None:
        told.append(text)
        said.set()

    store = Mock(size=lambda path: 0 if said.wait(WAIT_SECONDS) else -1)
    monkeypatch.setattr(patience, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(places, "store_for", lambda root: store)
    monkeypatch.setattr(places.logger, "warning", warn)
    assert places._is_marked("s3://bucket/tables", "an-id")
    assert told == [
        "waiting for s3://bucket/tables, where the tables are, which hasn't answered yet"
    ]


def test_who_waits_hears_that_the_cluster_refuses_the_credentials() -> None:
    said = patience.waiting_for("a:1", 10, "the cluster refuses these credentials (wrong password)")
    assert "hasn't answered" not in said
    assert said == (
        "waiting for Kafka at a:1 for up to 10 s: the cluster refuses these credentials "
        "(wrong password)"
    )


def test_who_asks_a_root_on_which_nothing_runs_is_told_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(options, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        address = f"127.0.0.1:{bound.getsockname()[1]}"
    root = tmp_path / "my data"
    root.mkdir()
    write_endpoints(root, {"bootstrap_servers": address, "log": "commitlog"})
    assert cli.main(["log", "--root", str(root)]) == ExitCode.UNAVAILABLE
    said = capsys.readouterr().err
    assert address in said
    assert said.endswith(f"; if nothing runs on this root, start `commitlog up --root '{root}'`\n")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["committer", "rows"])
def test_a_part_that_waits_for_a_cluster_is_stopped_by_a_signal(part: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        where = ["--root", str(tmp_path), "--bootstrap-servers", address]
        command = [sys.executable, "-m", "consumers.cli", part, *where]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr is not None
            said = []
            for line in running.stderr:
                said.append(line)
                if "waiting for Kafka" in line:
                    running.send_signal(signal.SIGINT)
    assert running.returncode == 0, said
    assert "was stopped while it started" in said[-2], said
