"""Does the real program hold under crashes, zombies, lost answers and a bad store? By seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.runner import FAULTS, run_many

SEEDS = int(os.environ.get("COMMITLOG_SIMULATION_SEEDS", "150"))
SECONDS_MAX = 75.0
SEEDS_AT_LEAST = 40
"""So many make it certain enough that every fault happens; more are a matter of time."""
KEPT = Path(__file__).with_name("seeds.txt")


def kept_seeds() -> list[int]:
    """Return the seeds that failed once."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [int(line.split("#")[0]) for line in lines if line.split("#")[0].strip()]


@pytest.mark.timeout(300)
def test_seeds_that_failed_once_hold() -> None:
    total = run_many(kept_seeds(), workers=2)
    assert not total.problems


@pytest.mark.timeout(600)
def test_seeds_hold_and_every_fault_happens(capsys: pytest.CaptureFixture[str]) -> None:
    total = run_many(range(SEEDS), workers=2, seconds_max=SECONDS_MAX)
    with capsys.disabled():
        print("\nsimulation: " + "\n  ".join(total.lines()))
    assert not total.problems
    assert total.seeds >= min(SEEDS, SEEDS_AT_LEAST)
    assert total.fewest_transactions >= 200
    assert total.fewest_faults >= 3
    assert not [name for name in FAULTS if not total.counters[name]]


@pytest.mark.timeout(300)
def test_a_seed_reproduces_its_run_to_the_byte() -> None:
    """In two processes whose sets and dictionaries hash differently."""
    code = (
        "import logging; logging.disable(50); from tests.simulation.world import run_seed; "
        "print(*(run_seed(seed, transactions=100).trace for seed in (1, 2, 3)))"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(traces) == 1
    assert len(set(traces.pop().split())) == 3
