"""Deletes, updates and merges that open no more of a version than they need.

The manifest names the fragments, and `KnownKeys` remembers where the keys are. A delete or a merge
of whole rows may need no more than that, and the deletion files, which say which rows live: new
deletion files are written here. Other operations have Lance open the fragments that their rows may
be in. If anything isn't known or isn't plain, Lance opens the version, and reports what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import lance
import pyarrow as pa
from pyroaring import BitMap

from commitlog.adapters.storage import store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.full_storage import names_full_storage
from commitlog.client.rows.key_predicates import comparison
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.merging import (
    MergeOptions,
    check_merge,
    prepare_merge,
    replaced,
    replaces_rows,
)
from commitlog.client.rows.opening import Opened
from commitlog.client.rows.row_keys import KeyPlaces, KnownKeys
from commitlog.client.rows.rows import (
    OFFSET_BITS,
    OFFSETS,
    Prepared,
    prepare_delete,
    read_deletions,
)
from commitlog.client.rows.rows_at import KnowsPlaces
from commitlog.client.rows.updating import prepare_update
from commitlog.client.rows.version_files import ReadVersion, VersionFile
from commitlog.codecs.lance_objects import to_transaction
from commitlog.core.manifest.deletion_vectors import merge_deletions
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction


class LivingRows(NamedTuple):
    """Living rows of a version."""

    version: int
    rows: Sequence[tuple[int, int]]
    """An address and the position of the value that its row has, ascending."""
    fragments: Mapping[int, bytes]
    deleted: Mapping[int, BitMap]
    """The rows of each fragment that were deleted before."""


@dataclass(frozen=True)
class Narrowed(KnowsPlaces):
    """Where the rows of an operation may be, in place of `KnownKeys`."""

    dataset: lance.LanceDataset
    """The fragments that they may be in."""
    addresses: list[int]
    has_indices: bool
    """Whether the version has any: `dataset` has none."""

    def places(self, *_asked: object) -> list[int]:
        """Return where they may be; that was asked before."""
        return self.addresses


def delete(info: TableInfo, opened: Opened, predicate: str, said: str | None = None) -> Prepared:
    """Delete the rows of a predicate in the newest version; `said` replaces it in the record."""
    made = delete_directly(info, opened, predicate, said)
    if made is not None:
        return made
    part = narrowed_by(info, opened, predicate)
    if part is not None:
        return prepare_delete(info, part.dataset, predicate, said, part.scan)
    return prepare_delete(info, opened.newest(info), predicate, said, opened.keys.scan)


def update(
    info: TableInfo, opened: Opened, values: Mapping[str, Any], where: str | None
) -> Prepared:
    """Set columns of the rows of a predicate in the newest version."""
    part = narrowed_by(info, opened, where) if where else None
    if part is not None:
        return prepare_update(info, part.dataset, values, where, part.scan)
    return prepare_update(info, opened.newest(info), values, where, opened.keys.scan)


def merge(
    info: TableInfo, opened: Opened, source: pa.Table, on: Sequence[str], options: MergeOptions
) -> Prepared:
    """Join rows, whose columns have the table's types, with the newest version."""
    made = merge_directly(info, opened, source, on, options)
    if made is not None:
        return made
    # Lance decides by a version's indices whether it writes columns in place. It reads blobs from
    # the version, and deletes rows whose keys the source lacks, wherever they are.
    is_narrow = (
        len(on) == 1 and not options.when_not_matched_by_source_delete and not info.has_blobs
    )
    if is_narrow:
        part = narrowed(info, opened, on[0], source.column(on[0]))
        replaces = replaces_rows(info, source, on, options)
        if part is not None and (replaces or not part.has_indices):
            return prepare_merge(info, part.dataset, source, on, options, part)
        if not replaces:
            opened.keys.searched(info, on[0])
    return prepare_merge(info, opened.newest(info), source, on, options, opened.keys)


def narrowed_by(info: TableInfo, opened: Opened, predicate: str) -> Narrowed | None:
    """Open the fragments that may have rows of a predicate; None: they aren't known."""
    compared = comparison(predicate, info.schema)
    return None if compared is None else narrowed(info, opened, compared.column, compared.values)


def narrowed(
    info: TableInfo, opened: Opened, column: str, values: pa.Array | pa.ChunkedArray
) -> Narrowed | None:
    """Open the fragments that may have rows with some values; None: they aren't known.

    Lance reads stable row ids from the fragments, so an excerpt has those of the version.
    """
    found = _places(info, opened, opened.keys, column, values, exactly=False)
    if found is None:
        return None
    file, places = found
    addresses = sorted({address for address, _ in places.rows})
    part = opened.excerpt(file, places.fragments.values())
    return Narrowed(part, addresses, file.has_indices)


