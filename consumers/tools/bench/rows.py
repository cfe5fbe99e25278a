"""`commitlog bench rows`: upserts of a few rows by many processes, beside Lance's and LanceDB's.

A table of 100,000 rows, or as many as asked; each writer upserts rows by key again and again:
`uniform`, where at any moment no two have the same keys, or `hot`, where all have the same hundred.
In turns, each round on a fresh table:

- `pylance`: `LanceDataset.merge_insert`, told when it returns.
- `memwal`: `ShardWriter.put` of pylance's MemWAL, durable, told when it returns: by then the rows
  are in a write-ahead log and in no version. A shard has one owner, so each writer has a shard of
  its own, and for hot keys there is one writer.
- `lancedb`: `merge_insert` of a table with an `LsmWriteSpec`, which writes the same log. One
  process writes it, as its shard demands.
- `accepted`: `log.write_rows`, told when the rows are in the log. The rate counts until a version
  has the last of them: what is accepted faster than it is applied gains nothing.
- `readable`: the same, each writer waiting until the version that has its rows opens by path.

A service with a row writer must run (`commitlog up`).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any
from uuid import UUID

import lance
import numpy as np
import pyarrow as pa

from commitlog import CommitLog
from commitlog.client.leader.row_tickets import RowsWait
from consumers.tools.bench.measure import Commit, Report, Round, medians, run_round
from consumers.tools.bench.peers import drop

PEER = "pylance"
MEMWAL, LANCEDB = "memwal", "lancedb"
UNIFORM, HOT = "uniform", "hot"
HOT_KEYS = 100
WAITS: tuple[RowsWait, ...] = ("accepted", "readable")
ROWS = 100_000
CHANGED = -1.0
NAMESPACE = "bench"
DRAIN_SECONDS = 300.0
WARM_UP_WRITES = 20
FAILURE_CHARACTERS = 300
IN_NO_VERSION = "verified: durable by its own word, in no version yet"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64())])
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        pa.field("x", pa.float64()),
    ]
)


@dataclass(frozen=True, slots=True)
class Load:
    """What is written to which table."""

    batch: int
    writers: int
    rows: int = ROWS
    keys: str = UNIFORM
    indexed: bool = False
    """Whether the key has a BTREE index."""

    @property
    def distinct(self) -> int:
        """How many keys are written at all."""
        return self.rows if self.keys == UNIFORM else min(self.rows, max(HOT_KEYS, self.batch))

    def source(self, number: int, schema: pa.Schema = SCHEMA) -> Callable[[], pa.Table]:
        """Return what gives a writer's next rows."""
        turn = number

        def rows() -> pa.Table:
            nonlocal turn
            first, turn = turn * self.batch, turn + self.writers
            ids = [(first + at) % self.distinct for at in range(self.batch)]
            return pa.table({"id": ids, "x": [CHANGED] * self.batch}, schema=schema)

        return rows


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    writers: Sequence[int] = (8, 32),
    batches: Sequence[int] = (1, 100),
    rows: Sequence[int] = (ROWS,),
    keys: Sequence[str] = (UNIFORM,),
    indexed: bool = False,
    rounds: int = 3,
    seconds: float = 5.0,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is called with each round as it ends."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    measured: list[tuple[Load, Round]] = []
    target = (bootstrap_servers, log_name)
    report("warming up")
    _warm_up(log)
    loads = [
        Load(batch=batch, writers=count, rows=size, keys=kind, indexed=indexed)
        for size in rows
        for kind in keys
        for batch in batches
        for count in writers
    ]
    for load in loads:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
                for system, measure in _turn(log, target, load, seconds, folder):
                    one = _ended(system, load, measure)
                    measured.append((load, one))
                    report(line(load, one))
    log.close()
    return {
        "rounds": [{**one.to_json(), **asdict(load)} for load, one in measured],
        "summary": summary(measured),
    }


def _turn(
    log: CommitLog, target: tuple[str, str], load: Load, seconds: float, folder: str
) -> Iterator[tuple[str, Callable[[], Round]]]:
    yield PEER, partial(_pylance, f"{folder}/plain", load, seconds)
    yield MEMWAL, partial(_memwal, f"{folder}/memwal", load, seconds)
    if find_spec("lancedb"):
        yield LANCEDB, partial(_lancedb, f"{folder}/lancedb", load, seconds)
    for wait in WAITS:
        yield wait, partial(_ours, log, target, wait, load, seconds)


def _ended(system: str, load: Load, measure: Callable[[], Round]) -> Round:
    """Return a round, or what it failed of: others may have run for an hour before it."""
    try:
        return measure()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"[:FAILURE_CHARACTERS]
        return Round(system, load.writers, failures=1, failure=said, verified="FAILED")


def line(load: Load, measured: Round) -> str:
    """Describe a round in one line."""
    return f"{load.batch:3} rows each, {load.keys}, into {load.rows:,}: {measured}"


def summary(measured: Sequence[tuple[Load, Round]]) -> list[dict[str, Any]]:
    """Compare medians with pylance's, per load."""
    found = []
    for load, system in dict.fromkeys((load, one.system) for load, one in measured):
        own = medians([one for of, one in measured if (of, one.system) == (load, system)])
        peer = medians([one for of, one in measured if (of, one.system) == (load, PEER)])
        rate, theirs = own["commits_per_second"], peer["commits_per_second"]
        found.append(
            {
                **own,
                "batch": load.batch,
                "rows": load.rows,
                "keys": load.keys,
                "writes_per_second": rate,
                "rows_per_second": rate * load.batch,
                "times_pylance": rate / theirs if theirs else None,
            }
        )
    return found


