"""`commitlog bench merge`: deletes and updates of single rows of one fragment, beside pylance's.

All writers change rows of the same fragment, no two of them the same row, so every commit but one
is late and none is in anybody's way. Three kinds of work, in turns, each round on a fresh table:

- `delete`: find a row by its id, delete it. `log.delete` beside `LanceDataset.delete`.
- `merge`: replace a row by its id. `log.merge_insert` beside `LanceDataset.merge_insert`.
- `prepared`: the commit of a delete whose deletion file was written before the round. The log
  carries it over newer deletions by the rows that it names; pylance's `commit` takes no such rows
  and refuses what is late, so its writer does the delete again on the newest version.

How often work was executed again is counted: ours by the outcomes' attempts, `prepared` by the
writer. pylance's delete and merge don't tell; the deletion files that they leave do, as far as
one per commit is what work done once would have left.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from consumers.tools.bench.measure import Commit, Report, Round, compared, run_round
from consumers.tools.bench.peers import drop

WORKS = ("delete", "merge", "prepared")
PEER, OURS = "pylance", "commitlog"
ROWS = 40_000
PREPARED = 100
"""Deletes that each writer of `prepared` stages before the round."""
TRIES_MAX = 200
WARM_UP_COMMITS = 20
NAMESPACE = "bench"
CHANGED = -1.0


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    writers: Sequence[int] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    works: Sequence[str] = WORKS,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is called with each round as it ends."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    measured: list[Round] = []
    _warm_up(log, works, report)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        for count in writers:
            for work in works:
                for number in range(rounds):
                    uri = f"{folder}/{work}-{count}-{number}"
                    measured.append(_pylance(uri, work, count, seconds))
                    report(str(measured[-1]))
                    target = (bootstrap_servers, log_name)
                    measured.append(_ours(log, target, work, count, seconds))
                    report(str(measured[-1]))
    log.close()
    return {
        "rows": ROWS,
        "rounds": [one.to_json() for one in measured],
        "summary": summary(measured),
    }


def summary(measured: Sequence[Round]) -> list[dict[str, Any]]:
    """Compare each work's medians with pylance's, per number of writers."""
    return compared(measured, "times_pylance", lambda system: f"{system.split(':')[0]}: {PEER}")


def rows_of_work() -> pa.Table:
    """Return the rows of the one fragment; a row's offset is its id."""
    numbers = pa.array(range(ROWS), pa.int64())
    return pa.table({"id": numbers, "x": numbers.cast(pa.float64())})


def changed_row(number: int) -> pa.Table:
    """Return what a row is replaced by."""
    return pa.table({"id": pa.array([number], pa.int64()), "x": pa.array([CHANGED])})


def _warm_up(log: CommitLog, works: Sequence[str], report: Report) -> None:
    """Do a little of each work: the leader starts what builds manifests of merges when it must."""
    report("warming up")
    for work in works:
        table = _table(log)
        commit = commit_of(log, table, work, 1, 0)
        for _ in range(WARM_UP_COMMITS):
            commit()
        drop(log, table)


def _table(log: CommitLog) -> str:
    table = f"{NAMESPACE}$m{time.time_ns()}"
    log.create_table(table, rows_of_work().schema, policy="latest")
    log.append(table, rows_of_work()).raise_for_conflict()
    return table


def _pylance(uri: str, work: str, writers: int, seconds: float) -> Round:
    dataset = lance.write_dataset(rows_of_work(), uri)
    system = f"{work}: {PEER}"
    measured = run_round(system, writers, seconds, prepare_pylance, uri, work, writers)
    if work != "prepared":
        files = len(os.listdir(Path(uri) / "_deletions")) if measured.commits else 0
        measured = replace(measured, redone=max(0, files - measured.landed))
    dataset = lance.dataset(uri)
    # A failed commit may have landed: pylance's caller can't know.
    return checked(measured, work, dataset, slack=measured.failures)


