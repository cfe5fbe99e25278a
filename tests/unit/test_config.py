"""Which setting wins, and what is said of one that is wrong?"""

import errno
import re
import threading
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from commitlog.errors import WrongLog
from consumers.commands import run
from consumers.commands.options import Where
from consumers.commands.up import Supervisor
from consumers.runtime import roots
from consumers.runtime.config import (
    SETTINGS,
    ConfigurationError,
    load,
    parse_kafka_flags,
    unknown_variables,
)
from consumers.runtime.endpoints import ENDPOINTS, noted_roots, read_endpoints, write_endpoints
from consumers.runtime.process import Stopped


def write(folder: Path, text: str) -> Path:
    path = folder / "commitlog.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, 'log = "of_file"\nport = 1\nhost = "of_file"\n')
    environment = {"COMMITLOG_LOG": "of_environment", "COMMITLOG_PORT": "2"}
    config = load({"log": "of_flag"}, file=file, environment=environment)
    assert (config.log, config.port, config.host) == ("of_flag", 2, "of_file")
    assert config.fsync is False
    assert config.sources["log"] == "--log"
    assert config.sources["port"] == "COMMITLOG_PORT"
    assert config.sources["host"] == str(file)
    assert config.sources["fsync"] == "default"


def test_without_anything_the_defaults_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load(environment={})
    assert (config.log, config.port, config.host) == ("commitlog", 2333, "127.0.0.1")
    assert config.root is None


def test_the_file_of_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 'root = "data"\n')
    monkeypatch.chdir(tmp_path)
    assert load(environment={}).root == tmp_path / "data"


def test_an_unknown_key_is_refused_with_the_one_that_was_meant(tmp_path: Path) -> None:
    file = write(tmp_path, 'bootstrap-server = "x:1"\n')
    with pytest.raises(ConfigurationError, match="did you mean 'bootstrap_servers'"):
        load(file=file, environment={})


@pytest.mark.parametrize(
    ("name", "value"),
    [("PORT", "many"), ("PORT", "-1"), ("PORT", "70000"), ("FSYNC", "perhaps")],
)
def test_a_value_that_is_no_good_is_named_with_its_source(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"COMMITLOG_{name}: ")):
        load(environment={f"COMMITLOG_{name}": value})


def test_a_file_that_is_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the configuration file"):
        load(file=tmp_path / "none.toml", environment={})


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, "root = \n")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(file=file, environment={})


def test_kafka_settings_come_from_file_properties_environment_and_flags(tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("# ours\nsasl.username = of_properties\nsasl.password=a=b\n")
    file = write(
        tmp_path,
        f'kafka_file = "{properties}"\n[kafka]\nsecurity.protocol = "SASL_SSL"\n'
        'sasl.mechanism = "PLAIN"\nlinger.ms = 5\nsocket.keepalive.enable = true\n',
    )
    environment = {
        "COMMITLOG_KAFKA__SASL_USERNAME": "of_environment",
        "COMMITLOG_KAFKA_PORT": "9092",
    }
    config = load(kafka={"linger.ms": "7"}, file=file, environment=environment)
    assert config.kafka == {
        "sasl.username": "of_environment",
        "sasl.password": "a=b",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "linger.ms": "7",
        "socket.keepalive.enable": "true",
    }
    assert config.kafka_port == 9092


def test_secrets_are_never_shown() -> None:
    config = load(kafka={"sasl.password": "hunter2"}, environment={"COMMITLOG_TOKEN": "hunter3"})
    assert "hunter" not in repr(config)
    with pytest.raises(ConfigurationError) as refused:
        parse_kafka_flags(("hunter2",))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", ["a?b", "a\\b", "a\0b", "a\udcc3b"])
def test_a_root_that_lance_or_duckdb_would_not_find_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="--root: root cannot be .* a backslash or a"):
        load({"root": tmp_path / name}, environment={})


def test_a_root_tells_where_its_broker_is(tmp_path: Path) -> None:
    write_endpoints(tmp_path, {"bootstrap_servers": "127.0.0.1:9", "log": "other"})
    config = load({"root": tmp_path}, environment={})
    assert (config.need_bootstrap_servers(), config.log) == ("127.0.0.1:9", "other")
    named = load({"root": tmp_path, "bootstrap_servers": "far:1"}, environment={})
    assert named.need_bootstrap_servers() == "far:1"


def test_what_is_missing_is_asked_for_by_all_its_names(tmp_path: Path) -> None:
    config = load(environment={}, file=write(tmp_path, ""))
    with pytest.raises(ConfigurationError, match="--root DIR, set COMMITLOG_ROOT"):
        config.need_root()
    with pytest.raises(ConfigurationError, match="--bootstrap-servers"):
        config.need_bootstrap_servers()


