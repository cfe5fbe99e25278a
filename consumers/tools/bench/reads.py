"""What a question over HTTP costs beside pylance in process and one HTTP round trip, in turns.

The table is small, so what is measured is the way there and back. Each round asks each thing many
times, one after another on one connection, and takes the median; ratios are those within a round.
Asked by itself again and again, pylance has its threads awake and its caches warm. So the two are
also asked in turn, a round trip and then pylance, as by a program that has the rows itself.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import lance
import lance_namespace
import pyarrow as pa

from consumers.tools.bench.http_service import HttpService

ROWS = 1000
ASKED, WARM_UP = 60, 100
FILTER = "id < 10"
LIMIT = 10


def measure(uri: str, rounds: int) -> list[dict[str, Any]]:
    """Return by question, in milliseconds, what pylance, a round trip and the server take."""
    table = [f"reads_{time.time_ns()}"]
    rows = pa.table({"id": range(ROWS), "x": [i / 2 for i in range(ROWS)]})
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
