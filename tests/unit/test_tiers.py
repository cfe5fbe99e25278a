"""Do compactions keep fragments few without rewriting rows often, whatever is appended?"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

import pytest

from consumers.tools.maintenance.tiers import tier_due

TARGET, ENOUGH = 1_048_576, 16


class Stream:
    """A table that is looked at after each few appends."""

    def __init__(self) -> None:
        self.fragments: list[int] = []
        self.rewritten = 0

    def look(self, appended: Iterable[int]) -> None:
        self.fragments += appended
        due = tier_due(self.fragments, TARGET, ENOUGH)
        if due is not None:
            self.merge(due.limit)

    def merge(self, limit: int) -> None:
        """Merge as pylance does: neighbours, into fragments of at least so many rows."""
        merged: list[int] = []
        for is_small, run in groupby(self.fragments, key=lambda rows: rows < limit):
            found = list(run)
            if not is_small or len(found) == 1:
                merged += found
                continue
            self.rewritten += sum(found)
            left, sizes = sum(found), [0]
            for rows in found:
                if sizes[-1] >= limit and left >= limit:
                    sizes.append(0)
                sizes[-1] += rows
                left -= rows
            merged += sizes
        self.fragments = merged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "commits", "looks", "rewrites"),
    [
        (1, 1_000, 400, 4.0),
        (20, 600, 300, 3.0),
        (100, 50, 1_000, 3.0),
        (100, 2_500, 100, 2.0),
        (1_000, 500, 100, 2.0),
        (5_000, 20, 300, 2.0),
        (50_000, 3, 600, 2.0),
    ],
)
def test_a_table_that_is_written_all_the_time_keeps_few_fragments(
    rows: int, commits: int, looks: int, rewrites: float
) -> None:
    stream = Stream()
    for _ in range(looks):
        stream.look([rows] * commits)
        full = sum(one >= TARGET for one in stream.fragments)
        assert len(stream.fragments) - full <= 3 * ENOUGH
    written = rows * commits * looks
    assert sum(stream.fragments) == written
    assert stream.rewritten <= rewrites * written


def test_a_burst_of_small_commits_becomes_a_few_fragments_at_once() -> None:
    assert tier_due([100] * 2_518, TARGET, ENOUGH) == (65_536, 2_518)
    assert tier_due([100] * 30_000, TARGET, ENOUGH) == (1_048_576, 30_000)
    assert tier_due([1] * 2_518, TARGET, ENOUGH) == (4_096, 2_518)


def test_rows_that_are_merged_already_are_left_alone() -> None:
    # Small ones of 10,000 rows aren't worth rewriting 15 fragments of 60,000.
    assert tier_due([60_000] * 15 + [100] * 100, TARGET, ENOUGH) == (4_096, 100)
    assert tier_due([60_000] * 16 + [100] * 10, TARGET, ENOUGH) == (65_536, 26)
    assert tier_due([TARGET] * 100 + [1] * 15, TARGET, ENOUGH) is None
    assert tier_due([10] * 16, 5, ENOUGH) is None
    assert tier_due([1] * 16, 5, ENOUGH) == (5, 16)
