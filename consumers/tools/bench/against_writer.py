"""Writers of whichever tree is first on the path: `bench against` runs this file by its path.

    python against_writer.py HOST:PORT WRITERS SECONDS

Prints one line of JSON. It uses the public names alone, so that it runs with older trees, too.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
import warnings
from typing import Any

import lance
import pyarrow as pa

from commitlog import CommitLog

START_SECONDS, ANSWER_SECONDS, END_SECONDS = 120.0, 60.0, 120.0
SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.float64())])


def make_table(servers: str, results: Any) -> None:
    """Create a table with one fragment; tell its name, its version and the fragment."""
    log = CommitLog.connect(servers)
    table = f"bench$against_{time.time_ns()}"
    log.create_table(table, SCHEMA, policy="latest")
    info = log.table(table)
    rows = pa.table({"id": range(100), "value": [0.5] * 100}, schema=SCHEMA)
    [fragment] = lance.fragment.write_fragments(
        rows, info.location, data_storage_version=info.data_storage_version
    )
    told: Any = fragment.to_json()  # text or an object, by pylance's version
    results.put((table, info.version, told if isinstance(told, str) else json.dumps(told)))


def write(
    servers: str, made: tuple[str, int, str], seconds: float, barrier: Any, results: Any
) -> None:
    """Commit one append after another until the time is over; tell latencies and CPU."""
    table, version, fragment = made
    operation = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(fragment)])
    log = CommitLog.connect(servers)

    def commit() -> None:
        ticket = log.submit(table, operation, read_version=version)
        ticket.result(timeout=ANSWER_SECONDS).raise_for_conflict()

    log.table(table)
    commit()
    barrier.wait(START_SECONDS)
    latencies = []
    cpu, start = time.process_time(), time.perf_counter()
    while (before := time.perf_counter()) - start < seconds:
        commit()
        latencies.append(time.perf_counter() - before)
    results.put((latencies, time.process_time() - cpu, time.perf_counter() - start))


def main(servers: str, writers: int, seconds: float) -> None:
    """Run the writers and print what they did."""
    # Forked from a process that has imported everything, and has connected nowhere.
    warnings.filterwarnings("ignore", message="lance is not fork-safe")
    context = multiprocessing.get_context("fork")
    results: Any = context.Queue()
    maker = context.Process(target=make_table, args=(servers, results))
    maker.start()
    made = results.get(timeout=START_SECONDS)
    maker.join()
    barrier = context.Barrier(writers)
    arguments = (servers, made, seconds, barrier, results)
    processes = [context.Process(target=write, args=arguments, daemon=True) for _ in range(writers)]
    for process in processes:
        process.start()
    done = [results.get(timeout=START_SECONDS + seconds + END_SECONDS) for _ in processes]
    for process in processes:
        process.join()
    latencies = sorted(one for found, _, _ in done for one in found)
    told = {
        "commits": len(latencies),
        # Each writer's first one, and the table's creation.
        "all_commits": len(latencies) + writers + 1,
        "seconds": max(took for _, _, took in done),
        "cpu_seconds": sum(cpu for _, cpu, _ in done),
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1e3,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
