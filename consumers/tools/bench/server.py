"""`commitlog bench server`: commits over HTTP, ours beside pylance's own reference server.

Writers are unmodified pylance, with a warm handle and its default retries, on a table that a Lance
Namespace manages: each commit stages a manifest that appends one pre-written fragment and sends one
`version/create`. The server is this one, or pylance's `RestAdapter` over a directory that tracks
table versions. Rounds alternate, each on a fresh table whose rows are counted after it.

Then one version for each of many tables, staged alike: sent as single requests, one after another
on one connection, and as one `batch-commit`. And questions about few rows.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import lance
import lance_namespace
import pyarrow as pa
from lance.namespace import RestAdapter
from lance_namespace import CreateNamespaceRequest

from commitlog.adapters.lance_namespace import StagingNamespace, object_path
from consumers.tools.bench.measure import Commit, Report, Round, compared, run_round
from consumers.tools.bench.peers import ROWS, appending, rows_of_work
from consumers.tools.bench.service import HttpService

OURS, REFERENCE = "commitlog", "reference"
TABLES = 100
NAMESPACE = "bench"
WARM_UP_SECONDS = 3.0
READ_ROWS = 1000
ASKED, WARM_UP = 60, 100
FILTER, LIMIT = "id < 10", 10


def run(
    uri: str,
    *,
    writers: Sequence[int] = (1, 32),
    rounds: int = 3,
    seconds: float = 5.0,
    report: Report = print,
) -> dict[str, Any]:
    """Measure the server at `uri` and a reference server; return a JSON-able report."""
    measured: list[Round] = []
    with _reference() as reference:
        report("warming up")
        _round(OURS, uri, 4, WARM_UP_SECONDS)
        for count in writers:
            for _ in range(rounds):
                for system, address in ((REFERENCE, reference), (OURS, uri)):
                    measured.append(_round(system, address, count, seconds))
                    report(str(measured[-1]))
    batches = [_many_tables(uri) for _ in range(rounds)]
    many = {name: statistics.median(one[name] for one in batches) for name in batches[0]}
    return {
        "rounds": [one.to_json() for one in measured],
        "summary": compared(measured, "times_reference", lambda system: REFERENCE),
        "tables": {"tables": TABLES, **many},
        "reads": _reads(uri, rounds),
    }


@contextmanager
def _reference() -> Iterator[str]:
    """Run pylance's own server over a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        properties = {"root": folder, "table_version_tracking_enabled": "true"}
        adapter = RestAdapter("dir", properties, host="127.0.0.1", port=0)
        adapter.start()  # type: ignore[no-untyped-call]
        try:
            yield f"http://127.0.0.1:{adapter.port}"
        finally:
            adapter.stop()  # type: ignore[no-untyped-call]


def _connect(uri: str) -> Any:
    return lance_namespace.connect("rest", {"uri": uri})


def _round(system: str, uri: str, writers: int, seconds: float) -> Round:
    names, table = _connect(uri), [f"bench_{time.time_ns()}"]
    dataset = lance.write_dataset(
        rows_of_work(), namespace_client=names, table_id=table, mode="create"
    )
    [fragment] = lance.fragment.write_fragments(rows_of_work(), dataset.uri)
    text = json.dumps(fragment.to_json())
    measured = run_round(system, writers, seconds, prepare, uri, table, text)
    found = lance.dataset(namespace_client=names, table_id=table).count_rows()
    expected = (measured.landed + 1) * ROWS
    # A failed commit may have landed: pylance's caller can't know.
    fits = expected <= found <= expected + measured.failures * ROWS
    return measured.judged(fits, f"{found} rows")


def prepare(uri: str, table: list[str], text: str, number: int) -> Commit:
    """Return what commits one append with a warm handle."""
    return appending(lance.dataset(namespace_client=_connect(uri), table_id=table), text)


