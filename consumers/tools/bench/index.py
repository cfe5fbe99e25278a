"""`commitlog bench index`: what the version index costs at growing histories of one table.

One index is filled with a made-up log and measured at each size: a commit of one transaction, a
publication after ten more, and each question that its file answers. At the largest, records
come in at a rate while another process opens the published file again and again: how late does it
see them, and how much CPU does the keeper take for each?
"""

from __future__ import annotations

import functools
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from commitlog.codecs import avro
from commitlog.core.log.replica import Decided
from commitlog.model.records import LeaderStarted, Transaction
from commitlog.protocol import outcomes_topic, transaction_key, transactions_topic
from consumers import history
from consumers.tools.bench.made_log import NODE, TableLog
from consumers.tools.bench.measure import Report, quantiles
from consumers.views.version_index import IndexPosition, Term, VersionIndex
from consumers.views.version_index.process import follow
from consumers.views.version_index.rows import no_recordings

SIZES = (1_000, 100_000, 1_000_000)
BATCH = 5_000
PUBLISH_EVERY = 50_000
COMMITS = 200
PUBLICATIONS = 30
ASKED = 30
ASKED_LEAST = 5
ASKED_SECONDS = 3.0
"""What takes long is asked less often."""

RATE = 600
FRESH_SECONDS = 10.0
SETTLE_SECONDS = 3.0
LOOK_SECONDS = 0.01


