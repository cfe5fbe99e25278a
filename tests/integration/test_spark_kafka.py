"""Spark's own Kafka connector beside format `commitlog`: both examples that use it.

`python -m infra.spark_kafka` fetches its jars, 10 MB; so does this test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from infra import spark_kafka
from tests.child import lines_of
from tests.spark_start import python_path
from tests.spark_world import log_world

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
]

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("id", pa.int64())])
SECONDS = 540
# A session's jars are its JVM's, and the other tests' JVM has none: so this is another process.
PROGRAM = """
import json, sys
from pathlib import Path
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
import spark_kafka_stream, spark_raw_log
from commitlog.spark import CommitLogDataSource, local_session
servers, log, jars, folder = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "log": log}
spark = local_session("kafka", conf={"spark.jars": jars})
spark.dataSource.register(CommitLogDataSource)
raw = spark_raw_log.run(spark, servers, log)
topic = NewTopic(spark_kafka_stream.TOPIC, num_partitions=1, replication_factor=1)
admin = AdminClient({"bootstrap.servers": servers})
admin.create_topics([topic])[topic.topic].result(120)
producer = Producer({"bootstrap.servers": servers})
for number in range(7):
    producer.produce(spark_kafka_stream.TOPIC, json.dumps({"sensor": "s", "value": number}))
assert producer.flush(60) == 0
copied = spark_kafka_stream.run(spark, options, Path(folder))
print(json.dumps({"raw": raw, "copied": copied}), flush=True)
spark.stop()
"""


def test_the_connector_reads_the_logs_topics_and_feeds_tables(broker: Any, tmp_path: Path) -> None:
    jars = spark_kafka.fetch()
    with log_world(tmp_path, broker.bootstrap_servers) as world:
        world.create("s$visits", SCHEMA)
        for number in range(3):
            world.client.append("s$visits", pa.table({"id": [number]}, schema=SCHEMA))
        world.create("shop$readings", _readings())
        arguments = [broker.bootstrap_servers, world.log, jars, str(tmp_path)]
        path = python_path(REPOSITORY, REPOSITORY / "infra" / "examples")
        lines = lines_of(
            [sys.executable, "-c", PROGRAM, *arguments],
            cwd=tmp_path,
            env={"PYTHONPATH": path},
            seconds=SECONDS,
        )
    found = json.loads(lines[-1])
    assert [(r["topic"], r["kind"], r["status"], r["count"]) for r in found["raw"]] == [
        (f"{world.log}.outcomes", "Genesis", None, 1),
        (f"{world.log}.outcomes", "LeaderStarted", None, 1),
        (f"{world.log}.outcomes", "Outcome", "committed", 6),
        (f"{world.log}.transactions", "ProtocolVersion", None, 1),
        (f"{world.log}.transactions", "Transaction", None, 5),
    ]
    assert found["copied"] == 7


def _readings() -> pa.Schema:
    return pa.schema(
        [("sensor", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
    )