def _many_tables(uri: str) -> dict[str, float]:
    """Time one version of each table: by single requests, and by one batch."""
    names, space = _connect(uri), f"{NAMESPACE}_{time.time_ns()}"
    names.create_namespace(CreateNamespaceRequest(id=[space]))
    tables = [[space, f"t{number}"] for number in range(TABLES)]
    opened = [
        lance.write_dataset(rows_of_work(), namespace_client=names, table_id=table, mode="create")
        for table in tables
    ]
    service = HttpService(uri)
    single = [_staged(table, dataset.uri, 1) for table, dataset in zip(tables, opened, strict=True)]
    began = time.perf_counter()
    for body in single:
        service.post(f"/v1/table/{'$'.join(body['id'])}/version/create", body)
    singles = time.perf_counter() - began
    batch = [_staged(table, dataset.uri, 2) for table, dataset in zip(tables, opened, strict=True)]
    began = time.perf_counter()
    operations = [{"create_table_version": body} for body in batch]
    service.post("/v1/table/batch-commit", {"operations": operations})
    together = time.perf_counter() - began
    service.close()
    return {"single_ms": singles * 1000, "batch_ms": together * 1000}


def _staged(table: list[str], uri: str, head: int) -> dict[str, Any]:
    """Have pylance stage the version after `head`; return the request that commits it."""
    location = urlsplit(uri).path
    namespace = StagingNamespace(location, head)
    dataset = lance.dataset(namespace_client=namespace, table_id=table)
    dataset.insert(rows_of_work())
    [staged] = namespace.staged
    return {
        "id": table,
        "version": staged.version,
        "manifest_path": object_path(location, staged.path),
        "manifest_size": staged.size,
        "naming_scheme": staged.naming_scheme,
    }


def _reads(uri: str, rounds: int) -> list[dict[str, Any]]:
    """Return by question, in milliseconds, what pylance, a round trip and the server take.

    The table is small, so what is measured is the way there and back. Each round asks each thing
    many times, one after another on one connection, and takes the median; ratios are those within
    a round. Asked by itself again and again, pylance has its threads awake and its caches warm. So
    the two are also asked in turn, a round trip and then pylance, as by a program that has the rows
    itself.
    """
    table = [f"reads_{time.time_ns()}"]
    rows = pa.table({"id": range(READ_ROWS), "x": [i / 2 for i in range(READ_ROWS)]})
    names = lance_namespace.connect("rest", {"uri": uri})
    made = lance.write_dataset(rows, namespace_client=names, table_id=table, mode="create")
    dataset = lance.dataset(made.uri)
    service = HttpService(uri)

    def post(operation: str, **fields: Any) -> Callable[[], object]:
        path, body = f"/v1/table/{table[0]}/{operation}", {"id": table, **fields}
        return lambda: service.post(path, body)

    def trip_once() -> object:
        return service.get("/healthz")

    questions = {
        "count_rows": (lambda: dataset.count_rows(FILTER), post("count_rows", predicate=FILTER)),
        "query": (
            lambda: dataset.scanner(filter=FILTER, limit=LIMIT).to_table(),
            post("query", filter=FILTER, k=LIMIT, vector={}),
        ),
    }
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in questions}
    for _ in range(WARM_UP):
        for ask in (one for both in questions.values() for one in both):
            ask()
    for _ in range(rounds):
        trip = _median_ms(trip_once)
        for name, (local, served) in questions.items():
            alone, over = _median_ms(local), _median_ms(served)
            both = _median_ms(trip_once, local)
            found[name].append((alone, trip, both, over, over / (alone + trip), over / both))
    service.close()
    return [
        dict(
            zip(
                (
                    *("question", "pylance_ms", "round_trip_ms", "in_turn_ms", "served_ms"),
                    *("times_both", "times_in_turn"),
                ),
                (name, *map(statistics.median, zip(*taken, strict=True))),
                strict=True,
            )
        )
        for name, taken in found.items()
    ]


def _median_ms(*asks: Callable[[], object]) -> float:
    taken = []
    for _ in range(ASKED):
        before = time.perf_counter()
        for ask in asks:
            ask()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken) * 1000
