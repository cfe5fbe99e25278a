"""One task's part of a MERGE: rows that found their row in the table, and rows that found none.

The same function works in the driver, for small sources, and on executors. Its rows are the
source's in the table's columns, with three more: the address and the row id of the row that the
key found (null: none), and whether the source asks for a deletion. Rows that found one come
first, in the order of addresses: a moved row keeps its stable row id, and Lance gives new ids to
what follows. All rows of one fragment, and all rows of one key, are in one task, so a task alone
can write a fragment's deletion vector and see that a key comes twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, RowIdSequence
from pyarrow import types

from commitlog.adapters.lance_datasets import scan_columns
from commitlog.adapters.row_contract import conform, conform_column
from commitlog.adapters.row_digest import rows_digest
from commitlog.adapters.row_values import holds_blobs
from commitlog.adapters.shown_values import python_rows
from commitlog.client.rows.excerpts import Excerpt
from commitlog.client.rows.lost_files import files_stay
from commitlog.client.rows.rows import delete_rows
from commitlog.codecs.keys import key_hashes, packed
from commitlog.core.manifest.roaring import portable
from commitlog.errors import InvalidTransaction
from commitlog.spark.arrow import put_together, readable, readable_type
from commitlog.spark.files import (
    Target,
    WrittenFiles,
    hashes_of,
    keyed_rows,
    named_by_task,
    write_files,
)
from commitlog.spark.wanted import columns_named, rows_that_hold

ADDRESS, ROW_ID, DELETE = "__address", "__row_id", "__delete"
KEY = "__key"
"""The columns beside the table's, the last with a number; a table may have none of these names."""
_PLACE = "__place"
DUPLICATES_MAX = 3
JOINED_ROWS = 65_536
"""So many rows of the table are joined at a time, or as many as the source has: each join hashes
the whole source again."""
KEYS_MAX = 500_000
"""A merge that inserts more keys names none, and conflicts with whatever else inserts."""


@dataclass(frozen=True)
class MergeTask:
    """What a task must know."""

    target: Target
    joined: Excerpt
    """The version that is joined."""
    on: tuple[str, ...]
    stable_row_ids: bool
    update: bool = True
    insert: bool = True
    given: bytes = b""
    """The schema of the source's columns in the table's types; empty: all of the table's."""
    update_where: str = ""
    """Lance's SQL over `source` and `target`: only rows for which it holds are updated."""

    def dataset(self) -> lance.LanceDataset:
        """Return the version that is joined."""
        return self.joined.open(self.target.location)

    def reads(self) -> AbstractContextManager[None]:
        """Say what is read of that version: NoSuchVersion if a file of it is gone."""
        return files_stay(self.target.table, self.joined.version)

    def columns(self) -> pa.Schema:
        """Return the source's columns in the table's types."""
        return pa.ipc.read_schema(pa.BufferReader(self.given or self.target.schema))

    def keys(self) -> pa.Schema:
        """Return the columns by which rows are joined."""
        columns = self.columns()
        kinds = [joinable_type(columns.field(name).type) for name in self.on]
        return pa.schema([(f"{KEY}{at}", kind) for at, kind in enumerate(kinds)])


