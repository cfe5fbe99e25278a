"""The keys of rows that are written already, read back from their files.

For manifests that pylance staged, where the table declares its key: pylance says which fragments
are new, not which keys are in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from lance.file import LanceFileReader

from commitlog.client.contents import contents
from commitlog.client.rows import APPENDED_KEYS_MAX, hashes_of, key_ids
from commitlog.client.tables import TableInfo
from commitlog.codecs.keys import packed
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes


def written_keys(info: TableInfo, transaction: Transaction) -> KeyHashes | None:
    """Return the keys of all rows that an Append or Update writes; None if they aren't known.

    Rows that an Update moves are among them: their keys were there before, and nobody else can
    insert them without touching the same rows.
    """
    key = info.primary_key
    if not key:
        return None
    which, fragments, _, _ = contents(transaction)
    if which not in ("append", "update"):
        return None
    names = {field.name for field in info.field_ids.values() if field.parent_id == -1}
    count = sum(fragment.physical_rows for fragment in fragments)
    if count > APPENDED_KEYS_MAX or not names.issuperset(key):
        return None
    # Lance calls us back on threads on which it cannot be called itself.
    with ThreadPoolExecutor(1) as pool:
        hashes = pool.submit(_hashes, info, fragments).result()
    return None if hashes is None else KeyHashes(key_ids(info, key), packed(hashes))


def _hashes(info: TableInfo, fragments: Sequence[DataFragment]) -> set[bytes] | None:
    hashes: set[bytes] = set()
    for fragment in fragments:
        columns = key_columns(info, fragment)
        if columns is None:
            return None
        hashes.update(hashes_of(info, info.primary_key, columns))
    return hashes


def key_columns(info: TableInfo, fragment: DataFragment) -> pa.Table | None:
    """Read the keys of a new fragment; None if its files lie elsewhere or cannot be read."""
    columns: dict[str, pa.ChunkedArray] = {}
    for name in info.primary_key:
        [field_id] = info.top_level_ids([name])
        file = next((file for file in fragment.files if field_id in file.fields), None)
        if file is None or file.HasField("base_id"):
            return None
        path = f"{info.location}/data/{file.path}"
        try:
            found = LanceFileReader(path, columns=[name]).read_all().to_table()
        except (OSError, ValueError):
            return None
        columns[name] = found.column(name)
    return pa.table(columns)
