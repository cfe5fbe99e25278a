"""Applies a group of writes to rows, in order, as if each had been applied by itself.

What a group comes to depends on the rows that have its keys, and on nothing else. Those are read
once; then each write changes rows in memory, later ones see what earlier ones left, and each has
its own counts. What is left at the end is written once: a row that ten writes updated moves once.

All keyed writes of a group have the same key, so that one look-up serves all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import and_
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.adapters.lance_datasets import scan_columns
from commitlog.adapters.row_values import convert
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.rows import ROW_ADDRESS, ROW_ID
from commitlog.codecs.keys import encoded_keys, hashed
from commitlog.errors import without_build_paths
from commitlog.model.operations import RowsMode, WriteRows
from commitlog.model.records import Code

FILTERED_KEYS_MAX = 1_000_000
"""Of more keys than this, all rows' keys are read instead of looked for."""
Evaluate = Callable[[pa.Table, pa.Table, str], list[int]]
"""Returns the numbers of the pairs of a target's and a source's row for which a condition holds."""
_TARGET, _SOURCE = "target", "source"
_MISSING = -1


class RowsUnusable(Exception):
    """A write whose rows can't be applied: a code, and what is wrong with them."""

    def __init__(self, code: Code, problem: str) -> None:
        super().__init__(code, problem)
        self.code = code
        self.problem = problem


@dataclass(slots=True)
class Write:
    """One accepted write, with its rows in the table's types."""

    operation: WriteRows
    rows: pa.Table
    keys: Sequence[bytes | None] = ()
    """Each row's key, encoded; empty for an append of no keyed group."""
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    refused: RowsUnusable | None = None


class BaseScan(NamedTuple):
    """What a group needs to know of the rows that have its keys."""

    columns: tuple[str, ...]
    keys: Mapping[str, pa.Array]
    """Values of the key's columns: a row is read if each is among them; what isn't here is any."""


def base_scan(info: TableInfo, writes: Sequence[Write]) -> BaseScan | None:
    """Return which rows of a version a group needs; None if it has no keys."""
    keyed = [write for write in writes if write.operation.on]
    if not keyed:
        return None
    on = keyed[0].operation.on
    needs_all = any(_needs_values(info, write.operation) for write in keyed)
    columns = tuple(info.schema.names) if needs_all else on
    distinct = {name: _distinct(info, name, keyed) for name in on}
    return BaseScan(columns, {name: keys for name, keys in distinct.items() if keys is not None})


def _distinct(info: TableInfo, name: str, writes: Sequence[Write]) -> pa.Array | None:
    """Return the values to look for; None: there are too many, or none are compared as keys are."""
    kind = info.schema.field(name).type
    if pa.types.is_nested(kind) or pa.types.is_date64(kind):  # of a date64 a key is the day
        return None
    chunks = [chunk for write in writes for chunk in write.rows.column(name).chunks]
    try:
        keys = pa.chunked_array(chunks, kind).unique()
    except pa.ArrowNotImplementedError:
        return None
    return keys if len(keys) <= FILTERED_KEYS_MAX else None


def scan_base(
    dataset: lance.LanceDataset,
    scan: BaseScan,
    fragments: Sequence[lance.LanceFragment] | None = None,
) -> pa.Table:
    """Read the rows that a group needs, of some fragments or of all."""
    read = partial(
        dataset.scanner,
        columns=scan_columns(scan.columns),
        fragments=fragments,
        with_row_address=True,
        with_row_id=True,
    )
    wanted = [pc.field(name).isin(keys) for name, keys in scan.keys.items()]
    if wanted:
        try:
            return read(filter=reduce(and_, wanted)).to_table()
        except (ValueError, pa.ArrowException):
            pass  # a type that Lance takes no such filter of
    return read().to_table()


ReadBase = Callable[[TableInfo, lance.LanceDataset, BaseScan], pa.Table]


def read_base(info: TableInfo, dataset: lance.LanceDataset, scan: BaseScan) -> pa.Table:
    """Read the rows that a group needs, in this process."""
    return scan_base(dataset, scan)


def no_base() -> pa.Table:
    """Return what a group without keys needs."""
    return pa.table({name: pa.array([], pa.uint64()) for name in (ROW_ADDRESS, ROW_ID)})


