"""A session that does a little of everything: the classes of its JVM are those that tests need.

python -m tests.spark_classes FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    InputPartition,
    WriterCommitMessage,
)

from commitlog.spark import local_session
from tests.spark_start import MAKE_SECONDS


class Sink(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Takes rows and forgets them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take one task's rows."""
        list(iterator)
        return WriterCommitMessage()

    def commit(self, messages: Any, *batch: Any) -> None:
        """Forget a batch, of a stream or not."""

    abort = commit  # type: ignore[assignment]


class Reader(DataSourceReader):
    """Reads a row."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read it."""
        yield pa.RecordBatch.from_pylist([{"id": 1, "name": "1"}])


class Rows(DataSource):
    """The format `rows`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rows"

    def schema(self) -> str:
        """Return the columns."""
        return "id long, name string"

    def reader(self, schema: Any) -> Reader:
        """Return a batch reader."""
        return Reader()

    def writer(self, schema: Any, overwrite: bool) -> Sink:
        """Return a batch writer."""
        return Sink()

    def streamWriter(self, schema: Any, overwrite: bool) -> Sink:  # noqa: N802
        """Return a micro-batch writer."""
        return Sink()


def main(folder: Path) -> None:
    """Use what sessions of tests use, and wait for the JVM, which writes the archive as it ends."""
    spark = local_session("classes")
    spark.dataSource.register(Rows)
    rows = spark.range(9).repartition(3).selectExpr("id", "cast(id AS string) AS name")
    rows.write.format("rows").mode("append").save()
    read = spark.read.format("rows").load()
    read.groupBy("name").count().join(rows, "name", "left").orderBy("id").collect()
    read.createOrReplaceTempView("seen")
    spark.sql("SELECT max(id) FROM seen WHERE name LIKE '%1'").toArrow()
    (folder / "in").mkdir()
    (folder / "in" / "0.json").write_text(json.dumps({"id": 10}))
    stream = spark.readStream.schema("id long, name string").json(str(folder / "in"))
    sink = stream.writeStream.format("rows").option("checkpointLocation", str(folder / "check"))
    sink.trigger(availableNow=True).start().awaitTermination()
    each = stream.writeStream.foreachBatch(lambda frame, _: frame.foreach(print))
    each.trigger(availableNow=True).start().awaitTermination()
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()
    jvm.wait(MAKE_SECONDS)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
