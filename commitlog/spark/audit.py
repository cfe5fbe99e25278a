"""Audit on Spark: is the chain intact, and does deciding everything again give the same outcomes?

    audit(spark, {"kafka.bootstrap.servers": "HOST:PORT"}, into="/data/audit")

The chain and the rows of the index are read in ranges, by many tasks. Deciding
again needs the state that all earlier records made, so that is one task per partition of the log.
With `into`, the log and the versions are written there as Parquet, rebuilt from the log alone.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from commitlog.adapters.places import places_text
from commitlog.client.history.roots import hear_roots
from commitlog.spark.connection import connect as connect_to
from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.mapping import of_each_number
from commitlog.spark.options import Connection, parse_reach
from commitlog.spark.recompute import Audited, audit_partition

Progress = Callable[[int, int, int], None]
"""Called with a partition of the log, the outcomes done and the outcomes records to be read."""

POLL_SECONDS = 1.0


def audit(
    spark: SparkSession,
    options: Mapping[str, str],
    *,
    into: str = "",
    contents: bool = False,
    on_progress: Progress | None = None,
    connect: Callable[[Connection], Any] = connect_to,
) -> list[Audited]:
    """Audit all partitions of a log up to their current ends.

    `options` are those that reach the log. `into` is a folder for the Parquet files `log` and
    `versions`; it must not hold any. With `contents`, tables are rebuilt from the rows that the log
    has, and compared with their newest versions row by row. Progress is reported if executors
    share a file system with the driver.

    Raises CorruptLog (from a task) if a chain is broken.
    """
    reached = parse_reach(options, use="audit")
    runtime = connect(reached).runtime()
    log = runtime.log
    hear_roots(runtime)
    connection = replace(reached, places=places_text())
    ends = [(number, outcomes_end(log, number)) for number in range(log.partitions())]
    if into:
        spark.dataSource.register(CommitLogDataSource)
        _write_index(spark, options, into)
    with tempfile.TemporaryDirectory(
        prefix="commitlog-audit-", ignore_cleanup_errors=True
    ) as folder:
        task = partial(
            _audit,
            ends=dict(ends),
            connection=connection,
            connect=connect,
            folder=folder,
            contents=contents,
        )
        done = threading.Event()
        watcher = threading.Thread(
            target=_watch, args=(Path(folder), dict(ends), on_progress, done), daemon=True
        )
        watcher.start()
        try:
            return of_each_number(spark, len(ends), task)
        finally:
            done.set()
            watcher.join()


def versions_of(log: DataFrame) -> DataFrame:
    """Return one row per version that a log's rows (`read` = `log`) made, as the index has them."""
    each = log.filter("status = 'committed' AND answers IS NULL").select(
        "*", f.explode("operations").alias("made")
    )
    names = ("table", "version", "operation", "incarnation", "rebased_over", "rows_added")
    return each.filter("made.version IS NOT NULL").select(
        *(f.col(f"made.{name}") for name in (*names, "rows_removed", "bytes_added")),
        *("time", "partition", "sequence", "transaction_id", "principal"),
    )


def _write_index(spark: SparkSession, options: Mapping[str, str], into: str) -> None:
    log = spark.read.format("commitlog").options(**options).option("read", "log").load()
    log.write.parquet(f"{into}/log")
    versions_of(spark.read.parquet(f"{into}/log")).write.parquet(f"{into}/versions")


def _audit(
    number: int,
    ends: Mapping[int, int],
    connection: Connection,
    connect: Callable[[Connection], Any],
    folder: str,
    contents: bool,
) -> Audited:
    """Audit the partition of this number; runs on an executor."""
    log = connect(connection).runtime().log
    note = partial(_note, Path(folder), number)
    return audit_partition(log, number, ends[number], note, contents=contents)


def _note(folder: Path, partition: int, done: int, offset: int) -> None:
    """Leave a task's progress where the driver may find it.

    The same task may run twice at a time (`spark.speculation`), or on when the driver is done.
    """
    if folder.is_dir():
        beside = folder / f"{partition}-{uuid.uuid4()}.tmp"
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps([done, offset]))
            beside.replace(folder / f"{partition}.json")


def _watch(
    folder: Path, ends: dict[int, int], on_progress: Progress | None, done: threading.Event
) -> None:
    told: dict[int, int] = {}
    is_over = False
    while on_progress is not None and not is_over:
        is_over = done.wait(POLL_SECONDS)
        for number, end in ends.items():
            path = folder / f"{number}.json"
            if not path.exists():
                continue
            count, _ = json.loads(path.read_text())
            if told.get(number) != count:
                told[number] = count
                on_progress(number, count, end)
