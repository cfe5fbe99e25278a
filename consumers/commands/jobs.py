"""Commands that run a whole job: the demonstration and the measurements."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from cyclopts import Parameter

from commitlog.errors import CommitLogError, Unavailable
from commitlog.protocol import LOG_NAME_DEFAULT
from consumers.commands import output
from consumers.commands.options import HERE, AsJsonReport, Flag, Where
from consumers.commands.output import Column
from consumers.runtime.config import Config, ConfigurationError

STOP_SECONDS = 15.0


class JobFailed(CommitLogError):
    """The job did not come to its end: its message names what did not work."""


def demo(
    *,
    root: Path = Path("demo-data"),
    stay: Flag = False,
) -> int:
    """Run the main job on real data: the New York flights of 2013.

    Spark streams the flights into one table while eight processes change two more; at the end every
    row is compared with the source, and writers are measured beside Lance alone. An interrupted run
    is continued by starting it again.

    Parameters
    ----------
    root
        Folder of the demo; its broker, tables and index are kept there.
    stay
        Keep the service and its page open at the end, until Ctrl-C.
    """
    stage = need_module("consumers.tools.demo.stage", extra="demo")
    expected = (
        need_module("consumers.tools.demo.children", extra="demo").ChildFailed,
        need_module("consumers.tools.demo.source", extra="demo").NoData,
    )
    try:
        return int(stage.run_demo(root, stay=stay))
    except expected as error:
        raise JobFailed(str(error)) from error


CHECKS = (
    Column("operation", lambda row: row["operation"]),
    Column("missed versions", lambda row: f"{row['missed_versions']:,}", is_number=True),
    Column("fragments", lambda row: f"{row['fragments']:,}", is_number=True),
    Column("look-ups", lambda row: row["steps"], is_number=True),
    Column("CPU µs", lambda row: f"{row['microseconds']:.1f}", is_number=True),
)
RATIOS = (
    Column("largest to smallest", lambda row: row["curve"]),
    Column("look-ups", lambda row: f"{row['steps']:.2f}", is_number=True),
    Column("CPU time", lambda row: f"{row['time']:.2f}", is_number=True),
)


def bench_conflicts(*, as_json: AsJsonReport = False) -> None:
    """Measure the cost of conflict checks, by distance behind the head and size of the table.

    Needs no log: the checks run in this process, and CPU time is taken.
    """
    conflicts = need_module("consumers.tools.bench.conflicts", extra="bench")
    report = conflicts.run(report=output.note)
    output.print_report(report, (CHECKS, "points"), (RATIOS, "ratios"), as_json=as_json)


def bench_commit(
    *,
    where: Where = HERE,
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure commits per second and latencies beside pylance, lancedb and delta-rs, in turns.

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
    commit = need_module("consumers.tools.bench.commit", extra="bench")
    with service_for(where.load()) as (servers, log):
        report = commit.run(
            servers,
            log,
            writers=tuple(writers),
            rounds=rounds,
            seconds=seconds,
            report=output.note,
        )
    if as_json:
        output.print_json(report)
        return
    print(f"bare two-hop round trip: p50 {report['two_hop_p50_ms']:.2f} ms")
    output.print_listing(SUMMARY, report["summary"], as_json=False, nothing="nothing was measured")


SUMMARY = (
    Column("system", lambda row: row["system"]),
    Column("writers", lambda row: row["writers"], is_number=True),
    Column("commits/s", lambda row: f"{row['commits_per_second']:.0f}", is_number=True),
    Column("times pylance", lambda row: _ratio(row["times_pylance"]), is_number=True),
    Column("p50 ms", lambda row: f"{row['p50_ms']:.2f}", is_number=True),
    Column("times two hops", lambda row: _ratio(row["p50_times_two_hop"]), is_number=True),
    Column("p99 ms", lambda row: f"{row['p99_ms']:.1f}", is_number=True),
    Column("failed", lambda row: row["failures"], is_number=True),
    Column("fastest/slowest", lambda row: _ratio(row["fairness"]), is_number=True),
)


def bench_spark(
    *,
    where: Where = HERE,
    batches: int = 20,
    batch_rows: int = 10_000,
    read_rows: int = 2_000_000,
    rounds: int = 3,
    as_json: AsJsonReport = False,
) -> None:
    """Measure Spark's micro-batches beside plain Lance, and its reads beside Parquet, in turns.

    Uses the given cluster, or starts a temporary service of its own.

    Parameters
    ----------
    batches
        Micro-batches of each query, after those that warm up.
    batch_rows
        Rows of each micro-batch.
    read_rows
        Rows of the table that is read.
    rounds
        How often each is measured.
    """
    spark = need_module("consumers.tools.bench.spark", extra="bench")
    with service_for(where.load()) as (servers, log):
        report = spark.run(
            servers,
            log,
            batches=batches,
            batch_rows=batch_rows,
            read_rows=read_rows,
            rounds=rounds,
            report=output.note,
        )
    output.print_report(report, (SPARK, "summary"), as_json=as_json)


SPARK = (
    Column("what", lambda row: row["what"]),
    Column("commitlog", lambda row: row["commitlog"], is_number=True),
    Column("other", lambda row: row["other"]),
    Column("times", lambda row: _ratio(row["ratio"]), is_number=True),
    Column("failed", lambda row: row["failed"]),
)


def bench_iceberg(
    *,
    uri: str = "",
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 8, 32),
    rounds: int = 2,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure Iceberg commits beside pyiceberg's SqlCatalog on SQLite, in turns.

    Then one transaction over 100 tables, and what deciding costs as a table's history grows. Runs
    a service of its own in a temporary folder, unless an address is given.

    Parameters
    ----------
    uri
        The HTTP address of a running service, http://HOST:PORT.
    writers
        Numbers of writer processes to measure with; may be repeated.
    rounds
        How often each is measured.
    seconds
        How long one measurement takes.
    """
    report = _measured_over_http("consumers.tools.bench.iceberg", uri, writers, rounds, seconds)
    output.print_report(report, (ICEBERG, "summary"), as_json=as_json)
    many = report["tables"]
    print(
        f"\n{many['tables']} tables in one transaction: p50 {many['p50_ms']:.1f} ms,"
        f" p99 {many['p99_ms']:.1f} ms\n"
    )
    output.print_listing(HISTORY, report["snapshots"], as_json=False, nothing="")


