"""Which small fragments a compaction merges: so that each row is rewritten a few times, not often.

Fragments are merged with others of their size, into ones many times larger. The largest size of
which there are enough is merged, with all that is smaller: who waits for the smallest ones to be
few would never come to the others of a table that is written all the time. And small fragments that
are most of what a larger size has are merged into that size at once, not in two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

TIER = 16
"""So many times larger is the next size."""
SMALLEST_TIER_ROWS = 4_096


class Tier(NamedTuple):
    """A size of fragments that are merged."""

    limit: int
    """They have fewer rows, and are merged into fragments of so many."""
    fragments: int
    """How many there are."""


def tier_due(rows: Sequence[int], target_rows: int, enough: int) -> Tier | None:
    """Return what to merge of fragments with so many rows each; None if there are too few."""
    limits = [0, min(SMALLEST_TIER_ROWS, target_rows)]
    while limits[-1] < target_rows:
        limits.append(min(limits[-1] * TIER, target_rows))
    due: Tier | None = None
    held = 0
    for lower, limit in pairwise(limits):
        below = [one for one in rows if one < limit]
        of_this_size = sum(one >= lower for one in below)
        is_most = due is not None and held >= limit and 2 * held >= sum(below)
        if of_this_size >= enough or (due is None and len(below) >= enough) or is_most:
            due, held = Tier(limit, len(below)), sum(below)
    return due
