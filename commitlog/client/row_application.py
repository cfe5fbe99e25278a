"""Makes one commit of a group of writes of rows: its files, and what came of each write."""

from __future__ import annotations

from collections.abc import Sequence

import lance
import pyarrow as pa

from commitlog.client.row_groups import (
    Group,
    MergedGroup,
    ReadBase,
    Write,
    base_scan,
    no_base,
    read_base,
)
from commitlog.client.rows import (
    APPENDED_KEYS_MAX,
    ROW_ID,
    Prepared,
    delete_rows,
    hashes_of,
    key_ids,
    with_children,
    write_moved,
)
from commitlog.client.tables import TableInfo
from commitlog.codecs.keys import packed
from commitlog.model.operations import KeyHashes, RowsMode

PREDICATE = "keys of accepted writes"
"""What a Delete that a row writer makes says of its rows."""


def prepare_group(
    info: TableInfo,
    dataset: lance.LanceDataset,
    writes: Sequence[Write],
    read: ReadBase = read_base,
) -> Prepared | None:
    """Apply writes to a version in memory and write what they come to; None: nothing changes.

    Each write's counts, or why it was refused, are noted in it.
    """
    scan = base_scan(info, writes)
    base = no_base() if scan is None else read(info, dataset, scan)
    merged = Group(info, base).apply(writes)
    if not merged.rows.num_rows and not len(merged.gone):
        return None
    updated, removed, affected = delete_rows(dataset, merged.gone)
    keys = _keys(info, merged, writes)
    if not merged.rows.num_rows:
        deletion = lance.LanceOperation.Delete(updated, removed, PREDICATE)
        return Prepared(deletion, dataset.version, affected)
    ids = merged.sources[ROW_ID] if merged.moved else merged.sources[ROW_ID].slice(0, 0)
    rows = _without_columns_of_none(merged.rows, writes) if merged.appends_only else merged.rows
    fragments = write_moved(info, dataset, rows, ids)
    if merged.appends_only:
        version = info.version if keys is not None else 0
        append = lance.LanceOperation.Append(fragments)
        return Prepared(append, version, keys=keys, written=rows)
    operation = lance.LanceOperation.Update(
        removed_fragment_ids=removed,
        updated_fragments=updated,
        new_fragments=fragments,
        fields_modified=[],
        fields_for_preserving_frag_bitmap=with_children(info, _set_by(writes, merged)),
        update_mode="rewrite_rows",
    )
    return Prepared(operation, dataset.version, affected, keys, written=rows)


def _without_columns_of_none(rows: pa.Table, writes: Sequence[Write]) -> pa.Table:
    """Leave out columns that all writes lack, as appends do: files of 2.0 hold no null structs."""
    given = {column.name for write in writes for column in write.operation.columns}
    return rows.select([name for name in rows.schema.names if name in given])


def _set_by(writes: Sequence[Write], merged: MergedGroup) -> list[str]:
    """Return the columns to which writes gave values: all, if there are new rows.

    Of the indices of other columns Lance takes all new fragments for covered.
    """
    if merged.rows.num_rows > merged.moved:
        return list(merged.rows.schema.names)
    found: dict[str, None] = {}
    for write in writes:
        if write.operation.mode is RowsMode.UPSERT:
            found.update(dict.fromkeys(column.name for column in write.operation.columns))
    return list(found)


def _keys(info: TableInfo, merged: MergedGroup, writes: Sequence[Write]) -> KeyHashes | None:
    """Return the keys that are inserted, by which the log finds others who insert them too."""
    on = next((write.operation.on for write in writes if write.operation.on), None)
    if on is not None:
        return KeyHashes(key_ids(info, on), packed(merged.inserted_keys))
    if not info.primary_key or merged.rows.num_rows > APPENDED_KEYS_MAX:
        return None
    hashes = hashes_of(info, info.primary_key, merged.rows)
    return KeyHashes(key_ids(info, info.primary_key), packed(hashes))
