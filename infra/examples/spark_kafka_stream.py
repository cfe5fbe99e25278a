"""Records of a Kafka topic, as JSON, into a table: Spark's Kafka connector and format `commitlog`.

    commitlog up --root DIR
    python infra/examples/spark_kafka_stream.py --bootstrap-servers HOST:PORT \
        --package org.apache.spark:spark-sql-kafka-0-10_2.13:SPARK-VERSION

The connector is Spark's own, in jars; `--package` fetches it, `--jars` names jars that are there.
The rest of the pipeline needs none.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from commitlog import CommitLog
from commitlog.spark import CommitLogDataSource, local_session

TABLE = "shop$readings"
TOPIC = "readings"
SCHEMA = pa.schema(
    [("sensor", pa.string()), ("value", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)


def run(spark: SparkSession, options: dict[str, str], folder: Path) -> int:
    """Copy what the topic has now; return how many rows the table has."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", options["kafka.bootstrap.servers"])
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )
    body = f.from_json(f.col("value").cast("string"), "sensor string, value double").alias("body")
    query = (
        records.select(body, f.col("timestamp").alias("at"))
        .select("body.sensor", "body.value", "at")
        .writeStream.format("commitlog")
        .options(**options)
        .option("table", TABLE)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark.read.format("commitlog").options(**options).option("table", TABLE).load()
    return int(table.count())


def main() -> None:
    """Fill the topic, make the table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--package", default="")
    parser.add_argument("--jars", default="")
    arguments = parser.parse_args()
    producer = Producer({"bootstrap.servers": arguments.bootstrap_servers})
    for number in range(100):
        producer.produce(TOPIC, f'{{"sensor": "s{number % 3}", "value": {number}}}')
    producer.flush(30)
    CommitLog.connect(arguments.bootstrap_servers).create_table(TABLE, SCHEMA, exist_ok=True)
    conf = {"spark.jars.packages": arguments.package, "spark.jars": arguments.jars}
    spark = local_session("kafka stream", conf={name: v for name, v in conf.items() if v})
    spark.dataSource.register(CommitLogDataSource)
    with tempfile.TemporaryDirectory() as folder:
        servers = {"kafka.bootstrap.servers": arguments.bootstrap_servers}
        print(run(spark, servers, Path(folder)), "rows")
    spark.stop()


if __name__ == "__main__":
    main()
