"""A feed of row changes, `c`reated, `u`pdated and `d`eleted, kept as a table of the newest rows.

    commitlog up --root DIR
    python infra/examples/spark_cdc_upsert.py --bootstrap-servers HOST:PORT

Each micro-batch is one record of the log: killed anywhere and started again, no change is lost and
none is applied twice. A conflict with another writer has the batch's join done again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from commitlog import CommitLog
from commitlog.spark import Batch, CommitLogDataSource, each_batch, local_session

TABLE = "shop$customers"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FEED: tuple[list[tuple[int, str, int, str | None]], ...] = (
    [(1, "c", 1, "Ada"), (2, "c", 2, "Bob"), (3, "c", 3, "Cyd")],
    [(4, "u", 2, "Bo"), (5, "d", 3, None), (6, "c", 4, "Dan"), (7, "u", 4, "Dana")],
)
"""Position in the feed, what happened, key, name."""


def run(spark: SparkSession, options: dict[str, str], folder: Path) -> list[dict[str, object]]:
    """Apply the feed and return the table's rows."""
    for number, changes in enumerate(FEED):
        names = ("position", "op", "id", "name")
        lines = [json.dumps(dict(zip(names, change, strict=True))) for change in changes]
        path = folder / f"{number}.json"
        path.write_text("\n".join(lines))
        # Spark takes the files in the order of their times.
        os.utime(path, (number, number))
    feed = spark.readStream.schema("position long, op string, id long, name string")
    query = (
        feed.option("maxFilesPerTrigger", 1)
        .json(str(folder))
        .writeStream.foreachBatch(each_batch(apply, options))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    table = spark.read.format("commitlog").options(**options).option("table", TABLE).load()
    return [row.asDict() for row in table.orderBy("id").collect()]


def apply(batch: Batch, changes: DataFrame) -> None:
    """Merge the newest change of each key."""
    newest = Window.partitionBy("id").orderBy(f.desc("position"))
    last = changes.withColumn("rank", f.row_number().over(newest)).filter("rank = 1")
    batch.merge(TABLE, last.select("op", "id", "name"), on="id", delete_where="op = 'd'")


def main() -> None:
    """Make the table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    servers = parser.parse_args().bootstrap_servers
    CommitLog.connect(servers).create_table(TABLE, SCHEMA, primary_key="id", exist_ok=True)
    spark = local_session("cdc upsert")
    spark.dataSource.register(CommitLogDataSource)
    with tempfile.TemporaryDirectory() as folder:
        for row in run(spark, {"kafka.bootstrap.servers": servers}, Path(folder)):
            print(row)
    spark.stop()


if __name__ == "__main__":
    main()
