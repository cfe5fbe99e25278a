"""`commitlog bench server`: commits over HTTP, ours beside pylance's own reference server.

Writers are unmodified pylance, with a warm handle and its default retries, on a table that a Lance
Namespace manages: each commit stages a manifest that appends one pre-written fragment and sends one
`version/create`. The server is this one, or pylance's `RestAdapter` over a directory that tracks
table versions. Rounds alternate, each on a fresh table whose rows are counted after it.

Then one version for each of many tables, staged alike: sent as single requests, one after another
on one connection, and as one `batch-commit`. And questions about few rows (`reads`).
"""

from __future__ import annotations

import http.client
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version as package_version
from typing import Any
from urllib.parse import urlsplit

import lance
import lance_namespace
from lance.namespace import RestAdapter
from lance_namespace import CreateNamespaceRequest

from commitlog.adapters.lance_namespace import StagingNamespace, object_path
from consumers.tools.bench import reads
from consumers.tools.bench.measure import Commit, Round, run_round
from consumers.tools.bench.peers import ROWS, rows_of_work

OURS, REFERENCE = "commitlog", "reference"
TABLES = 100
NAMESPACE = "bench"
WARM_UP_SECONDS = 3.0
REQUEST_SECONDS = 120.0

Report = Callable[[str], None]


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
                    report(_line(measured[-1]))
    batches = [_many_tables(uri) for _ in range(rounds)]
    many = {name: statistics.median(one[name] for one in batches) for name in batches[0]}
    return {
        "machine": {
            "platform": platform.platform(),
            "python": platform.python_version(),
            "pylance": package_version("pylance"),
        },
        "rounds": [one.to_json() for one in measured],
        "summary": _summary(measured),
        "tables": {"tables": TABLES, **many},
        "reads": reads.measure(uri, rounds),
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
    return replace(measured, verified=f"{'' if fits else 'WRONG: '}{found} rows")


def prepare(uri: str, table: list[str], text: str, number: int) -> Commit:
    """Return what commits one append with a warm handle."""
    fragment = lance.FragmentMetadata.from_json(text)
    dataset = lance.dataset(namespace_client=_connect(uri), table_id=table)

    def commit() -> None:
        nonlocal dataset
        operation = lance.LanceOperation.Append([fragment])
        dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    return commit


def _many_tables(uri: str) -> dict[str, float]:
    """Time one version of each table: by single requests, and by one batch."""
    names, space = _connect(uri), f"{NAMESPACE}_{time.time_ns()}"
    names.create_namespace(CreateNamespaceRequest(id=[space]))
    tables = [[space, f"t{number}"] for number in range(TABLES)]
    opened = [
        lance.write_dataset(rows_of_work(), namespace_client=names, table_id=table, mode="create")
        for table in tables
    ]
    address = urlsplit(uri)
    connection = http.client.HTTPConnection(
        address.hostname or "", address.port, timeout=REQUEST_SECONDS
    )
    single = [_staged(table, dataset.uri, 1) for table, dataset in zip(tables, opened, strict=True)]
    began = time.perf_counter()
    for body in single:
        _post(connection, f"/v1/table/{'$'.join(body['id'])}/version/create", body)
    singles = time.perf_counter() - began
    batch = [_staged(table, dataset.uri, 2) for table, dataset in zip(tables, opened, strict=True)]
    began = time.perf_counter()
    operations = [{"create_table_version": body} for body in batch]
    _post(connection, "/v1/table/batch-commit", {"operations": operations})
    together = time.perf_counter() - began
    connection.close()
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


def _post(connection: http.client.HTTPConnection, path: str, body: Any) -> None:
    data = json.dumps(body).encode()
    connection.request("POST", path, data, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{path}: {response.status} {answer[:300]!r}")


def _line(measured: Round) -> str:
    return (
        f"{measured.system:10} {measured.writers:3} writers {measured.commits_per_second:7.1f} "
        f"commits/s  p50 {measured.p50_ms:7.2f}  p99 {measured.p99_ms:8.2f} ms  "
        f"failed {measured.failures}  "
        f"slowest:fastest {measured.slowest_writer}:{measured.fastest_writer}  {measured.verified}"
        + (f"  first failure: {measured.failure}" if measured.failure else "")
    )


def _summary(measured: Sequence[Round]) -> list[dict[str, Any]]:
    """Compare medians per number of writers: ratios in this run, nothing else."""
    rows = []
    for count in sorted({one.writers for one in measured}):
        by_system = {
            system: [one for one in measured if (one.writers, one.system) == (count, system)]
            for system in (REFERENCE, OURS)
        }
        peer = statistics.median(one.commits_per_second for one in by_system[REFERENCE])
        for system, found in by_system.items():
            rate = statistics.median(one.commits_per_second for one in found)
            rows.append(
                {
                    "system": system,
                    "writers": count,
                    "commits_per_second": rate,
                    "times_reference": rate / peer if peer else None,
                    "p50_ms": statistics.median(one.p50_ms for one in found),
                    "p99_ms": statistics.median(one.p99_ms for one in found),
                    "fairness": statistics.median(one.fairness for one in found),
                    "failures": sum(one.failures for one in found),
                    "wrong": sum(one.verified.startswith("WRONG") for one in found),
                }
            )
    return rows
