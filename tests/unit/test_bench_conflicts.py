"""The cost of a conflict check: counted look-ups, which no machine's load changes."""

from __future__ import annotations

import pytest

from consumers import cli
from consumers.commands.exit_codes import ExitCode
from consumers.tools.bench import conflicts

RATIO_MAX = 1.3


@pytest.mark.slow
def test_a_check_costs_the_same_however_far_behind_and_however_large_the_table() -> None:
    report = conflicts.run(is_timed=False)
    assert {ratio["curve"] for ratio in report["ratios"]} == {
        f"{kind} by {curve}"
        for kind in ("Append", "Delete", "Update", "Rewrite", "CreateIndex")
        for curve in ("missed versions", "fragments")
    }
    for ratio in report["ratios"]:
        assert ratio["steps"] <= RATIO_MAX, ratio["curve"]
    points = report["points"]
    assert {p["missed_versions"] for p in points} >= {1, 10_000}
    assert {p["fragments"] for p in points} >= {1, 100_000}
    appends = {p["steps"] for p in points if p["operation"] == "Append"}
    assert appends == {102}, "one look-up per key, and a few for all"


def test_the_command_shows_both_curves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = conflicts.run((1, 2), (1, 2), is_timed=False)
    monkeypatch.setattr(conflicts, "run", lambda **_: small)
    assert cli.main(["bench", "conflicts"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "missed versions" in shown
    assert "Delete by fragments" in shown
