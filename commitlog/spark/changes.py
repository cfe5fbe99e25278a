"""What a version changed, row by row: the difference of two manifests, then of their rows.

A version adds fragments, removes fragments, deletes rows of fragments, or replaces some of their
columns. Rows that only moved (compaction) did not change. An update is a row that went and a row
that came under one stable row id; where row ids aren't stable it is a deletion and an insertion,
since nothing in the table says that they are one row. Adding and dropping columns changes none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.adapters.differing_values import differing
from commitlog.adapters.lance_datasets import scan_columns
from commitlog.client.rows.excerpts import Excerpt, head_of
from commitlog.client.rows.lost_files import while_files_stay
from commitlog.core.manifest.encoded_fragments import living_rows
from commitlog.core.manifest.manifest_state import ManifestDelta, apply_delta, diff
from commitlog.errors import NoSuchVersion
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.spark.source import batch_bytes, grouped
from commitlog.spark.versions import CLONE, TableVersions, Version

INSERT, DELETE = "insert", "delete"
BEFORE, AFTER = "update_preimage", "update_postimage"
CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
)
CHANGE_COLUMNS = pa.schema(
    [
        pa.field(CHANGE_TYPE, pa.string(), nullable=False),
        pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""Spark's names of a change's own columns."""

ROW_ADDRESS, ROW_ID = "_rowaddr", "_rowid"
ROWS_STAY = frozenset(
    {"Rewrite", "CreateIndex", "ReserveFragments", "UpdateConfig", "UpdateBases"}
    | {"Merge", "Project", "UpdateMemWalState"}
)
"""Operations that change no row's values."""
PARTS_PER_TASK, ROWS_PER_TASK = 64, 64 * 1024
"""A small version costs a task less than a task costs Spark."""
TAKEN_MAX, SCANNED_FOR_ONE = 1_000, 64
"""So many rows are looked up by their addresses, if a scan would read 64 times as many."""
COMPARED_ROWS = 16_384


@dataclass(frozen=True)
class VersionChanges:
    """What one task reads: changes of one version, in terms of fragments."""

    table: str
    location: str
    version: int
    time_us: int
    new: Excerpt
    """Of the version: what is read of it."""
    stable_row_ids: bool
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    thinned: tuple[int, ...] = ()
    """Fragments that lost rows (or, restored, got some back)."""
    patched: tuple[int, ...] = ()
    """Fragments with other values in some columns."""
    rows: int = 0
    """About how many rows it holds."""
    old: Excerpt | None = None
    """Of the version before, if anything but insertions is told."""


def parts_of(versions: TableVersions, version: int) -> list[VersionChanges]:
    """Return what a version changed, in parts that can be read apart from each other."""
    try:
        after = versions.read(version)
        if after.operation in ROWS_STAY:
            return []
        if version == 1 or after.operation == CLONE:
            return _whole(versions, after)
        before = versions.take(version - 1)
    except NoSuchVersion as error:
        raise NoSuchVersion(
            f"the changes of version {version} of {versions.info.name} cannot be read: "
            f"{error}. Start at a later version, a stream with a new checkpoint"
        ) from error
    return _parts(versions, before, after)


def snapshot_parts(versions: TableVersions, version: int) -> list[VersionChanges]:
    """Return a version's rows as if they were inserted by it, one part per fragment."""
    try:
        return _whole(versions, versions.read(version))
    except NoSuchVersion as error:
        raise NoSuchVersion(
            f"the rows of version {version} of {versions.info.name}, with which this query began,"
            f" cannot be read to their end: {error}. Start with a new checkpoint, and larger"
            " batches or a hold on the table, so that the version stays until all is read"
        ) from error


def _whole(versions: TableVersions, after: Version) -> list[VersionChanges]:
    head = head_of(after.state)
    return [
        _part(versions, after, head, (encoded,), added=(number,), rows=living_rows(encoded))
        for number, encoded in after.state.fragments.items()
    ]


def _parts(versions: TableVersions, before: Version, after: Version) -> list[VersionChanges]:
    delta = diff(before.state, after.state)
    parts = _differing(versions, before, after, delta)
    # This one's fragments, taken apart and at hand: reading them anew would cost as much as they
    # are many, for each version.
    apply_delta(before.state, delta)
    versions.keep(Version(before.state, after.operation))
    return parts


