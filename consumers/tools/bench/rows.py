"""`commitlog bench rows`: upserts of a few rows by many processes, beside pylance's merge_insert.

A table of 100,000 rows; each writer upserts rows by key again and again, no two the same keys at
the same time. In turns, each round on a fresh table:

- `pylance`: `LanceDataset.merge_insert`, told when it returns.
- `accepted`: `log.write_rows`, told when the rows are in the log. The rate counts until a version
  has the last of them: what is accepted faster than it is applied gains nothing.
- `readable`: the same, each writer waiting until the version that has its rows opens by path.

A service with a row writer must run (`commitlog up`).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from commitlog.client.row_tickets import RowsWait
from consumers.tools.bench.environment import environment
from consumers.tools.bench.measure import Commit, Round, run_round

PEER = "pylance"
WAITS: tuple[RowsWait, ...] = ("accepted", "readable")
ROWS = 100_000
CHANGED = -1.0
NAMESPACE = "bench"
DRAIN_SECONDS = 300.0
WARM_UP_WRITES = 20
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])

Report = Callable[[str], None]


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    writers: Sequence[int] = (8, 32),
    batches: Sequence[int] = (1, 100),
    rounds: int = 3,
    seconds: float = 5.0,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is told of each round as it ends."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    measured: list[tuple[int, Round]] = []
    target = (bootstrap_servers, log_name)
    report("warming up")
    _warm_up(log)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        for batch in batches:
            for count in writers:
                for number in range(rounds):
                    uri = f"{folder}/{batch}-{count}-{number}"
                    made = [_pylance(uri, batch, count, seconds)]
                    made += [_ours(log, target, wait, batch, count, seconds) for wait in WAITS]
                    for one in made:
                        measured.append((batch, one))
                        report(line(batch, one))
    log.close()
    return {
        "machine": environment(),
        "rows": ROWS,
        "rounds": [{**one.to_json(), "batch": batch} for batch, one in measured],
        "summary": summary(measured),
    }


def line(batch: int, measured: Round) -> str:
    """Describe a round in one line."""
    return (
        f"{measured.system:9} {measured.writers:3} writers of {batch:3} rows "
        f"{measured.commits_per_second:8.1f} writes/s  p50 {measured.p50_ms:7.1f}  "
        f"p99 {measured.p99_ms:8.1f} ms  failed {measured.failures}  {measured.verified}"
        + (f"  first failure: {measured.failure}" if measured.failure else "")
    )


def summary(measured: Sequence[tuple[int, Round]]) -> list[dict[str, Any]]:
    """Compare medians with pylance's, per batch and number of writers."""
    found = []
    for batch, system, count in dict.fromkeys((b, o.system, o.writers) for b, o in measured):
        of_it = [(b, o) for b, o in measured if (b, o.writers) == (batch, count)]
        own = [o for _, o in of_it if o.system == system]
        peer = statistics.median(o.commits_per_second for _, o in of_it if o.system == PEER)
        rate = statistics.median(o.commits_per_second for o in own)
        found.append(
            {
                "system": system,
                "writers": count,
                "batch": batch,
                "writes_per_second": rate,
                "rows_per_second": rate * batch,
                "times_pylance": rate / peer if peer else None,
                "p50_ms": statistics.median(o.p50_ms for o in own),
                "p99_ms": statistics.median(o.p99_ms for o in own),
                "failures": sum(o.failures for o in own),
                "fairness": max(o.fairness for o in own),
                "wrong": sum(not o.verified.startswith("verified") for o in own),
            }
        )
    return found


def start_rows() -> pa.Table:
    """Return the rows of a table before a round."""
    numbers = pa.array(range(ROWS), pa.int64())
    return pa.table({"id": numbers, "x": numbers.cast(pa.float64())}, schema=SCHEMA)


def _table(log: CommitLog) -> str:
    table = f"{NAMESPACE}$r{time.time_ns()}"
    log.create_table(table, SCHEMA, primary_key="id", policy="latest")
    log.append(table, start_rows()).raise_for_conflict()
    return table


def _warm_up(log: CommitLog) -> None:
    table = _table(log)
    commit = _commit_of(log, table, "readable", 1, 1, 0)
    for _ in range(WARM_UP_WRITES):
        commit()
    _drop(log, table)


def _drop(log: CommitLog, table: str) -> None:
    with suppress(Exception):
        log.drop_table(table)


def _pylance(uri: str, batch: int, writers: int, seconds: float) -> Round:
    lance.write_dataset(start_rows(), uri)
    measured = run_round(PEER, writers, seconds, prepare_pylance, uri, batch, writers)
    return checked(measured, batch, lance.dataset(uri), slack=measured.failures)


def _ours(
    log: CommitLog,
    target: tuple[str, str],
    wait: RowsWait,
    batch: int,
    writers: int,
    seconds: float,
) -> Round:
    table = _table(log)
    measured = run_round(wait, writers, seconds, prepare_ours, *target, table, wait, batch, writers)
    ended = time.perf_counter()
    _drain(log, table)
    whole = measured.seconds + time.perf_counter() - ended
    measured = replace(measured, commits_per_second=measured.commits / whole)
    measured = checked(measured, batch, log.open(table), slack=0)
    _drop(log, table)
    return measured


def _drain(log: CommitLog, table: str) -> None:
    """Wait until all that was accepted is in a version."""
    runtime, deadline = log.runtime(), time.monotonic() + DRAIN_SECONDS
    name = log.table(table).table_id
    while runtime.request(0, "rows_pending", table=list(name))[0]["pending"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"writes to {table} are still not applied; does a row writer run?")
        time.sleep(0.01)


def checked(measured: Round, batch: int, dataset: lance.LanceDataset, slack: int) -> Round:
    """Compare the rows of a round's table with its writes; up to `slack` more may have landed."""
    rows, changed = dataset.count_rows(), dataset.count_rows(f"x = {CHANGED}")
    most = min(ROWS, (measured.landed + slack) * batch)
    fits = rows == ROWS and 0 < changed <= most
    return replace(measured, verified=f"{'verified' if fits else 'WRONG'}: {changed} rows changed")


def _sources(writers: int, batch: int, number: int) -> Callable[[], pa.Table]:
    """Return what gives a writer's next rows: at any moment, no two writers have the same."""
    turn = number

    def source() -> pa.Table:
        nonlocal turn
        first, turn = turn * batch, turn + writers
        ids = [(first + at) % ROWS for at in range(batch)]
        return pa.table({"id": ids, "x": [CHANGED] * batch}, schema=SCHEMA)

    return source


def prepare_pylance(uri: str, batch: int, writers: int, number: int) -> Commit:
    """Return what upserts the writer's next rows by pylance, with a warm handle."""
    source, dataset = _sources(writers, batch, number), lance.dataset(uri)

    def merge() -> None:
        builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(source())

    return merge


def prepare_ours(
    servers: str, log_name: str, table: str, wait: RowsWait, batch: int, writers: int, number: int
) -> Commit:
    """Return what upserts the writer's next rows through the log."""
    log = CommitLog.connect(servers, log=log_name)
    return _commit_of(log, table, wait, batch, writers, number)


def _commit_of(
    log: CommitLog, table: str, wait: RowsWait, batch: int, writers: int, number: int
) -> Commit:
    source = _sources(writers, batch, number)

    def upsert() -> None:
        ticket = log.write_rows(table, source(), mode="upsert")
        ticket.result(timeout=120, wait=wait).raise_for_conflict()

    return upsert
