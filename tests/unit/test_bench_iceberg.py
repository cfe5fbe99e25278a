"""Is what the Iceberg bench tells what was measured?"""

from __future__ import annotations

import cProfile
import pstats

import pytest

from consumers.tools.bench.measure import Round

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")

from consumers.tools.bench.iceberg import summary
from consumers.tools.bench.iceberg_cost import create_costs, snapshot_costs


def made(system: str, rate: float, failures: int = 0, verified: str = "verified: 9") -> Round:
    return Round(
        system=system,
        writers=8,
        commits=int(rate),
        failures=failures,
        failure="CommitFailedException: somebody else was first" if failures else "",
        commits_per_second=rate,
        verified=verified,
    )


def test_a_system_is_compared_with_sqlcatalog_at_the_same_work() -> None:
    rounds = [
        made("property: SqlCatalog", 10, failures=5),
        made("property: SqlCatalog", 20, failures=1),
        made("property: plain HTTP", 300),
        made("append: SqlCatalog", 3),
        made("append: pyiceberg over REST", 9, verified="WRONG: 7 commits in the table"),
    ]
    rows = {row["system"]: row for row in summary(rounds)}
    assert rows["property: plain HTTP"]["times_sqlcatalog"] == 20
    assert rows["append: pyiceberg over REST"]["times_sqlcatalog"] == 3
    assert (rows["property: SqlCatalog"]["failures"], rows["property: SqlCatalog"]["tried"]) == (
        6,
        36,
    )
    assert [row["wrong"] for row in rows.values()] == [0, 0, 0, 1]
    assert "failed 5 of 15" in str(rounds[0])
    assert "somebody else was first" in str(rounds[0])


@pytest.mark.slow
def test_the_cost_of_history_is_measured_on_real_appends() -> None:
    said: list[str] = []
    few, more = snapshot_costs((1, 300), said.append)
    assert [line.split()[0] for line in said] == ["1", "300"]
    assert (few["snapshots"], more["snapshots"]) == (1, 300)
    assert more["metadata_bytes"] > few["metadata_bytes"] > 0
    assert more["evaluate_ms"] > 0
    # Evaluating is what must not grow: generously, since other programs disturb even CPU time.
    assert more["evaluate_ms"] < 10 * few["evaluate_ms"]


@pytest.mark.slow
def test_a_record_that_makes_many_tables_costs_what_they_are_many() -> None:
    calls = {}
    for count in (100, 1_000):
        profile = cProfile.Profile()
        profile.enable()
        (row,) = create_costs((count,), lambda line: None)
        profile.disable()
        # The folder of all is the root: of each table, its own and that of its metadata.
        assert (row["tables"], row["looks"]) == (count, 2 * count)
        calls[count] = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    assert calls[1_000] < 11 * calls[100]
