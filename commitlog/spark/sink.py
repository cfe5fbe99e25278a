"""The sink: executors write Lance fragments, the driver commits them as one transaction.

A streaming batch is committed under (application id, sequence) = (query id, batch id). Spark runs
a batch again if it died before Spark noted it, and the rerun's files have other names; the log
commits the first transaction of a pair and answers the others with it, so each batch lands once.
Nothing here deletes files, not even `abort`: it also runs after a commit whose answer got lost,
and then the files belong to the table. What no version names is left to the vacuum.

A streaming writer is made anew for the commit, in another process: only the options and the
messages reach it. A batch writer is the same, pickled. Both classes rely on messages alone.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from commitlog.errors import InvalidTransaction, Unavailable
from commitlog.model.records import Application, Outcome, Status
from commitlog.spark.arrow import check, conform
from commitlog.spark.options import Connection, WriteOptions

Connect = Callable[[Connection], Any]
"""What makes a `commitlog.CommitLog` of a connection; another one stands in for it in tests."""

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Spark's own task properties: not documented, so what they say is checked where it can be."""

RETRY_SECONDS = 0.5


@dataclass(frozen=True)
class Target:
    """What an executor must know to write files that fit a table. It never asks the log."""

    table: str
    location: str
    schema: bytes
    data_storage_version: str
    rows_per_file: int
    bytes_per_file: int

    def arrow_schema(self) -> pa.Schema:
        """Return the table's schema, field metadata included."""
        return pa.ipc.read_schema(pa.BufferReader(self.schema))


@dataclass
class Written(WriterCommitMessage):
    """What one task wrote, and in which query and batch it ran."""

    fragments: tuple[str, ...]
    rows: int
    query_id: str = ""
    batch_id: str = ""


def plan(options: WriteOptions, schema: StructType, connect: Connect) -> Target:
    """Look the table up and check that the query's columns fit it, before any executor starts."""
    info = connect(options.connection).table(options.table)
    check(to_arrow_schema(schema, timezone="UTC"), info.schema, options.table)
    return Target(
        table=options.table,
        location=info.location,
        schema=info.schema.serialize().to_pybytes(),
        data_storage_version=info.data_storage_version,
        rows_per_file=options.rows_per_file,
        bytes_per_file=options.bytes_per_file,
    )


def write_files(batches: Iterable[pa.RecordBatch], target: Target) -> tuple[tuple[str, ...], int]:
    """Stream batches into new fragments; return them as JSON, and how many rows they hold."""
    schema = target.arrow_schema()
    fitted = conform(batches, schema)
    first = next(fitted, None)
    if first is None:
        return (), 0

    def rest() -> Iterator[pa.RecordBatch]:
        yield first
        yield from fitted

    fragments = write_fragments(
        pa.RecordBatchReader.from_batches(schema, rest()),
        target.location,
        schema=schema,
        max_rows_per_file=target.rows_per_file,
        max_bytes_per_file=target.bytes_per_file,
        data_storage_version=target.data_storage_version or None,
    )
    rows = sum(int(fragment.physical_rows) for fragment in fragments)
    return tuple(json.dumps(fragment.to_json()) for fragment in fragments), rows


def commit_files(
    log: Any,
    options: WriteOptions,
    fragments: Sequence[str],
    *,
    overwrite: bool,
    application: Application | None,
    wait: str,
) -> Outcome | None:
    """Commit what the executors wrote as one transaction; no files and no overwrite: nothing.

    Raises:
        CommitConflict: the log refused it; the message says what to do.
        OutcomeUnknown: run the batch again, under the same application id and sequence.
    """
    if not fragments and not overwrite:
        return None
    files = [FragmentMetadata.from_json(text) for text in fragments]
    deadline = time.monotonic() + options.timeout_seconds
    while True:
        if overwrite:
            schema = log.table(options.table).schema
            operation: Any = lance.LanceOperation.Overwrite(schema, files)
        else:
            operation = lance.LanceOperation.Append(files)
        left = max(1.0, deadline - time.monotonic())
        try:
            ticket = log.submit(options.table, operation, application=application)
            outcome: Outcome = ticket.result(timeout=left, wait=wait)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        # The files stand by themselves: what was retryable is the same request over a newer head.
        if outcome.status is not Status.RETRYABLE or time.monotonic() > deadline:
            return outcome.raise_for_conflict()


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
        self.target = plan(options, schema, connect)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows; runs on an executor."""
        query_id, batch_id = _streaming_identity()
        fragments, rows = write_files(iterator, self.target)
        return Written(fragments, rows, query_id, batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Commit one micro-batch; runs on the driver's host."""
        written = [message for message in messages if isinstance(message, Written)]
        fragments = [text for message in written for text in message.fragments]
        if not fragments and not self.overwrite:
            return
        query_id = _agreed_query_id(written, batchId, self.checkpoint)
        application = Application(
            application_id=self.options.application_id or query_id, sequence=batchId, run=query_id
        )
        commit_files(
            self.connect(self.options.connection),
            self.options,
            fragments,
            overwrite=self.overwrite,
            application=application,
            wait="committed",
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the files: the batch may have been committed."""


class BatchSink(DataSourceArrowWriter):
    """Writes and commits one batch job (save modes append and overwrite)."""

    def __init__(
        self, options: WriteOptions, schema: StructType, overwrite: bool, connect: Connect
    ) -> None:
        """Check the job's columns."""
        self.options = options
        self.overwrite = overwrite
        self.connect = connect
        self.target = plan(options, schema, connect)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write one task's rows; runs on an executor."""
        fragments, rows = write_files(iterator, self.target)
        return Written(fragments, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit the job; runs on the driver's host."""
        written = [message for message in messages if isinstance(message, Written)]
        application = None
        if self.options.application_sequence is not None:
            application = Application(
                self.options.application_id, self.options.application_sequence
            )
        commit_files(
            self.connect(self.options.connection),
            self.options,
            [text for message in written for text in message.fragments],
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


def _agreed_query_id(written: Sequence[Written], batch_id: int, checkpoint: str) -> str:
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
    parts = urlsplit(checkpoint)
    if not checkpoint or parts.scheme not in ("", "file"):
        return ""
    try:
        noted = json.loads((Path(unquote(parts.path)) / "metadata").read_text())
        return str(noted["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