def test_a_variable_that_nobody_reads_is_found() -> None:
    environment = {"COMMITLOG_ROTO": "", "COMMITLOG_ROOT": "", "COMMITLOG_KAFKA__ACKS": "", "X": ""}
    assert unknown_variables(environment) == ["COMMITLOG_ROTO"]


def test_every_setting_has_a_flag_and_a_variable() -> None:
    from consumers.commands.app import app

    names = {setting.flag for setting in SETTINGS if not setting.is_secret}
    shown = {
        name
        for command in ("up", "committer", "server")
        for argument in app[command].assemble_argument_collection()
        for name in argument.names
    }
    assert names <= shown


def test_a_root_of_another_log_is_refused(tmp_path: Path) -> None:
    write_endpoints(tmp_path, {"bootstrap_servers": "127.0.0.1:1", "log": "kept"})
    assert Where(root=tmp_path).index_root() == tmp_path
    assert Where(root=tmp_path, log="kept").index_root() == tmp_path
    for ask in (Where.load, Where.index_root):
        with pytest.raises(
            WrongLog, match="is the root of log 'kept', not of 'other', which --log"
        ):
            ask(Where(root=tmp_path, log="other"))


def test_a_root_tells_its_log_wherever_its_cluster_is_said(tmp_path: Path) -> None:
    write_endpoints(tmp_path, {"bootstrap_servers": "127.0.0.1:1", "log": "kept"})
    for settings in ({}, {"COMMITLOG_BOOTSTRAP_SERVERS": "127.0.0.1:2"}):
        config = load({"root": tmp_path}, environment=settings)
        assert (config.log, config.sources["log"]) == ("kept", str(tmp_path / ENDPOINTS))


def test_an_empty_variable_names_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(environment={"COMMITLOG_CONFIG": ""}).port == 2333


def test_a_root_that_may_not_be_read_is_no_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as a root on which no broker had run, and to start `commitlog up` there."""
    denied = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / ENDPOINTS))
    monkeypatch.setattr(Path, "read_text", MagicMock(side_effect=denied))
    with pytest.raises(PermissionError):
        read_endpoints(tmp_path)


def test_a_root_that_is_not_there_has_no_index_to_ask(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"root .*gone does not exist: name the folder"):
        Where(root=tmp_path / "gone").index_root()


@pytest.mark.parametrize(
    "left", ["[]", "null", '"text"', "{", "", '{"roots": "{x"}', '{"roots": "3"}', "\udcff"]
)
def test_what_is_no_note_of_up_is_none_and_told(tmp_path: Path, left: str) -> None:
    (tmp_path / ENDPOINTS).write_bytes(left.encode(errors="surrogateescape"))
    assert read_endpoints(tmp_path) == noted_roots(tmp_path) == {}
    with pytest.raises(ConfigurationError, match=f"{ENDPOINTS}, where it would be noted, is dam"):
        load({"root": tmp_path}).need_bootstrap_servers()
    assert Where(root=tmp_path).index_root() == tmp_path


def test_up_says_which_log_it_takes_if_the_note_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It may have been another one, whose name nobody repeats at each start."""
    monkeypatch.setattr(roots, "listen", MagicMock(side_effect=Stopped))
    for note in ('{"log": "shop"}', ""):
        (tmp_path / ENDPOINTS).write_text(note)
        with pytest.raises(Stopped):
            Supervisor(load({"root": str(tmp_path)}), say=print)._start()
        assert ("the log of this root is taken to be 'commitlog'" in caplog.text) is (not note)


def test_a_broker_by_itself_keeps_what_up_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_endpoints(tmp_path, {"bootstrap_servers": "127.0.0.1:1", "roots": '{"a": "/b"}'})
    started = MagicMock()
    started.__enter__.return_value = started
    started.bootstrap_servers = "127.0.0.1:2"
    monkeypatch.setattr("consumers.broker.embedded.EmbeddedBroker.start", lambda *_, **__: started)

    def once(name: str, root: Path, work: Any, **_: Any) -> None:
        stop = threading.Event()
        stop.set()
        work(stop, lambda address: None)

    monkeypatch.setattr(run, "run_part", once)
    run.broker(where=Where(root=tmp_path))
    kept = {"bootstrap_servers": "127.0.0.1:2", "log": "commitlog", "roots": '{"a": "/b"}'}
    assert read_endpoints(tmp_path) == kept
