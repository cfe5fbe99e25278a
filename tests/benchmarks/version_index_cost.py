"""Prints what a commit, a publication and each question cost at growing histories.

python -m tests.benchmarks.version_index_cost 1000 100000
"""

from __future__ import annotations

import functools
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from commitlog.core.replica import Decided
from commitlog.ports import Log
from consumers import history
from consumers.version_index import Position, VersionIndex
from consumers.version_index.process import follow
from tests.fakes.log_stream import PartitionLog, ReadOnlyLog

BATCH = 5000
REPEATS = 40
COMMITS_PER_SECOND = 200
FRESHNESS_SECONDS = 6.0


def position_after(batch: list[Decided]) -> Position:
    """Return the position of an index that holds everything up to a batch."""
    last = batch[-1]
    return Position(0, last.outcome.sequence, last.answered_offset + 1, last.submitted.offset + 1)


def milliseconds(work: Callable[[], object], repeats: int = REPEATS) -> str:
    """Run something often and return its p50 and p99."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1000)
    times.sort()
    return f"{statistics.median(times):6.1f} /{times[-1 - len(times) // 100]:6.1f}"


def megabytes(*files: Path) -> str:
    """Return the size of files in MB."""
    return f"{sum(file.stat().st_size for file in files) / 1e6:.1f} MB"


def main() -> None:
    """Grow one index through the given sizes and measure at each."""
    sizes = [int(size) for size in sys.argv[1:]] or [1_000, 100_000]
    stream = PartitionLog()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        done = 0
        with VersionIndex.open(root) as index:
            for size in sizes:
                seconds, records = 0.0, size - done
                while done < size:
                    count = min(BATCH, size - done)
                    stream.grow(count)
                    batch = stream.take()
                    started = time.perf_counter()
                    index.apply(batch, position_after(batch))
                    seconds += time.perf_counter() - started
                    done += count
                index.settle()
                index.publish()
                print(f"history {size}: filled at {records / seconds:,.0f} transactions/s")
                done += measure(index, stream, root)
        freshness(root)


def measure(index: VersionIndex, stream: PartitionLog, root: Path) -> int:
    """Print costs at one size; return how many transactions that added."""
    added = 0

    def commit(count: int) -> Callable[[], None]:
        def work() -> None:
            nonlocal added
            added += count
            batch = ready.pop()
            index.apply(batch, position_after(batch))

        return work

    def prepared(count: int) -> list[list[Decided]]:
        made = []
        for _ in range(REPEATS):
            stream.grow(count)
            made.append(stream.take())
        return made[::-1]

    for count in (1, 100):
        ready = prepared(count)
        print(f"  apply {count:4d}       ms p50/p99 {milliseconds(commit(count))}")
    ready = prepared(10)
    times = []
    for _ in range(REPEATS):
        commit(10)()
        started = time.perf_counter()
        index.publish()
        times.append((time.perf_counter() - started) * 1000)
    print(f"  publish          ms p50/max {statistics.median(times):6.1f} /{max(times):6.1f}")
    segments = [*(root / "index" / "segments").iterdir()]
    print(f"  index.duckdb {megabytes(root / 'index.duckdb')}, {len(segments)} segments"
          f" {megabytes(*segments)}, {index.hot_transactions} hot")  # fmt: skip
    with history.connect(root) as connection:
        table = connection.execute("SELECT any_value(table_name) FROM tables").fetchall()[0][0]
        middle = index.position(0).sequence // 2
        identifier = connection.execute("SELECT any_value(transaction_id) FROM transactions")
        questions = {
            "history": f"FROM history('{table}')",
            "timeline": "FROM timeline LIMIT 50",
            "latest_conflicts": "FROM latest_conflicts()",
            "conflicts_of": f"FROM conflicts_of('{table}')",
            "heads_at": f"FROM heads_at({middle})",
            "table_at": f"FROM table_at('{table}', 3)",
            "transaction_of": f"FROM transaction_of('{identifier.fetchall()[0][0]}')",
            "writers": "FROM writers",
            "index_status": "FROM index_status",
        }
        for name, sql in questions.items():
            ask = functools.partial(history.ask, connection, sql, ())
            cost = milliseconds(ask, 15)
            print(f"  {name:16} ms p50/p99 {cost}")
    print(f"  open, ask, close ms p50/p99 {milliseconds(lambda: history.status(root), 15)}")
    return added


def freshness(folder: Path) -> None:
    """Print how long after its append a commit is seen by a reader that looks all the time."""
    root = folder / "fresh"
    stream, stop = PartitionLog(), threading.Event()
    stream.grow(100)
    appended: dict[int, float] = {}
    ages: list[float] = []

    def look() -> None:
        seen = 0
        while not stop.is_set():
            time.sleep(0.01)
            if (root / "index.duckdb").exists():
                (row,) = history.query(root, "SELECT max(sequence) AS s FROM positions")
                now, newest = time.perf_counter(), int(str(row["s"] or 0))
                ages.extend(now - appended[n] for n in range(seen + 1, newest + 1) if n in appended)
                seen = newest

    def run() -> None:
        with VersionIndex.open(root) as index:
            follow(cast(Log, ReadOnlyLog([stream])), index, stop=stop)

    threads = [threading.Thread(target=work) for work in (run, look)]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    used, started = time.process_time(), time.perf_counter()
    for number in range(101, int(COMMITS_PER_SECOND * FRESHNESS_SECONDS)):
        stream.grow(1)
        appended[number] = time.perf_counter()
        time.sleep(1 / COMMITS_PER_SECOND)
    share = (time.process_time() - used) / (time.perf_counter() - started)
    time.sleep(1.0)
    stop.set()
    for thread in threads:
        thread.join()
    ages.sort()
    found = {"p50": ages[len(ages) // 2], "p99": ages[len(ages) * 99 // 100], "max": ages[-1]}
    shown = {name: f"{value * 1000:.0f} ms" for name, value in found.items()}
    print(f"freshness at {COMMITS_PER_SECOND}/s, a reader opening all the time: "
          f"{json.dumps(shown)}, {share:.2f} cores with the reader")  # fmt: skip


if __name__ == "__main__":
    main()
