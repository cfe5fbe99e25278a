"""The commands that measure what a log costs under load, with age and from its beginning; and all.

Each suite is told about in `consumers/tools/bench/`, at the top of its module.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from commitlog.errors import InvalidRequest
from consumers.commands import output
from consumers.commands.jobs import need_module, own_service, service_for
from consumers.commands.options import HERE, AsJsonReport, Flag, Where
from consumers.commands.output import Column


def bench_merge(
    *,
    where: Where = HERE,
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure deletes and merges of one fragment's rows beside pylance's own, in turns.

    Uses the given cluster, or starts a temporary service of its own.

    Parameters
    ----------
    writers
        Numbers of writer processes to measure with; may be repeated.
    rounds
        How often each is measured.
    seconds
        How long one measurement takes.
    """
    merge = need_module("consumers.tools.bench.merge", extra="bench")
    with service_for(where.load()) as (servers, log):
        report = merge.run(
            servers,
            log,
            writers=tuple(writers),
            rounds=rounds,
            seconds=seconds,
            report=output.note,
        )
    output.print_report(report, (MERGE, "summary"), as_json=as_json)


def bench_rows(
    *,
    where: Where = HERE,
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (8, 32),
    batches: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 100),
    rows: Annotated[tuple[int, ...], Parameter(negative="")] = (100_000,),
    keys: Annotated[tuple[Literal["uniform", "hot"], ...], Parameter(negative="")] = ("uniform",),
    indexed: Flag = False,
    rounds: int = 3,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure small upserts of many processes beside merge_insert, MemWAL and LanceDB, in turns.

    Uses the given cluster, or starts a temporary service of its own.

    Parameters
    ----------
    writers
        Numbers of writer processes to measure with; may be repeated.
    batches
        Rows of one upsert; may be repeated.
    rows
        Rows of the table; may be repeated.
    keys
        uniform: no two writers share keys at a time; hot: all write the same hundred keys.
    indexed
        Give the key a BTREE index, pylance's table and ours.
    rounds
        How often each is measured.
    seconds
        How long one measurement takes.
    """
    bench = need_module("consumers.tools.bench.rows", extra="bench")
    with service_for(where.load()) as (servers, log):
        report = bench.run(
            servers,
            log,
            writers=tuple(writers),
            batches=tuple(batches),
            rows=tuple(rows),
            keys=tuple(keys),
            indexed=indexed,
            rounds=rounds,
            seconds=seconds,
            report=output.note,
        )
    output.print_report(report, (ROWS, "summary"), as_json=as_json)


def bench_growth(
    *,
    where: Where = HERE,
    commits: int = 200,
    as_json: AsJsonReport = False,
) -> None:
    """Measure a lone writer's commits as tables grow and age, and over many tables at once.

    Uses the given cluster, or starts a temporary service of its own.

    Parameters
    ----------
    commits
        Commits of each measurement.
    """
    growth = need_module("consumers.tools.bench.growth", extra="bench")
    with service_for(where.load()) as (servers, log):
        report = growth.run(servers, log, commits=commits, report=output.note)
    output.print_report(
        report, (POINTS, "points"), (ALONE, "alone"), (RATIOS, "ratios"), as_json=as_json
    )


def bench_replay(
    *,
    transactions: int = 1_000_000,
    decisions: int = 50_000,
    as_json: AsJsonReport = False,
) -> None:
    """Measure deciding, verifying and taking over, on a generated log in memory.

    A million transactions take some minutes to make and 2 GB of memory.

    Parameters
    ----------
    transactions
        How many transactions the log has.
    decisions
        How many the bare machine decides in each round.
    """
    replay = need_module("consumers.tools.bench.replay", extra="bench")
    report = replay.run(transactions=transactions, decisions=decisions, report=output.note)
    if as_json:
        output.print_json(report)
        return
    takeover = report["takeover"]
    works = (
        ("decided and applied, nothing else", report["decision"]),
        ("decided, encoded and chained", report["generated"]),
        ("hashes, order and answers verified", report["chain"]),
        ("the same, and every outcome decided again", report["decided_again"]),
    )
    rows = [{"work": name, **found} for name, found in works]
    output.print_listing(REPLAY, rows, as_json=False, nothing="nothing was measured")
    print(
        f"\ntakeover with {takeover['behind_checkpoint']:,} transactions behind the checkpoint and"
        f" {takeover['after_checkpoint']:,} after it: {takeover['seconds']:.2f} s"
        f" ({takeover['cpu_seconds']:.2f} s of CPU)"
    )


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

    Each round has a service and writers of its own tree. Takes about a minute for a pair.

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
    bench = need_module("consumers.tools.bench.against", extra="bench")
    report = bench.run(ref, writers=writers, pairs=pairs, seconds=seconds, report=output.note)
    output.print_report(report, (AGAINST, "summary"), as_json=as_json)


def bench_all(
    *,
    into: Path = Path("bench.json"),
    quick: Annotated[bool, Parameter(negative="")] = False,
    suites: Annotated[tuple[str, ...], Parameter(name="--suite", negative="")] = (),
    keep: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Run every suite in turn, with a service of their own; `bench report` makes a page of it.

    Give it the machine to itself: about an hour, or ten minutes with --quick.

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
    everything = need_module("consumers.tools.bench.everything", extra="bench")
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
        own_service,
        before=before,
        suites=suites or tuple(everything.SUITES),
        is_quick=quick,
        into=into,
        report=output.note,
    )
    failed = [name for name, one in found["suites"].items() if "error" in one]
    print(into)
    return 1 if failed else 0


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
    report = need_module("consumers.tools.bench.report", extra="bench")
    found = json.loads(measured.read_text(encoding="utf-8"))
    into.write_text(report.page(found), encoding="utf-8")
    print(into)
    if readme is not None:
        tables = need_module("consumers.tools.bench.readme", extra="bench")
        made = tables.with_table(readme.read_text(encoding="utf-8"), found)
        readme.write_text(made, encoding="utf-8")
        print(readme)
    if plots is not None:
        need_module("matplotlib", extra="plots")
        pictures = need_module("consumers.tools.bench.pictures", extra="bench")
        for path in pictures.draw(found, plots):
            print(path)


def _number(name: str, key: str, *, digits: int = 2) -> Column:
    return Column(
        name,
        lambda row: "" if row.get(key) is None else f"{row[key]:,.{digits}f}",
        is_number=True,
    )


def _text(name: str, of: Callable[[Any], str]) -> Column:
    return Column(name, of)


MERGE = (
    _text("work: system", lambda row: row["system"]),
    _number("writers", "writers", digits=0),
    _number("commits/s", "commits_per_second", digits=1),
    _number("times pylance", "times_pylance"),
    _number("p50 ms", "p50_ms", digits=1),
    _number("p99 ms", "p99_ms", digits=0),
    _number("failed", "failures", digits=0),
    _number("again per commit", "redone_per_commit"),
    _number("fastest/slowest", "fairness"),
)
ROWS = (
    _text("told", lambda row: row["system"]),
    _number("writers", "writers", digits=0),
    _number("rows each", "batch", digits=0),
    _text("keys", lambda row: row["keys"]),
    _number("of rows", "rows", digits=0),
    _number("writes/s", "writes_per_second", digits=0),
    _number("rows/s", "rows_per_second", digits=0),
    _number("times pylance", "times_pylance"),
    _number("p50 ms", "p50_ms", digits=1),
    _number("p99 ms", "p99_ms", digits=0),
    _number("failed", "failures", digits=0),
)
AGAINST = (
    _text("phase", lambda row: row["phase"]),
    _text("per commit", lambda row: row["figure"]),
    _number("this", "this", digits=3),
    _number("other", "other", digits=3),
    _number("ratio", "ratio"),
    _number("least", "least"),
    _number("greatest", "greatest"),
    _number("pairs", "pairs", digits=0),
)
POINTS = (
    _text("by", lambda row: row["curve"]),
    _number("at", "at", digits=0),
    _number("committed p50 ms", "committed_p50_ms"),
    _number("p99 ms", "committed_p99_ms"),
    _number("readable p50 ms", "readable_p50_ms"),
    _number("manifest bytes", "manifest_bytes", digits=0),
)
ALONE = (
    _text("curve", lambda row: row["curve"]),
    _number("at", "at", digits=0),
    _number("CPU µs", "cpu_us", digits=1),
    _number("manifest bytes", "manifest_bytes", digits=0),
    _number("its CPU ms", "manifest_cpu_ms"),
)
RATIOS = (
    _text("largest to smallest", lambda row: f"{row['curve']}: {row['of']}"),
    _number("ratio", "ratio"),
)
REPLAY = (
    _text("work", lambda row: row["work"]),
    _number("per second", "per_second", digits=0),
    _number("per second of CPU", "per_cpu_second", digits=0),
)
