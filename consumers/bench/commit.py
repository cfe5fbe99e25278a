"""`commitlog bench commit`: appends of pre-written fragments to one table, ours beside pylance's.

Every commit of both systems appends a fragment that names the same data file of 100 rows and 4
columns, so the data write is excluded and the work is the commit alone. pylance commits with a
warm handle and its default retries, as its users do. Rounds alternate, each on a fresh table; after
each one rows, versions and ids are checked. Ours are acknowledged when readable.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version as package_version
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from consumers.bench.floor import two_hop_ms
from consumers.bench.measure import Commit, Round, run_round

ROWS = 100
WARM_UP_COMMITS = 20_000
"""Before the first round: the broker's virtual machine compiles what it runs often."""
NAMESPACE = "bench"

Report = Callable[[str], None]


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    writers: Sequence[int] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    policies: Sequence[str] = ("latest", "every"),
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is told of each round as it ends."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    measured: list[Round] = []
    floors: list[tuple[float, float]] = []
    _warm_up(log, report)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        for count in writers:
            for number in range(rounds):
                floors.append(two_hop_ms(bootstrap_servers))
                report(f"bare two-hop round trip: p50 {floors[-1][0]:.2f} ms")
                uri = f"{folder}/pylance-{count}-{number}"
                measured.append(_pylance(uri, count, seconds))
                report(line(measured[-1]))
                for policy in policies:
                    table = f"{NAMESPACE}$t{time.time_ns()}_{policy}"
                    measured.append(
                        _ours(log, bootstrap_servers, log_name, table, policy, count, seconds)
                    )
                    report(line(measured[-1]))
    return {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "pylance": package_version("pylance"),
            "confluent-kafka": package_version("confluent-kafka"),
        },
        "two_hop_p50_ms": statistics.median(p50 for p50, _ in floors),
        "two_hop_p99_ms": statistics.median(p99 for _, p99 in floors),
        "rounds": [one.to_json() for one in measured],
        "summary": summary(measured, statistics.median(p50 for p50, _ in floors)),
    }


def line(measured: Round) -> str:
    """Describe a round in one line."""
    return (
        f"{measured.system:16} {measured.writers:3} writers {measured.commits_per_second:8.0f} "
        f"commits/s  p50 {measured.p50_ms:7.2f}  p99 {measured.p99_ms:8.2f}  "
        f"max {measured.max_ms:8.1f} ms  failed {measured.failures}  "
        f"slowest:fastest {measured.slowest_writer}:{measured.fastest_writer}  "
        f"writers' CPU {measured.writer_cpu_ms:.2f} ms/commit  {measured.verified}"
        + (f"  first failure: {measured.failure}" if measured.failure else "")
    )


def summary(measured: Sequence[Round], floor_ms: float) -> list[dict[str, Any]]:
    """Compare medians per number of writers: ratios in this run, nothing else."""
    rows = []
    for count in sorted({one.writers for one in measured}):
        peers = [one for one in measured if one.writers == count and one.system == "pylance"]
        peer_rate = statistics.median(one.commits_per_second for one in peers)
        for system in sorted({one.system for one in measured} - {"pylance"}):
            ours = [one for one in measured if one.writers == count and one.system == system]
            if ours:
                rate = statistics.median(one.commits_per_second for one in ours)
                p50 = statistics.median(one.p50_ms for one in ours)
                rows.append(
                    {
                        "system": system,
                        "writers": count,
                        "commits_per_second": rate,
                        "times_pylance": rate / peer_rate if peer_rate else None,
                        "p50_ms": p50,
                        "p50_times_two_hop": p50 / floor_ms,
                        "p99_ms": statistics.median(one.p99_ms for one in ours),
                        "pylance_p99_ms": statistics.median(one.p99_ms for one in peers),
                        "failures": sum(one.failures for one in ours),
                        "pylance_failures": sum(one.failures for one in peers),
                        "fairness": max(one.fairness for one in ours),
                    }
                )
    return rows


