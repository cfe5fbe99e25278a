"""Repeats in the progress of streaming queries.

Only sinks in Java or Scala report metrics, a Python sink commits in a process of its own, and what
`observe` collects is known before the commit. But Spark makes a map of observed metrics for each
progress, and shows the same object to listeners, in `lastProgress` and in `recentProgress`. So a
listener reads on in the log and puts into that map what the log says of the batch.

The log knows a query and its batches, but not its runs. Spark calls listeners before a run starts,
and a query has one run at a time: what the log has from there on is of this run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

from commitlog.client.leader.repeats import Repeat, repeat_of
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import InvalidRequest
from commitlog.model.records import Answered, Outcome
from commitlog.newest import Newest
from commitlog.ports import Reader
from commitlog.spark.connection import connect as connect_to
from commitlog.spark.files import Connect
from commitlog.spark.log_positions import outcomes_end
from commitlog.spark.options import parse_reach
from commitlog.spark.pyspark_api import is_connect

METRIC = "commitlog.repeat"
FIELDS = "committed_rows long, rows long, differs boolean, message string"
READ_SECONDS = 20.0
"""A listener keeps others waiting, so it leaves the rest to the next progress."""
KEPT = 1000


def show_repeats(
    spark: SparkSession, options: Mapping[str, str], *, connect: Connect = connect_to
) -> RepeatsListener:
    """Have the progress of queries show which batches an earlier commit answered.

    The progress of such a batch has `commitlog.repeat` among its observed metrics: how many rows
    were committed, how many came now, whether they differ, and this in words. Call it before the
    queries start, and `close` of what it returns at the end. `options` are those of format
    `commitlog` that reach the log.

    Raises:
        InvalidRequest: `spark` is a session of Spark Connect.
    """
    if is_connect(spark):
        raise InvalidRequest(
            "a listener of Spark Connect can't add to a query's progress", field="spark",
            value=type(spark), advice="Read the log (`read='log'`): repeats have `answers`",
        )  # fmt: skip
    log = connect(parse_reach(options, use="show_repeats"))
    listener = RepeatsListener(spark, log.runtime())
    spark.streams.addListener(listener)
    return listener


class RepeatsListener(StreamingQueryListener):
    """Puts repeats into the progress of queries, until it is closed."""

    def __init__(self, spark: SparkSession, runtime: Runtime) -> None:
        """Read each partition of the log from its end on."""
        self._spark = spark
        self._runtime = runtime
        self._lock = threading.Lock()
        self._readers = [_at_the_end(runtime, number) for number in range(runtime.partitions)]
        self._runs: dict[str, str] = {}
        """The run of each query that runs."""
        self._found: Newest[tuple[str, int], Repeat] = Newest(KEPT)
        """By run and batch."""

    def close(self) -> None:
        """Stop listening, and let go of the connections to Kafka."""
        with self._lock:
            readers, self._readers = self._readers, []
            for reader in readers:
                reader.close()
        self._spark.streams.removeListener(self)

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """Read what earlier runs of the query left; what follows is of this one."""
        with self._lock:
            try:
                self._read_on()
            finally:
                self._runs[str(event.id)] = str(event.runId)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """Forget the run; Spark tells of its end when another may run already."""
        with self._lock:
            if self._runs.get(str(event.id)) == str(event.runId):
                del self._runs[str(event.id)]

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Put a repeat into the progress of its batch."""
        progress: Any = event.progress
        run = str(progress.runId)
        with self._lock:
            self._runs.setdefault(str(progress.id), run)
            self._read_on()
            repeat = self._found.pop((run, progress.batchId), None)
        if repeat is not None:
            progress._jprogress.observedMetrics().put(METRIC, self._row(repeat))

    def _read_on(self) -> None:
        deadline = time.monotonic() + READ_SECONDS
        for partition, reader in enumerate(self._readers):
            end = reader.end_offset()
            while reader.position() < end and time.monotonic() < deadline:
                for answered in reader.poll(timeout_seconds=0.5):
                    outcome = answered.record
                    repeat = (
                        repeat_of(self._runtime, partition, outcome)
                        if isinstance(outcome, Outcome)
                        else None
                    )
                    if repeat is not None:
                        self._keep(repeat)

    def _keep(self, repeat: Repeat) -> None:
        application = repeat.application
        run = self._runs.get(application.run or application.application_id)
        if run is not None:
            self._found[run, application.sequence] = repeat

    def _row(self, repeat: Repeat) -> Any:
        """Return a Row of Spark's JVM with its columns' names, which progress needs as JSON."""
        gateway: Any = self._spark.sparkContext._gateway
        values = gateway.new_array(gateway.jvm.java.lang.Object, len(FIELDS.split(",")))
        for at, value in enumerate((*repeat.rows, repeat.is_other, str(repeat))):
            values[at] = value
        sql = gateway.jvm.org.apache.spark.sql
        columns = sql.types.StructType.fromDDL(FIELDS)
        return sql.catalyst.expressions.GenericRowWithSchema(values, columns)


def _at_the_end(runtime: Runtime, partition: int) -> Reader[Answered]:
    return runtime.log.read_outcomes(partition, outcomes_end(runtime.log, partition))
