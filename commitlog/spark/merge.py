"""MERGE: the rows of a frame update, insert and delete rows of a table, joined by key.

    merge(frame, "shop$orders", on="id", options={"kafka.bootstrap.servers": "HOST:PORT"})

The executors join a large source, and write the new fragments and the deletion vectors. The driver
submits one Update with the rows that it changes and the hashes of the keys that it inserts. It
joins a small source itself, which saves Spark's shuffle and the start of tasks. Either
way, after a retryable conflict the join is repeated over the newer version.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyroaring import BitMap
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import BooleanType, LongType, StructField, StructType

from commitlog.adapters.row_contract import check_columns, present
from commitlog.adapters.row_digest import joined_digests
from commitlog.client.commits.execution import Execution
from commitlog.client.leader.repeats import noted
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.excerpts import Excerpt
from commitlog.client.rows.merging import check_key_types
from commitlog.client.rows.rows import Prepared
from commitlog.codecs.keys import HASH_BYTES
from commitlog.errors import InvalidTransaction, RetryableConflict, TransactionRejected
from commitlog.model.records import Code, Outcome
from commitlog.model.table import parse_table_id
from commitlog.spark.arrow import arrow_schema, fetched, quoted, spark_schema, to_spark
from commitlog.spark.connection import connect as connect_to
from commitlog.spark.files import Connect, brought, named_keys, target_of
from commitlog.spark.mapping import map_arrow, of_each_task
from commitlog.spark.merge_files import (
    ADDRESS,
    DELETE,
    KEY,
    KEYS_MAX,
    ROW_ID,
    MergePart,
    MergeTask,
    count_rows,
    joined_keys,
    match,
    merge_rows,
    scan_keys,
    with_table_types,
)
from commitlog.spark.options import WriteOptions, parse_batches
from commitlog.spark.pyspark_api import arrow_schema_of, asked_about
from commitlog.spark.row_parts import SmallMerge, merged
from commitlog.spark.versions import standing
from commitlog.spark.wanted import ROWS_IN_DRIVER, Merge, check_condition

BACKLOG_SECONDS = 0.5
"""How long a merge waits if too many writes of rows wait already."""
COUNTED = ("inserted", "updated", "deleted")
OWN = (ADDRESS, ROW_ID, DELETE)


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    outcome: Outcome | None
    """None: there was nothing to do, and nothing was committed."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0


class NothingToDo(Exception):
    """A merge that changes no row."""

    def __init__(self, source: Mapping[str, int]) -> None:
        """Take what the source brought."""
        super().__init__("the merge changes no row")
        self.source = source


def merge(
    source: DataFrame,
    table: str,
    on: str | Sequence[str],
    *,
    options: Mapping[str, str],
    update: bool = True,
    insert: bool = True,
    update_where: str = "",
    delete_where: str = "",
    rows_in_driver: int = ROWS_IN_DRIVER,
    connect: Connect = connect_to,
) -> Merged:
    """Merge a frame into a table by key, and return the result; redone after conflicts.

    `options` are those of format `commitlog`: `kafka.bootstrap.servers`, `log`, `timeoutSeconds`,
    `rowsPerFile`, `bytesPerFile`. Rows with a null in their key match nothing. Columns that the
    source lacks, and fields of structs, keep their values; in new rows they are null. With
    `update_where`, such as `source.at > target.at`, only rows for which it holds are updated.

    Raises:
        InvalidTransaction: columns that don't fit, or a key that the source has twice.
        CommitConflict: refused for good, or still conflicting at the end of the timeout.
    """
    parsed = parse_batches(options)
    of_batches = {"txnAppId": parsed.application_id, "strictRepeats": parsed.strict_repeats}
    for name, value in of_batches.items():
        if value:
            raise InvalidTransaction(
                f"option {name!r} has no effect on `merge`", field=name, value=value,
                advice="Use `each_batch` or `upsert`, which commit a batch once, or leave it out",
            )  # fmt: skip
    wanted = Merge.of(
        on,
        update=update,
        insert=insert,
        update_where=update_where,
        delete_where=delete_where,
        rows_in_driver=rows_in_driver,
    )
    log = connect(parsed.connection)
    with Source(source, wanted, info := standing(log, table)) as rows:
        small = merged(info, rows.local if parsed.by_log else None, wanted)
        if small is not None:
            found = _write_rows(log, info, small, parsed.timeout_seconds)
            if found is not None:
                return found
        execution = _Execution(log, parse_table_id(table), timeout=parsed.timeout_seconds)
        return execution.merge(
            lambda info: prepare(log, info, rows, wanted, parsed, is_noted=False)
        )


def _write_rows(log: Any, info: TableInfo, small: SmallMerge, timeout: float) -> Merged | None:
    """Commit a small merge as writes of rows; None if the log's rules know none."""
    if not small.parts:
        return Merged(None)
    deadline = time.monotonic() + timeout
    while True:
        left = max(1.0, deadline - time.monotonic())
        record = log.transact(properties=noted(small.source), timeout=left)
        try:
            with record:
                for part in small.parts:
                    part.add_to(record, info)
        except TransactionRejected as error:
            if error.outcome.code is Code.MALFORMED_RECORD:
                return None
            raise
        except RetryableConflict:
            if time.monotonic() > deadline:
                raise
            time.sleep(BACKLOG_SECONDS)
            continue
        return Merged(record.outcome, *(getattr(record.outcome, name) for name in COUNTED))


