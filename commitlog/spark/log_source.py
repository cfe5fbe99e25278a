"""The log as a Spark source, batch and stream, without jars: option `read` = `log`.

One row per valid outcome, in typed columns (`log_rows.LOG_SCHEMA`). With `read` = `changes` and no
table, the committed changes of all tables: the same stretches of the log, read on as the rows that
each version changed. A stream's offset is a position per partition of the log.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from commitlog.adapters.shown_values import python_rows
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import NoSuchVersion
from commitlog.model.records import Status
from commitlog.ports import Log
from commitlog.spark.arrow import check_given, readable, to_spark
from commitlog.spark.changes import (
    CHANGE_COLUMNS,
    VersionChanges,
    dealt_out,
    parts_of,
    read_part,
)
from commitlog.spark.connection import Answer, while_away
from commitlog.spark.files import Connect
from commitlog.spark.log_positions import (
    Stretch,
    another_sources,
    beginning,
    decided_in,
    outcomes_end,
    stretches,
    walk,
)
from commitlog.spark.log_rows import LOG_SCHEMA, log_batches
from commitlog.spark.options import LATEST, LogOptions
from commitlog.spark.plain_errors import plain_errors
from commitlog.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema_of,
    check_limits,
)
from commitlog.spark.versions import TableVersions

Offset = dict[str, dict[str, Any]]
"""Per partition, as text, a place in its chain."""

OUTCOMES_PER_TASK = 20_000
ALL_CHANGES = pa.schema(
    [pa.field("table", pa.string(), nullable=False), *CHANGE_COLUMNS, pa.field("row", pa.string())]
)
"""Tables differ in their columns, so a row is a JSON object here."""
WITHOUT_CHANGES = frozenset({"CreateTable", "RegisterTable"})
"""Operations whose results name a version that they made without rows, or found: with `exist_ok`
the standing table's, and a dataset's, or a dropped table's, newest one."""


def log_schema(options: LogOptions) -> StructType:
    """Return the columns of the log, or of all tables' changes."""
    return from_arrow_schema(ALL_CHANGES if options.changes else LOG_SCHEMA)


class StretchPartition(InputPartition):
    """What one task reads of the log."""

    def __init__(self, stretch: Stretch) -> None:
        super().__init__(stretch)
        self.stretch = stretch


class TableParts(InputPartition):
    """What one task reads of tables: parts of their versions."""

    def __init__(self, parts: Sequence[VersionChanges]) -> None:
        super().__init__(parts)
        self.parts = parts


