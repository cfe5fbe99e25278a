"""The entry point that Spark knows: format `commitlog`.

    from commitlog.spark import CommitLogDataSource
    spark.dataSource.register(CommitLogDataSource)
    frame.writeStream.format("commitlog").option("table", "nyc$flights")...

It only reads the options and hands over: `sink` writes, `source` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from commitlog.spark import connection
from commitlog.spark.options import Connection, parse_read, parse_write
from commitlog.spark.sink import BatchSink, StreamSink
from commitlog.spark.source import TableReader, table_schema


class CommitLogDataSource(DataSource):
    """Tables of a commit log as a Spark format: streaming and batch sink, batch source."""

    connect: Callable[[Connection], Any] = staticmethod(connection.connect)
    """How a log is reached; a subclass may say otherwise."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "commitlog"

    def schema(self) -> StructType:
        """Return the columns of the version that the options name."""
        return table_schema(parse_read(self.options), self.connect)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        return TableReader(parse_read(self.options), schema, self.connect)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        options = parse_write(self.options, streaming=False)
        return BatchSink(options, schema, overwrite, self.connect)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return a micro-batch writer; Spark passes `overwrite` by this name in complete mode."""
        options = parse_write(self.options, streaming=True)
        checkpoint = self.options.get("checkpointLocation", "")
        return StreamSink(options, schema, overwrite, self.connect, checkpoint)
