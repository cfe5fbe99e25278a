"""The Spark sink and source in drivers of their own.

A session is one per process: one of another Java's needs a process, and the crash tests kill its
JVM with -9 in the middle of a commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from commitlog.spark import CommitLogDataSource
from commitlog.spark.options import parse_write
from commitlog.spark.sink import StreamSink
from tests import spark_start
from tests.child import ended
from tests.integration.test_spark_sink import SCHEMA, check_batches, ids, put_files
from tests.spark_world import LogWorld, log_world

pytestmark = [pytest.mark.spark, pytest.mark.broker, pytest.mark.slow]

REPOSITORY = Path(__file__).resolve().parents[2]
START = """
import json, sys
from pathlib import Path
from commitlog.spark import local_session
root, options = Path(sys.argv[1]), json.loads(sys.argv[2])
spark = local_session("test", conf={"spark.sql.session.timeZone": "America/New_York"})
(root / "jvm.pid").write_text(str(spark._jvm.java.lang.ProcessHandle.current().pid()))
from tests.integration.test_spark_drivers import CrashingDataSource
from tests.integration.test_spark_sink import COLUMNS, batches
spark.dataSource.register(CrashingDataSource)
def stream(table):
    source = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    frame = source.json(str(root / "input")).selectExpr(*COLUMNS)
    return (frame.writeStream.format("commitlog").options(**options, table=table)
            .option("checkpointLocation", str(root / table))
            .trigger(availableNow=True).start())
"""
CRASH = "COMMITLOG_TEST_CRASH"
"""Names when the JVM is killed, the batch, and the file with the JVM's process id."""
STOPPED_SECONDS = 0.5
"""What the JVM's threads need to stand still, and the commit's process to answer."""


class CrashingDataSource(CommitLogDataSource):
    """The format `commitlog`, whose stream may be killed at a batch.

    With the committing process `before` or `after` the commit is made, or when Spark was `answered`
    and has not noted the batch.
    """

    def streamWriter(self, schema: StructType, overwrite: bool) -> CrashingSink:  # noqa: N802
        """Return the sink itself, which may be killed."""
        options = parse_write(self.options, streaming=True)
        checkpoint = self.options.get("checkpointLocation", "")
        return CrashingSink(options, schema, overwrite, self.connect, checkpoint)


class CrashingSink(StreamSink):
    """The sink, and the points at which a batch can be lost to Spark."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit one micro-batch, and crash where that is ordered."""
        when, batch, file = os.environ.get(CRASH, "never -1 -").split(" ", 2)
        if int(batch) != batchId:
            super().commit(messages, batchId)
            return
        jvm = int(Path(file).read_text())
        if when != "before":
            super().commit(messages, batchId)
        if when == "answered":
            # Stopped, it finds the answer in its socket and notes nothing; then it is killed.
            os.kill(jvm, signal.SIGSTOP)
            time.sleep(STOPPED_SECONDS)
            threading.Timer(STOPPED_SECONDS, os.kill, (jvm, signal.SIGKILL)).start()
            return
        os.kill(jvm, signal.SIGKILL)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def world(broker: Any, tmp_path: Path) -> Iterator[LogWorld]:
    with log_world(tmp_path, broker.bootstrap_servers) as made:
        yield made


def run(
    world: LogWorld, program: str, *, killed: bool = False, **environment: str
) -> dict[str, Any]:
    done = ended(
        [sys.executable, "-c", START + program, str(world.root), json.dumps(world.options)],
        env={**os.environ, "PYTHONPATH": spark_start.python_path(REPOSITORY), **environment},
        cwd=REPOSITORY,
    )
    assert (done.returncode != 0) == killed, done.stderr[-3000:]
    return dict(json.loads(done.stdout)) if done.stdout else {}


def test_batches_append_overwrite_and_read_on_the_packaged_java(
    world: LogWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("batches", SCHEMA)
    for name, value in spark_start.AS_USERS_DO.items():  # the archive of classes is the other one's
        monkeypatch.setenv(name, value)
    told = run(world, "print(json.dumps(batches(spark, options)))", COMMITLOG_JAVA="packaged")
    check_batches(told, world)


def test_a_batch_lands_once_whenever_the_driver_is_killed(world: LogWorld) -> None:
    tables = ("before", "after", "answered")
    put_files(world.root / "input", *(range(start, start + 10) for start in range(0, 50, 10)))
    for table in tables:
        world.create(table, SCHEMA)
        order = f"{table} 3 {world.root / 'jvm.pid'}"
        run(world, f"stream('{table}').awaitTermination()", killed=True, **{CRASH: order})
        assert world.batches(table) == list(range(3 if table == "before" else 4))
        checkpoint = world.root / table
        assert (checkpoint / "offsets" / "3").exists()
        assert not (checkpoint / "commits" / "3").exists()
    # One driver goes on with all three: it has forgotten as much as three would.
    run(world, f"for table in {tables}: stream(table).awaitTermination()")
    for table in tables:
        assert ids(world, table) == list(range(50))
        assert world.batches(table) == [0, 1, 2, 3, 4]
        names = {row["application_id"] for row in world.log_rows(table)[1:]}
        assert len(names) == 1
