"""The entry point that Spark knows: format `commitlog`.

    from commitlog.spark import CommitLogDataSource
    spark.dataSource.register(CommitLogDataSource)
    frame.writeStream.format("commitlog").option("table", "nyc$flights")...

It only reads the options and hands over: `sink` writes, `source` reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructField, StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark import connection
from commitlog.spark.change_stream import ChangeReader, ChangeStream, change_schema
from commitlog.spark.log_source import LogReader, LogStream, log_schema
from commitlog.spark.options import (
    READ_CHANGES,
    READ_LOG,
    Connection,
    parse_changes,
    parse_log,
    parse_read,
    parse_write,
    sql_options,
    what_to_read,
)
from commitlog.spark.sink import BatchSink, StreamSink
from commitlog.spark.source import FilteringReader, TableReader, table_schema

KEPT = "commitlog.options"
"""In the first column's metadata: the options of a table that SQL made."""


def keeping_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Put the options of SQL's `CREATE TABLE` into the schema.

    Spark 4.3 keeps them with the table, and gives them to nobody who reads or writes it: what it
    does hand over is the schema, with its metadata.
    """
    made = sql_options(options)
    if not made or not schema.fields:
        return schema
    first, *others = schema.fields
    metadata = {**(first.metadata or {}), KEPT: json.dumps(made)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def kept_options(schema: StructType) -> dict[str, str]:
    """Return the options that `keeping_options` put away."""
    kept = (schema.fields[0].metadata or {}).get(KEPT, "{}") if schema.fields else "{}"
    found: dict[str, str] = json.loads(kept)
    return found


class CommitLogDataSource(DataSource):
    """Tables of a commit log as a Spark format: sinks and sources, for batches and streams."""

    connect: Callable[[Connection], Any] = staticmethod(connection.connect)
    """How a log is reached; a subclass may say otherwise."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "commitlog"

    def schema(self) -> StructType:
        """Return the columns of what the options name."""
        return keeping_options(self._columns(), self.options)

    def _columns(self) -> StructType:
        wanted = what_to_read(self.options)
        if wanted == READ_LOG:
            return log_schema(parse_log(self.options))
        if wanted == READ_CHANGES:
            return change_schema(parse_changes(self.options), self.connect)
        return table_schema(parse_read(self.options), self.connect)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader."""
        given = kept_options(schema) | dict(self.options)
        wanted = what_to_read(given)
        if wanted == READ_LOG:
            return LogReader(parse_log(given), self.connect)
        if wanted == READ_CHANGES:
            return ChangeReader(parse_changes(given), schema, self.connect)
        options = parse_read(given)
        kind = FilteringReader if options.push_filters else TableReader
        return kind(options, schema, self.connect)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of a table's changes, of all tables' changes, or of the log."""
        wanted = what_to_read(self.options)
        if wanted == READ_LOG:
            return LogStream(parse_log(self.options), self.connect)
        if wanted == READ_CHANGES:
            return ChangeStream(parse_changes(self.options), schema, self.connect)
        raise InvalidTransaction(
            "a stream reads changes, or the log", field="read", value=wanted,
            advice=f"Set .option('read', {READ_CHANGES!r}), or {READ_LOG!r}",
        )  # fmt: skip

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        given = kept_options(schema) | dict(self.options)
        options = parse_write(given, streaming=False)
        return BatchSink(options, schema, overwrite, self.connect)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return a micro-batch writer; Spark passes `overwrite` by this name in complete mode."""
        options = parse_write(self.options, streaming=True)
        checkpoint = self.options.get("checkpointLocation", "")
        return StreamSink(options, schema, overwrite, self.connect, checkpoint)
