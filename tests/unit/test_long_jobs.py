"""Does a command that takes minutes show how far it is?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.memory import MemoryLog
from consumers import cli
from consumers.commands import care, output
from consumers.commands.exit_codes import ExitCode
from consumers.runtime.progress import OnCount, Tally
from consumers.tools import move
from tests.service import rows, service


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What a terminal shows."""
    told: list[tuple[str, int]] = []

    @contextmanager
    def counts() -> Iterator[OnCount]:
        yield lambda kind, done: told.append((kind, done))

    monkeypatch.setattr(output, "counts", counts)
    return told


def test_a_tally_tells_now_and_then_and_at_each_end(shown: list[tuple[str, int]]) -> None:
    with output.counts() as bar:
        tally = Tally(bar)
        assert list(tally.of("eggs", range(2_500))) == list(range(2_500))
        assert list(tally.of("eggs", "ab")) == ["a", "b"]
        assert list(tally.of("hens", [])) == []
    assert shown == [
        *(("eggs", 1_000), ("eggs", 2_000), ("eggs", 2_500)),
        *(("eggs", 2_502), ("hens", 0)),
    ]


def test_a_move_shows_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, int]]
) -> None:
    """Writers wait for the most of it."""

    def moved(*given: Any, **named: Any) -> move.Moved:
        on_progress: OnCount = given[5]
        on_progress("records copied", 7)
        return move.Moved("commitlog", "new:1")

    monkeypatch.setattr(move, "move", moved)
    assert cli.main(["move", "new:1", "--bootstrap-servers", "old:1"]) == ExitCode.OK
    assert shown == [("records copied", 7)]


def test_a_search_for_unneeded_files_shows_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[tuple[str, int]]
) -> None:
    """In a log of 100,000 records it takes minutes."""
    with service(tmp_path) as running:
        for table in ("a", "b"):
            running.client.create_table(table, rows().schema)
            running.client.append(table, rows(1, 2))
        log = MemoryLog(running.cluster)
        monkeypatch.setattr(care, "connect_to_files", lambda config: log)
        assert cli.main(["orphans", "--age", "0", "--root", str(tmp_path)]) == ExitCode.OK
    last = dict(shown)
    assert last["changes read"] >= 4
    assert last["tables listed"] == 2
    assert last.keys() >= {"metadata files read", "manifest lists read", "manifests read"}
