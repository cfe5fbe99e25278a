"""The log's own topics, read by Spark's Kafka connector and decoded on the executors.

    commitlog up --root DIR
    python infra/examples/spark_raw_log.py --bootstrap-servers HOST:PORT \
        --jars "$(python -m infra.spark_kafka)"

Read so, records are bytes, and those that no reader of the log would heed are among them: format
`commitlog` with option `read` = `log` checks the chain, and needs no jars.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from commitlog import CommitLog
from commitlog.codecs.avro import decode_log_record, decode_outcome_record
from commitlog.protocol import LOG_NAME_DEFAULT, outcomes_topic, transactions_topic
from commitlog.spark import local_session
from commitlog.spark.mapping import map_arrow

TABLE = "shop$visits"
SCHEMA = pa.schema([("id", pa.int64())])
COLUMNS = pa.schema(
    [("topic", pa.string()), ("offset", pa.int64()), ("kind", pa.string()), ("id", pa.string()),
     ("status", pa.string())]
)  # fmt: skip


def run(
    spark: SparkSession, bootstrap_servers: str, log: str = LOG_NAME_DEFAULT
) -> list[dict[str, object]]:
    """Return how many records of each kind and status either topic holds."""
    topics = f"{transactions_topic(log)},{outcomes_topic(log)}"
    raw = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .load()
    )
    counted = decoded(raw).groupBy("topic", "kind", "status").count()
    rows = counted.orderBy("topic", "kind", "status").collect()
    return [row.asDict() for row in rows]


def decoded(raw: DataFrame) -> DataFrame:
    """Return what the records say."""
    columns = "topic string, offset long, kind string, id string, status string"
    return map_arrow(raw.select("topic", "offset", "key", "value"), decode, columns)


def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Decode a task's records; runs on an executor."""
    for batch in batches:
        rows = [_decoded(**record) for record in batch.to_pylist()]
        yield pa.RecordBatch.from_pylist(rows, COLUMNS)


def _decoded(topic: str, offset: int, key: bytes | None, value: bytes | None) -> dict[str, object]:
    row: dict[str, object] = {"topic": topic, "offset": offset, "kind": "tombstone"}
    if value is not None:
        is_outcome = topic.endswith(outcomes_topic(""))
        record = decode_outcome_record(value) if is_outcome else decode_log_record(key, value)
        row["kind"] = type(record).__name__
        row["id"] = getattr(record, "transaction_id", None)
        row["status"] = str(record.status) if hasattr(record, "status") else None
    return row


def main() -> None:
    """Make a table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--jars", required=True)
    arguments = parser.parse_args()
    log = CommitLog.connect(arguments.bootstrap_servers)
    log.create_table(TABLE, SCHEMA, exist_ok=True)
    log.append(TABLE, pa.table({"id": [1, 2]}, schema=SCHEMA))
    spark = local_session("raw log", conf={"spark.jars": arguments.jars})
    for row in run(spark, arguments.bootstrap_servers):
        print(*row.values())
    spark.stop()


if __name__ == "__main__":
    main()
