"""`commitlog bench spark`: micro-batches and batch reads through Spark, ours beside others'.

Writing: files of rows through a streaming query, one per micro-batch, into format `commitlog` and,
in the same session by turns, into plain Lance from `foreachBatch`, whose executors write the same
fragments. With one query the question is the time of a micro-batch; with four queries on one table
also how many batches failed. Reading: one table with all its columns consumed, and one column,
beside the same rows in Parquet. Take the ratios.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet
from lance.fragment import FragmentMetadata, write_fragments
from pyspark.sql import DataFrame, SparkSession

from commitlog import CommitLog
from commitlog.spark import CommitLogDataSource, local_session
from commitlog.spark.mapping import map_arrow
from consumers.tools.bench.measure import Report

SCHEMA = pa.schema(
    [("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("x", pa.float64()), ("s", pa.string())]
)
COLUMNS = ("id", "timestamp_seconds(id) AS at", "id / 7.0D AS x", "concat('row-', id) AS s")
SYSTEMS = ("commitlog", "lance")
READ_FRAGMENTS = 8
WARM_UP_BATCHES = 3
"""Of each query: Spark compiles, Python's workers start."""
QUERY_SECONDS = 600.0


def run(
    bootstrap_servers: str,
    log_name: str,
    *,
    batches: int = 20,
    batch_rows: int = 10_000,
    read_rows: int = 2_000_000,
    rounds: int = 3,
    queries: tuple[int, ...] = (1, 4),
    report: Report = print,
) -> dict[str, Any]:
    """Measure and return a JSON-able report; `report` is called with each round as it ends."""
    log = CommitLog.connect(bootstrap_servers, log=log_name)
    spark = local_session("commitlog bench")
    spark.dataSource.register(CommitLogDataSource)
    options = {"kafka.bootstrap.servers": bootstrap_servers, "log": log_name}
    try:
        with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as name:
            folder = Path(name)
            writes = _Writes(log, spark, options, folder, batches + WARM_UP_BATCHES, batch_rows)
            written = [
                writes.round(system, count, report)
                for count in queries
                for number in range(rounds)
                for system in _in_turn(number)
            ]
            read = _reads(log, spark, options, folder, read_rows, rounds, report)
    finally:
        spark.stop()
        log.close()
    return {
        "batches": batches,
        "batch_rows": batch_rows,
        "read_rows": read_rows,
        "writes": written,
        "reads": read,
        "summary": [*_write_summary(written, queries), *_read_summary(read)],
    }


def _in_turn(number: int) -> tuple[str, ...]:
    """Return which goes first, and which then: a session is faster at what it does later."""
    return SYSTEMS if number % 2 == 0 else SYSTEMS[::-1]


class _Writes:
    """Streams of one source into tables, each round into a fresh one."""

    def __init__(
        self,
        log: CommitLog,
        spark: SparkSession,
        options: dict[str, str],
        folder: Path,
        batches: int,
        rows: int,
    ) -> None:
        self._log, self._spark, self._options, self._folder = log, spark, options, folder
        source = folder / "source"
        source.mkdir()
        for number in range(batches):
            ids = pa.table({"id": pa.array(range(number * rows, (number + 1) * rows), pa.int64())})
            pa.parquet.write_table(ids, source / f"{number:04}.parquet")
        self._rows = batches * rows

    def round(self, system: str, count: int, report: Report) -> dict[str, Any]:
        """Run so many queries at once into one table; return their batches' times."""
        name = f"bench$r{uuid.uuid4().hex[:8]}"
        if system == "commitlog":
            self._log.create_table(name, SCHEMA)
            location = self._log.table(name).location
        else:
            location = str(self._folder / name)
            lance.write_dataset(SCHEMA.empty_table(), location)
        started = [self._start(system, name, location, number) for number in range(count)]
        failed = 0
        for query in started:
            try:
                assert query.awaitTermination(int(QUERY_SECONDS)), "a query did not end"
            except Exception as error:
                failed += 1
                report(f"{system}: a query failed: {str(error)[:200]}")
        times = [
            progress["durationMs"]["triggerExecution"]
            for query in started
            for progress in query.recentProgress[WARM_UP_BATCHES:]
            if progress["numInputRows"]
        ]
        rows = lance.dataset(location).count_rows()
        median = statistics.median(times) if times else float("nan")
        report(
            f"{system}, {count} queries: micro-batch p50 {median:.0f} ms, {failed} failed,"
            f" {rows} of {count * self._rows} rows"
        )
        return {
            "system": system,
            "queries": count,
            "p50_ms": median,
            "failed_queries": failed,
            "rows": rows,
            "rows_expected": count * self._rows,
        }

    def _start(self, system: str, table: str, location: str, number: int) -> Any:
        source = self._spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        frame = source.parquet(str(self._folder / "source")).selectExpr(*COLUMNS)
        if system == "commitlog":
            sink = frame.writeStream.format("commitlog").options(**self._options)
            sink = sink.option("table", table)
        else:
            sink = frame.writeStream.foreachBatch(partial(_plain_append, location=location))
        checkpoint = self._folder / f"{table}-{number}-checkpoint"
        sink = sink.option("checkpointLocation", str(checkpoint))
        return sink.trigger(availableNow=True).start()


