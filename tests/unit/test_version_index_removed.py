"""What becomes of the index's files if others remove them, write to them, or hold them open."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, cast

import pytest

from commitlog.client.history.sql import run_sql
from commitlog.core.log.replica import Decided
from commitlog.errors import CommitLogError, NoSuchTable, Unavailable
from commitlog.ports import Log
from consumers import history
from consumers.views.version_index import VersionIndex, process, run_index
from consumers.views.version_index.rows import no_recordings
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog
from tests.unit.test_version_index_store import position_after
from tests.waiting import wait_until


def _truncate(path: Path) -> None:
    os.truncate(path, 20_000)


def _scribble(path: Path) -> None:
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.seek(size // 4)
        file.write(b"x" * (size // 4))


@pytest.mark.slow
@pytest.mark.parametrize("lose", [Path.unlink, _truncate], ids=["removed", "truncated"])
def test_a_file_that_was_lost_comes_back_on_a_log_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(process, "END_OFFSET_SECONDS", 0.0)
    stream, stop, ready = PartitionLog(), threading.Event(), threading.Event()
    stream.grow(20)

    def keep() -> None:
        run_index(
            cast(Log, ReadOnlyLog([stream])),
            tmp_path,
            stop=stop,
            on_progress=lambda done, total: ready.set() if done >= total else None,
            publish_interval_seconds=0.01,
        )

    def is_shown() -> bool:
        try:
            return len(history.timeline(tmp_path, limit=100)) == 20
        except CommitLogError:
            return False

    public, keeper = tmp_path / "index.duckdb", threading.Thread(target=keep)
    keeper.start()
    try:
        assert ready.wait(100)
        wait_until(is_shown, "all of the log")
        lose(public)
        wait_until(is_shown, "all of it again")
    finally:
        stop.set()
        keeper.join()


@pytest.mark.slow
def test_who_writes_to_the_file_is_in_the_way(tmp_path: Path) -> None:
    script = (
        "import duckdb, sys\n"
        "with duckdb.connect(sys.argv[1]):\n"
        "    print('has it', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "index.duckdb")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "has it\n"
        with pytest.raises(history.BrokenIndex, match=r"Another process writes to it: end that"):
            history.timeline(tmp_path)
        writer.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [_truncate, _scribble])
def test_a_live_file_that_others_wrote_to_is_never_published(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """A keeper that has most of it in memory wouldn't notice, and readers had nothing until it
    was started again. By then DuckDB may name a damaged block, which isn't a lock."""
    stream = PartitionLog()
    stream.grow(640)
    first, second = stream.decided()[:320], stream.decided()[320:]
    with VersionIndex(tmp_path) as index:
        index.bind({"log_id": "L"})
        index.apply(first, position_after(first), recordings=no_recordings)
        assert index.publish()
        damage(tmp_path / "index" / "live.duckdb")
        with pytest.raises(Unavailable, match=r"another program wrote to .*live\.duckdb, which is"):
            _take(index, second)
    assert len(history.timeline(tmp_path, limit=1000)) == 320
    with VersionIndex(tmp_path) as index:
        assert "live file set aside" in index.note
        assert "restored from the published file" in index.note
        _take(index, second)
    assert len(history.timeline(tmp_path, limit=1000)) == 640


def _take(index: VersionIndex, batch: list[Decided]) -> None:
    index.apply(batch, position_after(batch), recordings=no_recordings)
    assert index.publish()


@pytest.mark.slow
def test_a_damaged_segment_is_no_fault_of_the_question(tmp_path: Path) -> None:
    stream = PartitionLog()
    stream.grow(300)
    batch = stream.decided()
    with VersionIndex(tmp_path, hot_transactions_max=50) as index:
        index.bind({"log_id": "L"})
        index.apply(batch, position_after(batch), recordings=no_recordings)
        index.settle()
        index.publish()
    [segment] = (tmp_path / "index" / "segments").glob("transactions*")
    segment.write_bytes(b"x" * segment.stat().st_size)
    advice = "cannot be read: .* restart `commitlog index`"
    with pytest.raises(history.BrokenIndex, match=advice):
        history.timeline(tmp_path)
    with pytest.raises(Unavailable, match=advice):
        run_sql("FROM transactions", _no_table, index=tmp_path / "index.duckdb")
    with pytest.raises(history.QueryFailed):
        history.query(tmp_path, "FROM nothing")
    with VersionIndex(tmp_path) as index:
        assert "built anew from the log" in index.note


def _no_table(name: str, version: int | None) -> NoReturn:
    raise NoSuchTable(name)