@dataclass(frozen=True)
class MergePart:
    """What one task did; plain values, so that it can be pickled."""

    files: WrittenFiles = field(default_factory=WrittenFiles)
    images: tuple[str, ...] = ()
    """Post-images of fragments that lost rows, in JSON."""
    removed: tuple[int, ...] = ()
    """Fragments that lost all rows."""
    affected: tuple[tuple[int, bytes], ...] = ()
    """Rows deleted or moved, as portable bitmaps by fragment."""
    keys: bytes | None = b""
    """Hashes of the keys that were inserted; None: too many to name."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    rows: int = 0
    """Of the source: each counts once, however many rows of the table it matches."""
    digest: int = 0
    duplicates: tuple[str, ...] = ()
    """Keys that the source has more than once: nothing may be committed."""


class _Rows:
    """Rows on their way into files, with what is learnt of them."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        self._kept = KeptColumns(task)
        self._seen: set[bytes | int] = set()
        """Addresses of rows that were found, and hashes of keys that were not."""
        self.keys: set[bytes] = set()
        self.addresses: list[pa.ChunkedArray | pa.Array] = []
        self.row_ids: list[int] = []
        self.inserted = self.updated = self.deleted = 0
        self.duplicates: dict[str, None] = {}

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows to be written, without the columns that are not the table's."""
        for batch in with_table_types(batches, self._task):
            self._look_for_duplicates(batch)
            if self.duplicates:
                continue
            yield from self._taken(batch)

    def _taken(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found, deletes = pc.is_valid(batch.column(ADDRESS)), batch.column(DELETE)
        update = pc.and_(found, pc.invert(deletes)) if self._task.update else _none(batch)
        moved = self._kept.to_update(batch.filter(update))
        missing = pc.and_(pc.invert(found), pc.invert(deletes))
        insert = missing if self._task.insert else _none(batch)
        gone = batch.filter(pc.and_(found, deletes))
        self.addresses += [moved.column(ADDRESS), gone.column(ADDRESS)]
        self.row_ids += moved.column(ROW_ID).to_pylist()
        new = batch.filter(insert)
        self.keys.update(hashes_of(new, self._task.on))
        self.updated += moved.num_rows
        self.inserted += new.num_rows
        self.deleted += gone.num_rows
        if moved.num_rows:
            yield self._kept.completed(moved)
        if new.num_rows:
            yield new.select(self._kept.given.names)

    def _look_for_duplicates(self, batch: pa.RecordBatch) -> None:
        # The table may have a key more than once, and then a row of the source finds all of them.
        is_found = pc.is_valid(batch.column(ADDRESS))
        found = batch.filter(is_found)
        self._name_duplicates(found, found.column(ADDRESS).to_pylist())
        new = keyed_rows(batch.filter(pc.invert(is_found)), self._task.on)
        self._name_duplicates(new, hashes_of(new, self._task.on))

    def _name_duplicates(self, rows: pa.RecordBatch, marks: Sequence[bytes | int]) -> None:
        for at, mark in enumerate(marks):
            if mark in self._seen and len(self.duplicates) < DUPLICATES_MAX:
                [named] = python_rows(rows.slice(at, 1).select(list(self._task.on)))
                self.duplicates[json.dumps(named, default=str)] = None
            self._seen.add(mark)


def merge_rows(batches: Iterable[pa.RecordBatch], task: MergeTask) -> MergePart:
    """Write one task's rows, and the deletion files of the rows that they replace."""
    rows = _Rows(task)
    with task.reads():
        files = write_files(rows.kept(batches), task.target)
    if rows.duplicates:
        return MergePart(files, duplicates=tuple(rows.duplicates))
    if task.stable_row_ids:
        files = _with_row_ids(files, rows.row_ids)
    keys = packed(rows.keys) if len(rows.keys) <= named_by_task(KEYS_MAX) else None
    addresses = pa.chunked_array(rows.addresses, pa.int64())
    if not len(addresses):
        return MergePart(
            files,
            keys=keys,
            inserted=rows.inserted,
        )
    with task.reads():
        images, removed, affected = delete_rows(task.dataset(), addresses)
    return MergePart(
        files,
        images=tuple(json.dumps(image.to_json()) for image in images),
        removed=tuple(removed),
        affected=tuple((number, portable(taken)) for number, taken in affected.items()),
        keys=keys,
        inserted=rows.inserted,
        updated=rows.updated,
        deleted=rows.deleted,
    )


def count_rows(fitted: Iterable[pa.RecordBatch]) -> MergePart:
    """Count the source's rows, which have the table's types."""
    rows = digest = 0
    for batch in fitted:
        rows += batch.num_rows
        digest += rows_digest(batch)
    return MergePart(rows=rows, digest=digest)


def with_table_types(
    batches: Iterable[pa.RecordBatch], task: MergeTask
) -> Iterator[pa.RecordBatch]:
    """Yield rows in the table's types, with the columns that say what to do with them."""
    columns = task.columns()
    rows = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        fitted = conform(batch, columns, task.target.table, first_row=rows)
        for name in task.on:
            at = fitted.schema.get_field_index(name)
            if pa.types.is_dictionary(fitted.column(at).type):
                fitted = fitted.set_column(at, name, fitted.column(at).dictionary_decode())
        for name in (ADDRESS, ROW_ID, DELETE):
            if name in batch.schema.names:
                fitted = fitted.append_column(name, batch.column(name))
        yield fitted
        rows += batch.num_rows


def joinable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by which keys of a column are joined: one that both joins compare exactly."""
    plain = readable_type(kind)
    if types.is_nested(plain):
        return pa.binary()
    if types.is_floating(plain):
        return pa.int32() if plain.bit_width <= pa.int32().bit_width else pa.int64()
    return pa.int64() if types.is_temporal(plain) else plain


def joinable(values: pa.Array) -> pa.Array:
    """Return keys in the type by which they are joined.

    Floats by their bits, as Lance compares them, while Spark's join takes -0.0 for 0.0. Times in
    the column's own unit, since Spark has none below microseconds. Lists, structs and maps by their
    hashes, since neither Arrow nor Spark joins by all of them.
    """
    plain = readable_type(values.type)
    if types.is_nested(plain):
        hashes = zip(key_hashes([values]), values.is_valid().to_pylist(), strict=True)
        return pa.array([found if is_valid else None for found, is_valid in hashes], pa.binary())
    if types.is_floating(plain):
        return values.cast(plain).view(joinable_type(plain))
    if types.is_temporal(plain):
        is_narrow = values.type.bit_width == pa.int32().bit_width
        return (values.cast(pa.int32()) if is_narrow else values).cast(pa.int64())
    return readable(values)


def joined_keys(rows: pa.RecordBatch, task: MergeTask) -> pa.RecordBatch:
    """Return the columns by which rows are joined."""
    columns = [joinable(rows.column(name)) for name in task.on]
    return pa.RecordBatch.from_arrays(columns, schema=task.keys())


def scan_keys(task: MergeTask, fragments: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the keys of fragments' live rows with `ADDRESS` and `ROW_ID`."""
    dataset = task.dataset()
    numbers = set(fragments)
    wanted = [f for f in dataset.get_fragments() if f.fragment_id in numbers]
    if not wanted:
        return
    scanner = dataset.scanner(
        columns=scan_columns(task.on), fragments=wanted, with_row_address=True, with_row_id=True
    )
    with task.reads():
        for batch in scanner.to_batches():
            found = joined_keys(batch, task)
            found = found.append_column(ADDRESS, batch.column("_rowaddr").cast(pa.int64()))
            yield found.append_column(ROW_ID, batch.column("_rowid").cast(pa.int64()))


def match(rows: pa.Table, task: MergeTask, fragments: Iterable[int]) -> pa.Table:
    """Return the rows with the addresses that their keys have in the table, found ones first.

    A row comes once for each address.
    """
    place = pa.array(range(rows.num_rows), pa.int64())
    keys = pa.Table.from_batches([joined_keys(b, task) for b in rows.to_batches()], task.keys())
    on, keys = keys.column_names, keys.append_column(_PLACE, place)
    empty = pa.schema([(_PLACE, pa.int64()), (ADDRESS, pa.int64()), (ROW_ID, pa.int64())])
    pieces = [empty.empty_table()]
    for there in put_together(scan_keys(task, fragments), max(JOINED_ROWS, rows.num_rows)):
        found = pa.Table.from_batches([there]).join(keys, on, join_type="inner")
        pieces.append(found.select(empty.names))
    # Rows whose key was found, by address; then the others, in their order.
    found = pa.concat_tables(pieces).sort_by(ADDRESS)
    others = place.filter(pc.invert(pc.is_in(place, value_set=found[_PLACE].combine_chunks())))
    taken = rows.take(pa.chunked_array([*found[_PLACE].chunks, others], pa.int64()))
    absent = pa.nulls(len(others), pa.int64())
    for name in (ADDRESS, ROW_ID):
        values = pa.chunked_array([*found[name].chunks, absent], pa.int64())
        taken = taken.append_column(name, values)
    return taken


class KeptColumns:
    """What the table has in the rows that are moved, in columns that the source lacks."""

    def __init__(self, task: MergeTask) -> None:
        """Nothing is read before it is needed."""
        self.given = task.columns()
        self._task = task
        there = set(self.given.names)
        self._lacking = [
            column
            for column in task.target.arrow_schema()
            if column.name not in there
            or not self.given.field(column.name).type.equals(column.type)
        ]

    @cached_property
    def _dataset(self) -> lance.LanceDataset:
        return self._task.dataset()

    def to_update(self, found: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose row in the table is to be updated."""
        condition, on = self._task.update_where, self._task.on
        if not condition or not found.num_rows:
            return found
        names = columns_named(condition, self._task.target.arrow_schema(), on).names
        held = self._dataset._take_rows(found.column(ROW_ID), names)
        given = found.select(columns_named(condition, self.given, on).names)
        return found.take(rows_that_hold(condition, held, pa.Table.from_batches([given])))

    def completed(self, moved: pa.RecordBatch) -> pa.RecordBatch:
        """Return moved rows with all columns of the table."""
        columns = {name: moved.column(name) for name in self.given.names}
        for lacking, held in zip(self._lacking, self._held(moved.column(ROW_ID)), strict=True):
            given = columns.get(lacking.name)
            columns[lacking.name] = held if given is None else _both(given, held, lacking.type)
        return pa.RecordBatch.from_pydict(columns)

    def _held(self, row_ids: pa.Array) -> Iterator[pa.Array]:
        plain = [each.name for each in self._lacking if not holds_blobs(each)]
        rows = self._dataset._take_rows(row_ids, plain) if plain else None
        for each in self._lacking:
            if each.name not in plain and types.is_nested(each.type):
                raise InvalidTransaction(
                    f"column {each.name!r} of {self._task.target.table} contains blobs, which a "
                    "Spark merge cannot keep",
                    field=each.name,
                    advice="Name the column in the source, or merge with `CommitLog.merge_insert`",
                )
            if rows is not None and each.name in plain:
                held = rows.column(each.name).combine_chunks()
            else:
                found = self._dataset.read_blobs(
                    each.name, ids=row_ids.to_pylist(), preserve_order=True
                )
                held = pa.array([blob for _, blob in found], pa.large_binary())
            assert len(held) == len(row_ids), "a version keeps its rows"
            yield conform_column(held, each, self._task.target.table)


def _both(given: pa.StructArray, held: pa.StructArray, wanted: pa.StructType) -> pa.StructArray:
    """Return structs with the fields that are given, and those that the table has besides."""
    fields: dict[str, pa.Array] = {}
    for array in (held, given):
        for at, values in enumerate(array.flatten()):
            name, before = array.type.field(at).name, fields.get(array.type.field(at).name)
            kind = wanted.field(name).type
            nested = before is not None and not values.type.equals(kind)
            fields[name] = _both(values, before, kind) if nested else values
    empty = pc.and_(given.is_null(), held.is_null())
    return pa.StructArray.from_arrays(
        [fields[field.name] for field in wanted], fields=list(wanted), mask=empty
    )


def _with_row_ids(files: WrittenFiles, row_ids: list[int]) -> WrittenFiles:
    """Name the ids that moved rows keep; they are the first rows of the files."""
    fragments, start = [], 0
    for text in files.fragments:
        fragment = FragmentMetadata.from_json(text)
        carried = row_ids[start : start + fragment.physical_rows]
        start += fragment.physical_rows
        if carried:
            fragment.row_id_meta = RowIdSequence(carried).to_inline_metadata()
        fragments.append(json.dumps(fragment.to_json()))
    return replace(files, fragments=tuple(fragments))


def _none(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([False] * batch.num_rows, pa.bool_())
