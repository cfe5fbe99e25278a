"""The libraries that a commit is compared with: who they are, and what one commit of each is.

Each does the nearest to appending a pre-written fragment that its Python package offers, with a
warm handle, its default retries, and a table of its own on the local disk:

- pylance: `LanceDataset.commit` of an `Append` that names a data file written before. Same work.
- delta-rs: `DeltaTable.create_write_transaction` of an add action that names a Parquet file written
  before. Same work, and a hard link for each commit.
- lancedb: `Table.add` of the rows. It has no call that commits a fragment, so a data file of 100
  rows is written each time: more work than ours.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet

from commitlog import CommitLog
from consumers.tools.bench.measure import Commit, Round, run_round

ROWS = 100
PYLANCE, LANCEDB, DELTA = "pylance", "lancedb", "delta-rs"
TABLE = "t"


@dataclass(frozen=True, slots=True)
class Peer:
    """One library."""

    name: str
    package: str
    """What is imported."""
    is_same_work: bool
    create: Callable[[str], str]
    """Make a table at a location with one commit of rows; return what its writers are told."""
    prepare: Callable[..., Commit]
    count: Callable[[str], int]
    """Return the rows of the table at a location."""


def installed(names: tuple[str, ...]) -> list[Peer]:
    """Return the peers of these names that are installed."""
    return [peer for peer in PEERS if peer.name in names and find_spec(peer.package)]


def run_peer(peer: Peer, location: str, writers: int, seconds: float) -> Round:
    """Run one round on a fresh table; count its rows afterwards."""
    told = peer.create(location)
    measured = run_round(peer.name, writers, seconds, peer.prepare, location, told)
    expected, found = (measured.landed + 1) * ROWS, peer.count(location)
    # A failed commit may have landed: the caller can't know.
    fits = expected <= found <= expected + measured.failures * ROWS
    return measured.judged(fits, f"{found} rows")


def rows_of_work() -> pa.Table:
    """Return the rows that each commit appends."""
    numbers = pa.array(range(ROWS), pa.int64())
    return pa.table(
        {
            "id": numbers,
            "x": numbers.cast(pa.float64()),
            "y": numbers.cast(pa.float32()),
            "name": pa.array([f"row {n}" for n in range(ROWS)]),
        }
    )


def table_and_fragment(log: CommitLog, policy: str = "latest") -> tuple[str, Any]:
    """Make a table of ours; return its name, and a fragment of these rows to append to it."""
    table = f"bench$t{time.time_ns()}"
    log.create_table(table, rows_of_work().schema, policy=policy)
    info = log.table(table)
    [fragment] = lance.fragment.write_fragments(
        rows_of_work(), info.location, data_storage_version=info.data_storage_version
    )
    return table, fragment


def drop(log: CommitLog, table: str) -> None:
    """Drop a table of ours that was measured; it is no matter if that fails."""
    with suppress(Exception):
        log.drop_table(table)


def text_of(fragment: Any) -> str:
    """Return a fragment's JSON as text: pylance gives text or an object, by its version."""
    told = fragment.to_json()
    return told if isinstance(told, str) else json.dumps(told)


def _create_pylance(location: str) -> str:
    lance.write_dataset(rows_of_work(), location)
    [fragment] = lance.fragment.write_fragments(rows_of_work(), location)
    return text_of(fragment)


def prepare_pylance(location: str, told: str, number: int) -> Commit:
    """Return what commits one append by pylance."""
    return appending(lance.dataset(location), told)


def appending(dataset: lance.LanceDataset, told: str) -> Commit:
    """Return what appends a fragment that was written before, by a warm handle."""
    fragment = lance.FragmentMetadata.from_json(told)

    def commit() -> None:
        nonlocal dataset
        operation = lance.LanceOperation.Append([fragment])
        dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    return commit


def _count_pylance(location: str) -> int:
    return int(lance.dataset(location).count_rows())


def _create_lancedb(location: str) -> str:
    import lancedb

    lancedb.connect(location).create_table(TABLE, rows_of_work())
    return ""


def prepare_lancedb(location: str, told: str, number: int) -> Commit:
    """Return what adds the rows by lancedb."""
    import lancedb

    table, rows = lancedb.connect(location).open_table(TABLE), rows_of_work()

    def commit() -> None:
        table.add(rows)

    return commit


def _count_lancedb(location: str) -> int:
    import lancedb

    return int(lancedb.connect(location).open_table(TABLE).count_rows())


def _create_delta(location: str) -> str:
    import deltalake

    deltalake.write_deltalake(location, rows_of_work())
    path = Path(location) / "appended.parquet"
    pyarrow.parquet.write_table(rows_of_work(), path)
    return json.dumps({"path": path.name, "size": path.stat().st_size})


def prepare_delta(location: str, told: str, number: int) -> Commit:
    """Return what commits one add action by delta-rs."""
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    table, file, schema = DeltaTable(location), json.loads(told), rows_of_work().schema
    stats, done = json.dumps({"numRecords": ROWS}), 0

    def commit() -> None:
        nonlocal done
        # To Delta a path is one file however often it is added: each commit has a link of its own.
        name = f"{number}-{done}.parquet"
        os.link(Path(location) / file["path"], Path(location) / name)
        done += 1
        now = time.time_ns() // 1_000_000
        action = AddAction(name, file["size"], {}, now, True, stats)
        table.create_write_transaction([action], "append", schema)

    return commit


def _count_delta(location: str) -> int:
    """Return the rows of the files that the table's log has."""
    from deltalake import DeltaTable

    actions = pa.table(DeltaTable(location).get_add_actions(flatten=True))
    return sum(actions.column("num_records").to_pylist())


PEERS = (
    Peer(
        name=PYLANCE,
        package="lance",
        is_same_work=True,
        create=_create_pylance,
        prepare=prepare_pylance,
        count=_count_pylance,
    ),
    Peer(
        name=LANCEDB,
        package="lancedb",
        is_same_work=False,
        create=_create_lancedb,
        prepare=prepare_lancedb,
        count=_count_lancedb,
    ),
    Peer(
        name=DELTA,
        package="deltalake",
        is_same_work=True,
        create=_create_delta,
        prepare=prepare_delta,
        count=_count_delta,
    ),
)
