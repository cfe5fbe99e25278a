"""How the demo ends: writers beside Lance alone, and a page that stays open on request."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from consumers.tools.demo import rates, report
from consumers.tools.demo.children import ChildFailed, DemoService
from consumers.tools.demo.stage import keep_open
from tests.namespace_world import World

ADDRESS = "http://127.0.0.1:4321"


class Watched:
    """Is looked after until somebody presses Ctrl-C, or it fails for good."""

    def __init__(self, end: BaseException, looks: int = 3) -> None:
        self.end = end
        self.looks = looks

    def check(self) -> None:
        self.looks -= 1
        if not self.looks:
            raise self.end


def printed(root: Path, *, stays: bool) -> str:
    console = Console(file=io.StringIO(), width=200)
    report.page(console, root, ADDRESS, stays=stays)
    return cast("io.StringIO", console.file).getvalue()


def test_the_service_is_looked_after_until_somebody_interrupts() -> None:
    service = Watched(KeyboardInterrupt())
    keep_open(cast("DemoService", service))
    assert service.looks == 0
    with pytest.raises(ChildFailed, match="six times"):
        keep_open(cast("DemoService", Watched(ChildFailed("ended six times"))))


def test_the_last_words_are_where_the_page_is(tmp_path: Path) -> None:
    assert f"open at {ADDRESS}/ until Ctrl-C" in printed(tmp_path, stays=True)
    later = printed(tmp_path, stays=False)
    assert f"{ADDRESS}/" in later
    assert "make demo ARGS=--stay" in later
    assert f"commitlog up --root {tmp_path} --port 4321" in later


@pytest.mark.parametrize("found", [None, "/usr/bin/commitlog"])
def test_the_commands_that_it_prints_can_be_typed_in_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str | None
) -> None:
    monkeypatch.setattr("sys.argv", [".venv/bin/commitlog", "demo"])
    monkeypatch.setattr("shutil.which", lambda name: found)
    program = "commitlog" if found else ".venv/bin/commitlog"
    assert f" `{program} up --root {tmp_path}" in printed(tmp_path, stays=False)


@pytest.mark.slow
def test_writers_are_measured_beside_lance_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "SECONDS", 0.2)
    cluster = MemoryCluster()
    world = World(tmp_path / "root", lambda: MemoryLog(cluster))
    try:
        alone, ours = rates.measure(world.log, tmp_path)
        rows = world.log.open(rates.TABLE).count_rows()
    finally:
        world.close()
    assert (alone.system, ours.system) == ("Lance alone", "through the log")
    # Each writer tries at least once, and what it counted is in the table.
    assert alone.commits + alone.failed >= rates.WRITERS
    assert ours.failed == 0
    assert ours.commits >= rates.WRITERS
    assert rows == ours.commits * rates.ROWS.num_rows
