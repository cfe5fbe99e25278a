"""An outcome whose transaction does not come: waited for a while, then said."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.errors import CorruptLog, Unavailable
from commitlog.model.records import Submitted
from commitlog.ports import Log
from consumers import history
from consumers.views import health
from consumers.views.health import Health, Level, index_check
from consumers.views.version_index import process, run_index
from consumers.views.version_index.layout import last_failure
from tests.fakes.log_stream import ListReader, PartitionLog, ReadOnlyLog

COUNT = 40


class Held(ListReader[Submitted]):
    """Sends nothing from an offset on until it is let go; its end is what it is told."""

    def __init__(self, records: list[Submitted], offset: int, world: HeldLog) -> None:
        super().__init__(records, offset)
        self._world = world

    def poll(self, *, records_max: int = 500, timeout_seconds: float = 0.1) -> list[Submitted]:
        if not self._world.let_go.is_set():
            records_max = min(records_max, max(self._world.held_from - self.position(), 0))
            if records_max == 0:
                self._world.let_go.wait(timeout_seconds)
                return []
        return super().poll(records_max=records_max, timeout_seconds=timeout_seconds)

    def end_offset(self, timeout_seconds: float = 10) -> int:
        self._world.asked.set()
        if self._world.is_away:
            raise Unavailable("no broker answers")
        return self._world.end


class HeldLog(ReadOnlyLog):
    """A log whose transactions stop before their outcomes do."""

    def __init__(self, *, held_from: int, end: int, is_away: bool = False) -> None:
        stream = PartitionLog()
        stream.grow(COUNT)
        super().__init__([stream])
        self.held_from, self.end, self.is_away = held_from, end, is_away
        self.let_go, self.asked = threading.Event(), threading.Event()

    def read_transactions(
        self, partition: int, offset: int = 0, *, patient: float = 0.0
    ) -> ListReader[Submitted]:
        return Held(self.logs[partition].submitted, offset, self)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MISSING_SECONDS", 0.0)


@pytest.mark.slow
def test_a_transaction_that_the_log_has_lost_is_named(tmp_path: Path) -> None:
    log = HeldLog(held_from=30, end=30)
    with pytest.raises(CorruptLog, match="transaction at offset 30, which the log has no more"):
        run_index(cast(Log, log), tmp_path, stop=threading.Event())
    late = index_check(tmp_path, {0: COUNT})
    assert late.level is Level.FAIL
    assert "offset 30, which the log has no more" in late.message + last_failure(tmp_path)


@pytest.mark.slow
def test_who_finds_the_index_late_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = HeldLog(held_from=COUNT, end=COUNT)
    whole.let_go.set()
    stop = threading.Event()
    run_index(
        cast(Log, whole),
        tmp_path,
        stop=stop,
        on_progress=lambda done, total: stop.set() if done == total else None,
    )
    assert history.status(tmp_path)[0]["sequence"] == COUNT
    watched = Health(cast(Log, whole), tmp_path)
    with monkeypatch.context() as patched:  # who asks each second doesn't open the index
        patched.setattr(health, "published", None)
        assert watched.has(tmp_path) == {0: COUNT}
    (tmp_path / "index" / "published.json").write_text("{}")
    assert Health(cast(Log, whole), tmp_path).has(tmp_path) == {0: COUNT}
    shorter: Any = PartitionLog()
    shorter.grow(20)
    with pytest.raises(CorruptLog, match="ends before"):
        run_index(cast(Log, ReadOnlyLog([shorter])), tmp_path, stop=threading.Event())
    found = index_check(tmp_path, {0: COUNT + 1})
    assert (
        found.level,
        "its keeper ended last with: the outcomes topic ends" in found.message,
    ) == (
        Level.FAIL,
        True,
    )
    assert index_check(tmp_path, {0: COUNT}).level is Level.OK
    stop.clear()
    run_index(
        cast(Log, whole),
        tmp_path,
        stop=stop,
        on_progress=lambda done, total: stop.set() if done == total else None,
    )
    late = index_check(tmp_path, {0: COUNT + 1}).message
    assert late == f"it has {COUNT} of {COUNT + 1} outcomes", "why it ended is no reason any more"


@pytest.mark.slow
@pytest.mark.parametrize("is_away", [False, True])
def test_one_that_only_comes_late_is_waited_for(tmp_path: Path, is_away: bool) -> None:
    log = HeldLog(held_from=30, end=COUNT, is_away=is_away)
    stop = threading.Event()

    def let_go() -> None:
        log.asked.wait(60)
        log.let_go.set()

    helper = threading.Thread(target=let_go)
    helper.start()
    run_index(
        cast(Log, log),
        tmp_path,
        stop=stop,
        on_progress=lambda done, total: stop.set() if done == total else None,
    )
    helper.join(60)
    assert log.asked.is_set()
    assert history.status(tmp_path)[0]["sequence"] == COUNT


def test_an_index_that_did_not_change_is_not_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MemoryLog()
    log.create()
    opened: list[Path] = []

    def ask(_: Health, root: Path) -> dict[int, int]:
        opened.append(root)
        return {0: len(opened)}

    monkeypatch.setattr(Health, "_ask", ask)
    watched = Health(log, tmp_path)
    file = tmp_path / "index.duckdb"
    file.write_bytes(b"one")
    assert [watched.has(tmp_path) for _ in range(3)] == [{0: 1}] * 3
    (tmp_path / "next").write_bytes(b"two")
    (tmp_path / "next").replace(file)
    assert [watched.has(tmp_path) for _ in range(3)] == [{0: 2}] * 3
    file.unlink()
    assert watched.has(tmp_path) == {0: 3}
