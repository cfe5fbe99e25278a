"""The command that measures the version index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from consumers.commands import output
from consumers.commands.jobs import need_module
from consumers.commands.options import AsJsonReport
from consumers.commands.output import Column, Row


def bench_index(
    *,
    sizes: Annotated[tuple[int, ...], Parameter(name="--versions", negative="")] = (
        1_000,
        100_000,
        1_000_000,
    ),
    rate: Annotated[int, Parameter(help="Commits per second for freshness.")] = 600,
    seconds: float = 10.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure the version index at growing histories: commits, publications, queries, freshness.

    Fills a temporary index from a generated log; a million versions take some minutes.

    Parameters
    ----------
    sizes
        Numbers of versions to measure at; may be repeated.
    seconds
        How long freshness is measured.
    """
    index = need_module("consumers.tools.bench.index", extra="bench")
    report = index.run(sizes=sizes, rate=rate, seconds=seconds, report=output.note)
    if as_json:
        output.print_json(report)
        return
    output.print_listing(COSTS, report["costs"], as_json=False, nothing="")
    print()
    columns, rows = _by_size(report["questions"])
    output.print_listing(columns, rows, as_json=False, nothing="")
    fresh = report["freshness"]
    print(
        f"\nfresh at {fresh['commits_per_second']:.0f} commits/s and {fresh['versions']:,}"
        f" versions: p50 {fresh['fresh_p50_ms']:.0f} ms, p99 {fresh['fresh_p99_ms']:.0f} ms,"
        f" longest {fresh['max_ms']:.0f} ms; {fresh['cpu_ms_per_commit']:.2f} ms CPU per commit"
    )


def _number(name: str, key: str, *, digits: int = 1) -> Column:
    return Column(name, lambda row: f"{row[key]:,.{digits}f}", is_number=True)


COSTS = (
    _number("versions", "versions", digits=0),
    _number("commit p50 ms", "commit_p50_ms"),
    _number("p99 ms", "commit_p99_ms"),
    _number("publish p50", "publish_p50_ms"),
    _number("publish p99", "publish_p99_ms"),
    _number("index.duckdb MB", "index_mb"),
    _number("segments MB", "segments_mb"),
)


def _by_size(questions: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """Put the sizes beside each other."""
    sizes = sorted({row["versions"] for row in questions})
    rows: dict[str, dict[str, Any]] = {}
    for row in questions:
        cells = rows.setdefault(row["question"], {"question": row["question"]})
        cells[str(row["versions"])] = f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f}"
    columns = [Column("p50 / p99 ms at versions", lambda row: row["question"])]
    for size in sizes:
        columns.append(
            Column(f"{size:,}", lambda row, key=str(size): row[key], is_number=True)  # type: ignore[misc]
        )
    return columns, list(rows.values())
