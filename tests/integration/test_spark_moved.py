"""Do Spark's driver and executors work where a moved root is, as its leader says?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.places import use_places
from commitlog.spark import Batch, each_batch
from tests.integration.test_move_kills import leading
from tests.integration.test_spark_service import rows as records
from tests.integration.test_up import COMMAND
from tests.service import SCHEMA, rows
from tests.spark_world import SparkWorld, finish

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]

LOG = "moved-lake"


def test_spark_works_where_a_moved_root_is(world: SparkWorld, tmp_path: Path) -> None:
    servers, old, new = world.bootstrap_servers, tmp_path / "old", tmp_path / "new"
    KafkaLog.connect(servers, LOG).create(tables_root=str(old / "tables"))
    with leading(servers, old, LOG) as client:
        client.create_table("t", SCHEMA, primary_key="id")
        client.append("t", rows(1, 2))
    old.rename(new)
    use_places("")  # this process saw the log at its old place
    options = {"kafka.bootstrap.servers": servers, "log": LOG, "table": "t"}

    def ids(**more: int) -> list[int]:
        frame = world.spark.read.format("commitlog").options(**options, **more).load()
        return sorted(row["id"] for row in frame.select("id").collect())

    def write(batch: Batch, frame: DataFrame) -> None:
        batch.merge("t", frame, on="id", delete_where="op = 'd'")

    where = ("--root", str(new), "--bootstrap-servers", servers, "--log", LOG)
    places = ("--places", f"{old / 'tables'}={new / 'tables'}")
    command = [*COMMAND, "committer", *where, *places]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as committer:
        try:
            assert committer.stdout is not None
            assert committer.stdout.readline().startswith("ready committer")
            assert ids() == [1, 2]
            frame = world.files("moved", records(3), records(4, 5)).select("id", "name")
            sink = frame.writeStream.format("commitlog").options(**options)
            sink = sink.option("checkpointLocation", str(world.checkpoint("moved")))
            finish(sink.trigger(availableNow=True).start())
            assert ids() == [1, 2, 3, 4, 5]
            changes = world.files("moved-merge", [*records(6), *records(1, op="d")])
            reach = {name: value for name, value in options.items() if name != "table"}
            merging = changes.writeStream.foreachBatch(each_batch(write, reach))
            merging = merging.option("checkpointLocation", str(world.checkpoint("moved-merge")))
            finish(merging.trigger(availableNow=True).start())
            assert ids() == [2, 3, 4, 5, 6]
            assert ids(versionAsOf=2) == [1, 2]
            assert not old.exists(), "nothing is made again at a place without its data"
        finally:
            committer.terminate()
            use_places("")