def _differing(
    versions: TableVersions, before: Version, after: Version, delta: ManifestDelta
) -> list[VersionChanges]:
    old = before.state.fragments
    removed, changed = delta.removed, dict(delta.fragments)
    added = [number for number in changed if number not in old]
    both = [number for number in changed if number in old]
    patched = [n for n in both if _files(old[n]) != _files(changed[n])]
    whole = [number for number in both if number not in patched]
    thinned = [n for n in whole if _deleted(old[n]) != _deleted(changed[n])]
    head = head_of(after.state)
    if not (removed or thinned or patched):
        # Only insertions: as many tasks as there are fragments.
        return [
            _part(versions, after, head, (changed[n],), added=(n,), rows=living_rows(changed[n]))
            for n in added
        ]
    rows = sum(living_rows(changed[n]) for n in added) + sum(living_rows(old[n]) for n in removed)
    rows += sum(abs(living_rows(old[n]) - living_rows(changed[n])) for n in thinned)
    rows += sum(2 * living_rows(changed[n]) for n in patched)
    return [
        _part(
            versions, after, head, [changed[n] for n in (*added, *thinned, *patched)],
            old=Excerpt(
                before.state.version, head_of(before.state),
                tuple(old[n] for n in (*removed, *thinned, *patched)),
            ),
            added=tuple(added), removed=removed, thinned=tuple(thinned), patched=tuple(patched),
            rows=rows,
        )
    ]  # fmt: skip


def _part(
    versions: TableVersions,
    after: Version,
    head: bytes,
    fragments: Iterable[bytes],
    *,
    rows: int,
    old: Excerpt | None = None,
    added: tuple[int, ...] = (),
    removed: tuple[int, ...] = (),
    thinned: tuple[int, ...] = (),
    patched: tuple[int, ...] = (),
) -> VersionChanges:
    info = versions.info
    return VersionChanges(
        table=info.name, location=info.location, version=after.state.version, time_us=after.time_us,
        stable_row_ids=info.stable_row_ids,
        added=added, removed=removed, thinned=thinned, patched=patched, rows=rows,
        new=Excerpt(after.state.version, head, tuple(fragments)), old=old,
    )  # fmt: skip


def _deleted(encoded: bytes) -> bytes:
    file = DataFragment.FromString(encoded).deletion_file
    return file.SerializeToString(deterministic=True)


def _files(encoded: bytes) -> list[bytes]:
    fragment = DataFragment.FromString(encoded)
    parts = [*fragment.files, *fragment.overlays]
    return [part.SerializeToString(deterministic=True) for part in parts]


def dealt_out(parts: Sequence[VersionChanges]) -> list[list[VersionChanges]]:
    """Return what each task reads: neighbours, until they are enough.

    Those of one version, which are insertions, become one part: a scan of each small fragment would
    take longer than its rows.
    """
    sizes = ((at, part.rows, 1) for at, part in enumerate(parts))
    shares = grouped(sizes, ROWS_PER_TASK, PARTS_PER_TASK)
    return [
        [
            _together(list(alike))
            for _, alike in groupby(
                (parts[at] for at in share), lambda one: (one.table, one.version)
            )
        ]
        for share in shares
    ]


def _together(parts: Sequence[VersionChanges]) -> VersionChanges:
    fragments = tuple(encoded for part in parts for encoded in part.new.fragments)
    return replace(
        parts[0],
        new=replace(parts[0].new, fragments=fragments),
        added=tuple(number for part in parts for number in part.added),
        rows=sum(part.rows for part in parts),
    )


