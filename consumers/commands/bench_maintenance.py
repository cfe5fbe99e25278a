"""`commitlog bench maintain`, `soak` and `rag`: what maintenance costs, and if all stays right."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.commands import output
from consumers.commands.bench import measure, suite
from consumers.commands.options import AsJsonReport


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

    With --writers 8, measure instead how maintenance affects eight writers at full speed, and how
    many attempts its compactions need. Runs its own service in a temporary folder.

    Parameters
    ----------
    fragments
        How many fragments are merged, into four.
    rows
        Rows of each.
    rounds
        How often both are measured.
    writers
        How many writers commit during maintenance.
    seconds
        How long each round of writers takes.
    """
    with suite("service").own_service(LOG_NAME_DEFAULT, "--no-maintain") as own:
        if writers:
            beside = {"writers": writers, "seconds": seconds, "rounds": rounds}
            measure("beside", own.servers, own.root, as_json=as_json, **beside)
        else:
            sizes = {"fragments": fragments, "rows": rows, "rounds": rounds}
            measure("maintain", own.servers, own.pid, as_json=as_json, **sizes)


def bench_soak(
    *, seconds: float = 3600.0, into: Path = Path("soak.html"), as_json: AsJsonReport = False
) -> int:
    """Write at full speed with maintenance on; measure whether disk, memory and times stay flat.

    Runs its own service in a temporary folder, and verifies the log and its tables at the end.

    Parameters
    ----------
    seconds
        How long.
    into
        The page that is written: a plot of each figure, and its medians in the run's thirds.
    """
    with suite("service").own_service(LOG_NAME_DEFAULT, "--no-maintain") as own:
        place = (own.servers, own.root, own.pid)
        found = measure("soak", *place, as_json=as_json, seconds=seconds, into=into)
    print(into)
    return 0 if found["verified"] == "ok" else 1


def bench_rag(
    *,
    seconds: Annotated[float, Parameter(help="How long.")] = 180.0,
    writers: Annotated[int, Parameter(help="Processes that write.")] = 4,
    readers: Annotated[int, Parameter(help="Processes that search.")] = 8,
    as_json: AsJsonReport = False,
) -> int:
    """Search, write and re-embed by LanceDB's client with maintenance on, and check every row.

    Runs its own service in a temporary folder. Exits with 1 if a row is wrong or a request failed.
    """
    sizes = {"writers": writers, "readers": readers, "seconds": seconds}
    with suite("service").own_service() as own:
        found = measure("rag", own.http, as_json=as_json, **sizes)
    problems = [*found["failures"], *found["wrong"]]
    for problem in problems:
        output.note(problem)
    output.note(f"{found['rows']:,} rows compared; {len(problems)} problems")
    return 1 if problems else 0
