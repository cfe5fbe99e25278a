"""The row writer as a Spark Structured Streaming job, for tables that outgrow one machine.

The stream is the log itself: each micro-batch in which something was accepted has the row writer
apply what waits, with the executors looking for the rows that have a group's keys. What was applied
is known by the log, not by the stream's checkpoint, so a job may start anywhere and run beside any
other row writer: a range is applied once.
"""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from commitlog import CommitLog
from commitlog.errors import (
    CorruptLog,
    InvalidSettings,
    LogMoved,
    TopicSettings,
    Unavailable,
    UnsupportedFormat,
    WrongLog,
)
from commitlog.spark import CommitLogDataSource
from commitlog.spark.row_base import FRAGMENTS_PER_TASK, base_on_executors
from consumers.tools.rows.writer import RowWriter, RowWriterOptions

POLL_SECONDS = 0.5
_OURS = re.compile(r"^commitlog\.errors\.(\w+): (.*)$", re.MULTILINE)
_KINDS = (
    *(Unavailable, InvalidSettings, WrongLog, LogMoved, TopicSettings, CorruptLog),
    UnsupportedFormat,
)


def apply_on_spark(
    spark: SparkSession,
    log: CommitLog,
    reach: Mapping[str, str],
    stop: threading.Event,
    options: RowWriterOptions | None = None,
    *,
    fragments_per_task: int = FRAGMENTS_PER_TASK,
) -> None:
    """Apply what is accepted until `stop`; raise what ends the query.

    `reach` are the options of format `commitlog` that reach the log.
    """
    options = options or RowWriterOptions()
    read = base_on_executors(spark, fragments_per_task=fragments_per_task)
    writer = RowWriter(log, options, read=read)
    spark.dataSource.register(CommitLogDataSource)
    outcomes = (
        spark.readStream.format("commitlog")
        .options(**reach)
        .options(read="log", startingPosition="latest")
        .load()
    )

    def apply(batch: DataFrame, number: int) -> None:
        writer.drain(stop)

    with tempfile.TemporaryDirectory(prefix="commitlog-rows-") as checkpoint:
        query = (
            outcomes.writeStream.foreachBatch(apply)
            .queryName(f"rows of {reach.get('log', 'commitlog')}")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{max(1, round(options.age_seconds * 1000))} milliseconds")
            .start()
        )
        try:
            # What was accepted before the stream's first position.
            writer.drain(stop)
            while query.isActive and not stop.wait(POLL_SECONDS):
                pass
            if not stop.is_set() and (error := query.exception()) is not None:
                raise _as_ours(error) from error
        finally:
            query.stop()
            writer.close()  # a batch that was at work may end later


def _as_ours(error: Exception) -> Exception:
    """Return the log's error that ended the stream, if one did: Spark only has its text.

    The stream reads the log in a process of its own, and ends when that fails.
    """
    kinds = {kind.__name__: kind for kind in _KINDS}
    name, said = (_OURS.findall(str(error)) or [("", "")])[-1]
    return kinds[name](said) if name in kinds else error