def _places(
    info: TableInfo,
    opened: Opened,
    keys: KnownKeys,
    column: str,
    values: pa.Array | pa.ChunkedArray,
    *,
    exactly: bool,
) -> tuple[VersionFile, KeyPlaces] | None:
    """Find out where the rows are that have one of some values in the newest version."""
    read: list[VersionFile] = []

    def version() -> ReadVersion | None:
        file = opened.newest_file(info)
        if file is None:
            return None
        read.append(file)
        return ReadVersion(file.fragments, partial(opened.excerpt, file))

    places = keys.found(info, version, column, values, exactly=exactly)
    return None if places is None else (read[0], places)


@names_full_storage
def delete_directly(
    info: TableInfo, opened: Opened, predicate: str, said: str | None
) -> Prepared | None:
    """Delete the rows of a predicate that says which values a column has; None: Lance has to."""
    compared = comparison(predicate, info.schema)
    if compared is None or not compared.is_all:
        return None
    found = find(info, opened, opened.keys, compared.column, compared.values)
    if found is None:
        return None
    recorded = predicate if said is None else said
    message = Transaction(delete=Transaction.Delete(predicate=recorded))
    rows = delete_found(info, found, message)
    count = sum(map(len, rows.values()))
    return Prepared(message, found.version, rows, counts={"deleted": count})


@names_full_storage
def merge_directly(
    info: TableInfo, opened: Opened, source: pa.Table, on: Sequence[str], options: MergeOptions
) -> Prepared | None:
    """Replace the rows that have the keys of whole rows, or insert these; None: Lance has to."""
    check_merge(info, source, on, options)
    # Where rows keep their ids, those have to be read.
    if info.stable_row_ids or not replaces_rows(info, source, on, options):
        return None
    found = find(info, opened, opened.keys, on[0], source.column(on[0]))
    if found is None:
        return None
    moved = [number for _, number in found.rows]
    made = replaced(info, opened.for_writing(info), source, on, options, moved)
    message, _ = to_transaction(made.operation, read_version=found.version, uuid="")
    rows = delete_found(info, found, message)
    return replace(made, operation=message, read_version=found.version, affected=rows)


def find(
    info: TableInfo,
    opened: Opened,
    keys: KnownKeys,
    column: str,
    values: pa.Array | pa.ChunkedArray,
) -> LivingRows | None:
    """Find the living rows that have one of some values in a column; None: Lance has to."""
    found = _places(info, opened, keys, column, values, exactly=True)
    if found is None:
        return None
    file, places = found
    deleted: dict[int, BitMap] = {}
    store = store_for(info.location)
    for number, encoded in places.fragments.items():
        fragment = DataFragment.FromString(encoded)
        if not fragment.physical_rows or fragment.overlays:
            return None
        described = fragment.deletion_file
        if not fragment.HasField("deletion_file"):
            deleted[number] = BitMap()
            continue
        if described.HasField("base_id"):
            return None
        try:
            deleted[number] = read_deletions(store, number, described)
        except (OSError, UnsupportedFormat):
            return None
    rows = [
        (address, position)
        for address, position in places.rows
        if address & OFFSETS not in deleted[address >> OFFSET_BITS]
    ]
    return LivingRows(file.version, rows, places.fragments, deleted)


def delete_found(info: TableInfo, found: LivingRows, message: Transaction) -> Mapping[int, BitMap]:
    """Have a Delete or an Update take the rows that were found; return them by fragment.

    The deletion files of what is left of the fragments are written.
    """
    store = store_for(info.location)
    if message.HasField("delete"):
        images, removed = message.delete.updated_fragments, message.delete.deleted_fragment_ids
    else:
        images, removed = message.update.updated_fragments, message.update.removed_fragment_ids
    rows: dict[int, BitMap] = {}
    for number, group in groupby(found.rows, lambda row: row[0] >> OFFSET_BITS):
        rows[number] = BitMap(address & OFFSETS for address, _ in group)
        merged = merge_deletions(
            found.fragments[number],
            found.deleted[number],
            rows[number],
            read_version=found.version,
            transaction_id=new_transaction_id(),  # of this attempt: its file has a name of its own
        )
        if merged.fragment is None:
            removed.append(number)
            continue
        store.write_ahead(merged.path, merged.data)
        images.append(DataFragment.FromString(merged.fragment))
    return rows
