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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, RowIdSequence

from commitlog.adapters.lance_datasets import open_dataset
from commitlog.client.rows import delete_rows
from commitlog.codecs.keys import packed
from commitlog.core.deletion_vectors import portable
from commitlog.spark.files import Files, Target, hashes_of, write_files

ADDRESS, ROW_ID, DELETE = "__address", "__row_id", "__delete"
"""The columns beside the table's; a table may have no columns of these names."""
DUPLICATES_MAX = 3


@dataclass(frozen=True)
class MergeTask:
    """What a task must know."""

    target: Target
    version: int
    """The version that was joined."""
    on: tuple[str, ...]
    stable_row_ids: bool
    update: bool = True
    insert: bool = True


@dataclass(frozen=True)
class MergePart:
    """What one task did; plain values, so that it can be pickled."""

    files: Files = field(default_factory=Files)
    images: tuple[str, ...] = ()
    """Post-images of fragments that lost rows, in JSON."""
    removed: tuple[int, ...] = ()
    """Fragments that lost all rows."""
    affected: tuple[tuple[int, bytes], ...] = ()
    """Rows deleted or moved, as portable bitmaps by fragment."""
    keys: bytes = b""
    """Hashes of the keys that were inserted."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    duplicates: tuple[str, ...] = ()
    """Keys that the source has more than once: nothing may be committed."""


class _Rows:
    """Rows on their way into files, with what is learnt of them."""

    def __init__(self, task: MergeTask) -> None:
        self._task = task
        self._schema = task.target.arrow_schema()
        self._seen: set[bytes] = set()
        self.keys: set[bytes] = set()
        self.addresses: list[pa.ChunkedArray | pa.Array] = []
        self.row_ids: list[int] = []
        self.inserted = self.updated = self.deleted = 0
        self.duplicates: dict[str, None] = {}

    def kept(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows to be written, without the columns that are not the table's."""
        for batch in batches:
            batch = with_table_keys(batch, self._task)
            self._look_for_duplicates(batch)
            if self.duplicates:
                continue
            yield from self._taken(batch)

    def _taken(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        found, deletes = pc.is_valid(batch.column(ADDRESS)), batch.column(DELETE)
        update = pc.and_(found, pc.invert(deletes)) if self._task.update else _none(batch)
        missing = pc.and_(pc.invert(found), pc.invert(deletes))
        insert = missing if self._task.insert else _none(batch)
        moved = batch.filter(update)
        gone = pc.and_(found, deletes)
        self.addresses.append(batch.filter(pc.or_(update, gone)).column(ADDRESS))
        self.row_ids += moved.column(ROW_ID).to_pylist()
        new = batch.filter(insert)
        self.keys.update(hashes_of(new, self._task.on))
        self.updated += moved.num_rows
        self.inserted += new.num_rows
        self.deleted += pc.sum(gone).as_py() or 0
        names = [name for name in batch.schema.names if name in self._schema.names]
        for rows in (moved, new):
            if rows.num_rows:
                yield rows.select(names)

    def _look_for_duplicates(self, batch: pa.RecordBatch) -> None:
        for key in hashes_of(batch, self._task.on):
            if key in self._seen:
                self._name_duplicate(batch, key)
            self._seen.add(key)

    def _name_duplicate(self, batch: pa.RecordBatch, key: bytes) -> None:
        if len(self.duplicates) >= DUPLICATES_MAX:
            return
        for at in range(batch.num_rows):
            row = batch.slice(at, 1)
            if hashes_of(row, self._task.on) == [key]:
                named = row.select(list(self._task.on)).to_pylist()[0]
                self.duplicates[json.dumps(named, default=str)] = None
                return


def merge_rows(batches: Iterable[pa.RecordBatch], task: MergeTask) -> MergePart:
    """Write one task's rows, and the deletion files of the rows that they replace."""
    rows = _Rows(task)
    files = write_files(rows.kept(batches), task.target)
    if rows.duplicates:
        return MergePart(files, duplicates=tuple(rows.duplicates))
    if task.stable_row_ids:
        files = _with_row_ids(files, rows.row_ids)
    addresses = pa.chunked_array(rows.addresses, pa.int64())
    if not len(addresses):
        return MergePart(files, keys=packed(rows.keys), inserted=rows.inserted)
    dataset = open_dataset(task.target.location, task.version)
    images, removed, affected = delete_rows(dataset, addresses)
    return MergePart(
        files,
        images=tuple(json.dumps(image.to_json()) for image in images),
        removed=tuple(removed),
        affected=tuple((number, portable(taken)) for number, taken in affected.items()),
        keys=packed(rows.keys),
        inserted=rows.inserted,
        updated=rows.updated,
        deleted=rows.deleted,
    )


def with_table_keys(rows: pa.RecordBatch, task: MergeTask) -> pa.RecordBatch:
    """Return rows whose key has the table's types, so that equal keys have equal hashes."""
    schema = task.target.arrow_schema()
    for name in task.on:
        at = rows.schema.get_field_index(name)
        kind = key_type(schema.field(name).type)
        if not rows.column(at).type.equals(kind):
            rows = rows.set_column(at, name, rows.column(at).cast(kind))
    return rows


def key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type by which keys of a column are joined: a dictionary's are its values."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def scan_keys(task: MergeTask, fragments: Iterable[int]) -> Iterator[pa.RecordBatch]:
    """Yield the keys of fragments' live rows with `ADDRESS` and `ROW_ID`."""
    dataset = open_dataset(task.target.location, task.version)
    numbers = set(fragments)
    wanted = [f for f in dataset.get_fragments() if f.fragment_id in numbers]
    if not wanted:
        return
    scanner = dataset.scanner(
        columns=list(task.on), fragments=wanted, with_row_address=True, with_row_id=True
    )
    for batch in scanner.to_batches():
        found = {n: batch.column(n).cast(key_type(batch.column(n).type)) for n in task.on}
        found[ADDRESS] = batch.column("_rowaddr").cast(pa.int64())
        found[ROW_ID] = batch.column("_rowid").cast(pa.int64())
        yield pa.RecordBatch.from_pydict(found)


def match(rows: pa.Table, task: MergeTask, fragments: Iterable[int]) -> pa.Table:
    """Return the rows with the addresses that their keys have in the table, found ones first."""
    on = list(task.on)
    place = pa.array(range(rows.num_rows), pa.int64())
    keys = rows.select(on).append_column("__place", place)
    empty = pa.schema([("__place", pa.int64()), (ADDRESS, pa.int64()), (ROW_ID, pa.int64())])
    pieces = [empty.empty_table()]
    for batch in scan_keys(task, fragments):
        piece = pa.Table.from_batches([batch]).join(keys, on, join_type="inner")
        pieces.append(piece.select(empty.names))
    # Rows whose key was found, by address; then the others, in their order.
    found = pa.concat_tables(pieces).sort_by(ADDRESS)
    others = pc.invert(pc.is_in(place, value_set=found["__place"].combine_chunks()))
    order = pa.chunked_array([*found["__place"].chunks, place.filter(others)], pa.int64())
    taken = rows.take(order)
    absent = pa.nulls(rows.num_rows - found.num_rows, pa.int64())
    for name in (ADDRESS, ROW_ID):
        values = pa.chunked_array([*found[name].chunks, absent], pa.int64())
        taken = taken.append_column(name, values)
    return taken


def _with_row_ids(files: Files, row_ids: list[int]) -> Files:
    """Name the ids that moved rows keep; they are the first rows of the files."""
    fragments, start = [], 0
    for text in files.fragments:
        fragment = FragmentMetadata.from_json(text)
        carried = row_ids[start : start + fragment.physical_rows]
        start += fragment.physical_rows
        if carried:
            fragment.row_id_meta = RowIdSequence(carried).to_inline_metadata()
        fragments.append(json.dumps(fragment.to_json()))
    return Files(tuple(fragments), files.rows, files.keys)


def _none(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([False] * batch.num_rows, pa.bool_())
