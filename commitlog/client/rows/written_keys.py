"""The keys of rows that are written already, read back from their files.

For manifests that pylance staged, where the table declares its key: pylance says which fragments
are new, not which keys are in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
from lance.file import LanceFileReader

from commitlog.adapters.places import bound
from commitlog.adapters.storage_options import storage_options
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.contents import contents
from commitlog.client.rows.rows import APPENDED_KEYS_MAX, hashes_of, key_ids
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
