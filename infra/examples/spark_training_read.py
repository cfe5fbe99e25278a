"""A training set read as of a tag: features and vectors, shuffled into batches of arrays.

    commitlog up --root DIR
    python infra/examples/spark_training_read.py --bootstrap-servers HOST:PORT

The tag names a version for good, so that every epoch, and whoever repeats the experiment, trains
on the same rows while others go on writing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from commitlog import CommitLog
from commitlog.spark import CommitLogDataSource, local_session, map_arrow

TABLE = "ml$examples"
TAG = "experiment-1"
DIMENSIONS = 4
SCHEMA = pa.schema(
    [("label", pa.int32()), ("vector", pa.list_(pa.float32(), DIMENSIONS)), ("split", pa.string())]
)


def run(spark: SparkSession, options: dict[str, str]) -> list[dict[str, object]]:
    """Return each label's rows and its centroid's first coordinate, computed on the executors."""
    examples = (
        spark.read.format("commitlog")
        .options(**options)
        .option("table", TABLE)
        .option("tag", TAG)
        .option("columns", "label,vector,split")
        .load()
        .filter("split = 'train'")
    )
    shuffled = examples.repartition(2, "label")
    found = map_arrow(shuffled, centroids, "label int, rows long, x double")
    return [row.asDict() for row in found.orderBy("label").collect()]


def centroids(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stand in for a training step: vectors arrive as one array per batch."""
    sums: dict[int, list[float]] = {}
    for batch in batches:
        vectors = batch.column("vector").flatten().to_numpy().reshape(-1, DIMENSIONS)
        for label, vector in zip(batch.column("label").to_pylist(), vectors, strict=True):
            count, total = sums.get(label, [0, 0.0])
            sums[label] = [count + 1, total + float(vector[0])]
    for label, (count, total) in sums.items():
        row = {"label": pa.array([label], pa.int32()), "rows": [int(count)], "x": [total / count]}
        yield pa.RecordBatch.from_pydict(row)


def prepare(log: CommitLog) -> None:
    """Make a tagged training set, and go on writing behind the tag."""
    log.create_table(TABLE, SCHEMA)
    rows = [
        {"label": n % 2, "vector": [float(n)] * DIMENSIONS, "split": "test" if n > 7 else "train"}
        for n in range(10)
    ]
    outcome = log.append(TABLE, pa.Table.from_pylist(rows, SCHEMA))
    log.open(TABLE).tags.create(TAG, outcome.version)
    log.append(TABLE, pa.Table.from_pylist(rows, SCHEMA))


def main() -> None:
    """Make the table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    servers = parser.parse_args().bootstrap_servers
    prepare(CommitLog.connect(servers))
    spark = local_session("training read")
    spark.dataSource.register(CommitLogDataSource)
    for row in run(spark, {"kafka.bootstrap.servers": servers}):
        print(row)
    spark.stop()


if __name__ == "__main__":
    main()
