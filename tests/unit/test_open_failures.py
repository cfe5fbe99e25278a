"""Opening a dataset says in the log's own error why the log could not be asked."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.client.commits.native import LogVersions
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import LogClosed, LogMoved, NoSuchVersion
from tests.service import SCHEMA, rows, service


@pytest.mark.parametrize("asked", ["head", "materialize"])
def test_a_log_that_moves_while_a_handle_looks_for_the_newest_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
        handle: Any = log.open("t")

        def moves(self: LogVersions, *arguments: int) -> object:
            raise LogMoved("the log was moved", "elsewhere:9092")

        monkeypatch.setattr(LogVersions, asked, moves)
        with pytest.raises(LogMoved, match="the log was moved"):
            handle.checkout_latest()
        monkeypatch.undo()
        handle.checkout_latest()
        assert handle.count_rows() == 1


def test_opening_a_table_asks_the_leader_no_more_than_it_must(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service(tmp_path) as running:
        log, ask = running.client, Runtime.ask
        asked: list[str] = []

        def counting(self: Runtime, partition: int, method: str, **params: Any) -> Any:
            asked.append(method)
            return ask(self, partition, method, **params)

        log.create_table("t", SCHEMA)
        log.append("t", rows(1)).raise_for_conflict()
        monkeypatch.setattr(Runtime, "ask", counting)
        assert log.open("t").version == 2
        assert log.scan("t").num_rows == 1
        assert asked == ["table"] * 2
        assert log.open("t", 1).count_rows() == 0
        assert asked[2:] == ["table", "materialize"]
        # What the leader has written may be gone since: it makes it again.
        for manifest in Path(log.table("t").location, "_versions").glob("*.manifest"):
            manifest.unlink()
        assert log.open("t").count_rows() == 1
        assert asked[-1] == "materialize"


def test_an_open_handle_says_in_the_logs_words_that_it_was_closed(tmp_path: Path) -> None:
    with service(tmp_path) as running, CommitLog(running.client._open_log) as log:
        log.create_table("t", SCHEMA)
        handle: Any = log.open("t")
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


NAMES = [f"a_column_with_a_long_name_{number}" for number in range(200)]
WIDE = pa.table({name: [1] for name in NAMES})
"""Lance reads the end of a manifest at once; indices of a larger one come when they are needed."""


def in_a_transaction(log: CommitLog) -> None:
    with log.transact() as t:
        t.append("t", WIDE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "write",
    [
        lambda log: log.append("t", WIDE),
        lambda log: log.append("t", WIDE.to_reader()),
        lambda log: log.merge_insert("t", WIDE, NAMES[0]),
        lambda log: log.update("t", {NAMES[1]: "2"}, f"{NAMES[0]} = 1"),
        in_a_transaction,
    ],
)
def test_a_writer_goes_on_when_the_version_that_it_has_open_was_deleted(
    tmp_path: Path, write: Callable[[CommitLog], object]
) -> None:
    with service(tmp_path) as running, CommitLog(running.client._open_log) as other:
        other.create_table("t", WIDE.schema)
        other.append("t", WIDE)
        other.create_index("t", NAMES[0], "BTREE")
        log, info = running.client, running.client.table("t")
        log.opened.plain(info, info.version)
        other.append("t", WIDE)
        other.expire_versions("t", older_than=timedelta(0), retain_versions=1)
        for _ in range(2):
            write(log)
        assert log.open("t").count_rows() >= 2


def test_a_version_that_was_deleted_while_it_was_open_is_no_longer_there(tmp_path: Path) -> None:
    with service(tmp_path) as running, CommitLog(running.client._open_log) as other:
        log = running.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1))
        snapshot, info = log.snapshot(), log.table("t")
        assert log.opened.plain(info, 2).count_rows() == 1
        other.append("t", rows(2))
        other.expire_versions("t", older_than=timedelta(0), retain_versions=1)
        with pytest.raises(NoSuchVersion):
            log.opened.plain(log.table("t"), 2)
        with pytest.raises(NoSuchVersion):
            snapshot.open("t")


HANDLE_WRITES: dict[str, Callable[[Any], object]] = {
    "insert": lambda d: d.insert(WIDE),
    "update": lambda d: d.update({NAMES[1]: "2"}, where=f"{NAMES[0]} = 1"),
    "delete": lambda d: d.delete(f"{NAMES[0]} = 1"),
    "merge": lambda d: d.merge_insert(NAMES[0]).when_not_matched_insert_all().execute(WIDE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HANDLE_WRITES)
def test_a_handle_whose_version_was_deleted_says_so(tmp_path: Path, name: str) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table("t", WIDE.schema)
        log.append("t", WIDE)
        log.create_index("t", NAMES[0], "BTREE")
        handle: Any = log.open("t")
        log.append("t", WIDE)
        log.expire_versions("t", older_than=timedelta(0), retain_versions=1)
        with pytest.raises(NoSuchVersion, match="version 3 of t was deleted since it was opened"):
            HANDLE_WRITES[name](handle)
        handle.checkout_latest()
        HANDLE_WRITES[name](handle)
        assert handle.version == 5
