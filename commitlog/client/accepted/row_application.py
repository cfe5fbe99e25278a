"""Makes one commit of a group of writes of rows: its files, and what came of each write.

Or a plain Lance table of all of them, in a folder of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from pyroaring import BitMap

from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.direct import LivingRows, delete_found, find
from commitlog.client.rows.opening import Opened
from commitlog.client.rows.row_groups import (
    BaseScan,
    Evaluate,
    Group,
    MergedGroup,
    ReadBase,
    Write,
    base_scan,
    no_base,
    read_base,
)
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import (
    APPENDED_KEYS_MAX,
    ROW_ADDRESS,
    ROW_ID,
    Prepared,
    delete_rows,
    hashes_of,
    key_ids,
    with_children,
    write_moved,
)
from commitlog.codecs.keys import packed
from commitlog.codecs.lance_objects import to_transaction
from commitlog.model.operations import KeyHashes, RowsMode

PREDICATE = "keys of accepted writes"
"""What a Delete that a row writer makes says of its rows."""


def prepare_group(
    info: TableInfo,
    dataset: lance.LanceDataset,
    writes: Sequence[Write],
    scan: BaseScan | None,
    read: ReadBase = read_base,
    evaluate: Evaluate | None = None,
) -> Prepared | None:
    """Apply writes to a version in memory and write what they come to; None: nothing changes.

    `scan` is their `base_scan`. Conditions are evaluated in this process, unless by another
    `evaluate`. Each write's counts, or why it was refused, are noted in it.
    """
    base = no_base() if scan is None else read(info, dataset, scan)
    merged = Group(info, base, evaluate).apply(writes)
    if not merged.rows.num_rows and not len(merged.gone):
        return None
    updated, removed, affected = delete_rows(dataset, merged.gone)
    made = _operation(info, dataset, merged, writes, updated, removed)
    return _based_on(made, merged, dataset.version, affected)


def find_rows(
    info: TableInfo, opened: Opened, known: KnownKeys, scan: BaseScan
) -> LivingRows | None:
    """Find the rows that have a group's keys without Lance; None: it has to read the version.

    That is so if more of them is needed than their keys, as their ids where rows keep those.
    """
    if info.stable_row_ids or len(scan.columns) != 1 or not scan.keys:
        return None
    [(name, values)] = scan.keys.items()
    return find(info, opened, known, name, values)


def prepare_found(
    info: TableInfo, opened: Opened, writes: Sequence[Write], scan: BaseScan, found: LivingRows
) -> Prepared | None:
    """Do the same as `prepare_group` with rows that `find_rows` found."""
    [(name, values)] = scan.keys.items()
    addresses = pa.array([address for address, _ in found.rows], pa.uint64())
    keys = values.take(pa.array([position for _, position in found.rows], pa.int64()))
    base = pa.table({name: keys, ROW_ADDRESS: addresses, ROW_ID: addresses})
    merged = Group(info, base).apply(writes)
    if not merged.rows.num_rows and not len(merged.gone):
        return None
    made = _operation(info, opened.for_writing(info), merged, writes, [], [])
    message, _ = to_transaction(made.operation, read_version=found.version, uuid="")
    gone = set(merged.gone.to_pylist())
    taken = found._replace(rows=[row for row in found.rows if row[0] in gone])
    affected = delete_found(info, taken, message)
    return _based_on(replace(made, operation=message), merged, found.version, affected)


def _based_on(
    made: Prepared, merged: MergedGroup, version: int, affected: Mapping[int, BitMap]
) -> Prepared:
    is_append = merged.appends_only and merged.rows.num_rows
    return made if is_append else replace(made, read_version=version, affected=affected)


def _operation(
    info: TableInfo,
    dataset: lance.LanceDataset,
    merged: MergedGroup,
    writes: Sequence[Write],
    updated: list[FragmentMetadata],
    removed: list[int],
) -> Prepared:
    """Write new fragments of what a group comes to; rows that go are gone from `updated`."""
    keys = _keys(info, merged, writes)
    if not merged.rows.num_rows:
        return Prepared(lance.LanceOperation.Delete(updated, removed, PREDICATE), 0)
    ids = merged.sources[ROW_ID] if merged.moved else merged.sources[ROW_ID].slice(0, 0)
    rows = _without_columns_of_none(merged.rows, writes) if merged.appends_only else merged.rows
    fragments = write_moved(info, dataset, rows, ids)
    operation: Any
    version = 0
    if merged.appends_only:
        operation = lance.LanceOperation.Append(fragments)
        version = info.version if keys is not None else 0
    else:
        operation = lance.LanceOperation.Update(
            removed_fragment_ids=removed,
            updated_fragments=updated,
            new_fragments=fragments,
            fields_modified=[],
            fields_for_preserving_frag_bitmap=with_children(info, _set_by(writes, merged)),
            update_mode="rewrite_rows",
        )
    return Prepared(operation, version, keys=keys, written=rows, added=fragments)


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


COMMITS_PER_COMPACTION = 32


class RowCopy:
    """A private copy of a table, made as row writers make versions of it."""

    def __init__(self, info: TableInfo, data_storage_version: Any) -> None:
        """Make it without rows at `info.location`, where nothing is."""
        self._info = info
        self._commits = 0
        self._dataset = lance.write_dataset(
            info.schema.empty_table(), info.location, data_storage_version=data_storage_version
        )

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply writes with one key, in order."""
        info = self._info
        prepared = prepare_group(info, self._dataset, writes, base_scan(info, writes))
        if prepared is None:
            return
        version = self._dataset.version
        self._dataset = lance.LanceDataset.commit(
            self._dataset, prepared.operation, read_version=version
        )
        self._commits += 1
        if self._commits % COMMITS_PER_COMPACTION == 0:
            self.tidy()

    def tidy(self) -> int:
        """Leave one version of few files; return how many rows it has."""
        self._dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        self._dataset.cleanup_old_versions(timedelta(0), delete_unverified=True)
        return int(self._dataset.count_rows())