def rows_of_work() -> pa.Table:
    """Return the rows whose fragment all commits append."""
    numbers = pa.array(range(ROWS), pa.int64())
    return pa.table(
        {
            "id": numbers,
            "x": numbers.cast(pa.float64()),
            "y": numbers.cast(pa.float32()),
            "name": pa.array([f"row {n}" for n in range(ROWS)]),
        }
    )


def _warm_up(log: CommitLog, report: Report) -> None:
    report(f"warming up with {WARM_UP_COMMITS} commits")
    table = f"{NAMESPACE}$warm_up_{time.time_ns()}"
    log.create_table(table, rows_of_work().schema, policy="latest")
    info = log.table(table)
    [fragment] = lance.fragment.write_fragments(
        rows_of_work(), info.location, data_storage_version=info.data_storage_version
    )
    operation = lance.LanceOperation.Append([fragment])
    for _ in range(WARM_UP_COMMITS // 100):
        tickets = [log.submit(table, operation, read_version=1) for _ in range(100)]
        for ticket in tickets:
            ticket.result(timeout=60).raise_for_conflict()
    log.drop_table(table)


def _pylance(uri: str, writers: int, seconds: float) -> Round:
    lance.write_dataset(rows_of_work(), uri)
    [fragment] = lance.fragment.write_fragments(rows_of_work(), uri)
    measured = run_round("pylance", writers, seconds, prepare_pylance, uri, fragment.to_json())
    dataset = lance.dataset(uri)
    expected = (measured.commits + 1) * ROWS
    found = dataset.count_rows()
    # A failed commit may have landed: pylance's caller can't know.
    fits = expected <= found <= expected + measured.failures * ROWS
    return _verified(measured, fits, f"{found} rows")


def prepare_pylance(uri: str, fragment_json: Any, number: int) -> Commit:
    """Return what commits one append with a warm handle."""
    fragment = lance.FragmentMetadata.from_json(_text(fragment_json))
    dataset = lance.dataset(uri)

    def commit() -> None:
        nonlocal dataset
        operation = lance.LanceOperation.Append([fragment])
        dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    return commit


def _ours(
    log: CommitLog,
    bootstrap_servers: str,
    log_name: str,
    table: str,
    policy: str,
    writers: int,
    seconds: float,
) -> Round:
    log.create_table(table, rows_of_work().schema, policy=policy)
    info = log.table(table)
    [fragment] = lance.fragment.write_fragments(
        rows_of_work(), info.location, data_storage_version=info.data_storage_version
    )
    outcome = log.submit(table, lance.LanceOperation.Append([fragment])).result()
    outcome.raise_for_conflict()
    arguments = (bootstrap_servers, log_name, table, outcome.version, fragment.to_json())
    measured = run_round(f"commitlog {policy}", writers, seconds, prepare_ours, *arguments)
    dataset = lance.dataset(info.location)
    expected = (measured.commits + 1) * ROWS
    versions = log.table(table).version
    found = dataset.count_rows()
    fits = found == expected and versions == measured.commits + outcome.version
    with suppress(Exception):
        log.drop_table(table)
    return _verified(measured, fits, f"{found} rows, {versions} versions")


def prepare_ours(
    bootstrap_servers: str,
    log_name: str,
    table: str,
    read_version: int,
    fragment_json: Any,
    number: int,
) -> Commit:
    """Return what submits one append and waits until it can be read."""
    fragment = lance.FragmentMetadata.from_json(_text(fragment_json))
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    log.table(table)

    def commit() -> None:
        operation = lance.LanceOperation.Append([fragment])
        ticket = log.submit(table, operation, read_version=read_version)
        ticket.result(timeout=60).raise_for_conflict()

    return commit


def _text(fragment_json: Any) -> str:
    return fragment_json if isinstance(fragment_json, str) else json.dumps(fragment_json)


def _verified(measured: Round, fits: bool, found: str) -> Round:
    return replace(measured, verified=("verified: " if fits else "WRONG: ") + found)
