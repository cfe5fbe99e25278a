"""The entry point that Spark knows: format `commitlog`.

    from commitlog.spark import CommitLogDataSource
    spark.dataSource.register(CommitLogDataSource)
    frame.writeStream.format("commitlog").option("table", "nyc$flights")...

It only reads the options and hands over: `sink` writes, `source` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from commitlog.errors import CommitLogError, InvalidRequest
from commitlog.spark import connection
from commitlog.spark.change_stream import ChangeReader, ChangeStream, change_schema
from commitlog.spark.log_source import LogReader, LogStream, log_schema
from commitlog.spark.options import (
    BOOTSTRAP_SERVERS,
    LATEST,
    READ_CHANGES,
    READ_LOG,
    Connection,
    parse_changes,
    parse_log,
    parse_read,
    parse_write,
    what_to_read,
)
from commitlog.spark.plain_errors import plain_errors
from commitlog.spark.sink import BatchSink, StreamSink
from commitlog.spark.source import TableReader, table_schema
from commitlog.spark.sql_tables import (
    check_create_table,
    keeping_options,
    kept_for_reading,
    kept_for_writing,
)


@plain_errors
class RefusedStream(DataSourceStreamReader):
    """Raises an error where Spark shows it.

    If it gets no reader, Spark fails itself, and its own error is the last line.
    """

    def __init__(self, error: CommitLogError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error, to a new query."""
        raise self._error

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        """Raise the error, to a query that continues."""
        raise self._error

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        """Raise the error, to a query that runs a batch again."""
        raise self._error

    def read(self, partition: InputPartition) -> Any:
        """Raise the error; there is no part to be read."""
        raise self._error


@plain_errors
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
        check_create_table(self.options)
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
        given = kept_for_reading(schema, self.options, BOOTSTRAP_SERVERS)
        wanted = what_to_read(given)
        if wanted == READ_LOG:
            wished = parse_log(given)
            if wished.starting == LATEST:
                raise InvalidRequest(
                    "option 'startingPosition' is for streams: a batch reads the whole log",
                    field="startingPosition", value=LATEST,
                    advice="Leave it out, or use spark.readStream",
                )  # fmt: skip
            return LogReader(wished, self.connect, schema)
        if wanted == READ_CHANGES:
            return ChangeReader(parse_changes(given), schema, self.connect)
        return TableReader(parse_read(given), schema, self.connect)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return a stream of a table's changes, of all tables' changes, or of the log."""
        try:
            return self._stream_reader(schema)
        except CommitLogError as error:
            return RefusedStream(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        given = kept_for_reading(schema, self.options, BOOTSTRAP_SERVERS)
        wanted = what_to_read(given)
        if wanted == READ_LOG:
            return LogStream(parse_log(given), self.connect, schema)
        if wanted == READ_CHANGES:
            options = parse_changes(given)
            if options.ending_version is not None:
                raise InvalidRequest(
                    "option 'endingVersion' is for batches: a stream has no end",
                    field="endingVersion", value=options.ending_version,
                    advice="Leave it out, or use spark.read",
                )  # fmt: skip
            return ChangeStream(options, schema, self.connect)
        raise InvalidRequest(
            "a stream reads changes, or the log", field="read", value=wanted,
            advice=f"Set .option('read', {READ_CHANGES!r}), or {READ_LOG!r}",
        )  # fmt: skip

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        given = kept_for_writing(schema, self.options, BOOTSTRAP_SERVERS)
        options = parse_write(given, streaming=False)
        return BatchSink(options, schema, overwrite, self.connect)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return a micro-batch writer; Spark passes `overwrite` by this name in complete mode."""
        options = parse_write(
            kept_for_writing(schema, self.options, BOOTSTRAP_SERVERS), streaming=True
        )
        checkpoint = self.options.get("checkpointLocation", "")
        return StreamSink(options, schema, overwrite, self.connect, checkpoint)
