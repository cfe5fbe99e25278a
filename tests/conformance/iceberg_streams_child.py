"""Spark streams that append to Iceberg tables: `URI JAR FOLDER SPACE TABLES STREAMS BATCHES`.

Each stream commits a micro-batch for each file of its folder. Once all have ended, what reads the
snapshots is printed: for each table a list of pairs, a snapshot and its number of rows. Runs in a
Python that has only PySpark.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main() -> None:
    """Write, then read every snapshot at each line of standard input."""
    uri, jar, folder, space, names, streams, batches = sys.argv[1:]
    settings = {
        "spark.jars": jar,
        "spark.sql.catalog.log": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.log.type": "rest",
        "spark.sql.catalog.log.uri": uri,
        "spark.sql.catalog.log.cache-enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[2]").appName("streams")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    tables = names.split(",")
    running = []
    for stream in range(int(streams)):
        source = Path(folder) / f"source-{stream}"
        source.mkdir(parents=True)
        for batch in range(int(batches)):
            (source / f"{batch}.txt").write_text(f"{1_000_000 + 1_000 * stream + batch}\n")
        rows = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(source))
        query = (
            rows.selectExpr("CAST(value AS BIGINT) AS id", "'spark' AS name")
            .writeStream.format("iceberg")
            .outputMode("append")
            .option("checkpointLocation", f"{folder}/checkpoint-{stream}")
            .trigger(availableNow=True)
            .toTable(f"log.{space}.{tables[stream % len(tables)]}")
        )
        running.append(query)
    for query in running:
        query.awaitTermination()
    print("written", flush=True)
    sys.stdin.readline()
    found = {}
    for name in tables:
        table = f"log.{space}.{name}"
        ids = [row[0] for row in spark.sql(f"SELECT snapshot_id FROM {table}.snapshots").collect()]
        found[name] = [
            [i, spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF {i}").collect()[0][0]]
            for i in ids
        ]
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