def _measured_over_http(
    suite: str, uri: str, writers: tuple[int, ...], rounds: int, seconds: float
) -> dict[str, Any]:
    """Run a suite against a service's address, or against a service of its own."""
    bench = need_module(suite, extra="bench")
    with contextlib.ExitStack() as stack:
        address = uri or stack.enter_context(own_service()).http
        report: dict[str, Any] = bench.run(
            address, writers=tuple(writers), rounds=rounds, seconds=seconds, report=output.note
        )
    return report


ICEBERG = (
    Column("work: system", lambda row: row["system"]),
    Column("writers", lambda row: row["writers"], is_number=True),
    Column("commits/s", lambda row: f"{row['commits_per_second']:.1f}", is_number=True),
    Column("times SqlCatalog", lambda row: _ratio(row["times_sqlcatalog"]), is_number=True),
    Column("p50 ms", lambda row: f"{row['p50_ms']:.1f}", is_number=True),
    Column("p99 ms", lambda row: f"{row['p99_ms']:.0f}", is_number=True),
    Column("failed", lambda row: f"{row['failures']} of {row['tried']}", is_number=True),
    Column("writers' CPU ms", lambda row: f"{row['writer_cpu_ms']:.1f}", is_number=True),
)
HISTORY = (
    Column("snapshots", lambda row: row["snapshots"], is_number=True),
    Column("evaluate CPU ms", lambda row: f"{row['evaluate_ms']:.2f}", is_number=True),
    Column("whole commit CPU ms", lambda row: f"{row['commit_ms']:.2f}", is_number=True),
    Column("metadata bytes", lambda row: f"{row['metadata_bytes']:,}", is_number=True),
)


