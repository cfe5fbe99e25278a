"""Changes of one table as a stream: `spark.readStream.format("commitlog").option("table", …)`.

An offset names the next thing to read: a version, and a part of it. It is all that a restart
needs, so a batch that is run again reads the same rows. It also says what made the version that
the stream stands on: after a restore, another one may have its number. Without a start the stream
begins with the rows that the table has now, as insertions, and continues with the changes after
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from commitlog.errors import InvalidRequest
from commitlog.spark.arrow import SQL_TABLE, check_given, put_together, spark_schema, to_spark
from commitlog.spark.changes import (
    CHANGE_COLUMNS,
    VersionChanges,
    dealt_out,
    parts_of,
    read_part,
    snapshot_parts,
)
from commitlog.spark.log_positions import another_sources
from commitlog.spark.options import BATCH_ROWS, EARLIEST, LATEST, ChangeOptions, Connection
from commitlog.spark.plain_errors import plain_errors
from commitlog.spark.pyspark_api import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema_of,
    check_limits,
)
from commitlog.spark.renames import Rename, first_rename
from commitlog.spark.versions import TableVersions, standing

Offset = dict[str, Any]
"""`version`, `part` and `snapshot` of what comes next, the table's `incarnation`, and what made the
version that the stream `stands_on`: the newest of which it has read something."""
PLANS_KEPT = 1_000
"""More than a limited batch has versions: they are planned to find its end, then to read it."""


class ChangePartition(InputPartition):
    """What one task reads; nothing, if nothing changed: a batch has one task at least."""

    def __init__(self, parts: Sequence[VersionChanges]) -> None:
        super().__init__(parts)
        self.parts = parts


def change_schema(options: ChangeOptions, connect: Callable[[Connection], Any]) -> StructType:
    """Return the table's present columns and those of a change.

    Any column of the table may be null: versions before it came have no values for it.
    """
    info = standing(connect(options.connection), options.table)
    read = options.columns or info.schema.names
    clash = [name for name in CHANGE_COLUMNS.names if name in read and name in info.schema.names]
    if clash:
        raise InvalidRequest(
            f"{options.table} has a column {clash[0]!r} of its own", field="columns",
            value=clash[0], advice="Name the columns to be read in option 'columns'",
        )  # fmt: skip
    columns = spark_schema(info.schema, options.table, options.columns).fields
    return StructType(
        [StructField(one.name, one.dataType, True) for one in columns]
        + from_arrow_schema(CHANGE_COLUMNS).fields
    )


@plain_errors
class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source; lives in a process of the driver's, and `read` on executors."""

    def __init__(
        self, options: ChangeOptions, schema: StructType, connect: Callable[[Connection], Any]
    ) -> None:
        """Take the options; nothing is asked yet."""
        check_limits(
            maxRowsPerTrigger=options.rows_per_trigger, maxFilesPerTrigger=options.files_per_trigger
        )
        self.options = options
        self.schema = schema
        self.connect = connect
        self.last_version: int | None = None
        """Where a query that ends by itself stops; None: at the head."""
        self._reached: Offset | None = None
        """The end of the last batch, if this process planned it."""
        self._knows_names = False
        """Whether no version before that end renames what is read."""
        self._plans: dict[tuple[str, int, bool], list[VersionChanges]] = {}

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return where a new query starts."""
        versions = self._versions()
        check_given(self._columns(), versions.info.schema.names, self.options.table)
        head, start = versions.info.version, self.options.starting_version
        if self.options.starting_time_ms is not None:
            return _offset(versions, versions.first_after(self.options.starting_time_ms - 1))
        if start == LATEST:
            return _offset(versions, head + 1)
        if start == EARLIEST:
            return _offset(versions, versions.first_told())
        if start is None:
            # Spark has fixed before where a query ends that ends by itself.
            last = head if self.last_version is None else min(head, self.last_version)
            return _offset(versions, last, snapshot=True)
        if int(start) > head + 1:
            raise InvalidRequest(
                f"version {start} of {self.options.table} is in the future: the head is {head}",
                field="startingVersion", value=start,
                advice=f"Start at {head + 1} for what comes next",
            )  # fmt: skip
        return _offset(versions, int(start))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a batch takes at most."""
        if self.options.rows_per_trigger is not None:
            return ReadMaxRows(self.options.rows_per_trigger)
        if self.options.files_per_trigger is not None:
            return ReadMaxFiles(self.options.files_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix where the query ends."""
        self.last_version = self._versions().info.version

    def latestOffset(  # noqa: N802
        self, start: Offset | None = None, limit: ReadLimit | None = None
    ) -> Offset:
        """Return where the next batch ends: at the head, or where the limit is reached.

        Spark 4.1 names neither start nor limit, and its batches end at the head.
        """
        versions = self._versions(start)
        if start is None:
            self._reached, self._knows_names = self._behind_head(versions), False
            return self._reached
        if start != self._reached:
            self._check(versions, start)
        self._reached = self._end(versions, start, limit or ReadAllAvailable())
        self._knows_names = True
        return self._reached

    def _end(self, versions: TableVersions, start: Offset, limit: ReadLimit) -> Offset:
        head = versions.info.version
        version, number, snapshot = _place(start)
        if self.last_version is not None:
            head = min(head, self.last_version)
        renamed = first_rename(versions, self._columns(), version, head)
        if renamed is not None:
            head = renamed.version - 1
        if version > head:
            if renamed is not None:
                raise self._renamed(renamed)
            return start
        if isinstance(limit, ReadAllAvailable):
            return _offset(versions, head + 1)
        left = limit.max_rows if isinstance(limit, ReadMaxRows) else limit.max_files  # type: ignore[attr-defined]
        took_any = False
        while version <= head:
            parts = self._plan(versions, version, snapshot)
            for part in parts[number:]:
                left -= part.rows if isinstance(limit, ReadMaxRows) else 1
                if left < 0 and took_any:
                    return _offset(versions, version, number, snapshot=snapshot)
                # One part at least, or a large one would never be read.
                took_any, number = True, number + 1
            version, number, snapshot = version + 1, 0, False
        return _offset(versions, version)

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return where the table is now, for the query's progress; Spark asks at each poll."""
        return self._behind_head(self._versions())

    def _behind_head(self, versions: TableVersions) -> Offset:
        behind = versions.info.version + 1
        if self._reached is not None and _place(self._reached) == (behind, 0, False):
            return self._reached  # a query that waits reads no manifest
        return _offset(versions, behind)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the parts from one offset up to another."""
        versions = self._versions(start)
        is_another = end != self._reached
        if is_another:
            # A batch that was planned by another process, and may be run again.
            self._check(versions, end)
        self._check(versions, start)
        version, number, snapshot = _place(start)
        last_version, last_number, _ = _place(end)
        if is_another or not self._knows_names:  # Spark 4.1's batches end at the head
            renamed = first_rename(versions, self._columns(), version, last_version - 1)
            if renamed is not None:
                raise self._renamed(renamed)
        chosen: list[VersionChanges] = []
        while (version, number) < (last_version, last_number):
            parts = self._plan(versions, version, snapshot)
            stop = last_number if version == last_version else len(parts)
            chosen.extend(parts[number:stop])
            if version == last_version:
                break
            version, number, snapshot = version + 1, 0, False
        return [ChangePartition(share) for share in dealt_out(chosen)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of some parts, in their order; runs on an executor."""
        assert isinstance(partition, ChangePartition)
        schema, columns = arrow_schema_of(self.schema), self._columns().names
        found = (batch for part in partition.parts for batch in read_part(part, columns))
        yield from put_together(
            (to_spark(one, schema) for one in found if one.num_rows), BATCH_ROWS
        )

    def _columns(self) -> StructType:
        """Return what is read of the table itself."""
        own = set(CHANGE_COLUMNS.names)
        return StructType([field for field in self.schema.fields if field.name not in own])

    def _renamed(self, found: Rename) -> InvalidRequest:
        old, new = ".".join(found.old), ".".join(found.new)
        advice = f"Start the query again, which then reads the new name. {SQL_TABLE}"
        if self.options.columns:
            advice = f"Start the query again, with {found.new[0]!r} in option 'columns'"
        return InvalidRequest(
            f"version {found.version} of {self.options.table} renamed column {old!r}, which this"
            f" query reads, to {new!r}",
            field="columns", value=old, advice=advice,
        )  # fmt: skip

    def _plan(self, versions: TableVersions, version: int, snapshot: bool) -> list[VersionChanges]:
        key = (versions.info.incarnation, version, snapshot)
        found = self._plans.get(key)
        if found is None:
            make = snapshot_parts if snapshot else parts_of
            found = make(versions, version)
            while len(self._plans) >= PLANS_KEPT:
                self._plans.pop(next(iter(self._plans)))
            self._plans[key] = found
        return found

    def _versions(self, start: Offset | None = None) -> TableVersions:
        log = self.connect(self.options.connection)
        info = log.table(self.options.table)
        if start is not None and (not isinstance(start, dict) or "incarnation" not in start):
            raise another_sources(start)
        if start is not None and start["incarnation"] != info.incarnation:
            raise InvalidRequest(
                f"the checkpoint is another table's, or {self.options.table} was dropped and made"
                " again since the query began",
                field="table", value=self.options.table,
                advice="Start the query with a new checkpoint",
            )  # fmt: skip
        return TableVersions(log.runtime(), info)

    def _check(self, versions: TableVersions, offset: Offset) -> None:
        """Refuse an offset behind a version that the table hasn't, or has another one of."""
        version, head = _stands_on(offset), versions.info.version
        # Offsets of former releases don't say what made it; of a deleted version, nothing does.
        made_by = offset.get("stands_on")
        problem = ""
        if version > head:
            problem = f"up to version {version} of {self.options.table}, but the head is {head}"
        elif made_by and versions.made_by(version) not in ("", made_by):
            problem = f"another version {version} of {self.options.table} than the table has"
        if problem:
            raise InvalidRequest(
                f"this query has read {problem}: the log was restored as of an earlier position",
                field="table", value=self.options.table,
                advice="Start the query with a new checkpoint",
            )  # fmt: skip


@plain_errors
class ChangeReader(DataSourceReader):
    """The changes of a range of versions, as a batch; from the earliest on, if none is named.

    A batch has no rows before its start: it tells changes only.
    """

    def __init__(
        self, options: ChangeOptions, schema: StructType, connect: Callable[[Connection], Any]
    ) -> None:
        given = options.starting_version is not None or options.starting_time_ms is not None
        start = options if given else replace(options, starting_version=EARLIEST)
        self._stream = ChangeStream(start, schema, connect)
        self._stream.last_version = options.ending_version

    def partitions(self) -> Sequence[InputPartition]:
        """Return the parts of all versions in the range."""
        start, last = self._stream.initialOffset(), self._stream.last_version
        end = self._stream.latestOffset(start, ReadAllAvailable())
        if last is not None:
            self._check_end(last, _place(start)[0], _place(end)[0])
        return self._stream.partitions(start, end) or [ChangePartition(())]

    def _check_end(self, last: int, first: int, after: int) -> None:
        """Refuse a range that would silently be another one, or none at all."""
        table, problem = self._stream.options.table, ""
        if last + 1 > after >= first:
            problem = f"version {last} of {table} is in the future: the head is {after - 1}"
        elif first > last + 1:
            problem = f"the changes of {table} would start at version {first} and end at {last}"
        if problem:
            raise InvalidRequest(
                problem, field="endingVersion", value=last,
                advice="Give the last version to be read, or leave it out to end at the head",
            )  # fmt: skip

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of some parts; runs on an executor."""
        return self._stream.read(partition)


def _offset(
    versions: TableVersions, version: int, part: int = 0, *, snapshot: bool = False
) -> Offset:
    place = {"version": version, "part": part, "snapshot": snapshot}
    made_by = versions.made_by(_stands_on(place))
    return {"incarnation": versions.info.incarnation, **place, "stands_on": made_by}


def _place(offset: Offset) -> tuple[int, int, bool]:
    return int(offset["version"]), int(offset["part"]), bool(offset["snapshot"])


def _stands_on(offset: Offset) -> int:
    version, part, snapshot = _place(offset)
    return version if part or snapshot else version - 1