def _needs_values(info: TableInfo, operation: WriteRows) -> bool:
    if operation.mode is not RowsMode.UPSERT or not operation.update_all:
        return False
    return bool(operation.update_if) or len(operation.columns) < len(info.schema.names)


class _Row:
    """A row that a group touches: where it was, and what was written over it."""

    __slots__ = ("base", "is_live", "parts")

    def __init__(self, base: int, parts: list[int]) -> None:
        self.base = base
        self.parts = parts
        """Numbers of the sources' rows, the newest last."""
        self.is_live = True


@dataclass(slots=True)
class MergedGroup:
    """What a group comes to."""

    rows: pa.Table
    """What is to be written: the rows that move first, then the new ones."""
    moved: int
    """How many of them move."""
    sources: pa.Table
    """Addresses and ids of the rows that move, in the order of `rows`."""
    gone: pa.ChunkedArray
    """The addresses of all rows that move or are deleted."""
    appends_only: bool
    inserted_keys: list[bytes] = field(default_factory=list)
    """Hashes of the keys of new rows, by the group's key."""


class Group:
    """Rows with the keys of a group, and the writes that change them."""

    def __init__(self, info: TableInfo, base: pa.Table, evaluate: Evaluate | None = None) -> None:
        """Start with the rows that `base_scan` asks for; `evaluate` conditions as it does."""
        self._info, self._evaluate = info, evaluate or fulfilling
        self._schema: pa.Schema = info.schema
        self._base = base
        self._sources: list[pa.Table] = [base]
        self._starts = [0]
        self._count = base.num_rows
        self._rows: list[_Row] = []
        self._by_key: dict[bytes | None, list[_Row]] = {}
        self._appends_only = True

    def apply(self, writes: Sequence[Write]) -> MergedGroup:
        """Apply writes in order; each one's counts, or why it was refused, are noted in it."""
        on = next((write.operation.on for write in writes if write.operation.on), ())
        wanted = {key for write in writes for key in write.keys}
        if on:
            self._load(on, wanted)
        for write in writes:
            try:
                self._apply(write, on)
            except RowsUnusable as refused:
                write.inserted = write.updated = write.deleted = 0
                write.refused = refused
        return self._merged(on)

    def _load(self, on: Sequence[str], wanted: set[bytes | None]) -> None:
        for position, key in enumerate(keys_or_none(self._info, on, self._base)):
            if key is not None and key in wanted:
                row = _Row(position, [])
                self._rows.append(row)
                self._by_key.setdefault(key, []).append(row)

    def _apply(self, write: Write, on: Sequence[str]) -> None:
        operation = write.operation
        if operation.mode is RowsMode.DELETE:
            for key in write.keys:
                for row in self._by_key.pop(key, ()):
                    row.is_live = False
                    write.deleted += 1
            self._appends_only &= not write.deleted
            return
        start = self._count
        self._sources.append(write.rows)
        self._starts.append(start)
        self._count += write.rows.num_rows
        if operation.mode is RowsMode.APPEND:
            for offset, found in enumerate(keys_or_none(self._info, on, write.rows)):
                self._insert(found, start + offset)
            write.inserted = write.rows.num_rows
            return
        self._appends_only = False
        passing = self._passing(write) if operation.update_if else None
        for offset, key in enumerate(write.keys):
            rows = self._by_key.get(key)
            if rows and operation.update_all:
                for number, row in enumerate(rows):
                    if passing is None or (offset, number) in passing:
                        row.parts.append(start + offset)
                        write.updated += 1
            elif not rows and operation.insert_all:
                self._insert(key, start + offset)
                write.inserted += 1

    def _insert(self, key: bytes | None, number: int) -> None:
        row = _Row(_MISSING, [number])
        self._rows.append(row)
        if key is not None:
            self._by_key.setdefault(key, []).append(row)

    def _passing(self, write: Write) -> set[tuple[int, int]]:
        """Return which pairs of a write's row and one that matches its filter updates."""
        pairs = [
            (offset, number, row)
            for offset, key in enumerate(write.keys)
            for number, row in enumerate(self._by_key.get(key, ()))
        ]
        if not pairs:
            return set()
        target = self._values([row for _, _, row in pairs])
        source = write.rows.take([offset for offset, _, _ in pairs])
        held = self._evaluate(target, source, write.operation.update_if)
        return {pairs[position][:2] for position in held}

    def _merged(self, on: Sequence[str]) -> MergedGroup:
        moved = [row for row in self._rows if row.base != _MISSING and row.is_live and row.parts]
        gone = [row.base for row in self._rows if row.base != _MISSING]
        new = [row for row in self._rows if row.base == _MISSING and row.is_live]
        kept = {row.base for row in self._rows if row.is_live and not row.parts}
        rows = self._values([*moved, *new])
        addresses = self._base[ROW_ADDRESS]
        keys = keys_or_none(self._info, on, rows.slice(len(moved))) if on else []
        return MergedGroup(
            rows=rows,
            moved=len(moved),
            sources=self._base.take(_positions([row.base for row in moved])),
            gone=addresses.take(_positions([base for base in gone if base not in kept])),
            appends_only=self._appends_only,
            inserted_keys=hashed(key for key in keys if key is not None),
        )

    def _values(self, rows: Sequence[_Row]) -> pa.Table:
        """Return rows as they are now, with all columns of the table."""
        columns, arrays = self._schema.names, []
        by_column = self._numbers(rows, columns)
        sources = [(source, frozenset(source.schema.names)) for source in self._sources]
        for name in columns:
            kind = self._schema.field(name).type
            chunks: list[pa.Array] = []
            for source, given in sources:
                held = source.column(name).chunks if name in given else [pa.nulls(source.num_rows)]
                chunks += [convert(chunk, kind, False) for chunk in held]
            whole = pa.chunked_array(chunks, kind)
            numbers = by_column[name]
            arrays.append(whole.take(pa.array(numbers, pa.int64(), mask=numbers < 0)))
        return pa.Table.from_arrays(arrays, schema=self._schema)

    def _numbers(self, rows: Sequence[_Row], columns: Sequence[str]) -> Mapping[str, Any]:
        """Return which source's row each column of each row is taken from; -1: it is null."""
        lacks = [frozenset(columns).difference(one.schema.names) for one in self._sources]
        newest = [row.parts[-1] if row.parts else row.base for row in rows]
        numbers = np.array(newest, dtype=np.int64)
        sources = np.searchsorted(np.array(self._starts), numbers, side="right") - 1
        late = [at for at, source in enumerate(sources.tolist()) if lacks[source]]
        found = {name: numbers.copy() if late else numbers for name in columns}
        for at in late:
            row = rows[at]
            older = [number for number in (row.base, *row.parts) if number != _MISSING]
            for name in lacks[int(sources[at])]:
                has = (n for n in reversed(older) if name not in lacks[self._source_of(n)])
                found[name][at] = next(has, _MISSING)
        return found

    def _source_of(self, number: int) -> int:
        return bisect_right(self._starts, number) - 1


