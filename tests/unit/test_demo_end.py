"""How the demo ends: writers beside Lance alone, and a page that stays open on request."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from commitlog import CommitLog
from consumers.tools.bench import measure
from consumers.tools.demo import report
from consumers.tools.demo.children import ChildFailed, DemoService
from consumers.tools.demo.stage import keep_open

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


@pytest.mark.slow
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
    monkeypatch.setattr(report, "SECONDS", 0.2)
    monkeypatch.setattr(report, "WRITERS", 2)
    monkeypatch.setattr(measure, "PRELOAD", [])
    asked = []

    def ours(log: CommitLog, *how: object) -> measure.Round:
        asked.append(how)
        return measure.Round("commitlog latest", 2, commits_per_second=1234.0)

    monkeypatch.setattr(report, "run_ours", ours)
    found = report.measure(cast("CommitLog", None), ADDRESS, tmp_path)
    assert asked == [((ADDRESS, "commitlog"), "latest", 2, 0.2)]
    assert found[0].is_right
    assert found[0].landed + found[0].failures >= 2
    console = Console(file=io.StringIO(), width=200)
    report.rates(console, found)
    shown = cast("io.StringIO", console.file).getvalue()
    assert "Lance alone" in shown
    assert "1,234" in shown.partition("through the log")[2]