def read_part(part: VersionChanges, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield a part's changed rows with `CHANGE_COLUMNS`; columns that a version lacks are left out.

    What went comes before what came.
    """
    return while_files_stay(_read(part, list(columns)), part.table, part.version)


def _read(part: VersionChanges, wanted: list[str]) -> Iterator[pa.RecordBatch]:
    new = part.new.open(part.location)
    if part.old is None:
        for batch in _scan(new, part.added, wanted):
            yield _labelled(batch, INSERT, part)
        return
    old = part.old.open(part.location)
    went, came = _moves(old, new, part)
    kept = pa.array([], pa.uint64())
    if part.stable_row_ids:
        gone, new_ids = went[0], _values(came[0], ROW_ID)
        kept = _values(gone.filter(pc.is_in(gone[ROW_ID], value_set=new_ids)), ROW_ID)
    for dataset, fragments, (rows, there), kinds in (
        (old, (*part.removed, *part.thinned), went, (DELETE, BEFORE)),
        (new, (*part.added, *part.thinned), came, (INSERT, AFTER)),
    ):
        addresses = _values(rows, ROW_ADDRESS)
        is_few = len(addresses) <= min(TAKEN_MAX, there // SCANNED_FOR_ONE)
        chosen = addresses if is_few else None
        for batch in _scan(dataset, fragments if len(addresses) else (), wanted, chosen):
            found = batch.filter(pc.is_in(batch.column(ROW_ADDRESS), value_set=addresses))
            yield from _by_kind(found, kept, kinds, part)
    for number in part.patched:
        yield from _patched(old, new, number, wanted, part)


def _moves(
    old: lance.LanceDataset, new: lance.LanceDataset, part: VersionChanges
) -> tuple[tuple[pa.Table, int], tuple[pa.Table, int]]:
    """Return the addresses and row ids of what went, and of what came, out of how many rows."""
    before = _rows(old, (*part.removed, *part.thinned))
    after = _rows(new, (*part.added, *part.thinned))
    went = before.filter(pc.invert(_same_place(before, after)))
    came = after.filter(pc.invert(_same_place(after, before)))
    return (went, before.num_rows), (came, after.num_rows)


def _rows(dataset: lance.LanceDataset, fragments: tuple[int, ...]) -> pa.Table:
    schema = pa.schema([(ROW_ADDRESS, pa.uint64()), (ROW_ID, pa.uint64())])
    batches = [batch.select(schema.names) for batch in _scan(dataset, fragments, [])]
    return pa.Table.from_batches(batches, schema)


def _values(rows: pa.Table, name: str) -> pa.Array:
    return rows[name].combine_chunks()


def _scan(
    dataset: lance.LanceDataset, fragments: tuple[int, ...], columns: list[str],
    addresses: pa.Array | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    chosen = [found for found in map(dataset.get_fragment, fragments) if found is not None]
    if not chosen:
        return
    there = set(dataset.schema.names)
    present = [name for name in columns if name in there]
    scanner = dataset.scanner(
        columns=scan_columns(present),
        fragments=chosen,
        filter=None if addresses is None else _at(addresses),
        batch_size_bytes=batch_bytes(dataset),
        with_row_address=True,
        with_row_id=True,
        blob_handling="all_binary",
    )
    yield from scanner.to_batches()


def _at(addresses: pa.Array) -> str:
    """Return a predicate for which Lance looks rows up, instead of reading all."""
    return f"{ROW_ADDRESS} IN ({', '.join(map(str, addresses.to_pylist()))})"


def _by_kind(
    batch: pa.RecordBatch, kept: pa.Array, kinds: tuple[str, str], part: VersionChanges
) -> Iterator[pa.RecordBatch]:
    """Yield rows as updates, if their row ids are kept, and the others."""
    if len(kept):
        is_update = pc.is_in(batch.column(ROW_ID), value_set=kept)
        yield _labelled(batch.filter(is_update), kinds[1], part)
        batch = batch.filter(pc.invert(is_update))
    yield _labelled(batch, kinds[0], part)


def _patched(
    old: lance.LanceDataset,
    new: lance.LanceDataset,
    number: int,
    columns: list[str],
    part: VersionChanges,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a fragment whose values differ, before and after."""
    sides = []
    for dataset in (old, new):
        batches = list(_scan(dataset, (number,), columns))
        sides.append(pa.Table.from_batches(batches) if batches else _rows(dataset, ()))
    before, after = sides
    for one, other, kind in ((before, after, DELETE), (after, before, INSERT)):
        for batch in one.filter(pc.invert(_same_place(one, other))).to_batches():
            yield _labelled(batch, kind, part)
    before, after = (
        one.filter(_same_place(one, other)).sort_by(ROW_ADDRESS)
        for one, other in ((before, after), (after, before))
    )
    in_both = {*before.schema.names}.intersection(after.schema.names)
    shared = [name for name in columns if name in in_both]
    differs = np.zeros(before.num_rows, np.bool_)
    # All of a column may be more than the 2 GiB that one array can hold.
    for at in range(0, before.num_rows, COMPARED_ROWS):
        one, other = (side.slice(at, COMPARED_ROWS) for side in (before, after))
        found = differs[at : at + COMPARED_ROWS]
        for name in shared:
            found |= differing(one[name].combine_chunks(), other[name].combine_chunks())
    for table, kind in ((before, BEFORE), (after, AFTER)):
        for batch in table.filter(pa.array(differs)).to_batches():
            yield _labelled(batch, kind, part)


def _same_place(rows: pa.Table, others: pa.Table) -> pa.Array:
    # Arrow would put all of them into a hash table, which takes several times as long.
    here, there = (table[ROW_ADDRESS].to_numpy() for table in (rows, others))
    return pa.array(np.isin(here, there, assume_unique=True))


def _labelled(batch: pa.RecordBatch, kind: str, part: VersionChanges) -> pa.RecordBatch:
    count = batch.num_rows
    own = [
        pa.repeat(pa.scalar(kind), count),
        pa.repeat(pa.scalar(part.version, pa.int64()), count),
        pa.repeat(pa.scalar(part.time_us, CHANGE_COLUMNS.field(2).type), count),
    ]
    kept = [name for name in batch.schema.names if name not in (ROW_ADDRESS, ROW_ID)]
    columns = [batch.column(name) for name in kept] + own
    return pa.RecordBatch.from_arrays(columns, [*kept, *CHANGE_COLUMNS.names])