class _Reading:
    """What batch and stream share: how to plan a range, and how to read a part of it."""

    def __init__(
        self, options: LogOptions, connect: Connect, schema: StructType | None = None
    ) -> None:
        """Refuse a schema of the caller's with a column that there isn't."""
        self.options = options
        self.connect = connect
        self.seconds = options.connection.connect_seconds
        known = (ALL_CHANGES if options.changes else LOG_SCHEMA).names
        if schema is not None:
            check_given(schema, known, "what is read")
        self.schema = None if schema is None or schema.names == known else schema

    def log(self) -> Log:
        log: Log = self.connect(self.options.connection).runtime().log
        return log

    def asked(self, question: Callable[[Log], Answer]) -> Answer:
        """Ask again while the log is away, for as long as it may be."""
        return while_away(lambda: question(self.log()), time.monotonic() + self.seconds)

    def plan(self, partition: int, start: ChainPlace, end_offset: int) -> Iterator[InputPartition]:
        if self.options.changes:
            found = list(self._table_parts(partition, start, end_offset))
            yield from map(TableParts, dealt_out(found))
            return
        log = self.log()
        for stretch, _ in stretches(
            log,
            partition,
            start,
            end_offset,
            outcomes_max=OUTCOMES_PER_TASK,
            silence_seconds=self.seconds,
        ):
            yield StretchPartition(stretch)

    def _table_parts(
        self, partition: int, start: ChainPlace, end_offset: int
    ) -> Iterator[VersionChanges]:
        client = self.connect(self.options.connection)
        runtime = client.runtime()
        tables = {info.incarnation: TableVersions(runtime, info) for info in client.tables()}
        records = walk(self.log(), partition, start, end_offset, silence_seconds=self.seconds)
        for outcome, _ in records:
            if outcome is None or outcome.status is not Status.COMMITTED or outcome.answers:
                continue
            for result in outcome.results:
                table = tables.get(result.incarnation)
                # The rows of a table that was dropped are gone with its files.
                if table is None or not result.version or result.operation in WITHOUT_CHANGES:
                    continue
                try:
                    yield from parts_of(table, result.version)
                except NoSuchVersion:
                    if table.info.deleted:
                        continue
                    raise

    def read_partition(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self.schema is None:
            yield from self._batches(partition)
            return
        wanted = arrow_schema_of(self.schema)
        for batch in self._batches(partition):
            yield to_spark(batch, wanted)

    def _batches(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, TableParts):
            for part in partition.parts:
                yield from _json_rows(part)
            return
        assert isinstance(partition, StretchPartition)
        stretch, seconds = partition.stretch, self.seconds
        yield from log_batches(decided_in(self.log(), stretch, silence_seconds=seconds))


@plain_errors
class LogReader(DataSourceReader):
    """All of the log as it is when the query is planned."""

    def __init__(
        self, options: LogOptions, connect: Connect, schema: StructType | None = None
    ) -> None:
        self._reading = _Reading(options, connect, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return stretches of every partition (Spark asks for one task at least)."""
        return self._reading.asked(self._planned) or [TableParts(())]

    def _planned(self, log: Log) -> list[InputPartition]:
        return [
            part
            for number, start in beginning(log).items()
            for part in self._reading.plan(number, start, outcomes_end(log, number))
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a stretch's rows; runs on an executor."""
        return self._reading.read_partition(partition)


@plain_errors
class LogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The log as it grows."""

    def __init__(
        self, options: LogOptions, connect: Connect, schema: StructType | None = None
    ) -> None:
        check_limits(maxRowsPerTrigger=options.rows_per_trigger)
        self._reading = _Reading(options, connect, schema)
        self._rows_max = options.rows_per_trigger
        self._starts_late = options.starting == LATEST
        self._last: dict[int, int] | None = None
        """Where a query that ends by itself stops, per partition."""
        self._reached: Offset | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the beginning of the log, or its present end."""
        start = _to_json(self._reading.asked(beginning))
        return self.latestOffset(start, ReadAllAvailable()) if self._starts_late else start

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how many outcomes a batch takes at most."""
        return ReadMaxRows(self._rows_max) if self._rows_max else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends."""
        self._last = self._reading.asked(
            lambda log: {number: outcomes_end(log, number) for number in beginning(log)}
        )

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Walk the chain on in each partition, up to its share of the limit or the end.

        Spark 4.1 names neither: the walk continues where this process left off.
        """
        start = start or self._reached or _to_json(self._reading.asked(beginning))
        reached = self._reading.asked(
            lambda log: self._walk_on(log, _from_json(start), limit or ReadAllAvailable())
        )
        self._reached = reached
        return reached

    def _walk_on(self, log: Log, positions: dict[int, ChainPlace], limit: ReadLimit) -> Offset:
        share = None
        if isinstance(limit, ReadMaxRows):
            # A partition that is always busy keeps no other from being read.
            share = max(1, limit.max_rows // len(positions))
        for number, position in positions.items():
            end = self._last[number] if self._last is not None else outcomes_end(log, number)
            count = 0
            for outcome, behind in walk(
                log, number, position, end, silence_seconds=self._reading.seconds
            ):
                positions[number] = behind
                count += outcome is not None
                if count == share:
                    break
        return _to_json(positions)

    def reportLatestOffset(self) -> dict[str, dict[str, int]]:  # noqa: N802
        """Return where the log ends now, for the query's progress; Spark asks at each poll."""
        return self._reading.asked(
            lambda log: {str(one): {"offset": outcomes_end(log, one)} for one in beginning(log)}
        )

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return stretches between two offsets."""
        ends = _from_json(end)
        return self._reading.asked(
            lambda _: [
                part
                for number, position in _from_json(start).items()
                for part in self._reading.plan(number, position, ends[number].outcomes_offset)
            ]
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a stretch's rows; runs on an executor."""
        return self._reading.read_partition(partition)


def _json_rows(part: VersionChanges) -> Iterator[pa.RecordBatch]:
    excerpts = (part.new, part.old) if part.old else (part.new,)
    names = {name: None for one in excerpts for name in one.open(part.location).schema.names}
    own = CHANGE_COLUMNS.names
    for batch in read_part(part, [name for name in names if name not in own]):
        count = batch.num_rows
        kept = [name for name in batch.schema.names if name not in own]
        values = pa.record_batch([readable(batch.column(name)) for name in kept], kept)
        rows = [json.dumps(row, default=_plain) for row in python_rows(values)]
        columns = [pa.repeat(pa.scalar(part.table), count), *(batch.column(name) for name in own)]
        columns.append(pa.array(rows, pa.string()))
        yield pa.RecordBatch.from_arrays(columns, schema=ALL_CHANGES)


def _plain(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _to_json(positions: dict[int, ChainPlace]) -> Offset:
    return {
        str(number): {
            "offset": place.outcomes_offset,
            "epoch": place.epoch,
            "sequence": place.sequence,
            "hash": place.hash.hex(),
        }
        for number, place in positions.items()
    }


def _from_json(offset: Offset) -> dict[int, ChainPlace]:
    try:
        return {
            int(number): ChainPlace(
                at["sequence"], at["offset"], at["epoch"], bytes.fromhex(at["hash"])
            )
            for number, at in sorted(offset.items())
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        raise another_sources(offset) from None
