"""What the demo shows at its end: the timeline, what met and how it ended, rows, where to look."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.tools.bench.commit import run_ours
from consumers.tools.bench.measure import Round
from consumers.tools.bench.peers import PYLANCE, installed, run_peer
from consumers.tools.demo import check
from consumers.tools.demo.check import REBASES_MIN, REFUSALS_MIN, Compared, OutcomeCounts
from consumers.tools.demo.desks import AIRPORTS, WEATHER
from consumers.tools.demo.flights import TABLE

TIMELINE_ROWS = 15
MOMENT_ROWS = 10
REASON_ROWS = 8


def show(
    console: Console, root: Path, since: int, compared: list[Compared], counts: OutcomeCounts
) -> None:
    """Print the whole report."""
    _timeline(console, root, since)
    _rebased(console, root, since)
    _refused(console, root, since)
    _rows(console, compared)
    _verdict(console, compared, counts)
    _next(console, root)


def _timeline(console: Console, root: Path, since: int) -> None:
    table = _table("Timeline, from DuckDB: commits per table")
    names = (
        "second",
        "flights",
        "weather",
        "airports",
        "rows added",
        "rebased",
        "refused",
        "up to",
    )
    for name in names:
        table.add_column(name, justify="right")
    keys = ("flights", "weather", "airports", "rows_added", "rebased", "refused", "position")
    for row in check.timeline(root, since, TIMELINE_ROWS):
        table.add_row(f"{float(row['second']):.0f}", *(f"{int(row[key]):,}" for key in keys))
    console.print(table)
    table = _table("A moment of it, transaction by transaction", "position", "time", "by")
    for name in ("operations", "status", "made"):
        table.add_column(name, overflow="fold")
    for row in check.around_first_refusal(root, since, MOMENT_ROWS):
        table.add_row(
            str(row["sequence"]),
            str(row["time"]),
            _who(row),
            ", ".join(str(name) for name in row["operations"] or ()),
            _status(str(row["status"])),
            ", ".join(
                f"{name} v{version}"
                for name, version in zip(row["tables"] or (), row["versions"] or (), strict=False)
                if version
            ),
        )
    console.print(table)


def _who(row: dict[str, Any]) -> str:
    name, number = str(row["principal"]), row["application_sequence"]
    unit = "batch" if name == "spark" else "step"
    return name if number is None else f"{name}, {unit} {number}"


def _rebased(console: Console, root: Path, since: int) -> None:
    table = _table("Rebased: committed over versions that their writer had not read", "table")
    table.add_column("operation")
    for name in ("commits", "rebased", "of these merged", "furthest, versions"):
        table.add_column(name, justify="right")
    for row in check.rebased_by_kind(root, since):
        names = ("commits", "rebased", "merged", "furthest")
        table.add_row(
            str(row["table_name"]), str(row["operation"]), *(str(row[n] or 0) for n in names)
        )
    console.print(table)


def _refused(console: Console, root: Path, since: int) -> None:
    rows = check.refused_by_reason(root, since)
    if not rows:
        return
    table = _table("Refused, and done again by the writer", "table", "who lost", "to")
    table.add_column("rule", overflow="fold")
    table.add_column("times", justify="right")
    table.add_column("advice, the last time")
    for row in rows[:REASON_ROWS]:
        table.add_row(
            str(row["table_name"]),
            str(row["operation"]),
            str(row["winner_operation"]),
            str(row["rule"]),
            str(row["refusals"]),
            str(row["advice"] or ""),
        )
    console.print(table)


def _rows(console: Console, compared: list[Compared]) -> None:
    table = _table("Rows against the source", "table")
    for name in ("version", "rows", "expected"):
        table.add_column(name, justify="right")
    table.add_column("checked against")
    table.add_column("row for row")
    against = {
        TABLE: "the CSV, recomputed without Spark",
        WEATHER: "a plain model of the acknowledged steps",
        AIRPORTS: "a plain model of the acknowledged steps",
    }
    for entry in compared:
        said = Text(entry.difference, "red") if entry.difference else Text("equal", "green")
        table.add_row(
            entry.table,
            str(entry.version),
            f"{entry.rows:,}",
            f"{entry.expected_rows:,}",
            against[entry.table],
            said,
        )
    console.print(table)


def _verdict(console: Console, compared: list[Compared], counts: OutcomeCounts) -> None:
    console.print(
        f"{counts.committed} commits ({counts.multi_table} of two tables at once),"
        f" [bold]{counts.rebases} rebases[/] ({counts.merged} merged deletion vectors),"
        f" [bold]{counts.refusals} refusals[/]"
    )
    for problem in problems(compared, counts):
        console.print(f"[bold red]failed:[/] {problem}")


def problems(compared: list[Compared], counts: OutcomeCounts) -> list[str]:
    """Return what makes the run a failure."""
    found = [f"{entry.table}: {entry.difference}" for entry in compared if entry.difference]
    if counts.rebases < REBASES_MIN:
        found.append(f"{counts.rebases} rebases; the desks must meet at least {REBASES_MIN} times")
    if counts.refusals < REFUSALS_MIN:
        found.append(f"{counts.refusals} refusals; at least {REFUSALS_MIN} were meant to happen")
    return found


def rates(console: Console, measured: list[Round]) -> None:
    """Print how fast writers are, beside Lance alone."""
    table = _table(f"{WRITERS} writers append to one table, just now", "writers")
    for name in ("commits/s", "failed", "slowest, ms"):
        table.add_column(name, justify="right")
    for rate in measured:
        numbers = (f"{rate.commits_per_second:,.0f}", str(rate.failures), f"{rate.max_ms:,.0f}")
        table.add_row(rate.system, *numbers)
    console.print(table)


def page(console: Console, root: Path, address: str, *, stays: bool) -> None:
    """Print where the page is, or how to open it again: the root keeps its port."""
    if stays:
        console.print(f"\nThe page is open at [bold]{address}/[/] until Ctrl-C.")
        return
    console.print(
        f"\nThe page: [bold]{address}/[/], kept open by `make demo ARGS=--stay`, or opened again by"
        f" `{_program()} up --root {root} --port {address.rpartition(':')[2]}`",
        highlight=False,
        soft_wrap=True,  # a command is copied whole
    )


def _program() -> str:
    """Return how this program was called, where a shell doesn't find it by its name alone."""
    called = sys.argv[0]
    is_found = Path(called).name != "commitlog" or shutil.which("commitlog")
    return "commitlog" if is_found else shlex.quote(called)


