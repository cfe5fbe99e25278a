"""A process's connection to the log, which its streams share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog.errors import InvalidSettings
from commitlog.spark import connection
from commitlog.spark.options import parse_batches


def test_a_new_password_is_used_without_a_new_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Log:
        def __init__(self, _: str, **given: Any) -> None:
            self.password = given["sasl.password"]

    monkeypatch.setattr(connection, "_logs", {})
    monkeypatch.setattr(commitlog.CommitLog, "connect", Log)
    file = tmp_path / "etl.properties"
    reached = {"kafka.bootstrap.servers": "h:1", "kafkaFile": str(file)}
    asked = parse_batches(reached).connection
    with pytest.raises(InvalidSettings, match="cannot be read"):
        connection.connect(asked)
    file.write_text("sasl.password=old")
    first = connection.connect(asked)
    assert connection.connect(asked) is first
    file.unlink()
    assert connection.connect(asked) is first
    file.write_text("sasl.password=new")
    second = connection.connect(asked)
    assert (first.password, second.password) == ("old", "new")
    assert connection.connect(asked) is second


def test_a_log_that_is_away_holds_up_no_stream_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver's streams wait for their own logs only, for minutes if `timeoutSeconds` says so."""
    asked, back = threading.Event(), threading.Event()

    def reach(servers: str, **_: Any) -> str:
        if servers == "away:1":
            asked.set()
            assert back.wait(60)
        return servers

    monkeypatch.setattr(connection, "_logs", {})
    monkeypatch.setattr(commitlog.CommitLog, "connect", reach)
    away, here = (
        parse_batches({"kafka.bootstrap.servers": servers}).connection
        for servers in ("away:1", "here:1")
    )
    with ThreadPoolExecutor() as threads:
        try:
            waiting = threads.submit(connection.connect, away)
            assert asked.wait(60)
            assert threads.submit(connection.connect, here).result(5) == "here:1"
        finally:
            back.set()
        assert waiting.result(60) == "away:1"
