"""The commands that measure maintenance: what it costs, and whether all stays flat under it."""

from __future__ import annotations

from pathlib import Path

from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.commands import output
from consumers.commands.jobs import need_module, own_service
from consumers.commands.options import AsJsonReport
from consumers.commands.output import Column


def _columns(first: str, digits: int, *names: str) -> tuple[Column, ...]:
    figures = [
        Column(
            name,
            lambda row, name=name: "" if row[name] is None else f"{row[name]:,.{digits}f}",  # type: ignore[misc]
            is_number=True,
        )
        for name in names
    ]
    return (Column(first, lambda row: row["figure"]), *figures)


MAINTAIN = _columns("CPU seconds", 3, "median", "least", "greatest")
BESIDE = (
    *_columns("median of the rounds", 2, "value"),
    Column("aim", lambda row: row["aim"]),
)
SOAK = _columns("median of each third", 2, "second", "last", "ratio")


def bench_maintain(
    *,
    fragments: int = 64,
    rows: int = 20_000,
    rounds: int = 5,
    writers: int = 0,
    seconds: float = 20.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure the CPU of a compaction through the log beside pylance's own, in turns.

    With --writers 8 measure instead what eight writers at full speed notice of maintenance, and how
    often compactions beside them are tried. Runs a service of its own in a temporary folder.

    Parameters
    ----------
    fragments
        How many fragments are merged, into four.
    rows
        Rows of each.
    rounds
        How often both are measured.
    writers
        How many writers commit beside maintenance.
    seconds
        How long each round of writers takes.
    """
    if writers:
        beside = need_module("consumers.tools.bench.beside", extra="bench")
        with own_service(LOG_NAME_DEFAULT, "--no-maintain") as own:
            found = beside.run(
                own.servers,
                own.root,
                writers=writers,
                seconds=seconds,
                rounds=rounds,
                report=output.note,
            )
        output.print_report(found, (BESIDE, "summary"), as_json=as_json)
        return
    maintain = need_module("consumers.tools.bench.maintain", extra="bench")
    with own_service(LOG_NAME_DEFAULT, "--no-maintain") as own:
        report = maintain.run(
            own.servers, own.pid, fragments=fragments, rows=rows, rounds=rounds, report=output.note
        )
    output.print_report(report, (MAINTAIN, "summary"), as_json=as_json)


def bench_soak(
    *,
    seconds: float = 3600.0,
    into: Path = Path("soak.html"),
    as_json: AsJsonReport = False,
) -> int:
    """Write at full speed for long with maintenance on; do disk, memory and times stay flat?

    Runs a service of its own in a temporary folder, and verifies the log and its tables at the end.

    Parameters
    ----------
    seconds
        How long.
    into
        The page that is written: a plot of each figure, and its medians in the run's thirds.
    """
    soak = need_module("consumers.tools.bench.soak", extra="bench")
    with own_service(LOG_NAME_DEFAULT, "--no-maintain") as own:
        found = soak.run(
            own.servers, own.root, own.pid, seconds=seconds, into=into, report=output.note
        )
    output.print_report(found, (SOAK, "summary"), as_json=as_json)
    print(into)
    return 0 if found["verified"] == "ok" else 1


RAG = (
    Column("request", lambda row: row["request"]),
    Column("count", lambda row: f"{row['count']:,}", is_number=True),
    Column("p50 ms", lambda row: f"{row['p50_ms']:.0f}", is_number=True),
    Column("p99 ms", lambda row: f"{row['p99_ms']:.0f}", is_number=True),
    Column("longest ms", lambda row: f"{row['max_ms']:.0f}", is_number=True),
)


def bench_rag(
    *,
    seconds: float = 180.0,
    writers: int = 4,
    readers: int = 8,
    as_json: AsJsonReport = False,
) -> int:
    """Search, write and embed again by LanceDB's client with maintenance on; is every row right?

    Runs a service of its own in a temporary folder. Ends with 1 if a row is wrong or a request
    failed.

    Parameters
    ----------
    seconds
        How long.
    writers
        Processes that write.
    readers
        Processes that search.
    """
    rag = need_module("consumers.tools.bench.rag", extra="bench")
    with own_service() as own:
        found = rag.run(
            own.http, writers=writers, readers=readers, seconds=seconds, report=output.note
        )
    output.print_report(found, (RAG, "summary"), as_json=as_json)
    problems = [*found["failures"], *found["wrong"]]
    for problem in problems:
        output.note(problem)
    output.note(f"{found['rows']:,} rows compared; {len(problems)} problems")
    return 1 if problems else 0
