"""Commands that run a whole job: the demonstration and the measurements."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

from cyclopts import Parameter

from commitlog.errors import CommitLogError, Unavailable
from consumers import output
from consumers.commands.options import HERE, Where
from consumers.config import Config, ConfigurationError
from consumers.output import Column

STOP_SECONDS = 15.0


class JobFailed(CommitLogError):
    """The job did not come to its end: its message names what did not work."""


def demo(*, root: Path = Path("demo-data")) -> int:
    """Run the main job on real data: the New York flights of 2013.

    Spark streams the flights into one table while eight processes change two more; at the end
    every row is compared with the source. Interrupted, it goes on when it is started again.

    Parameters
    ----------
    root
        Folder of the demo: its broker, tables and index stay there to be looked at.
    """
    stage = _module("consumers.demo.stage", extra="demo")
    expected = (
        _module("consumers.demo.children", extra="demo").ChildFailed,
        _module("consumers.demo.source", extra="demo").NoData,
    )
    try:
        return int(stage.run_demo(root))
    except expected as error:
        raise JobFailed(str(error)) from error


def bench_commit(
    *,
    where: Where = HERE,
    writers: Annotated[tuple[int, ...], Parameter(negative="")] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    as_json: Annotated[bool, Parameter(name="--json", negative="", show_default=False)] = False,
) -> None:
    """Measure commits per second and latencies beside pylance's own commit, in turns.

    Uses the cluster that is named; without one, a service of its own in a temporary folder.

    Parameters
    ----------
    writers
        Numbers of writer processes to measure with; may be repeated.
    rounds
        How often each is measured.
    seconds
        How long one measurement takes.
    as_json
        Print the whole report as JSON.
    """
    commit = _module("consumers.bench.commit", extra="bench")
    with _service(where.load()) as (servers, log):
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
    Column("pylance p99", lambda row: f"{row['pylance_p99_ms']:.1f}", is_number=True),
    Column("failed", lambda row: row["failures"], is_number=True),
    Column("fastest/slowest", lambda row: _ratio(row["fairness"]), is_number=True),
)


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


@contextlib.contextmanager
def _service(config: Config) -> Iterator[tuple[str, str]]:
    """Use the service that the settings name, or run one for as long as it is needed."""
    if config.bootstrap_servers:
        yield config.bootstrap_servers, config.log
        return
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        command = [sys.executable, "-P", "-m", "consumers.cli", "up", "--root", folder]
        with subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True) as up:
            try:
                assert up.stdout is not None
                ready = up.stdout.readline().split()
                if len(ready) < 4:
                    raise Unavailable("the service did not start; what it said stands above")
                yield ready[3], config.log
            finally:
                up.terminate()
                try:
                    up.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    up.kill()


def _module(name: str, *, extra: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(("consumers", "commitlog")):
            raise
        raise ConfigurationError(
            f"`commitlog {extra}` needs {error.name}: pip install 'lance-commitlog[{extra}]'"
        ) from error
