"""Many streaming queries into one table: none waits for another, none fails on a conflict.

commitlog up --root DIR
python infra/examples/spark_many_streams.py --bootstrap-servers HOST:PORT
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from commitlog import CommitLog
from commitlog.spark import CommitLogDataSource, local_session

TABLE = "shop$clicks"
SCHEMA = pa.schema([("stream", pa.int32()), ("id", pa.int64())])
STREAMS = 3
FILES = 3
ROWS = 10


def run(spark: SparkSession, options: dict[str, str], folder: Path) -> list[dict[str, object]]:
    """Run the streams side by side; return the rows of each stream that the table has."""
    queries = []
    for stream in range(STREAMS):
        source = folder / f"source-{stream}"
        source.mkdir()
        for number in range(FILES):
            ids = range(number * ROWS, (number + 1) * ROWS)
            (source / f"{number}.json").write_text("\n".join(f'{{"id": {i}}}' for i in ids))
        rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(source))
        queries.append(
            rows.selectExpr(f"{stream} AS stream", "id")
            .writeStream.format("commitlog")
            .options(**options)
            .option("table", TABLE)
            .option("checkpointLocation", str(folder / f"checkpoint-{stream}"))
            .trigger(availableNow=True)
            .start()
        )
    for query in queries:
        query.awaitTermination()
    table = spark.read.format("commitlog").options(**options).option("table", TABLE).load()
    counted = table.groupBy("stream").count().orderBy("stream")
    return [row.asDict() for row in counted.collect()]


def main() -> None:
    """Make the table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    servers = parser.parse_args().bootstrap_servers
    CommitLog.connect(servers).create_table(TABLE, SCHEMA, exist_ok=True)
    spark = local_session("many streams")
    spark.dataSource.register(CommitLogDataSource)
    with tempfile.TemporaryDirectory() as folder:
        for row in run(spark, {"kafka.bootstrap.servers": servers}, Path(folder)):
            print(row)
    spark.stop()


if __name__ == "__main__":
    main()
