"""Opening a dataset says in the log's own error why the log could not be asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from commitlog import CommitLog
from commitlog.client.native import LogVersions
from commitlog.errors import LogClosed, LogMoved
from tests.service import SCHEMA, rows, service


@pytest.mark.parametrize("asked", ["head", "materialize"])
def test_a_log_that_moves_while_a_table_is_opened_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
        good, calls = getattr(LogVersions, asked), []

        def moves(self: LogVersions, *arguments: int) -> object:
            calls.append(asked)
            # The first call to materialize is the client's own, before pylance asks.
            if asked == "head" or len(calls) > 1:
                raise LogMoved("the log was moved", "elsewhere:9092")
            return good(self, *arguments)

        monkeypatch.setattr(LogVersions, asked, moves)
        with pytest.raises(LogMoved, match="the log was moved"):
            log.open("t")
        monkeypatch.undo()
        assert log.open("t").count_rows() == 1


def test_an_open_handle_says_in_the_logs_words_that_it_was_closed(tmp_path: Path) -> None:
    with service(tmp_path) as running, CommitLog(running.client._open_log) as log:
        log.create_table("t", SCHEMA)
        handle = log.open("t")
        log.close()
        for ask in (handle.checkout_latest, lambda: handle.checkout_version(7)):
            with pytest.raises(LogClosed):
                ask()
        with pytest.raises(LogClosed):
            handle.insert(rows(1))
        assert handle.count_rows() == 0


def test_a_client_that_is_closed_while_a_native_write_is_rebased_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: LogVersions, version: int) -> str:
        raise LogClosed

    with service(tmp_path) as running:
        running.client.create_table("t", SCHEMA)
        handle = running.client.open("t")
        monkeypatch.setattr(LogVersions, "commit", lambda self, staged: None)
        monkeypatch.setattr(LogVersions, "materialize", closed)
        with pytest.raises(LogClosed):
            handle.insert(rows(1))
