"""This tree beside another one: ratios are those of each pair, and a reference must be one."""

from pathlib import Path

import pytest

from commitlog.errors import InvalidRequest
from consumers.tools.bench.against import HERE, Cost, summary, tree_of


def cost(pair: int, cpu: float, phase: str = "warm") -> Cost:
    parts = {"writers": cpu / 4, "broker": cpu * 3 / 4}
    return Cost(phase, pair, 1000, 2.0, 1.0, 5.0, parts, {"broker": 2.0})


def test_each_pair_is_compared_with_itself() -> None:
    # The machine slows down sixfold between the first pair and the last.
    other = [cost(pair, speed) for pair, speed in enumerate((1.0, 3.0, 6.0))]
    this = [cost(pair, speed / 2) for pair, speed in enumerate((1.0, 3.0, 6.0))]
    rows = {row["figure"]: row for row in summary(this, [*other, cost(3, 1.0), cost(0, 9, "cold")])}
    assert {row["phase"] for row in rows.values()} == {"warm"}
    assert rows["CPU ms, all"]["ratio"] == rows["CPU ms, broker"]["greatest"] == 0.5
    assert (rows["CPU ms, all"]["this"], rows["CPU ms, all"]["other"]) == (1.5, 3.0)
    assert rows["commits/s"]["this"] == 500
    assert rows["switches, broker"]["pairs"] == 3


def test_another_tree_is_a_folder_or_a_commit(tmp_path: Path) -> None:
    with tree_of(str(HERE)) as found:
        assert found == HERE
    for wrong in (str(tmp_path), "no-such-branch", "--output=x"):
        with pytest.raises(InvalidRequest, match="neither a folder"), tree_of(wrong):
            pass
