"""A few random histories of rows; `python -m tests.histories.rows` lives through many more."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.histories.rows import RowHistory
from tests.namespace_world import World


@pytest.mark.parametrize("seed", [15, 1, 2])
def test_random_rows_are_those_of_plain_pylance(world: World, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    tally: Counter[str] = Counter()
    RowHistory(world, tmp_path, seed, tally).live()
    assert tally["compared"] == 25
