"""The sink: executors write Lance fragments, the driver commits them as one transaction.

A streaming batch is committed under (application id, sequence) = (query id, batch id). Spark runs
a batch again if it died before Spark noted it, and the rerun's files have other names; the log
commits the first transaction of a pair and answers the others with it, so each batch lands once.
Nothing here deletes files, not even `abort`: it also runs after a commit whose answer got lost,
and then the files belong to the table. `commitlog orphans` lists what no transaction names.

A new streaming writer is made for the commit, in another process: only the options and the
messages reach it. A batch writer is the same, pickled. Both classes rely on messages alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from commitlog.errors import InvalidTransaction
from commitlog.model.records import Application
from commitlog.spark.file_commits import commit_files
from commitlog.spark.files import Connect, WrittenFiles, joined, plan, write_files
from commitlog.spark.options import WriteOptions
from commitlog.spark.plain_errors import plain_errors

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Spark's own task properties: not documented, so what they say is checked where it can be."""
_LOCAL_PATH = re.compile(r"(?:file:(?://[^/]*)?)?((?!\w[\w+.-]*:).+)", re.DOTALL)
"""As Spark reads it: `#`, `?` and `%` stand for themselves, as in `checkpoints/orders#2`."""


class TaskFiles(WriterCommitMessage):
    """What one task wrote, and in which query and batch it ran."""

    def __init__(self, files: WrittenFiles, query_id: str = "", batch_id: str = "") -> None:
        self.files = files
        self.query_id = query_id
        self.batch_id = batch_id


@plain_errors
class StreamSink(DataSourceStreamArrowWriter):
    """Writes and commits the micro-batches of one query (output modes append and complete)."""

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool, connect: Connect,
        checkpoint: str = "",
    ) -> None:  # fmt: skip
        """Check the query's columns; made for each micro-batch, and again for its commit."""
        self.options = options
        self.overwrite = overwrite
        self.connect = connect
        self.checkpoint = checkpoint
        self.target = plan(options, schema, connect, overwrite=overwrite, has_digest=True)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write one task's rows; runs on an executor."""
        query_id, batch_id = _streaming_identity()
        return TaskFiles(write_files(iterator, self.target), query_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit one micro-batch; runs on the driver's host."""
        if None in messages:
            # In a continuous stream, Spark calls no `write` of a sink in Python. Where it wasn't
            # refused at its start (see `writers`), its offsets at least aren't noted as done.
            raise InvalidTransaction(
                "Spark gave this sink no rows", field="trigger",
                advice="Use trigger(processingTime=…) or trigger(availableNow=True)",
            )  # fmt: skip
        written = [message for message in messages if isinstance(message, TaskFiles)]
        query_id = _agreed_query_id(written, batchId, self.checkpoint)
        application = Application(
            application_id=self.options.application_id or query_id, sequence=batchId, run=query_id
        )
        commit_files(
            self.connect(self.options.connection),
            self.options,
            self.target,
            joined(message.files for message in written),
            overwrite=self.overwrite,
            application=application,
            wait="committed",
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: the batch may have been committed."""


@plain_errors
class BatchSink(DataSourceArrowWriter):
    """Writes and commits one batch job (save modes append and overwrite)."""

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool, connect: Connect
    ) -> None:
        self.options = options
        self.overwrite = overwrite
        self.connect = connect
        is_noted = options.application_sequence is not None
        self.target = plan(options, schema, connect, overwrite=overwrite, has_digest=is_noted)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        """Write one task's rows; runs on an executor."""
        return TaskFiles(write_files(iterator, self.target), *_streaming_identity())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job; runs on the driver's host."""
        written = [message for message in messages if isinstance(message, TaskFiles)]
        application = None
        if self.options.application_sequence is not None:
            # Within foreachBatch: two streams that share an id are told apart by their queries.
            runs = {message.query_id for message in written if message.query_id}
            application = Application(
                self.options.application_id,
                self.options.application_sequence,
                runs.pop() if len(runs) == 1 else "",
            )
        commit_files(
            self.connect(self.options.connection),
            self.options,
            self.target,
            joined(message.files for message in written),
            overwrite=self.overwrite,
            application=application,
            wait="readable",
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep the files: the job may have been committed."""


def _streaming_identity() -> tuple[str, str]:
    context = TaskContext.get()
    if context is None:
        return "", ""
    return (context.getLocalProperty(QUERY_ID) or "", context.getLocalProperty(BATCH_ID) or "")


def _agreed_query_id(written: Sequence[TaskFiles], batch_id: int, checkpoint: str) -> str:
    """Return the query's id as tasks and checkpoint tell it, which must agree.

    A wrong id would commit a batch twice or not at all, so doubt is an error.
    """
    told = {message.query_id for message in written if message.query_id}
    noted = _checkpoint_query_id(checkpoint)
    ids = told | ({noted} if noted else set())
    batches = {message.batch_id for message in written if message.batch_id}
    if len(ids) != 1 or batches - {str(batch_id)}:
        raise InvalidTransaction(
            f"cannot tell which streaming query and batch this is: queries {sorted(ids)}, batches"
            f" {sorted(batches)}, expected batch {batch_id}",
            field="query id",
            advice="Use PySpark 4.2 or 4.3, or set checkpointLocation as an option of the writer",
        )
    return ids.pop()


def _checkpoint_query_id(checkpoint: str) -> str:
    """Return the id in `<checkpoint>/metadata`, where this process can read it, else ''."""
    path = _LOCAL_PATH.fullmatch(checkpoint)
    if path is None:
        return ""
    try:
        noted = json.loads((Path(path[1]) / "metadata").read_text())
        return str(noted["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