def _next(console: Console, root: Path) -> None:
    program = _program()
    console.print(
        f"\nWhere to look next (start it with [bold]{program} up --root {root}[/]):\n"
        f"  {program} history '{WEATHER}' --root {root}\n"
        f"  {program} conflicts --root {root}\n"
        f"  {program} log --root {root}\n"
        f'  duckdb {root}/index.duckdb "FROM heads_at(100)"\n'
        f"  {root}/tables holds plain Lance tables: lance.dataset(...) opens every version",
        highlight=False,
        soft_wrap=True,
    )


def _table(title: str, *columns: str) -> Table:
    table = Table(*columns, title=title, title_justify="left", title_style="bold", header_style="")
    table.box = None
    table.pad_edge = False
    return table


def _status(status: str) -> Text:
    return Text(status, "green" if status == "committed" else "yellow")


if TYPE_CHECKING:
    from commitlog import CommitLog

WRITERS = 8
SECONDS = 2.0


def measure(log: CommitLog, kafka: str, folder: Path) -> list[Round]:
    """Return how fast writers append here and now: by Lance alone, then through the log.

    They are two short rounds of `commitlog bench commit`, which measures longer, and more.
    """
    [pylance] = installed((PYLANCE,))
    alone = run_peer(pylance, str(folder / f"rates-{time.time_ns()}.lance"), WRITERS, SECONDS)
    ours = run_ours(log, (kafka, LOG_NAME_DEFAULT), "latest", WRITERS, SECONDS)
    return [replace(alone, system="Lance alone"), replace(ours, system="through the log")]
