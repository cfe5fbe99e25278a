"""`commitlog bench maintain`: what a compaction through the log costs, beside pylance's own alone.

Each round fills a table through the log, copies its folder, and compacts both with the same
options, in turns: ours first in one round, pylance's in the next. What is compared is CPU: of this
process, and of the service's parts for ours, less what they use while pylance works. Both tables
must hold the same rows in the same order afterwards.
"""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog
from commitlog.errors import CorruptLog
from consumers.tools.bench.environment import service_cpu_seconds
from consumers.tools.bench.measure import Report

NAMESPACE = "bench"
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("text", pa.string())])
TEXT = "what a row has to say, at some length, so that it is worth being written "


def run(
    servers: str,
    pid: int,
    *,
    fragments: int = 64,
    rows: int = 20_000,
    rounds: int = 5,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `pid` is the service's supervisor."""
    found: list[dict[str, float]] = []
    with CommitLog.connect(servers) as log:
        report("warming up")
        for number in range(rounds + 1):
            one = _round(log, pid, fragments, rows, is_ours_first=bool(number % 2))
            if number:
                found.append(one)
                report(line(one))
    return {
        "fragments": fragments,
        "rows_each": rows,
        "rounds": found,
        "summary": summary(found),
    }


def line(one: dict[str, float]) -> str:
    """Describe a round in one line."""
    return (
        f"pylance {one['pylance']:.2f} s of CPU, ours {one['ours']:.2f} and {one['service']:.2f} in"
        f" the service: {one['ratio']:.2f} times"
    )


def summary(found: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """Return the median, least and greatest of each figure."""
    names = ("pylance", "ours", "service", "ratio")
    return [
        {
            "figure": name,
            "median": statistics.median(one[name] for one in found),
            "least": min(one[name] for one in found),
            "greatest": max(one[name] for one in found),
        }
        for name in names
        if found
    ]


def _round(
    log: CommitLog, pid: int, fragments: int, rows: int, *, is_ours_first: bool
) -> dict[str, float]:
    table = f"{NAMESPACE}$c{time.time_ns()}"
    log.create_table(table, SCHEMA, policy="latest")
    for number in range(fragments):
        ids = pa.array(range(number * rows, (number + 1) * rows), pa.int64())
        text = pa.array([f"{TEXT}{i}" for i in range(rows)])
        log.append(table, pa.table([ids, ids.cast(pa.float64()), text], schema=SCHEMA))
    log.delete(table, "id % 11 = 3")
    place = Path(log.table(table).location)
    twin = place.with_name(f"{place.name}-twin")
    shutil.copytree(place, twin)
    target = fragments * rows // 4

    def ours() -> None:
        log.compact(table, target_rows_per_fragment=target)

    def theirs() -> None:
        lance.dataset(str(twin)).optimize.compact_files(target_rows_per_fragment=target)

    works = {"ours": ours, "pylance": theirs}
    cost = {
        name: _cost(works[name], pid)
        for name in (("ours", "pylance") if is_ours_first else ("pylance", "ours"))
    }
    same = lance.dataset(str(place)).to_table().equals(lance.dataset(str(twin)).to_table())
    shutil.rmtree(twin)
    log.drop_table(table)
    if not same:
        raise CorruptLog(f"the compaction of {table} came to other rows than pylance's")
    (own, service, seconds), (peer, idle, peer_seconds) = cost["ours"], cost["pylance"]
    service = max(service - idle / peer_seconds * seconds, 0.0)
    ratio = (own + service) / peer
    return {"ours": own, "pylance": peer, "service": service, "ratio": ratio}


def _cost(work: Callable[[], None], pid: int) -> tuple[float, float, float]:
    """Return the CPU seconds of this process and of the service, and how long it took."""
    service, own, began = sum(service_cpu_seconds(pid).values()), time.process_time(), time.time()
    work()
    seconds = max(time.time() - began, 1e-3)
    own = time.process_time() - own
    return own, sum(service_cpu_seconds(pid).values()) - service, seconds
