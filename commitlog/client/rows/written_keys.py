"""The keys of rows that are written already, read back from their files.

For manifests that pylance staged, where the table declares its key: pylance says which fragments
are new, not which keys are in them. Nor does a plain client's upsert say which version its rows
were joined with: Lance carries it over newer versions and writes the newest one down. Whether it
inserts a key twice is seen in the rows: in the version that it would follow, less what it moves and
removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from lance.file import LanceFileReader
from pyroaring import BitMap

from commitlog.adapters.lance_datasets import open_dataset, scan_columns
from commitlog.adapters.places import bound
from commitlog.adapters.storage import store_for
from commitlog.adapters.storage_options import storage_options
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import contents
from commitlog.client.rows.rows import (
    APPENDED_KEYS_MAX,
    OFFSET_BITS,
    OFFSETS,
    ROW_ADDRESS,
    hashes_of,
    key_ids,
    read_deletions,
)
from commitlog.codecs.keys import packed
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes


@dataclass(frozen=True, slots=True)
class WrittenKeys:
    """The keys that a transaction's new rows have."""

    columns: Sequence[pa.Table]
    """One table of the key's columns per new fragment."""
    hashes: frozenset[bytes]
    key_ids: tuple[int, ...]


def read_written_keys(info: TableInfo, transaction: Transaction) -> WrittenKeys | None:
    """Read the keys of all rows that an Append or Update writes; None if they aren't known.

    Rows that an Update moves are among them: their keys existed before, and another writer can't
    insert them without changing the same rows.
    """
    key = info.primary_key
    if not key:
        return None
    which, fragments, _, _ = contents(transaction)
    if which not in ("append", "update"):
        return None
    count = sum(fragment.physical_rows for fragment in fragments)
    if count > APPENDED_KEYS_MAX or not info.column_ids.keys() >= set(key):
        return None
    # Lance calls us back on threads on which it cannot be called itself.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_read, info, fragments).result()


def as_carried(written: WrittenKeys | None) -> KeyHashes | None:
    """Return written keys as a record carries them."""
    return None if written is None else KeyHashes(written.key_ids, packed(written.hashes))


def _read(info: TableInfo, fragments: Sequence[DataFragment]) -> WrittenKeys | None:
    columns: list[pa.Table] = []
    hashes: set[bytes] = set()
    for fragment in fragments:
        keys = _key_columns(info, fragment)
        if keys is None:
            return None
        columns.append(keys)
        hashes.update(hashes_of(info, info.primary_key, keys))
    return WrittenKeys(columns, frozenset(hashes), key_ids(info, info.primary_key))


def _key_columns(info: TableInfo, fragment: DataFragment) -> pa.Table | None:
    """Read the keys of a new fragment; None if its files are elsewhere or cannot be read."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in info.primary_key:
        [field_id] = info.top_level_ids([name])
        file = next((file for file in fragment.files if field_id in file.fields), None)
        if file is None or file.HasField("base_id"):
            return None
        path = f"{bound(info.location)}/data/{file.path}"
        try:
            reader = LanceFileReader(path, storage_options(path) or None, columns=[name])
            found = reader.read_all().to_table()
        except (OSError, ValueError):
            return None
        columns[name] = found.column(name)
    return pa.table(columns)


FILTERED_KEYS_MAX = 10_000
"""Of more keys than this, all rows' keys are read instead of looked for."""
SAMPLE_KEYS = 3


def standing_keys(
    info: TableInfo, update: Transaction.Update, written: WrittenKeys, version: int
) -> pa.Table | None:
    """Return some of the keys that `update` writes and that stand in `version` beside it.

    None if there are none. `version` has its file, and is what the update follows.
    """
    if not written.columns:
        return None
    taken = _rows_taken(info, update)
    for batch in _scan(info, version, pa.concat_tables(written.columns)):
        whole = batch.drop_null()
        found = hashes_of(info, info.primary_key, whole)
        left = [
            key in written.hashes and not _is_in(address, taken)
            for key, address in zip(found, whole.column(ROW_ADDRESS).to_pylist(), strict=True)
        ]
        if any(left):
            keys = pa.Table.from_batches([whole.filter(pa.array(left))])
            return keys.select(list(info.primary_key)).slice(0, SAMPLE_KEYS)
    return None


def _scan(info: TableInfo, version: int, written: pa.Table) -> pa.RecordBatchReader:
    """Read the keys of a version's rows: those that may be among the written ones, at least."""
    dataset = open_dataset(info.location, version)
    first, columns = info.primary_key[0], scan_columns(info.primary_key)
    if written.num_rows <= FILTERED_KEYS_MAX:
        wanted = written.column(first).combine_chunks()
        try:
            return dataset.scanner(
                columns=columns, filter=pc.field(first).isin(wanted), with_row_address=True
            ).to_reader()
        except (ValueError, pa.ArrowException):
            pass  # a type that Lance, or Arrow, takes no such filter of
    return dataset.scanner(columns=columns, with_row_address=True).to_reader()


def _rows_taken(info: TableInfo, update: Transaction.Update) -> dict[int, BitMap | None]:
    """Return the rows that are gone from the fragments that it names; None: all of them."""
    store = store_for(info.location)
    taken: dict[int, BitMap | None] = dict.fromkeys(update.removed_fragment_ids)
    for image in update.updated_fragments:
        described = image.deletion_file
        if image.HasField("deletion_file") and not described.HasField("base_id"):
            taken[image.id] = read_deletions(store, image.id, described)
    return taken


def _is_in(address: int, taken: dict[int, BitMap | None]) -> bool:
    rows = taken.get(address >> OFFSET_BITS, BitMap())
    return rows is None or (address & OFFSETS) in rows
