"""Keys of an upsert that rows which it leaves alone have too.

A plain client's upsert doesn't say which version its rows were joined with: Lance carries it over
newer versions and writes the newest one down. Whether it inserts a key twice is seen in the rows:
in the version that it would follow, less what it moves and removes.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from commitlog.adapters.lance_datasets import open_dataset, scan_columns
from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.rows import OFFSET_BITS, OFFSETS, ROW_ADDRESS, hashes_of, read_deletions
from commitlog.client.rows.written_keys import WrittenKeys
from commitlog.lancepb.transaction_pb2 import Transaction

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
