"""Data files of calls that appended nothing are removed at once, and never those of a record."""

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

from commitlog import CommitLog, InvalidTransaction, OutcomeUnknown, Unavailable
from commitlog.adapters.storage import LocalStore
from commitlog.client.commits import session
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import CommitLogError, LogClosed, Overloaded
from tests.steered_leader import SCHEMA, once_before_sending

ROWS = {"id": [1, 2], "v": ["a", "b"]}


@pytest.fixture
def client(client: CommitLog) -> CommitLog:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", {"id": [0], "v": ["z"]})
    return client


def _files(client: CommitLog) -> int:
    location = Path(client.table("a$t").location)
    return sum(len(os.listdir(location / one)) for one in ("data", "_deletions") if
               (location / one).is_dir())  # fmt: skip


def _block(client: CommitLog, **options: Any) -> None:
    with client.transact(**options) as block:
        block.append("a$t", ROWS)
        block.merge_insert("a$t", {"id": [0], "v": ["y"]}, "id")


def _append(client: CommitLog) -> None:
    client.append("a$t", ROWS)


NOT_SENT = [Unavailable("away"), Overloaded("busy", 1.0), LogClosed(), InvalidTransaction("no")]
LOST = OutcomeUnknown("the answer is lost", "x")


@pytest.mark.slow
@pytest.mark.parametrize("write", [_block, _append])
@pytest.mark.parametrize("error", [*NOT_SENT, LOST], ids=lambda error: type(error).__name__)
def test_only_what_may_have_been_sent_keeps_its_files(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch, write: Any, error: CommitLogError
) -> None:
    before = _files(client)
    monkeypatch.setattr(Runtime, "submit", Mock(side_effect=error))
    with pytest.raises(type(error)):
        write(client)
    assert (_files(client) > before) == (error is LOST)
    assert _files(client) >= before


def test_a_block_whose_record_is_invalid_leaves_no_files(client: CommitLog) -> None:
    before = _files(client)
    with pytest.raises(InvalidTransaction):
        _block(client, properties={"note": "\ud800"})
    assert _files(client) == before


def test_an_operation_that_cannot_be_encoded_leaves_no_files(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidTransaction("too many fragments")

    before = _files(client)
    monkeypatch.setattr(session, "prepared_commit", refuse)
    with pytest.raises(InvalidTransaction, match="too many fragments"):
        _block(client)
    assert _files(client) == before


def test_a_store_that_removes_nothing_does_not_hide_why_a_block_failed(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise PermissionError("read-only file system")

    def fail() -> None:
        with client.transact() as block:
            block.append("a$t", ROWS)
            monkeypatch.setattr(LocalStore, "delete", broken)
            _ = 1 / 0

    with pytest.raises(ZeroDivisionError):
        fail()
    assert "were left: read-only file system" in caplog.text


def test_files_of_an_append_that_is_written_again_for_other_columns_are_removed(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _files(client)
    once_before_sending(monkeypatch, lambda: client.open("a$t").add_columns({"w": "id"}))
    client.append("a$t", pa.table(ROWS, schema=SCHEMA)).raise_for_conflict()
    # One data file of the rows, and one of the new column.
    assert _files(client) == before + 2
    assert client.open("a$t").count_rows() == 3
