"""Operations on rows, made into Lance's operations with their affected rows.

Each function reads one version, writes what the operation adds and the deletion files of what it
takes away, and returns Lance's operation beside the rows that it touched. The rows travel in the
record, so that the leader can carry the operation over newer deletion vectors; the keys that an
upsert inserts travel too, exactly, so that no key is inserted twice.

Changed rows move to new fragments (Lance's `rewrite_rows`) and keep their stable row ids.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import groupby
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, RowIdSequence, write_fragments
from pyroaring import BitMap

from commitlog.adapters.row_values import holds_blobs
from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.client.leader.arguments import heed_interrupt, lances_words
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import contents
from commitlog.client.rows.full_storage import names_full_storage, naming_full_storage
from commitlog.client.rows.lost_files import files_stay
from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.codecs.keys import encoded_keys, hashed, packed
from commitlog.codecs.lance_objects import to_transaction
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.errors import (
    CommitLogError,
    InvalidRequest,
    InvalidTransaction,
    NoSuchTable,
    Unavailable,
    shown_text,
)
from commitlog.lancepb.table_pb2 import DeletionFile
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

APPENDED_KEYS_MAX = 200_000
"""An append of more rows than this names no keys: 16 bytes each would fill the record."""
_WRONG_ROWS = (
    "Invalid user input",
    "Invalid argument error",
    "LanceError(Schema)",
    "Not supported",
)
"""How pylance begins what is wrong with rows, and not with storage."""
_BRACKETS = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|--[^\n]*|/\*.*?(?:\*/|\Z)|[()]""", re.DOTALL)
"""Brackets in SQL, and what may hold others that mean nothing."""
ROW_ADDRESS, ROW_ID = "_rowaddr", "_rowid"
OFFSET_BITS = 32
OFFSETS = (1 << OFFSET_BITS) - 1

_log = logging.getLogger("commitlog")


Search = Callable[[TableInfo, lance.LanceDataset, list[str] | dict[str, str], str], pa.Table | None]
"""Returns columns of a predicate's rows, with addresses and ids; None: it can't."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Lance's operation, ready to be submitted."""

    operation: Any
    """One of `lance.LanceOperation`, or a `Transaction` message of Lance's."""
    read_version: int
    affected: Mapping[int, BitMap] = field(default_factory=dict)
    keys: KeyHashes | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    """Rows inserted, updated and deleted."""
    patches: tuple[str, ...] = ()
    """Data files of columns that were written for fragments that stay."""
    written: pa.Table | None = None
    """The rows of `added`, in their order."""
    added: Sequence[FragmentMetadata] = ()
    """New fragments, if a group of writes made them."""


def prepare_append(
    info: TableInfo, dataset: lance.LanceDataset, rows: pa.RecordBatchReader
) -> Prepared:
    """Write rows as new fragments."""
    keys = _KeyCollector(info)
    try:
        with naming_full_storage(info.name, info.location):
            fragments = write_fragments(keys.passing(rows), dataset)
    except Exception as error:
        # pylance wraps what went wrong in the caller's stream beyond recognition.
        if keys.error is not None:
            raise keys.error from None
        raise_wrong_rows(info.name, error)
        raise
    count = sum(fragment.physical_rows for fragment in fragments)
    return Prepared(
        lance.LanceOperation.Append(fragments),
        info.version if info.primary_key else 0,
        keys=keys.result(),
        counts={"inserted": count},
    )


def raise_wrong_rows(table: str, error: Exception) -> None:
    """Raise InvalidTransaction if it was the rows that were wrong."""
    if any(words in str(error) for words in _WRONG_ROWS):
        raise InvalidTransaction(
            f"Lance refuses rows for {table}: {error}", field="data", advice="Correct the rows"
        ) from error


@names_full_storage
def prepare_delete(
    info: TableInfo,
    dataset: lance.LanceDataset,
    predicate: str,
    said: str | None = None,
    search: Search | None = None,
) -> Prepared:
    """Find the rows of a predicate and delete them; the record has `said` in its place."""
    found = scan(dataset, [], predicate, info, search=search)
    updated, removed, rows = delete_rows(dataset, found[ROW_ADDRESS])
    recorded = predicate if said is None else said
    operation = lance.LanceOperation.Delete(updated, removed, recorded)
    return Prepared(operation, dataset.version, rows, counts={"deleted": found.num_rows})


def fragment_of(dataset: lance.LanceDataset, fragment_id: int) -> lance.LanceFragment:
    """Return a fragment that pylance named."""
    fragment = dataset.get_fragment(fragment_id)
    assert fragment is not None, (
        f"pylance named fragment {fragment_id}, which the table doesn't have"
    )
    return fragment


