"""What becomes of `index.duckdb` if others remove it, or open it for writing."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from commitlog.ports import Log
from consumers import history
from consumers.views.version_index import process, run_index
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog
from tests.waiting import wait_until


@pytest.mark.slow
def test_a_file_that_was_removed_comes_back_on_a_log_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        return public.exists() and len(history.timeline(tmp_path, limit=100)) == 20

    public, keeper = tmp_path / "index.duckdb", threading.Thread(target=keep)
    keeper.start()
    try:
        assert ready.wait(100)
        wait_until(is_shown, "all of the log")
        public.unlink()
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