class _Execution(Execution):
    """Executes a merge until no other transaction wins in between."""

    def merge(self, prepare: Callable[[TableInfo], Prepared]) -> Merged:
        """Return what the attempt did that was committed."""

        def computed(info: TableInfo) -> Prepared:
            began = time.monotonic()
            try:
                return prepare(info)
            finally:
                # Spark may compute for hours: the timeout is for what the log takes.
                self._deadline += time.monotonic() - began

        try:
            outcome = self._run(computed).raise_for_conflict()
        except NothingToDo:
            return Merged(None)
        return Merged(outcome, *(self.counts[name] for name in COUNTED))


class Source:
    """A frame's rows in the table's columns, computed once however often the merge is redone."""

    def __init__(self, frame: DataFrame, wanted: Merge, info: TableInfo) -> None:
        """Check the columns, before anything is computed."""
        given = _columns(frame, wanted, info)
        deletes = f.expr(wanted.delete_where) if wanted.delete_where else f.lit(False)
        flag = f.coalesce(deletes.cast("boolean"), f.lit(False)).alias(DELETE)
        self.columns = given
        self.frame = frame.select(*map(quoted, given.names), flag)
        self._limit = wanted.rows_in_driver
        self.local: pa.Table | None = None

    def __enter__(self) -> Source:
        """Compute the rows; fetch them if they are few."""
        self.frame = self.frame.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if self._limit > 0:
                self.local = _few(self.frame, self._limit)
        except BaseException:
            self.frame.unpersist()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.frame.unpersist()


def _few(frame: DataFrame, rows_max: int) -> pa.Table | None:
    """Return a frame's rows; None if they are more, or larger than Spark lets a driver collect."""
    try:
        found = fetched(frame.limit(rows_max + 1))
    except Exception as error:
        if "spark.driver.maxResultSize" not in str(error):
            raise
        return None
    return found if found.num_rows <= rows_max else None


def prepare(
    log: Any, info: TableInfo, source: Source, wanted: Merge, options: WriteOptions,
    *, is_noted: bool = True,
) -> Prepared:  # fmt: skip
    """Join with a table's head and write what the merge adds and takes away.

    What the source brings is counted to be noted: only a batch can be a repeat.
    Raises NothingToDo if it changes no row.
    """
    check_columns(source.columns, info.schema, info.name, partial=not wanted.insert)
    target = target_of(
        info,
        info.name,
        info.schema,
        rows_per_file=options.rows_per_file,
        bytes_per_file=options.bytes_per_file,
    )
    dataset = log.opened.newest(info)
    task = MergeTask(
        target=target,
        joined=Excerpt.whole(dataset),
        on=tuple(sorted(wanted.on, key=lambda name: info.top_level_ids([name]))),
        stable_row_ids=info.stable_row_ids,
        update=wanted.update,
        insert=wanted.insert,
        given=present(source.columns, info.schema).serialize().to_pybytes(),
        update_where=wanted.update_where,
    )
    fragments = [int(fragment.fragment_id) for fragment in dataset.get_fragments()]
    if source.local is not None:
        parts = _merge_here(source.local, task, fragments)
    else:
        parts = _merge_on_executors(source.frame, task, fragments, is_noted)
    return update_of(info, task, parts)


def _merge_here(rows: pa.Table, task: MergeTask, fragments: Sequence[int]) -> list[MergePart]:
    fitted = list(with_table_types(rows.to_batches(), task))
    if not fitted:
        return []
    matched = match(pa.Table.from_batches(fitted), task, fragments)
    return [count_rows(fitted), merge_rows(matched.combine_chunks().to_batches(), task)]


def _merge_on_executors(
    source: DataFrame, task: MergeTask, fragments: Sequence[int], is_noted: bool
) -> list[MergePart]:
    spark = source.sparkSession
    columns = spark_schema(task.columns(), task.target.table)
    flag = StructField(DELETE, BooleanType())
    # Spark's own casts would make other values of some.
    keys = spark_schema(task.keys(), task.target.table)
    fields = [*columns.fields, flag, *keys.fields]
    fitted = map_arrow(source, partial(_fit, task=task), StructType(fields))
    # As many tasks as Spark has cores, or one for each fragment.
    numbers = spark.createDataFrame([(number,) for number in fragments], "fragment long")
    places = [StructField(name, LongType()) for name in (ADDRESS, ROW_ID)]
    found = map_arrow(numbers, partial(_scan, task=task), StructType([*keys.fields, *places]))
    joined = fitted.join(found, keys.names, "left")
    # All rows of a fragment, and all of a key that the table lacks, go to one task.
    home = f.coalesce(f.shiftright(f.col(ADDRESS), 32), f.xxhash64(*keys.names))
    placed = joined.repartition(home).sortWithinPartitions(f.col(ADDRESS).asc_nulls_last())
    parts = of_each_task(placed, partial(merge_rows, task=task))
    if is_noted:  # apart, since a row that matches several fragments goes to several tasks
        parts += of_each_task(source, partial(_count, task=task))
    return parts