def read_deletions(store: ObjectStore, fragment_id: int, described: DeletionFile) -> BitMap:
    """Read which rows of a fragment its deletion file names."""
    data = store.read(deletion_file_path(fragment_id, described))
    return decode_deletion_file(data, described.file_type)


def patches_of(changed: Iterable[tuple[FragmentMetadata, FragmentMetadata]]) -> tuple[str, ...]:
    """Return the data files that post-images have beside those of the fragments that were read."""
    patches: list[str] = []
    for read, image in changed:
        before = {file.path for file in read.files}
        patches += [file.path for file in image.files if file.path not in before]
    return tuple(patches)


def delete_rows(
    dataset: lance.LanceDataset, addresses: pa.ChunkedArray
) -> tuple[list[FragmentMetadata], list[int], dict[int, BitMap]]:
    """Delete rows by address; return post-images, ids of emptied fragments, and the offsets."""
    ordered = sorted(addresses.to_pylist())
    rows = {
        fragment_id: BitMap(address & OFFSETS for address in group)
        for fragment_id, group in groupby(ordered, lambda address: address >> OFFSET_BITS)
    }
    updated: list[FragmentMetadata] = []
    removed: list[int] = []
    for fragment_id, offsets in rows.items():
        image = fragment_of(dataset, fragment_id).delete_rows(list(offsets))
        if image is None:
            removed.append(fragment_id)
        else:
            updated.append(image)
    return updated, removed, rows


NOTHING_APPENDED = (InvalidRequest, NoSuchTable, Unavailable)
"""What submitting, and waiting for the outcome, raise only if the log surely has no such record."""


def remove_files(info: TableInfo, prepared: Prepared, *, keep_data: bool = False) -> None:
    """Remove what was written for an operation that surely was not committed.

    The caller hears of what became of that; what a store doesn't remove now, maintenance does.
    """
    try:
        _remove_files(info, prepared, keep_data=keep_data)
    except (OSError, CommitLogError) as error:
        _log.warning("files of %s that nothing needs were left: %s", info.name, error)


def _remove_files(info: TableInfo, prepared: Prepared, *, keep_data: bool) -> None:
    store = store_for(info.location)
    message = prepared.operation
    if not isinstance(message, Transaction):
        message, _ = to_transaction(message, read_version=prepared.read_version, uuid="")
    _, added, updated, _ = contents(message)
    if not keep_data:
        paths = [file.path for fragment in added for file in fragment.files]
        for path in (*paths, *prepared.patches):
            store.delete(f"data/{path}")
            if any(holds_blobs(column) for column in info.schema):
                folder = f"data/{path.removesuffix('.lance')}"
                for name in list(store.names(folder)):
                    store.delete(f"{folder}/{name}")
    for image in updated:
        deletions = image.deletion_file
        if image.HasField("deletion_file") and deletions.read_version == prepared.read_version:
            store.delete(deletion_file_path(image.id, deletions))


def scan(
    dataset: lance.LanceDataset,
    columns: list[str] | dict[str, str],
    predicate: str | None,
    info: TableInfo,
    *,
    reads_blobs: bool = False,
    search: Search | None = None,
) -> pa.Table:
    """Read rows with their addresses and ids; blobs are descriptors, unless they are read too.

    `search` is asked first.
    """
    read: list[str] | dict[str, str] = columns
    if isinstance(columns, dict):
        plain = {f"`{name}`" for name in columns}
        read = {name: sql if sql in plain else whole(sql, name) for name, sql in columns.items()}
    try:
        with files_stay(info.name, dataset.version):
            if search and predicate and not reads_blobs:
                found = search(info, dataset, read, predicate)
                if found is not None:
                    return found
            return dataset.scanner(
                columns=read,
                filter=None if predicate is None else whole(predicate),
                with_row_address=True,
                with_row_id=True,
                blob_handling="all_binary" if reads_blobs else None,
            ).to_table()
    except (ValueError, OSError, RuntimeError) as error:
        heed_interrupt(error)
        computed = columns.items() if isinstance(columns, dict) else ()
        asked = [predicate] if predicate is not None else []
        asked += [sql for name, sql in computed if sql != f"`{name}`"]
        raise InvalidTransaction(
            f"Lance can't evaluate {shown_text(' and '.join(map(repr, asked)))} over {info.name}: "
            f"{lances_words(error)}",
            field="values" if predicate is None else "predicate",
            value=asked[0] if asked else None,
            advice=f"Use SQL over the columns {', '.join(info.schema.names)}, with text in '…'",
        ) from error