def _ours(
    log: CommitLog, target: tuple[str, str], work: str, writers: int, seconds: float
) -> Round:
    table = _table(log)
    system = f"{work}: {OURS}"
    measured = run_round(system, writers, seconds, prepare_ours, *target, table, work, writers)
    dataset = lance.dataset(log.table(table).location)
    measured = checked(measured, work, dataset, slack=0)
    drop(log, table)
    return measured


def checked(measured: Round, work: str, dataset: lance.LanceDataset, slack: int) -> Round:
    """Compare the rows of a round's table with its commits; up to `slack` more may have landed."""
    if work == "merge":
        found, rows = dataset.count_rows(f"x = {CHANGED}"), dataset.count_rows()
        fits = rows == ROWS
    else:
        found, fits = ROWS - dataset.count_rows(), True
    fits = fits and measured.landed <= found <= measured.landed + slack
    return measured.judged(fits, f"{found} rows changed")


def rows_of(writers: int, number: int) -> Iterator[int]:
    """Yield the rows of one writer, each once."""
    return iter(range(number, ROWS, writers))


def prepare_pylance(uri: str, work: str, writers: int, number: int) -> Commit:
    """Return what changes the writer's next row by pylance, with a warm handle."""
    rows, dataset = rows_of(writers, number), lance.dataset(uri)
    if work == "prepared":
        return _prepared_pylance(uri, rows)

    def delete() -> None:
        dataset.delete(f"id = {next(rows)}")

    def merge() -> None:
        source = changed_row(next(rows))
        dataset.merge_insert("id").when_matched_update_all().execute(source)

    return delete if work == "delete" else merge


def _staged(dataset: lance.LanceDataset, row: int) -> lance.LanceOperation.Delete:
    """Write the deletion file of one row more; return the operation that commits it."""
    fragment = dataset.get_fragment(0)
    assert fragment is not None
    predicate = f"id = {row}"
    updated = fragment.delete(predicate)
    assert updated is not None
    return lance.LanceOperation.Delete([updated], [], predicate)


def _prepared_pylance(uri: str, rows: Iterator[int]) -> Commit:
    first = lance.dataset(uri)
    staged = iter([(row, _staged(first, row)) for row in islice(rows, PREPARED)])

    def commit() -> int:
        row, operation = next(staged)
        dataset = first
        for redone in range(TRIES_MAX):
            try:
                lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
            except OSError as error:
                if "conflict" not in str(error).lower():
                    raise
                dataset = lance.dataset(uri)
                operation = _staged(dataset, row)
            else:
                return redone
        raise TimeoutError(f"row {row} was not deleted in {TRIES_MAX} tries")

    return commit


def prepare_ours(
    bootstrap_servers: str, log_name: str, table: str, work: str, writers: int, number: int
) -> Commit:
    """Return what changes the writer's next row through the log."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    return commit_of(log, table, work, writers, number)


def commit_of(log: CommitLog, table: str, work: str, writers: int, number: int) -> Commit:
    """Return what changes the next row of one of the writers."""
    rows = rows_of(writers, number)
    if work == "prepared":
        return _prepared_ours(log, table, rows)

    def delete() -> int:
        outcome = log.delete(table, f"id = {next(rows)}")
        outcome.raise_for_conflict()
        return outcome.attempt

    def merge() -> int:
        outcome = log.merge_insert(
            table, changed_row(next(rows)), "id", when_not_matched_insert_all=False
        )
        outcome.raise_for_conflict()
        return outcome.attempt

    return delete if work == "delete" else merge


def _prepared_ours(log: CommitLog, table: str, rows: Iterator[int]) -> Commit:
    dataset = lance.dataset(log.table(table).location)
    staged = iter([(row, _staged(dataset, row)) for row in islice(rows, PREPARED)])

    def commit() -> None:
        row, operation = next(staged)
        ticket = log.submit(
            table, operation, read_version=dataset.version, affected_rows={0: [row]}
        )
        ticket.result(timeout=60).raise_for_conflict()

    return commit
