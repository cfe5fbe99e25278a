"""`commitlog bench`: measurements; `consumers/tools/bench/NAME.py` says what each one does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from commitlog.errors import InvalidRequest
from consumers.commands import output
from consumers.commands.columns import Column, Row
from consumers.commands.jobs import need_module
from consumers.commands.options import HERE, AsJsonReport, Flag, Where

Writers = Annotated[
    tuple[int, ...],
    Parameter(negative="", help="Numbers of writer processes to measure with; may be repeated."),
]
Rounds = Annotated[int, Parameter(help="How often each is measured.")]
Seconds = Annotated[float, Parameter(help="How long one measurement takes.")]
Many = Parameter(negative="")

bench = App(name="bench", help="Measure speed.", help_epilogue="", version_flags=())


def suite(name: str) -> Any:
    """Import a module of the benchmarks, which the wheel doesn't have."""
    return need_module(f"consumers.tools.bench.{name}", extra="bench")


def measure(
    name: str, *arguments: object, as_json: bool = False, **sizes: object
) -> dict[str, Any]:
    """Run a suite and print its report: as JSON, or its tables and the rest in sentences."""
    machine = suite("environment").environment()
    found = {"machine": machine, **suite(name).run(*arguments, **sizes, report=output.note)}
    if as_json:
        output.print_json(found)
        return found
    for heading, columns, part, _ in suite("tables").TABLES[name]:
        shown = [
            Column(title, show, is_number=isinstance(show, suite("tables").Figure))
            for title, show in columns.items()
        ]
        print(heading)
        output.print_listing(shown, found[part], as_json=False, nothing="nothing was measured")
        print()
    for line in suite("report").figures(name, {name: found}):
        print(line)
    return found


def _measure_log(where: Where, name: str, *, as_json: bool, **sizes: object) -> None:
    """Run a suite on the log that is named, or on a temporary service's."""
    with suite("service").service_for(where.load()) as (servers, log):
        measure(name, servers, log, as_json=as_json, **sizes)


def _measure_http(uri: str, name: str, *, as_json: bool, **sizes: object) -> None:
    """Run a suite against an address, or against a temporary service."""
    with contextlib.ExitStack() as stack:
        address = uri or stack.enter_context(suite("service").own_service()).http
        measure(name, address, as_json=as_json, **sizes)


@bench.command(name="conflicts", help_epilogue="")
def bench_conflicts(*, as_json: AsJsonReport = False) -> None:
    """Measure the cost of conflict checks, by distance behind the head and size of the table.

    Needs no log: the checks run in this process, and CPU time is taken.
    """
    measure("conflicts", as_json=as_json)