def whole(sql: str, field: str = "predicate") -> str:
    """Return SQL in brackets: Lance would read no further than an expression goes.

    A closing line ends a comment, and a semicolon ends what is read anyway. InvalidTransaction for
    nothing, and for a bracket that would close ours: of `a) OR (b` Lance reads `a`. `field` is the
    column that SQL computes, or what the condition is called.
    """
    if not sql.strip():
        is_condition = field in ("predicate", "filter")
        raise InvalidTransaction(
            f"the {field} is empty" if is_condition else f"the SQL for {field!r} is empty",
            field=field,
            value=sql,
            advice="To mean all rows, write true" if is_condition else "For empty text, write ''",
        )
    depth = 0
    for part in _BRACKETS.findall(sql):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if depth < 0:
            raise InvalidTransaction(
                f"{shown_text(sql)!r} closes a bracket that it doesn't open",
                field=field,
                value=sql,
                advice="Correct the SQL",
            )
    return f"({sql.rstrip().removesuffix(';')}\n)"


def write_moved(
    info: TableInfo, dataset: lance.LanceDataset, rows: pa.Table, row_ids: pa.ChunkedArray
) -> list[FragmentMetadata]:
    """Write rows, the first of which are moved ones with their row ids, as new fragments."""
    if rows.num_rows == 0:
        return []
    try:
        fragments = write_fragments(rows, dataset)
    except (OSError, ValueError) as error:
        raise_wrong_rows(info.name, error)
        raise
    if info.stable_row_ids:
        ids = row_ids.to_pylist()
        start = 0
        for fragment in fragments:
            carried = ids[start : start + fragment.physical_rows]
            start += fragment.physical_rows
            if carried:
                fragment.row_id_meta = RowIdSequence(carried).to_inline_metadata()
    return fragments


def with_children(info: TableInfo, names: Iterable[str]) -> list[int]:
    """Return the ids of columns and of everything in them."""
    there = set(info.schema.names)
    wanted = set(info.top_level_ids([name for name in names if name in there]))
    for field_id, described in sorted(info.field_ids.items()):
        if described.parent_id in wanted:
            wanted.add(field_id)
    return sorted(wanted)


def key_ids(info: TableInfo, names: Sequence[str]) -> tuple[int, ...]:
    """Return the field ids of a key's columns, sorted."""
    return tuple(sorted(info.top_level_ids(list(names))))


def hashes_of(
    info: TableInfo, names: Sequence[str], rows: pa.Table | pa.RecordBatch
) -> list[bytes]:
    """Return the hashes of the rows' keys; a key with a null in it equals no other."""
    return hashed(whole_keys(info, names, rows))


def whole_keys(
    info: TableInfo, names: Sequence[str], rows: pa.Table | pa.RecordBatch
) -> Iterator[bytes]:
    """Yield the keys of rows, encoded, without those that have a null in them."""
    return keys_in(sorted(names, key=info.column_ids.__getitem__), rows)


def keys_in(names: Sequence[str], rows: pa.Table | pa.RecordBatch) -> Iterator[bytes]:
    """Yield the keys of rows, their columns in this order."""
    columns = [rows.column(name) for name in names]
    if any(column.null_count for column in columns):
        mask = reduce(pc.and_, map(pc.is_valid, columns))
        columns = [column.filter(mask) for column in columns]
    return encoded_keys(columns)


class _KeyCollector:
    """Hashes the keys of rows on their way into files, where the table declares its key."""

    def __init__(self, info: TableInfo) -> None:
        self._info = info
        self._hashes: set[bytes] = set()
        self._count = 0
        self.error: BaseException | None = None

    def passing(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(rows.schema, self._batches(rows))

    def _batches(self, rows: pa.RecordBatchReader) -> Iterable[pa.RecordBatch]:
        key = self._info.primary_key
        try:
            for batch in rows:
                self._count += batch.num_rows
                # A key with a null in it equals no other: what lacks a column names no keys.
                is_whole = all(name in batch.schema.names for name in key)
                if key and is_whole and self._count <= APPENDED_KEYS_MAX:
                    self._hashes.update(hashes_of(self._info, key, batch))
                yield batch
        except BaseException as error:
            self.error = error
            raise

    def result(self) -> KeyHashes | None:
        if not self._info.primary_key or self._count > APPENDED_KEYS_MAX:
            return None
        return KeyHashes(key_ids(self._info, self._info.primary_key), packed(self._hashes))
