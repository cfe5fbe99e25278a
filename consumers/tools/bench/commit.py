"""`commitlog bench commit`: appends of pre-written fragments to one table, ours beside its peers.

Every commit of ours and of pylance's appends a fragment that names the same data file of 100 rows
and 4 columns, so the data write is excluded and the work is the commit alone; `peers` says what
the others do. All use a warm handle and their default retries, as their users do. Rounds of all
systems alternate, each on a fresh table; after each one rows, versions and ids are checked. Ours
are acknowledged when readable. `pipelined` writers keep many commits in flight: that is what the
log takes, where one in flight per writer asks how soon it answers.

Beside them stand two floors: a bare two-hop round trip through the same broker, and the disk's
fsync. Where the service was started for the measurement, the CPU time of its parts is told.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance

from commitlog import CommitLog
from consumers.tools.bench.environment import fsync_ms, service_cpu_seconds
from consumers.tools.bench.floor import two_hop_ms
from consumers.tools.bench.measure import (
    Commit,
    Report,
    Round,
    compared,
    percentile,
    run_round,
    spread,
)
from consumers.tools.bench.peers import (
    DELTA,
    LANCEDB,
    PEERS,
    PYLANCE,
    ROWS,
    drop,
    installed,
    run_peer,
    table_and_fragment,
    text_of,
)

WARM_UP_COMMITS = 20_000
"""Before the first round: the broker's virtual machine compiles what it runs often."""
WARM_UP_SHARE = 2000
"""So many of them by one writer are followed by a second of a round that isn't counted: many
writers' small requests take other ways through the broker than one writer's large ones."""
PEER_WRITERS_MAX = 32
"""Of the peers other than pylance: with more, most of theirs fail, and a round takes minutes."""
PIPELINED = ("latest", 4)
"""The policy and the number of writers that keep many commits in flight."""
IN_FLIGHT = 200


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    writers: Sequence[int] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    policies: Sequence[str] = ("latest", "every"),
    peers: Sequence[str] = (PYLANCE, LANCEDB, DELTA),
    warm_up: int = WARM_UP_COMMITS,
    service_pid: int = 0,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is called with each round as it ends.

    `service_pid` is the supervisor's where this service was started for the measurement.
    """
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    measured: list[Round] = []
    two_hops: list[tuple[float, float]] = []
    fsyncs: list[float] = []
    cpu: list[dict[str, Any]] = []
    found = installed(tuple(peers))
    _warm_up(log, warm_up, report)

    def take(one: Callable[[], Round], *, is_ours: bool) -> None:
        before = service_cpu_seconds(service_pid) if is_ours and service_pid else {}
        measured.append(one())
        report(str(measured[-1]))
        if before:
            cpu.append(_cpu_per_commit(before, service_cpu_seconds(service_pid), measured[-1]))

    target = (bootstrap_servers, log_name)
    if warm_up_seconds := warm_up / WARM_UP_SHARE:
        run_ours(log, target, "latest", max(writers), warm_up_seconds)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        for count in writers:
            for number in range(rounds):
                two_hops.append(two_hop_ms(bootstrap_servers))
                fsyncs += fsync_ms(Path(folder))
                report(f"bare two-hop round trip: p50 {two_hops[-1][0]:.2f} ms")
                for peer in found:
                    if count <= PEER_WRITERS_MAX or peer.name == PYLANCE:
                        location = f"{folder}/{peer.name}-{count}-{number}"
                        take(lambda: run_peer(peer, location, count, seconds), is_ours=False)  # noqa: B023
                for policy in policies:
                    take(lambda: run_ours(log, target, policy, count, seconds), is_ours=True)  # noqa: B023
        for _ in range(rounds):
            take(lambda: run_ours(log, target, *PIPELINED, seconds, IN_FLIGHT), is_ours=True)
    fsyncs.sort()
    floor = statistics.median(p50 for p50, _ in two_hops)
    return {
        "peers": [{"name": peer.name, "is_same_work": peer.is_same_work} for peer in found],
        "two_hop_p50_ms": floor,
        "two_hop_p99_ms": statistics.median(p99 for _, p99 in two_hops),
        "two_hop_p50_spread": spread([p50 for p50, _ in two_hops]),
        "fsync_p50_ms": percentile(fsyncs, 0.5),
        "fsync_p99_ms": percentile(fsyncs, 0.99),
        "rounds": [one.to_json() for one in measured],
        "service_cpu": cpu,
        "summary": summary(measured, floor),
    }


def summary(measured: Sequence[Round], floor_ms: float) -> list[dict[str, Any]]:
    """Compare medians with pylance's per number of writers, and with the floor."""
    rows = compared(measured, "times_pylance", lambda system: PYLANCE)
    for row in rows:
        row["is_peer"] = any(row["system"] == known.name for known in PEERS)
        row["p50_times_two_hop"] = row["p50_ms"] / floor_ms
    return rows