@bench.command(name="commit", help_epilogue="")
def bench_commit(
    *,
    where: Where = HERE,
    writers: Writers = (1, 32),
    rounds: Rounds = 3,
    seconds: Seconds = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure commits per second and latencies beside pylance, lancedb and delta-rs, in turns.

    Uses the given cluster, or starts its own temporary service.
    """
    sizes = {"writers": writers, "rounds": rounds, "seconds": seconds}
    _measure_log(where, "commit", as_json=as_json, **sizes)


@bench.command(name="merge", help_epilogue="")
def bench_merge(
    *,
    where: Where = HERE,
    writers: Writers = (1, 32),
    rounds: Rounds = 3,
    seconds: Seconds = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure deletes and merges of one fragment's rows beside pylance's own, in turns.

    Uses the given cluster, or starts its own temporary service.
    """
    sizes = {"writers": writers, "rounds": rounds, "seconds": seconds}
    _measure_log(where, "merge", as_json=as_json, **sizes)


@bench.command(name="rows", help_epilogue="")
def bench_rows(
    *,
    where: Where = HERE,
    writers: Writers = (8, 32),
    batches: Annotated[tuple[int, ...], Many] = (1, 100),
    rows: Annotated[tuple[int, ...], Many] = (100_000,),
    keys: Annotated[tuple[Literal["uniform", "hot"], ...], Many] = ("uniform",),
    indexed: Flag = False,
    rounds: Rounds = 3,
    seconds: Seconds = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure small upserts of many processes beside merge_insert, MemWAL and LanceDB, in turns.

    Uses the given cluster, or starts its own temporary service.

    Parameters
    ----------
    batches
        Rows of one upsert; may be repeated.
    rows
        Rows of the table; may be repeated.
    keys
        uniform: no two writers share keys at a time; hot: all write the same hundred keys.
    indexed
        Give the key a BTREE index, pylance's table and ours.
    """
    sizes: dict[str, object] = {"writers": writers, "rounds": rounds, "seconds": seconds}
    sizes |= {"batches": batches, "rows": rows, "keys": keys, "indexed": indexed}
    _measure_log(where, "rows", as_json=as_json, **sizes)


@bench.command(name="growth", help_epilogue="")
def bench_growth(
    *,
    where: Where = HERE,
    commits: Annotated[int, Parameter(help="Commits of each measurement.")] = 200,
    as_json: AsJsonReport = False,
) -> None:
    """Measure a lone writer's commits as tables grow and age, and over many tables at once.

    Uses the given cluster, or starts its own temporary service.
    """
    _measure_log(where, "growth", as_json=as_json, commits=commits)


@bench.command(name="spark", help_epilogue="")
def bench_spark(
    *,
    where: Where = HERE,
    batches: int = 20,
    batch_rows: int = 10_000,
    read_rows: int = 2_000_000,
    rounds: Rounds = 3,
    as_json: AsJsonReport = False,
) -> None:
    """Measure Spark's micro-batches beside plain Lance, and its reads beside Parquet, in turns.

    Uses the given cluster, or starts its own temporary service.

    Parameters
    ----------
    batches
        Micro-batches of each query, after those that warm up.
    batch_rows
        Rows of each micro-batch.
    read_rows
        Rows of the table that is read.
    """
    sizes = {"batches": batches, "batch_rows": batch_rows, "read_rows": read_rows, "rounds": rounds}
    _measure_log(where, "spark", as_json=as_json, **sizes)


@bench.command(name="iceberg", help_epilogue="")
def bench_iceberg(
    *,
    uri: str = "",
    writers: Writers = (1, 8, 32),
    rounds: Rounds = 2,
    seconds: Seconds = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure Iceberg commits beside pyiceberg's SqlCatalog on SQLite, in turns.

    Then measure one transaction over 100 tables, and the cost of decisions as a table's history
    grows. Runs its own service in a temporary folder, unless an address is given.

    Parameters
    ----------
    uri
        The HTTP address of a running service, http://HOST:PORT.
    """
    sizes = {"writers": writers, "rounds": rounds, "seconds": seconds}
    _measure_http(uri, "iceberg", as_json=as_json, **sizes)


@bench.command(name="server", help_epilogue="")
def bench_server(
    *,
    uri: str = "",
    writers: Writers = (1, 32),
    rounds: Rounds = 3,
    seconds: Seconds = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure commits and queries over HTTP beside pylance's reference server, in turns.

    Without an address it starts its own temporary service.

    Parameters
    ----------
    uri
        The HTTP address of a running service, on this machine.
    """
    sizes = {"writers": writers, "rounds": rounds, "seconds": seconds}
    _measure_http(uri, "server", as_json=as_json, **sizes)


@bench.command(name="index", help_epilogue="")
def bench_index(
    *,
    sizes: Annotated[
        tuple[int, ...],
        Parameter(
            name="--versions",
            negative="",
            help="Numbers of versions to measure at; may be repeated.",
        ),
    ] = (1_000, 100_000, 1_000_000),
    rate: Annotated[int, Parameter(help="Commits per second for freshness.")] = 600,
    seconds: Annotated[float, Parameter(help="How long freshness is measured.")] = 10.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure the version index at growing histories: commits, publications, queries, freshness.

    Fills a temporary index from a generated log; a million versions take some minutes.
    """
    found = measure("index", as_json=as_json, sizes=sizes, rate=rate, seconds=seconds)
    if not as_json:
        print()
        columns, rows = _by_size(found["questions"])
        output.print_listing(columns, rows, as_json=False, nothing="")


def _by_size(questions: Sequence[Row]) -> tuple[list[Column], list[Row]]:
    """Put the sizes beside each other."""
    sizes = sorted({row["versions"] for row in questions})
    rows: dict[str, dict[str, Any]] = {}
    for row in questions:
        cells = rows.setdefault(row["question"], {"question": row["question"]})
        cells[str(row["versions"])] = f"{row['p50_ms']:.1f} / {row['p99_ms']:.1f}"
    columns = [Column("p50 / p99 ms at versions", "question")]
    columns += [Column(f"{size:,}", str(size), is_number=True) for size in sizes]
    return columns, list(rows.values())


@bench.command(name="replay", help_epilogue="")
def bench_replay(
    *,
    transactions: Annotated[int, Parameter(help="How many transactions the log has.")] = 1_000_000,
    decisions: Annotated[
        int, Parameter(help="How many the bare machine decides in each round.")
    ] = 50_000,
    as_json: AsJsonReport = False,
) -> None:
    """Measure deciding, verifying and taking over, on a generated log in memory.

    A million transactions take some minutes to make and 2 GB of memory.
    """
    measure("replay", as_json=as_json, transactions=transactions, decisions=decisions)


@bench.command(name="against", help_epilogue="")
def bench_against(
    ref: str,
    /,
    *,
    writers: int = 32,
    pairs: int = 5,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Compare the cost of a commit in this tree and in another one, in turns.

    Each round runs a service and writers of one tree. A pair takes about a minute.

    Parameters
    ----------
    ref
        A commit of this repository, or the folder of another checkout.
    writers
        How many processes write, each with one commit in flight.
    pairs
        How often both are measured.
    seconds
        How long one measurement takes, cold and warm.
    """
    sizes = {"writers": writers, "pairs": pairs, "seconds": seconds}
    measure("against", ref, as_json=as_json, **sizes)


@bench.command(name="all", help_epilogue="")
def bench_all(
    *,
    into: Path = Path("bench.json"),
    quick: Annotated[bool, Parameter(negative="")] = False,
    suites: Annotated[tuple[str, ...], Parameter(name="--suite", negative="")] = (),
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run every suite in turn, on its own service; `bench report` makes a page of the results.

    Needs an otherwise idle machine for about an hour, or ten minutes with --quick.

    Parameters
    ----------
    into
        The file to write, after each suite.
    quick
        Small sizes and few rounds.
    suites
        Only these suites; may be repeated.
    keep
        Keep the file's results of other suites, and mark these as measured separately.
    """
    everything = suite("everything")
    unknown = [name for name in suites if name not in everything.SUITES]
    if unknown:
        raise InvalidRequest(
            f"unknown suites: {', '.join(unknown)}",
            field="suite",
            value=unknown,
            advice=f"There are {', '.join(everything.SUITES)}",
        )
    before = json.loads(into.read_text(encoding="utf-8")) if keep else None
    if before is not None and before["is_quick"] != quick:
        raise InvalidRequest(
            f"{into} has {'small' if before['is_quick'] else 'full'} sizes",
            field="quick",
            value=quick,
            advice="Measure with the same sizes, or into another file",
        )
    found = everything.run(
        before=before,
        suites=suites or tuple(everything.SUITES),
        is_quick=quick,
        into=into,
        report=output.note,
    )
    failed = [name for name, one in found["suites"].items() if "error" in one]
    print(into)
    return 1 if failed else 0


@bench.command(name="report", help_epilogue="")
def bench_report(
    measured: Path,
    *,
    into: Path = Path("BENCHMARKS.md"),
    plots: Path | None = None,
    readme: Path | None = None,
) -> None:
    """Make a page of what `bench all` measured: each aim with its figure, met or missed.

    Parameters
    ----------
    measured
        The file that `bench all` wrote.
    into
        The page.
    plots
        A folder for pictures (extra `plots`); none are drawn without it.
    readme
        A page whose table of commits beside pylance is updated.
    """
    found = json.loads(measured.read_text(encoding="utf-8"))
    into.write_text(suite("report").page(found), encoding="utf-8")
    print(into)
    if readme is not None:
        made = suite("report").with_table(readme.read_text(encoding="utf-8"), found)
        readme.write_text(made, encoding="utf-8")
        print(readme)
    if plots is not None:
        need_module("matplotlib", extra="plots", command="bench report")
        for path in suite("pictures").draw(found, plots):
            print(path)