def run(
    *,
    sizes: Sequence[int] = SIZES,
    rate: int = RATE,
    seconds: float = FRESH_SECONDS,
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report: `costs` and `questions` by size, and `freshness`."""
    log = TableLog()
    costs, questions = [], []
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        root = Path(folder)
        with VersionIndex(root) as index:
            for size in sorted(sizes):
                started = time.perf_counter()
                begun = log.sequence
                while log.sequence < size:
                    _apply(index, log, log.decided(min(BATCH, size - log.sequence)))
                    if log.sequence % PUBLISH_EVERY == 0:
                        index.publish()  # as a keeper that catches up does
                index.settle()
                index.publish()
                filled = (log.sequence - begun) / (time.perf_counter() - started)
                report(f"{size:,} versions: filled at {filled:,.0f} transactions/s")
                costs.append(_costs(index, log, root, size))
                answers = _questions(root, log, size)
                questions += answers
                report(_line(costs[-1], answers))
            report(f"{rate} commits/s for {seconds:.0f} s, a reader opening all the time")
            freshness = _freshness(index, log, root, rate, seconds)
    return {"costs": costs, "questions": questions, "freshness": freshness}


def _line(costs: dict[str, Any], answers: Sequence[dict[str, Any]]) -> str:
    slowest = sorted(answers, key=lambda row: row["p50_ms"])[-3:]
    named = ", ".join(f"{row['question']} {row['p50_ms']:.1f} ms" for row in reversed(slowest))
    return (
        f"{costs['versions']:,} versions: commit p50 {costs['commit_p50_ms']:.2f} p99 "
        f"{costs['commit_p99_ms']:.2f} ms, publish p50 {costs['publish_p50_ms']:.1f} p99 "
        f"{costs['publish_p99_ms']:.1f} ms; slowest questions: {named}"
    )


def _apply(index: VersionIndex, log: TableLog, batch: list[Decided]) -> None:
    position = IndexPosition(
        0,
        log.sequence,
        outcomes_offset=log.sequence + 2,
        transactions_offset=log.sequence,
        hash=log.head,
        epoch=1,
        end_offset=log.sequence + 2,
        changed_at_ms=batch[-1].outcome.time_ms,
    )
    terms = []
    if index.position(0).sequence == 0:
        leader = LeaderStarted(
            epoch=1,
            node=NODE,
            leader_id="bench",
            sequence=0,
            previous_hash=log.head,
            state_digest=b"",
        )
        terms = [Term(leader, 1)]
    index.apply(batch, position, terms=terms, recordings=no_recordings)


def _costs(index: VersionIndex, log: TableLog, root: Path, size: int) -> dict[str, Any]:
    def commit(count: int) -> float:
        batch = log.decided(count)
        started = time.perf_counter()
        _apply(index, log, batch)
        return (time.perf_counter() - started) * 1000

    commits = [commit(1) for _ in range(COMMITS)]
    publications = []
    for _ in range(PUBLICATIONS):
        commit(10)
        started = time.perf_counter()
        index.publish()
        publications.append((time.perf_counter() - started) * 1000)
    segments = sum(file.stat().st_size for file in (root / "index" / "segments").iterdir())
    return {
        "versions": size,
        **quantiles("commit", commits),
        **quantiles("publish", publications),
        "index_mb": (root / "index.duckdb").stat().st_size / 1e6,
        "segments_mb": segments / 1e6,
    }


def _questions(root: Path, log: TableLog, size: int) -> list[dict[str, Any]]:
    table = f"'{log.NAME}'"
    head, middle = log.version, max(log.version // 2, 1)
    with history.connect(root) as connection:
        found = connection.execute(
            "SELECT transaction_id, time, sequence FROM operations WHERE version = ?", [middle]
        ).fetchall()
        identifier, moment, sequence = found[0]
        asked = {
            "history": f"history({table})",
            "timeline": "timeline LIMIT 50",
            "table_at": f"table_at({table}, {middle})",
            "table_at_time": f"table_at_time({table}, TIMESTAMP '{moment}')",
            "heads_at": f"heads_at({sequence})",
            "heads_at_time": f"heads_at_time(TIMESTAMP '{moment}')",
            "fragments_at": f"fragments_at({table}, {middle})",
            "files_at": f"files_at({table}, {head})",
            "schema_at": f"schema_at({table}, {head})",
            "diff (100 versions)": f"diff({table}, {max(head - 100, 1)}, {head})",
            "changes (100 versions)": f"changes({table}, {max(head - 100, 1)}, {head})",
            "blame": f"blame({table})",
            "blame_of": f"blame_of({table}, 3)",
            "lineage": f"lineage({table}, {_newest_fragment(connection)})",
            "growth": f"growth({table})",
            "small_files": f"small_files({table})",
            "removable_before": f"removable_before({table}, TIMESTAMP '{moment}')",
            "orphans": "orphans LIMIT 50",
            "conflicts_of": f"conflicts_of({table})",
            "latest_conflicts": "latest_conflicts()",
            "conflict_chain": f"conflict_chain('{identifier}')",
            "transaction_of": f"transaction_of('{identifier}')",
            "operations_of": f"operations_of('{identifier}')",
            "transaction_at": f"transaction_at({sequence})",
            "retries": "retries LIMIT 50",
            "writers": "writers",
            "rivals": "rivals",
            "index_status": "index_status",
        }
        rows = []
        for name, source in asked.items():
            ask = functools.partial(history.ask, connection, f"FROM {source}", ())
            rows.append({"versions": size, "question": name, **quantiles("", _times(ask))})
    opened = functools.partial(history.status, root)
    rows.append({"versions": size, "question": "open, ask, close", **quantiles("", _times(opened))})
    return rows


def _newest_fragment(connection: Any) -> int:
    # The last compaction's: the one with the most ancestors.
    rows = connection.execute(
        "SELECT max(fragment_id) FROM fragment_changes WHERE len(made_from) > 0"
    ).fetchall()
    return int(rows[0][0] or 0)


def _times(work: Callable[[], object]) -> list[float]:
    work()
    times: list[float] = []
    while len(times) < ASKED_LEAST or (len(times) < ASKED and sum(times) < ASKED_SECONDS * 1000):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1000)
    return times


def _freshness(
    index: VersionIndex, log: TableLog, root: Path, rate: int, seconds: float
) -> dict[str, Any]:
    live = log.log
    transactions, outcomes = transactions_topic(live.name), outcomes_topic(live.name)
    # What the index has already is none of this log's records: it continues at their end.
    live.cluster.partition(transactions, 0).end = log.sequence
    live.cluster.partition(outcomes, 0).end = log.sequence + 2
    records = [
        (transaction_key(record.transaction_id), avro.encode_transaction(record), outcome)
        for one, outcome in log.sealed(int(rate * seconds))
        if isinstance(record := one.submitted.record, Transaction)
    ]
    context = multiprocessing.get_context("spawn")
    seen: Any = context.Queue()
    watcher = context.Process(target=_watch, args=(root, log.sequence, seen), daemon=True)
    watcher.start()
    assert seen.get(timeout=60) == "ready"
    stop = threading.Event()
    keeper = threading.Thread(target=follow, args=(live, index), kwargs={"stop": stop})
    keeper.start()
    time.sleep(SETTLE_SECONDS)
    appended: dict[int, float] = {}
    first = log.sequence - len(records) + 1
    used, own, started = time.process_time(), time.thread_time(), time.monotonic()
    for number, (key, transaction, outcome) in enumerate(records):
        live.cluster.append(transactions, 0, key, transaction)
        live.cluster.append(outcomes, 0, b"", outcome)
        appended[first + number] = time.monotonic()
        time.sleep(max(started + (number + 1) / rate - time.monotonic(), 0))
    lasted = time.monotonic() - started
    used = time.process_time() - used - (time.thread_time() - own)
    ages: list[float] = []
    for sequence, moment in iter(lambda: seen.get(timeout=60), None):
        ages += [moment - appended.pop(one) for one in [*appended] if one <= sequence]
    watcher.join(60)
    stop.set()
    keeper.join()
    return {
        "versions": log.version,
        "commits_per_second": len(records) / lasted,
        **quantiles("fresh", [age * 1000 for age in ages]),
        "max_ms": max(ages) * 1000,
        "cpu_ms_per_commit": used / len(records) * 1000,
    }


def _watch(root: Path, last: int, seen: Any) -> None:
    """Open the published file again and again; tell what is seen when, until `last`."""
    seen.put("ready")
    before = 0
    while before < last:
        time.sleep(LOOK_SECONDS)
        with history.connect(root) as connection:
            rows = connection.execute("SELECT max(sequence) FROM positions").fetchall()
        sequence = int(rows[0][0] or 0)
        if sequence > before:
            before = sequence
            seen.put((sequence, time.monotonic()))
    seen.put(None)