def start_rows(rows: int = ROWS, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return the rows of a table before a round."""
    numbers = pa.array(np.arange(rows))
    return pa.table({"id": numbers, "x": numbers.cast(pa.float64())}, schema=schema)


def _table(log: CommitLog, load: Load) -> str:
    table = f"{NAMESPACE}$r{time.time_ns()}"
    log.create_table(table, SCHEMA, primary_key="id", policy="latest")
    log.append(table, start_rows(load.rows), timeout=DRAIN_SECONDS).raise_for_conflict()
    if load.indexed:
        log.create_index(table, "id", "BTREE")
    return table


def _warm_up(log: CommitLog) -> None:
    load = Load(1, 1)
    table = _table(log, load)
    commit = _commit_of(log, table, "readable", load, 0)
    for _ in range(WARM_UP_WRITES):
        commit()
    drop(log, table)


def _pylance(uri: str, load: Load, seconds: float) -> Round:
    dataset = lance.write_dataset(start_rows(load.rows), uri)
    if load.indexed:
        dataset.create_scalar_index("id", "BTREE")
    measured = run_round(PEER, load.writers, seconds, prepare_pylance, uri, load)
    return checked(measured, load, lance.dataset(uri), slack=measured.failures)


def _memwal(uri: str, load: Load, seconds: float) -> Round:
    owners = load.writers if load.keys == UNIFORM else 1
    load = replace(load, writers=owners)
    lance.write_dataset(start_rows(load.rows, KEYED), uri).initialize_mem_wal()
    measured = run_round(MEMWAL, owners, seconds, prepare_memwal, uri, load)
    return replace(measured, verified=IN_NO_VERSION)


def _lancedb(uri: str, load: Load, seconds: float) -> Round:
    from lancedb import LsmWriteSpec, connect

    made: Any = connect(uri).create_table("t", start_rows(load.rows, KEYED))
    made.set_lsm_write_spec(LsmWriteSpec.unsharded())
    load = replace(load, writers=1)
    measured = run_round(LANCEDB, 1, seconds, prepare_lancedb, uri, load)
    return replace(measured, verified=IN_NO_VERSION)


def _ours(
    log: CommitLog, target: tuple[str, str], wait: RowsWait, load: Load, seconds: float
) -> Round:
    table = _table(log, load)
    measured = run_round(wait, load.writers, seconds, prepare_ours, *target, table, wait, load)
    ended = time.perf_counter()
    _drain(log, table)
    whole = measured.seconds + time.perf_counter() - ended
    measured = replace(measured, commits_per_second=measured.commits / whole)
    measured = checked(measured, load, log.open(table), slack=0)
    drop(log, table)
    return measured


def _drain(log: CommitLog, table: str) -> None:
    """Wait until all that was accepted is in a version."""
    runtime, deadline = log.runtime(), time.monotonic() + DRAIN_SECONDS
    name = log.table(table).table_id
    while runtime.request(0, "rows_pending", table=list(name))[0]["pending"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"writes to {table} are still not applied; does a row writer run?")
        time.sleep(0.01)


def checked(measured: Round, load: Load, dataset: lance.LanceDataset, slack: int) -> Round:
    """Compare the rows of a round's table with its writes; up to `slack` more may have landed."""
    rows, changed = dataset.count_rows(), dataset.count_rows(f"x = {CHANGED}")
    most = min(load.distinct, (measured.landed + slack) * load.batch)
    fits = rows == load.rows and 0 < changed <= most
    return measured.judged(fits, f"{changed} rows changed")


def prepare_pylance(uri: str, load: Load, number: int) -> Commit:
    """Return what upserts the writer's next rows by pylance, with a warm handle."""
    source, dataset = load.source(number), lance.dataset(uri)

    def merge() -> None:
        builder = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(source())

    return merge


def prepare_memwal(uri: str, load: Load, number: int) -> Commit:
    """Return what puts the writer's next rows into a shard of its own."""
    source = load.source(number, KEYED)
    shard = lance.dataset(uri).mem_wal_writer(str(UUID(int=number + 1)), durable_write=True)

    def put() -> None:
        shard.put(source())

    return put


def prepare_lancedb(uri: str, load: Load, number: int) -> Commit:
    """Return what upserts the writer's next rows by LanceDB's LSM writes."""
    from lancedb import connect

    source, table = load.source(number, KEYED), connect(uri).open_table("t")

    def merge() -> None:
        builder = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        builder.execute(source())

    return merge


def prepare_ours(
    servers: str, log_name: str, table: str, wait: RowsWait, load: Load, number: int
) -> Commit:
    """Return what upserts the writer's next rows through the log."""
    log = CommitLog.connect(servers, log=log_name)
    return _commit_of(log, table, wait, load, number)


def _commit_of(log: CommitLog, table: str, wait: RowsWait, load: Load, number: int) -> Commit:
    source = load.source(number)

    def upsert() -> None:
        ticket = log.write_rows(table, source(), mode="upsert")
        ticket.result(timeout=120, wait=wait).raise_for_conflict()

    return upsert
