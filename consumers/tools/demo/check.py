"""What must be true at the end, and what the version index tells about how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from consumers import history
from consumers.tools.demo import flights
from consumers.tools.demo.desk import JournalEntry, read_journal
from consumers.tools.demo.desks import (
    AIRPORTS,
    AIRPORTS_KEY,
    DESK_COUNT,
    ROUND_COUNT,
    WEATHER,
    WEATHER_KEY,
    Ledger,
    plan,
    read_airports,
    read_observations,
)

if TYPE_CHECKING:
    from commitlog import CommitLog

REBASES_MIN = DESK_COUNT * ROUND_COUNT * 5 // 4
REFUSALS_MIN = DESK_COUNT * ROUND_COUNT // 8
"""A third and a fifth of what there would be if all desks came to each meeting in time."""


@dataclass(frozen=True)
class Compared:
    """A table's rows beside what they must be."""

    table: str
    rows: int
    expected_rows: int
    version: int
    difference: str
    """Empty: equal, row for row."""


@dataclass(frozen=True)
class OutcomeCounts:
    """How a run's transactions went."""

    transactions: int
    committed: int
    rebases: int
    """Commits that were carried over versions which their writer had not read."""
    merged: int
    """Of these: commits whose content had to change (deletion vectors were united)."""
    refusals: int
    multi_table: int


def compare(log: CommitLog, folder: Path) -> list[Compared]:
    """Compare all three tables with the source and the plain model, row for row."""
    weather, airports = expected_of_desks(folder)
    return [
        _compare(log, flights.TABLE, flights.expected(), flights.KEY),
        _compare(log, WEATHER, weather, WEATHER_KEY),
        _compare(log, AIRPORTS, airports, AIRPORTS_KEY),
    ]


def expected_of_desks(folder: Path) -> tuple[pa.Table, pa.Table]:
    """Return what the acknowledged steps must have made of both tables."""
    observations = read_observations()
    ledger = Ledger.at_start(observations, read_airports())
    for desk in range(DESK_COUNT):
        steps = plan(desk, observations)
        for entry in read_journal(folder / f"desk-{desk}.jsonl"):
            ledger.apply(steps[entry.step])
    return ledger.tables()


def journals(folder: Path) -> list[JournalEntry]:
    """Return every acknowledged step of every desk."""
    return [e for desk in range(DESK_COUNT) for e in read_journal(folder / f"desk-{desk}.jsonl")]


def _compare(log: CommitLog, name: str, expected: pa.Table, key: Sequence[str]) -> Compared:
    dataset = log.open(name)
    found = dataset.to_table(columns=expected.schema.names)
    found = found.sort_by([(column, "ascending") for column in key]).combine_chunks()
    wanted = expected.combine_chunks()
    return Compared(
        table=name,
        rows=found.num_rows,
        expected_rows=wanted.num_rows,
        version=dataset.version,
        difference=difference(found, wanted),
    )


def difference(found: pa.Table, wanted: pa.Table) -> str:
    """Say what differs first, or nothing."""
    if found.num_rows != wanted.num_rows:
        return f"{found.num_rows} rows instead of {wanted.num_rows}"
    for name in wanted.schema.names:
        left, right = found[name].cast(wanted.schema.field(name).type), wanted[name]
        if not left.equals(right):
            pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
            row, (was, should) = next((i, p) for i, p in enumerate(pairs) if p[0] != p[1])
            return f"column {name}, row {row}: {was!r} instead of {should!r}"
    return ""


_COUNTS = """
WITH mine AS (FROM transactions WHERE partition = 0 AND sequence >= $1 AND answers IS NULL),
     parts AS (FROM operations WHERE partition = 0 AND sequence >= $1 AND status = 'committed')
SELECT count(*) AS transactions,
       count(*) FILTER (status = 'committed') AS committed,
       count(*) FILTER (status <> 'committed') AS refusals,
       count(*) FILTER (status = 'committed' AND len(list_distinct(tables)) > 1) AS multi_table,
       (SELECT count(DISTINCT sequence) FROM parts WHERE rebased_over > 0) AS rebases,
       (SELECT count(DISTINCT sequence) FROM parts WHERE rebased) AS merged
FROM mine
"""


def counts(root: Path, since: int) -> OutcomeCounts:
    """Count what happened from a position on."""
    (row,) = history.query(root, _COUNTS, [since])
    return OutcomeCounts(**{name: int(str(value)) for name, value in row.items()})


def indexed_versions(root: Path) -> dict[str, int]:
    """Return the newest version of each table that the index knows."""
    rows = history.query(root, "SELECT table_name, version FROM tables WHERE ended_by IS NULL")
    return {str(row["table_name"]): int(str(row["version"] or 0)) for row in rows}


def rebased_by_kind(root: Path, since: int) -> list[dict[str, Any]]:
    """Return what was rebased: per table and operation."""
    return history.query(
        root,
        "SELECT table_name, operation, count(*) AS commits,"
        " count(*) FILTER (rebased_over > 0) AS rebased,"
        " count(*) FILTER (rebased) AS merged, max(rebased_over) AS furthest"
        " FROM operations WHERE status = 'committed' AND sequence >= ? AND version IS NOT NULL"
        " GROUP BY ALL ORDER BY table_name, operation",
        [since],
    )


def refused_by_reason(root: Path, since: int) -> list[dict[str, Any]]:
    """Return what was refused and why: per table, pair of operations and rule."""
    return history.query(
        root,
        "SELECT table_name, operation, winner_operation, rule, count(*) AS refusals,"
        " arg_max(advice, sequence) AS advice FROM conflicts WHERE sequence >= ?"
        " GROUP BY ALL ORDER BY refusals DESC, table_name, operation",
        [since],
    )


def timeline(root: Path, since: int, lines: int) -> list[dict[str, Any]]:
    """Return the run cut into equal spans of time, and what happened to which table in each."""
    return history.query(
        root,
        "WITH mine AS (SELECT *, epoch(time - min(time) OVER ()) AS age FROM operations"
        "   WHERE sequence >= $1),"
        " span AS (SELECT greatest(1, ceil(max(age) / $2)) AS seconds FROM mine)"
        " SELECT floor(age / seconds) * seconds AS second, max(sequence) AS position,"
        " count(*) FILTER (status = 'committed' AND table_name = 'nyc$flights') AS flights,"
        " count(*) FILTER (status = 'committed' AND table_name = 'nyc$weather') AS weather,"
        " count(*) FILTER (status = 'committed' AND table_name = 'nyc$airports') AS airports,"
        " coalesce(sum(rows_added) FILTER (status = 'committed'), 0) AS rows_added,"
        " count(*) FILTER (status = 'committed' AND rebased_over > 0) AS rebased,"
        " count(DISTINCT sequence) FILTER (status <> 'committed') AS refused"
        " FROM mine, span GROUP BY 1 ORDER BY 1",
        [since, lines],
    )


def around_first_refusal(root: Path, since: int, count: int) -> list[dict[str, Any]]:
    """Return the transactions around the first refusal, in their order."""
    return history.query(
        root,
        "SELECT strftime(time, '%H:%M:%S.%g') AS time, sequence, status, operations, tables,"
        " versions, principal, application_sequence FROM transactions"
        " WHERE sequence >= (SELECT coalesce(min(sequence), $1) - 4 FROM transactions"
        "   WHERE sequence >= $1 AND status <> 'committed')"
        " ORDER BY sequence LIMIT $2",
        [since, count],
    )
