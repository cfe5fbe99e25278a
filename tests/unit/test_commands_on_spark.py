"""`commitlog rows --spark` and `commitlog maintain --spark`, as far as they need no Spark."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import MagicMock

import pytest

import commitlog.spark
from commitlog.java import NoJava
from consumers.cli import main
from consumers.commands import jobs, on_spark
from consumers.commands.exit_codes import ExitCode, exit_code
from consumers.commands.on_spark import SparkEnded, spark_session
from consumers.runtime.config import Config


class Java:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.has_ended = Event()
        self.returncode: int | None = None

    def end(self) -> None:
        self.returncode = 137
        self.has_ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self.has_ended.wait()
        return self.returncode


COMMANDS = [["rows"], ["maintain"], ["maintain", "--once"]]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--spark", "--master", "nowhere:7077"], "--master is 'nowhere:7077'; Spark knows"),
        (["--master", "spark://cluster:7077"], "needs --spark"),
    ],
)
def test_a_master_that_cannot_be_is_a_wrong_flag(
    command: list[str], flags: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, *flags, "--bootstrap-servers", "127.0.0.1:1"]) == ExitCode.USAGE
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_packages_that_are_missing_are_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(jobs, "import_module", missing)
    assert main([*command, "--spark", "--bootstrap-servers", "127.0.0.1:1"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"`commitlog {command[0]}` needs pyspark: pip install 'lance-commitlog[spark]'" in said


def test_another_pyspark_is_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def old(name: str) -> Any:
        raise ImportError("commitlog.spark needs PySpark 4.1, 4.2 or 4.3")

    monkeypatch.setattr(on_spark, "import_module", old)
    assert main(["rows", "--spark", "--bootstrap-servers", "127.0.0.1:1"]) == ExitCode.USAGE
    assert "needs PySpark 4.1" in capsys.readouterr().err


def test_no_java_is_the_machines() -> None:
    assert exit_code(NoJava("no Java was found")) == ExitCode.MACHINE


def test_sparks_processes_reach_the_stores_as_the_command_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = MagicMock()
    monkeypatch.setattr(commitlog.spark, "local_session", made)
    monkeypatch.setenv("COMMITLOG_STORAGE_FILE", "")
    monkeypatch.chdir(tmp_path)
    named = str(tmp_path / "stores.toml")
    made.return_value.sparkContext._gateway.proc = java = Java()
    config = Config(storage_file="stores.toml")
    with spark_session("rows", "spark://c:7077", config, Event()) as session:
        assert session == made.return_value
        assert os.environ["COMMITLOG_STORAGE_FILE"] == named
    made.return_value.stop.assert_called_once_with()
    java.end()
    made.assert_called_once_with(
        "commitlog rows",
        cores="spark://c:7077",
        conf={"spark.executorEnv.COMMITLOG_STORAGE_FILE": named},
    )


@pytest.mark.parametrize("is_working", [True, False])
def test_a_command_ends_with_sparks_process(
    is_working: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maintenance tried again for ever, with a session that runs no job any more."""
    made, java, stop = MagicMock(), Java(), Event()
    monkeypatch.setattr(commitlog.spark, "local_session", made)
    made.return_value.sparkContext._gateway.proc = java

    def work() -> None:
        with spark_session("maintain", "local[*]", Config(), stop):
            java.end()
            assert stop.wait(30)
            if is_working:
                raise OSError("no answer from Java")

    with pytest.raises(SparkEnded, match="exit code 137") as raised:
        work()
    assert exit_code(raised.value) == ExitCode.UNAVAILABLE
    made.return_value.stop.assert_not_called()