def _plain_append(frame: DataFrame, batch_id: int, *, location: str) -> None:
    """Append a micro-batch the way that Lance's documentation does it with fragments."""
    found = map_arrow(frame, partial(_plain_write, location=location), "fragment string").collect()
    fragments = [FragmentMetadata.from_json(row.fragment) for row in found]
    head = lance.dataset(location)
    lance.LanceDataset.commit(
        location, lance.LanceOperation.Append(fragments), read_version=head.version
    )


def _plain_write(batches: Iterable[pa.RecordBatch], location: str) -> Iterator[pa.RecordBatch]:
    def fitted() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [batch.column(field.name).cast(field.type) for field in SCHEMA]
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    reader = pa.RecordBatchReader.from_batches(SCHEMA, fitted())
    written = [json.dumps(made.to_json()) for made in write_fragments(reader, location)]
    yield pa.RecordBatch.from_pydict({"fragment": pa.array(written, pa.string())})


def _reads(
    log: CommitLog,
    spark: SparkSession,
    options: dict[str, str],
    folder: Path,
    rows: int,
    rounds: int,
    report: Report,
) -> list[dict[str, Any]]:
    table, parquet = f"bench$read{uuid.uuid4().hex[:8]}", str(folder / "parquet")
    log.create_table(table, SCHEMA)
    frame = spark.range(0, rows, 1, READ_FRAGMENTS).selectExpr(*COLUMNS)
    frame.write.format("commitlog").options(**options).option("table", table).mode("append").save()
    frame.write.parquet(parquet)
    ours = spark.read.format("commitlog").options(**options).option("table", table)
    plans: dict[str, dict[str, Callable[[], DataFrame]]] = {
        "all columns": {
            "commitlog": lambda: ours.load(),
            "parquet": lambda: spark.read.parquet(parquet),
        },
        "one column": {
            "commitlog": lambda: ours.option("columns", "id").load(),
            "parquet": lambda: spark.read.parquet(parquet).select("id"),
        },
    }
    found = []
    for number in range(rounds + 1):
        for columns, systems in plans.items():
            for system, frame_of in systems.items():
                seconds = _consume(frame_of())
                if number:  # the first one warms up
                    report(f"{system}, {columns}: {seconds:.2f} s")
                    found.append({"system": system, "columns": columns, "seconds": seconds})
    return found


def _consume(frame: DataFrame) -> float:
    """Read every value of every column, in Spark's own engine; return the seconds it took."""
    started = time.perf_counter()
    columns = ", ".join(f"`{name}`" for name in frame.columns)
    frame.selectExpr(f"sum(xxhash64({columns}) % 1000) AS total").collect()
    return time.perf_counter() - started


def _write_summary(
    written: list[dict[str, Any]], queries: tuple[int, ...]
) -> Iterator[dict[str, Any]]:
    for count in queries:
        p50 = {}
        failed = {}
        for system in SYSTEMS:
            mine = [w for w in written if w["system"] == system and w["queries"] == count]
            p50[system] = statistics.median(w["p50_ms"] for w in mine)
            failed[system] = sum(w["failed_queries"] for w in mine)
        yield {
            "what": f"micro-batch, {count} quer{'y' if count == 1 else 'ies'}",
            "commitlog": f"{p50['commitlog']:.0f} ms",
            "other": f"{p50['lance']:.0f} ms, plain Lance",
            "ratio": p50["commitlog"] / p50["lance"],
            "failed": f"{failed['commitlog']} : {failed['lance']}",
        }


def _read_summary(read: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for columns in ("all columns", "one column"):
        seconds = {
            system: statistics.median(
                r["seconds"] for r in read if (r["system"], r["columns"]) == (system, columns)
            )
            for system in ("commitlog", "parquet")
        }
        yield {
            "what": f"batch read, {columns}",
            "commitlog": f"{seconds['commitlog']:.2f} s",
            "other": f"{seconds['parquet']:.2f} s, Parquet",
            "ratio": seconds["commitlog"] / seconds["parquet"],
            "failed": "",
        }
