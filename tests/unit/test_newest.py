"""The map that keeps its newest entries."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from commitlog.newest import Newest


@pytest.fixture
def often() -> Iterator[None]:
    """Let threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_what_was_set_longest_ago_goes_first() -> None:
    kept = Newest[str, int](2)
    kept["a"] = 1
    kept["b"] = 2
    kept["a"] = 3  # set again, it is newer than b
    assert kept.get("b") == 2  # a look makes nothing newer
    kept["c"] = 4
    assert kept == {"a": 3, "c": 4}
    assert kept.pop("a") == 3
    kept["d"] = 5
    assert [*kept] == ["c", "d"]


@pytest.mark.usefixtures("often")
def test_threads_that_set_the_same_keys_disturb_nobody() -> None:
    kept: Newest[int, int] = Newest(3)

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(15_000):
            kept[chance.randrange(6)] = seed

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(kept) == 3