def _cpu_per_commit(
    before: dict[str, float], after: dict[str, float], measured: Round
) -> dict[str, Any]:
    """Return the CPU time of the service's parts per commit of a round, set-up included."""
    commits = max(measured.commits, 1)
    parts = {
        name: (seconds - before.get(name, 0.0)) / commits * 1000 for name, seconds in after.items()
    }
    return {"system": measured.system, "writers": measured.writers, "ms_per_commit": parts}


def _warm_up(log: CommitLog, commits: int, report: Report) -> None:
    report(f"warming up with {commits} commits")
    table, fragment = table_and_fragment(log)
    operation = lance.LanceOperation.Append([fragment])
    for _ in range(commits // 100):
        tickets = [log.submit(table, operation, read_version=1) for _ in range(100)]
        for ticket in tickets:
            ticket.result(timeout=60).raise_for_conflict()
    log.drop_table(table)


def run_ours(
    log: CommitLog,
    target: tuple[str, str],
    policy: str,
    writers: int,
    seconds: float,
    in_flight: int = 1,
) -> Round:
    """Run one round on a fresh table of ours; compare rows and versions with the commits.

    `target` reaches the log. Each writer has so many commits in flight.
    """
    system = f"commitlog {policy if in_flight == 1 else 'pipelined'}"
    table, fragment = table_and_fragment(log, policy)
    outcome = log.submit(table, lance.LanceOperation.Append([fragment])).result()
    outcome.raise_for_conflict()
    arguments = (*target, table, outcome.version, text_of(fragment), in_flight)
    measured = run_round(system, writers, seconds, prepare_ours, *arguments)
    # A pipelined writer's call is as many commits as it keeps in flight.
    measured = replace(
        measured,
        commits=measured.commits * in_flight,
        unmeasured=measured.unmeasured * in_flight,
        commits_per_second=measured.commits_per_second * in_flight,
        writer_cpu_ms=measured.writer_cpu_ms / in_flight,
    )
    expected, versions = (measured.landed + 1) * ROWS, log.table(table).version
    found = lance.dataset(log.table(table).location).count_rows()
    # Each commit has a version of its own; maintenance, which runs beside them, may add some.
    fits = found == expected and versions >= measured.landed + outcome.version
    drop(log, table)
    return measured.judged(fits, f"{found} rows, {versions} versions")


def prepare_ours(
    bootstrap_servers: str,
    log_name: str,
    table: str,
    read_version: int,
    fragment_json: str,
    in_flight: int,
    number: int,
) -> Commit:
    """Return what submits so many appends at once and waits until they can be read."""
    fragment = lance.FragmentMetadata.from_json(fragment_json)
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    log.table(table)

    def commit() -> None:
        operation = lance.LanceOperation.Append([fragment])
        tickets = [
            log.submit(table, operation, read_version=read_version) for _ in range(in_flight)
        ]
        for ticket in tickets:
            ticket.result(timeout=60).raise_for_conflict()

    return commit