def bench_server(
    *,
    uri: str = "",
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    as_json: AsJsonReport = False,
) -> None:
    """Measure commits and questions over HTTP beside pylance's reference server, in turns.

    Without an address it starts a temporary service of its own.

    Parameters
    ----------
    uri
        The HTTP address of a running service, on this machine.
    writers
        Numbers of writer processes to measure with; may be repeated.
    rounds
        How often each is measured.
    seconds
        How long one measurement takes.
    """
    report = _measured_over_http("consumers.tools.bench.server", uri, writers, rounds, seconds)
    output.print_report(report, (SERVER, "summary"), as_json=as_json)
    if as_json:
        return
    many = report["tables"]
    print(
        f"\na version of each of {many['tables']} tables: {many['single_ms']:.0f} ms by single"
        f" requests, {many['batch_ms']:.0f} ms by one batch-commit\n"
    )
    output.print_listing(READS, report["reads"], as_json=False, nothing="")


SERVER = (
    Column("system", lambda row: row["system"]),
    Column("writers", lambda row: row["writers"], is_number=True),
    Column("commits/s", lambda row: f"{row['commits_per_second']:.1f}", is_number=True),
    Column("times reference", lambda row: _ratio(row["times_reference"]), is_number=True),
    Column("p50 ms", lambda row: f"{row['p50_ms']:.1f}", is_number=True),
    Column("p99 ms", lambda row: f"{row['p99_ms']:.0f}", is_number=True),
    Column("failed", lambda row: row["failures"], is_number=True),
    Column("fastest/slowest", lambda row: _ratio(row["fairness"]), is_number=True),
)
READS = (
    Column("question", lambda row: row["question"]),
    Column("pylance ms", lambda row: f"{row['pylance_ms']:.2f}", is_number=True),
    Column("round trip ms", lambda row: f"{row['round_trip_ms']:.2f}", is_number=True),
    Column("served ms", lambda row: f"{row['served_ms']:.2f}", is_number=True),
    Column("times both", lambda row: _ratio(row["times_both"]), is_number=True),
    Column("times both in turn", lambda row: _ratio(row["times_in_turn"]), is_number=True),
)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


@contextlib.contextmanager
def service_for(config: Config) -> Iterator[tuple[str, str]]:
    """Use the service that the settings name, or run one for as long as it is needed."""
    if config.bootstrap_servers:
        yield config.bootstrap_servers, config.log
        return
    with own_service(config.log) as own:
        yield own.servers, config.log


@dataclass(frozen=True, slots=True)
class OwnService:
    """A service that was started for a measurement."""

    servers: str
    """Kafka's HOST:PORT."""
    http: str
    pid: int
    """Of the supervisor, whose descendants are all the others."""
    root: Path


@contextlib.contextmanager
def own_service(log: str = LOG_NAME_DEFAULT, *flags: str) -> Iterator[OwnService]:
    """Run `commitlog up` in a temporary folder for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        command = [
            sys.executable,
            "-P",
            "-m",
            "consumers.cli",
            "up",
            "--root",
            folder,
            "--log",
            log,
            *flags,
        ]
        with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as up:
            try:
                assert up.stdout is not None
                ready = up.stdout.readline().split()
                if len(ready) < 4:
                    raise Unavailable("the service did not start: see its output above")
                yield OwnService(ready[3], ready[1], up.pid, Path(folder))
            finally:
                up.terminate()
                try:
                    up.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    up.kill()


SOURCE_ONLY = ("consumers.tools.bench", "consumers.tools.demo")


def need_module(name: str, *, extra: str) -> ModuleType:
    """Import what an extra installs; say which one if it isn't there."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(SOURCE_ONLY):
            raise ConfigurationError(
                f"`commitlog {extra}` is part of the source, not of the wheel: run it in a clone of"
                " the repository, after `make setup`"
            ) from error
        if error.name is not None and error.name.startswith(("consumers", "commitlog")):
            raise
        raise ConfigurationError(
            f"`commitlog {extra}` needs {error.name}: pip install 'lance-commitlog[{extra}]'"
        ) from error
