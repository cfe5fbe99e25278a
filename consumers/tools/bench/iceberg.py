"""`commitlog bench iceberg`: Iceberg commits to one table, ours beside pyiceberg's SqlCatalog.

Two kinds of work. `property`: each commit sets one property, so the work is the commit alone;
Iceberg lets the last writer win, so no writer has to lose. `append`: pyiceberg's own append of 100
rows, with its data and manifests; of writers that read the same snapshot all but one must redo
theirs, in any catalogue. Writers use pyiceberg as it is, with its default retries, and SqlCatalog
on SQLite; ours is measured over its REST address by pyiceberg too, and by plain HTTP requests.
Rounds alternate, each on a fresh table whose content is checked after it.
"""

from __future__ import annotations

import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog

from consumers.tools.bench.iceberg_cost import create_costs, snapshot_costs
from consumers.tools.bench.measure import Commit, Report, Round, compared, quantiles, run_round
from consumers.tools.bench.service import HttpService

ROWS = 100
TABLES = 100
"""Of the one transaction over many tables."""
CREATES = (10, 100, 1_000)
"""Tables that one record makes."""
NAMESPACE = "bench"
SQL = "SqlCatalog"


@dataclass(frozen=True, slots=True)
class System:
    """One way to commit, and the work that it is measured with."""

    name: str
    work: str
    catalog: Mapping[str, str]
    """What `load_catalog` is told."""
    prepare: Callable[..., Commit]


def run(
    uri: str,
    *,
    writers: Sequence[int] = (1, 8, 32),
    rounds: int = 2,
    seconds: float = 5.0,
    snapshots: Sequence[int] = (10, 100, 1_000, 10_000),
    report: Report = print,
) -> dict[str, Any]:
    """Measure the catalogue at an address; return a JSON-able report."""
    warnings.filterwarnings("ignore", module="pyiceberg")
    measured: list[Round] = []
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        systems = _systems(uri, folder)
        for system in systems[:3]:
            load_catalog(NAMESPACE, **system.catalog).create_namespace_if_not_exists(NAMESPACE)
        _warm_up(systems, report)
        for count in writers:
            for _ in range(rounds):
                for system in systems:
                    measured.append(_round(system, count, seconds))
                    report(str(measured[-1]))
        many = _many_tables(uri, rounds * 10)
        report(f"{TABLES} tables in one transaction: p50 {many['p50_ms']:.1f} ms")
    costs = snapshot_costs(snapshots, report)
    return {
        "rounds": [one.to_json() for one in measured],
        "summary": summary(measured),
        "tables": many,
        "snapshots": costs,
        "creates": create_costs(CREATES, report),
    }


def summary(measured: Sequence[Round]) -> list[dict[str, Any]]:
    """Compare medians with SqlCatalog's, per work and number of writers."""
    return compared(measured, "times_sqlcatalog", lambda system: f"{system.split(':')[0]}: {SQL}")


def _systems(uri: str, folder: str) -> list[System]:
    sql = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": Path(folder).as_uri(),
    }
    rest = {"type": "rest", "uri": uri}
    return [
        System(SQL, "property", sql, prepare_property),
        System("pyiceberg over REST", "property", rest, prepare_property),
        System("plain HTTP", "property", rest, prepare_plain),
        System(SQL, "append", sql, prepare_append),
        System("pyiceberg over REST", "append", rest, prepare_append),
    ]


def _warm_up(systems: Sequence[System], report: Report) -> None:
    report("warming up")
    for system in systems:
        _round(system, 1, 2.0)


def _round(system: System, writers: int, seconds: float) -> Round:
    catalog = load_catalog(NAMESPACE, **system.catalog)
    name = f"{NAMESPACE}.t{uuid.uuid4().hex[:12]}"
    catalog.create_table(name, rows_of_work().schema)
    what = f"{system.work}: {system.name}"
    measured = run_round(what, writers, seconds, system.prepare, dict(system.catalog), name)
    table = catalog.load_table(name)
    if system.work == "append":
        found = table.scan(selected_fields=("id",)).to_arrow().num_rows // ROWS
    else:
        found = sum(int(v) for k, v in table.properties.items() if k.startswith("writer-"))
    fits = measured.landed <= found <= measured.landed + measured.failures
    return measured.judged(fits, f"{found} commits in the table")


def rows_of_work() -> pa.Table:
    """Return the rows that each append writes."""
    numbers = pa.array(range(ROWS), pa.int64())
    return pa.table({"id": numbers, "x": numbers.cast(pa.float64())})


def prepare_property(catalog: Mapping[str, str], name: str, number: int) -> Commit:
    """Return what sets one property by pyiceberg; its value counts the commits."""
    warnings.filterwarnings("ignore", module="pyiceberg")
    table = load_catalog(NAMESPACE, **catalog).load_table(name)
    done = 0

    def commit() -> None:
        nonlocal done
        with table.transaction() as transaction:
            transaction.set_properties({f"writer-{number}": str(done + 1)})
        done += 1

    return commit


def prepare_append(catalog: Mapping[str, str], name: str, number: int) -> Commit:
    """Return what appends rows by pyiceberg to the table as it is."""
    warnings.filterwarnings("ignore", module="pyiceberg")
    table = load_catalog(NAMESPACE, **catalog).load_table(name)
    rows = rows_of_work()

    def commit() -> None:
        table.refresh()
        table.append(rows)

    return commit


def prepare_plain(catalog: Mapping[str, str], name: str, number: int) -> Commit:
    """Return what posts the same change of a property without any client library."""
    post = _poster(catalog["uri"])
    namespace, table = name.split(".")
    uuid_ = load_catalog(NAMESPACE, **catalog).load_table(name).metadata.table_uuid
    done = 0

    def commit() -> None:
        nonlocal done
        post([_change(namespace, table, str(uuid_), f"writer-{number}", done + 1)])
        done += 1

    return commit


def _change(namespace: str, table: str, uuid_: str, name: str, value: int) -> dict[str, Any]:
    return {
        "identifier": {"namespace": [namespace], "name": table},
        "requirements": [{"type": "assert-table-uuid", "uuid": uuid_}],
        "updates": [{"action": "set-properties", "updates": {name: str(value)}}],
    }


def _poster(uri: str) -> Callable[[list[dict[str, Any]]], bytes]:
    service = HttpService(uri)
    return lambda changes: service.post("/v1/transactions/commit", {"table-changes": changes})


def _many_tables(uri: str, count: int) -> dict[str, Any]:
    """Time transactions that change many tables at once."""
    catalog = load_catalog(NAMESPACE, type="rest", uri=uri)
    prefix = f"m{uuid.uuid4().hex[:8]}"
    made = [
        catalog.create_table(f"{NAMESPACE}.{prefix}_{number}", rows_of_work().schema)
        for number in range(TABLES)
    ]
    post = _poster(uri)
    latencies = []
    for value in range(1, count + 1):
        changes = [
            _change(NAMESPACE, table.name()[-1], str(table.metadata.table_uuid), "value", value)
            for table in made
        ]
        before = time.perf_counter()
        post(changes)
        latencies.append((time.perf_counter() - before) * 1000)
    wrong = [t.name() for t in made if t.refresh().properties.get("value") != str(count)]
    return {"tables": TABLES, "transactions": count, **quantiles("", latencies), "wrong": wrong}
