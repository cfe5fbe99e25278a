"""`foreachBatch`: one micro-batch into one table or many, appended or merged, as one record.

    def write(batch, frame):
        batch.append("shop$events", frame)
        batch.merge("shop$orders", frame.filter("kind = 'order'"), on="id")

    frame.writeStream.foreachBatch(each_batch(write, OPTIONS)).start()

All of it commits, or nothing, once per batch: under the query's id, or `txnAppId`, and the
batch's number. After a retryable conflict, the function is called again with the same frame, so
it must not have side effects that may not happen twice.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, cast

import lance
from pyspark import StorageLevel
from pyspark.sql import DataFrame

from commitlog.adapters.row_digest import joined_digests
from commitlog.client.commits.submission import prepared_commit
from commitlog.client.leader.repeats import Repeat, noted, tell_repeat
from commitlog.client.leader.tables import TableInfo
from commitlog.client.leader.tickets import Ticket
from commitlog.client.rows.rows import Prepared, remove_files
from commitlog.core.partition.repeats import OTHER_TABLES
from commitlog.errors import (
    CommitConflict,
    InvalidTransaction,
    NoSuchTable,
    RetryableConflict,
    TransactionRejected,
    Unavailable,
)
from commitlog.model.records import Application, Code, Outcome
from commitlog.model.table import TableId, format_table_id
from commitlog.spark.connection import connect as connect_to
from commitlog.spark.file_commits import has_committed, trace_writes, version_written_for
from commitlog.spark.files import (
    Connect,
    Target,
    WrittenFiles,
    Wrote,
    brought,
    fields_digest,
    in_fragments,
    joined,
    no_keys,
    small_enough,
    target_for,
    write_files,
)
from commitlog.spark.mapping import of_each_task
from commitlog.spark.merge import COUNTED, NothingToDo, Source, prepare
from commitlog.spark.options import WriteOptions, parse_batches
from commitlog.spark.plain_errors import plain_errors
from commitlog.spark.pyspark_api import is_connect
from commitlog.spark.row_parts import RowsPart, appended, merged
from commitlog.spark.sink import QUERY_ID
from commitlog.spark.versions import standing
from commitlog.spark.wanted import Merge

BACKOFF_SECONDS = (0.05, 1.0)
DOUBLINGS_MAX = 10
REPEATS_KEPT = 100
Part = tuple[TableInfo, Prepared | RowsPart]
"""What a batch does to one table."""


class BatchFunction(Protocol):
    """A function for `foreachBatch`, made by `each_batch` or `upsert`."""

    repeats: deque[Repeat]
    """The newest batches that an earlier commit answered."""

    def __call__(self, frame: DataFrame, batch_id: int, /) -> None:
        """Commit a batch."""


@plain_errors
class Batch:
    """One micro-batch's transaction: the rows that it adds to tables or merges into them."""

    def __init__(self, log: Any, options: WriteOptions) -> None:
        self._log = log
        self._options = options
        self._parts: list[Part] = []
        self._idle: set[TableId] = set()
        """Tables in which a merge had rows and found nothing to do."""
        self._named: dict[TableId, TableInfo] = {}
        """All tables that are named, also those for which there are no rows."""
        self._wrote: list[Wrote] = []
        self._brought: dict[str, int] = {}
        """How many rows for which table, and their digests."""
        self.repeat: Repeat | None = None
        """Set where an earlier commit answered this one."""

    def append(self, table: str, frame: DataFrame) -> None:
        """Write a frame's rows; they are in the table once the batch is committed."""
        info = self._table(table)
        target = target_for(
            info, table, frame.schema, self._options, overwrite=False, has_digest=True
        )
        files = write_frame(frame, target)
        self._wrote += files.wrote
        self._brings(brought(table, files.rows, files.digest))
        part = appended(info, small_enough(files))
        if part is not None:
            self._parts.append((info, part))
            return
        files = in_fragments(files, target)
        if files.fragments:
            operation = lance.LanceOperation.Append(files.metadata())
            self._parts.append((info, Prepared(operation, 0, keys=files.key_hashes(target))))

    def merge(
        self,
        table: str,
        frame: DataFrame,
        on: str | Sequence[str],
        *,
        update: bool = True,
        insert: bool = True,
        update_where: str = "",
        delete_where: str = "",
        **options: Any,
    ) -> None:
        """Update, insert and delete rows of a table by key; see `commitlog.spark.merge`."""
        wanted = Merge.of(
            on,
            update=update,
            insert=insert,
            update_where=update_where,
            delete_where=delete_where,
            **options,
        )
        info = self._table(table)
        with Source(frame, wanted, info) as rows:
            local = rows.local if self._options.by_log else None
            small = merged(info, local, wanted)
            if small is not None:
                self._parts += [(info, part) for part in small.parts]
                self._brings(small.source)
                return
            try:
                part = prepare(self._log, info, rows, wanted, self._options)
            except NothingToDo as nothing:
                self._brings(nothing.source)
                if any(nothing.source.values()):
                    self._idle.add(info.table_id)
                return
        self._brings({n: count for n, count in part.counts.items() if n not in COUNTED})
        self._parts.append((info, part))

    def _table(self, name: str) -> TableInfo:
        info = standing(self._log, name)
        self._named[info.table_id] = info
        return info

    def _brings(self, counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            self._brought[name] = joined_digests([self._brought.get(name, 0), count])

    def commit(self, application: Application, timeout: float) -> Outcome | None:
        """Commit all of it as one record; None if there is nothing to do, and never was.

        Raises:
            CommitConflict: another commit won on merged rows, or the log refused the batch.
            Unavailable: nothing was appended. Either way, the files are removed.
        """
        try:
            parts = [*self._parts, *self._marks(application)]
            if not parts:
                return None
            try:
                ticket, outcome = self._submit(parts, application, timeout)
            except TransactionRejected as error:
                # An attempt of this batch found nothing to do in a table where there is work now.
                answered = _committed_to(error.outcome, parts)
                if not answered:
                    raise
                ticket, outcome = self._submit(answered, application, timeout)
        except (CommitConflict, NoSuchTable, Unavailable) as error:
            # If it is only its rows that were refused later, the record's files are committed.
            if not getattr(getattr(error, "outcome", None), "writes", ()):
                for info, part in self._parts:
                    if isinstance(part, Prepared):
                        remove_files(info, part)
            raise
        trace_writes(outcome.transaction_id, self._wrote)
        self.repeat = tell_repeat(
            self._log.runtime(), ticket.transaction, outcome, strict=self._options.strict_repeats
        )
        return outcome

    def _marks(self, application: Application) -> list[Part]:
        """Return appends of no rows to tables in which there is nothing to do.

        If this batch is a repeat, its first attempt may have worked in just these tables. Without
        them in the record, the log would take the rest for a batch that it hasn't yet. A table for
        which there are no rows isn't given a version for that: it is in the record if the log has
        the batch there. So is any, if there is nothing to do at all.
        """
        done = {info.table_id for info, _ in self._parts}
        idle = self._idle if self._parts else set()
        asked = partial(has_committed, self._log, self._options, application=application)
        nothing = lance.LanceOperation.Append([])
        return [
            (info, Prepared(nothing, 0, keys=no_keys(info)))
            for table, info in self._named.items()
            if table not in done and (table in idle or asked(info.name))
        ]

    def _submit(
        self, parts: Sequence[Part], application: Application, timeout: float
    ) -> tuple[Ticket, Outcome]:
        transaction = self._log.transact(
            application=application, properties=noted(self._brought), timeout=timeout
        )
        with transaction as record:
            for info, part in parts:
                if isinstance(part, RowsPart):
                    part.add_to(record, info)
                    continue
                if isinstance(part.operation, lance.LanceOperation.Append):
                    now, written = self._log.table(info.table_id), list(part.operation.fragments)
                    version = version_written_for(now, written, info.version, fields_digest(info))
                    part = replace(part, read_version=version or 0)
                # Of the table that was read: another one may have its name by now.
                commit = prepared_commit(info, part, transaction.transaction_id, id_is_new=True)
                record.submit(info.table_id, commit)
        return transaction.ticket, transaction.outcome


def _committed_to(outcome: Outcome, parts: Sequence[Part]) -> list[Part]:
    """Return the parts for the table in which the batch is committed, as the log refuses others."""
    reason = outcome.reason
    if outcome.code is not Code.ID_REUSED or reason is None or reason.name != OTHER_TABLES:
        return []
    table = reason.argument("table")
    return [(info, part) for info, part in parts if format_table_id(info.table_id) == table]


def each_batch(
    write: Callable[[Batch, DataFrame], object],
    options: Mapping[str, str],
    *,
    connect: Connect = connect_to,
) -> BatchFunction:
    """Return a function for `foreachBatch` that commits everything `write` does as one record.

    `options` are those of format `commitlog`, except `table`. `txnAppId` names the stream if its
    query's id isn't suitable.
    """
    parsed = parse_batches(options)
    repeats: deque[Repeat] = deque(maxlen=REPEATS_KEPT)

    def run(frame: DataFrame, batch_id: int) -> None:
        application = _application(frame, batch_id, parsed)
        log = connect(parsed.connection)
        deadline = time.monotonic() + parsed.timeout_seconds
        given = parsed
        frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            for failures in itertools.count():
                batch, began = Batch(log, given), time.monotonic()
                write(batch, frame)
                # Spark may compute for hours: the timeout is for what the log takes.
                deadline += time.monotonic() - began
                try:
                    batch.commit(application, max(1.0, deadline - time.monotonic()))
                    if batch.repeat is not None:
                        repeats.append(batch.repeat)
                    return
                except TransactionRejected as error:
                    # Older rules of a log know no rows in records.
                    if not given.by_log or error.outcome.code is not Code.MALFORMED_RECORD:
                        raise
                    given = replace(given, by_log=False)
                except (RetryableConflict, Unavailable):
                    if time.monotonic() > deadline:
                        raise
                low, high = BACKOFF_SECONDS
                time.sleep(random.uniform(low, min(high, low * 2 ** min(failures, DOUBLINGS_MAX))))
        finally:
            frame.unpersist()

    function = cast(BatchFunction, run)
    function.repeats = repeats
    return function


def upsert(
    table: str,
    on: str | Sequence[str],
    options: Mapping[str, str],
    *,
    connect: Connect = connect_to,
    **merge_options: Any,
) -> BatchFunction:
    """Return a function for `foreachBatch` that merges each batch into one table by key."""
    Merge.of(on, **merge_options)  # what it doesn't know is refused before a stream starts
    return each_batch(
        lambda batch, frame: batch.merge(table, frame, on, **merge_options),
        options,
        connect=connect,
    )


def write_frame(frame: DataFrame, target: Target) -> WrittenFiles:
    """Have the executors write a frame's rows; nothing is committed."""
    return joined(of_each_task(frame, partial(write_files, target=target)))


def _application(frame: DataFrame, batch_id: int, options: WriteOptions) -> Application:
    session: Any = frame.sparkSession
    # Spark Connect runs the function in a process that doesn't know the query.
    query_id = "" if is_connect(session) else session.sparkContext.getLocalProperty(QUERY_ID) or ""
    if not (options.application_id or query_id):
        raise InvalidTransaction(
            "cannot tell which streaming query this is",
            field="txnAppId",
            advice="Set option 'txnAppId' to a name that no other stream has",
        )
    return Application(options.application_id or query_id, int(batch_id), query_id)
