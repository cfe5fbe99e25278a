"""Of old versions the last one of each hour, day and month stays, and a later look agrees."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from commitlog.adapters.lance_refs import Published

NOW = datetime(2026, 3, 20, 12, 30, tzinfo=UTC).timestamp()
HOUR, DAY = 3_600, 86_400


class Made(Published):
    """Versions that were made at some times."""

    def __init__(self, times: dict[int, float]) -> None:
        self.paths = dict.fromkeys(sorted(times), "")
        self._times = times


def ages(*hours: float) -> Made:
    ordered = sorted(hours, reverse=True)
    return Made({version: NOW - age * HOUR for version, age in enumerate(ordered, 1)})


def test_hours_days_and_months() -> None:
    # 12:20, 11:59, 11:40, 11:10 | two days ago: 20:30, 12:30 | January, and December
    made = ages(1 / 6, 31 / 60, 50 / 60, 80 / 60, 40, 48, 50 * 24, 51 * 24, 90 * 24)
    assert made.milestones(NOW) == {9, 8, 5, 3, 1}
    assert Made({}).milestones(NOW) == set()


def test_what_stays_now_was_kept_before() -> None:
    seed = random.randrange(10**9)
    rng = random.Random(seed)
    times, now = dict[int, float](), NOW
    for _ in range(60):
        for _ in range(rng.randrange(40)):
            now += rng.expovariate(1 / 900)
            times[max(times, default=0) + 1] = now
        now += rng.choice((60, HOUR, 9 * HOUR, 4 * DAY))
        kept = Made(dict(times)).milestones(now)
        everything = Made(dict(enumerate(sorted(times.values()), 1)))
        assert len(kept) == len(everything.milestones(now)), seed
        times = {version: made for version, made in times.items() if version in kept}
        # At most a day of hours, a month of days, and the months.
        assert len(times) <= 26 + 33 + (now - NOW) / (28 * DAY) + 2, seed