def keys_or_none(info: TableInfo, on: Sequence[str], rows: pa.Table) -> list[bytes | None]:
    """Return each row's key, encoded; None where a part of it is null or missing."""
    if not on or any(name not in rows.schema.names for name in on):
        return [None] * rows.num_rows
    columns = [rows.column(name) for name in sorted(on, key=lambda n: info.top_level_ids([n]))]
    keys = encoded_keys(columns)
    if not any(column.null_count for column in columns):
        return list(keys)
    valid = reduce(pc.and_, map(pc.is_valid, columns)).to_pylist()
    return [key if is_valid else None for key, is_valid in zip(keys, valid, strict=True)]


def fulfilling(target: pa.Table, source: pa.Table, condition: str) -> list[int]:
    """Return the numbers of the pairs for which a condition holds; RowsUnusable if it can't be."""
    joined = pa.table({_TARGET: _structs(target), _SOURCE: _structs(source)})
    try:
        held = lance.write_dataset(joined, "memory://rows")
        found = held.scanner(columns=[], filter=condition, with_row_address=True).to_table()
    except (ValueError, OSError, RuntimeError) as error:
        said = without_build_paths(str(error))
        problem = f"its condition {condition!r} can't be evaluated: {said}"
        raise RowsUnusable(Code.ROWS_REFUSED, problem) from None
    return list(found[ROW_ADDRESS].to_pylist())


def _structs(table: pa.Table) -> pa.Array:
    columns = [
        pa.concat_arrays(c.chunks) if c.num_chunks else c.combine_chunks() for c in table.columns
    ]
    return pa.StructArray.from_arrays(columns, fields=[f.with_nullable(True) for f in table.schema])


def _positions(numbers: Sequence[int]) -> pa.Array:
    return pa.array(numbers, pa.int64())
