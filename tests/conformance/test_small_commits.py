"""Many one-row commits, with maintenance beside them: what is left, beside one commit of such rows.

What is left doesn't depend on how many there were: so fewer than 20,000 are made, and compared with
one commit of 20,000 rows.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import lance
import pytest

from commitlog.adapters.memory import MemoryLog
from consumers.tools.maintenance import removals, table_acts
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.maintenance.maintenance_policy import parse_defaults
from consumers.tools.verify import VerifyOptions, verify
from tests.service import SCHEMA, ids_of, rows, service

COMMITS, AT_ONCE, ROWS = 1_200, 400, 20_000
TIMES_MAX, OPENING_MAX, GROWTH_MAX = 20, 3, 1.5
OPENING_SECONDS = 0.0002
"""What a table takes to open on a disk; in memory one of one commit takes a third of it."""
POLICY = ["history-hours=0", "remove-after-days=1e-9"]
"""Nobody waits for an hour, and for six more. All else is as it is by default."""


def test_many_small_commits_leave_little_and_open_fast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_acts, "YOUNG_MS", 0)
    monkeypatch.setattr(removals, "REST_FACTOR", 0)
    left: list[int] = []
    with service(tmp_path / "root") as made, ThreadPoolExecutor(8) as threads:
        for table in ("many", "one"):
            made.client.create_table(table, SCHEMA, policy="latest")
        made.client.append("one", rows(*range(ROWS)))
        many, one = made.location("many"), made.location("one")
        maintenance = Maintenance(
            made.client,
            open_log=lambda: MemoryLog(made.cluster),
            defaults=parse_defaults(POLICY),
            removal_seconds=0.0,
        )
        for first in range(0, COMMITS, AT_ONCE):
            ids = range(first, first + AT_ONCE)
            list(threads.map(lambda one: made.client.append("many", rows(one)), ids))
            while maintenance.look():
                pass
            left.append(_bytes(many))
        maintenance.close()
        assert left[-1] < TIMES_MAX * _bytes(one)
        assert left[-1] < GROWTH_MAX * left[0], left
        assert _opening(many) < OPENING_MAX * max(_opening(one), OPENING_SECONDS)
        assert ids_of(lance.dataset(str(many))) == list(range(COMMITS))
        options = VerifyOptions(root=tmp_path / "root", contents=True)
        assert verify(MemoryLog(made.cluster), 0, options).problems == []


def _bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())


def _opening(place: Path) -> float:
    taken = []
    for _ in range(31):
        began = time.process_time()
        lance.dataset(str(place))
        taken.append(time.process_time() - began)
    return statistics.median(taken)