def _fit(batches: Iterable[pa.RecordBatch], task: MergeTask) -> Iterator[pa.RecordBatch]:
    """Yield the source's rows as the table would hold them, in Spark's types; on an executor."""
    schema = _sparks(task.columns(), task).append(pa.field(DELETE, pa.bool_()))
    keys = _sparks(task.keys(), task)
    for batch in with_table_types(batches, task):
        fitted, found = to_spark(batch, schema), to_spark(joined_keys(batch, task), keys)
        for name in keys.names:
            fitted = fitted.append_column(name, found.column(name))
        yield fitted


def _scan(batches: Iterable[pa.RecordBatch], task: MergeTask) -> Iterator[pa.RecordBatch]:
    """Read the keys of the fragments named in the rows; runs on an executor."""
    schema = _sparks(task.keys(), task)
    for name in (ADDRESS, ROW_ID):
        schema = schema.append(pa.field(name, pa.int64()))
    for batch in batches:
        for found in scan_keys(task, batch.column("fragment").to_pylist()):
            yield to_spark(found, schema)


def _sparks(columns: pa.Schema, task: MergeTask) -> pa.Schema:
    return arrow_schema_of(spark_schema(columns, task.target.table))


def _count(batches: Iterable[pa.RecordBatch], task: MergeTask) -> MergePart:
    """Count one task's rows of the source; runs on an executor."""
    return count_rows(with_table_types(batches, task))


def update_of(info: TableInfo, task: MergeTask, parts: Sequence[MergePart]) -> Prepared:
    """Return what all tasks did as one Update.

    Raises InvalidTransaction for keys that come twice, NothingToDo if no row changes.
    """
    doubled = [key for part in parts for key in part.duplicates]
    new = [fragment for part in parts for fragment in part.files.metadata()]
    updated = [FragmentMetadata.from_json(text) for part in parts for text in part.images]
    if doubled:
        raise InvalidTransaction(
            f"the source has duplicate keys, such as {', '.join(doubled[:3])}",
            field="on",
            value=doubled,
            advice="Keep one row for each key, such as the newest",
        )
    rows, digest = sum(part.rows for part in parts), joined_digests([p.digest for p in parts])
    source = brought(info.name, rows, digest)
    if not any(part.affected or part.files.fragments for part in parts):
        raise NothingToDo(source)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=sorted(number for part in parts for number in part.removed),
        updated_fragments=sorted(updated, key=lambda image: image.id),
        new_fragments=new,
        fields_modified=[],
        fields_for_preserving_frag_bitmap=sorted(info.field_ids),
        update_mode="rewrite_rows",
    )
    known = [part.keys for part in parts if part.keys is not None]
    inserted = b"".join(known)
    is_named = len(known) == len(parts) and len(inserted) <= KEYS_MAX * HASH_BYTES
    keys = named_keys(info.top_level_ids(task.on), inserted) if is_named else None
    return Prepared(
        operation=operation,
        read_version=task.joined.version,
        affected={n: BitMap.deserialize(rows) for part in parts for n, rows in part.affected},
        keys=keys,
        counts=source | {name: sum(getattr(part, name) for part in parts) for name in COUNTED},
    )


def _columns(frame: DataFrame, wanted: Merge, info: TableInfo) -> pa.Schema:
    """Return the source's columns that go into the table; refuse those that don't fit."""
    unknown = [name for name in wanted.on if name not in info.schema.names]
    absent = [name for name in wanted.on if name not in frame.columns]
    if unknown or absent or not wanted.on:
        in_source = bool(absent) and not unknown
        whose = "the source" if in_source else info.name
        problem = f"{whose} has no key column {next(iter(unknown or absent), None)!r}"
        names = ", ".join(frame.columns if in_source else info.schema.names)
        raise InvalidTransaction(
            problem if wanted.on else "no key column is given", field="on", value=wanted.on,
            advice=f"The {'source' if in_source else 'table'}'s columns are {names}",
        )  # fmt: skip
    check_key_types(info.name, info.schema, wanted.on)
    own = next((n for n in info.schema.names if n.lower().startswith((*OWN, KEY))), None)
    if own is not None:
        raise InvalidTransaction(
            f"{info.name} has a column {own!r}, which a Spark merge uses internally",
            field="columns", value=own, advice="Merge with `CommitLog.merge_insert`",
        )  # fmt: skip
    # A column that only says what to delete isn't the table's.
    others = [name for name in frame.columns if name not in info.schema.names]
    extra = asked_about(frame, wanted.delete_where, others)
    fields = [field for field in frame.schema if field.name not in extra]
    given = arrow_schema(StructType(fields), info.name)
    check_columns(given, info.schema, info.name, partial=not wanted.insert)
    if wanted.update_where:
        check_condition(wanted.update_where, info.schema, present(given, info.schema), wanted.on)
    return given
