"""Where the rows of a key are, remembered from one group of writes to the next.

Lance's search reads the key's column of all fragments for each group. A row writer reads each
fragment's keys once instead: a fragment's rows keep their places as long as it exists, and only are
deleted. So what is remembered may name too many rows, and never too few; Lance then reads those
that still live, and whoever asked compares their keys.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from commitlog.client.row_groups import BaseScan, scan_base
from commitlog.client.rows import OFFSET_BITS
from commitlog.client.tables import TableInfo

SEARCHES_FIRST = 3
"""So many groups of a table are searched for, before its keys are read: most tables get few."""
ROWS_MAX, TABLES_MAX = 20_000_000, 100
"""What is remembered, 12 bytes a row; a table that has no place is searched."""
UNSORTED_MAX = 50_000
"""So many rows are found by a dict before they are sorted in."""
KEYS_MAX = 20_000
PLACES_MAX = 40_000
"""Of a group with more keys or places than this, a search reads hardly more."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HASH_BITS = np.uint64(32)
Hashes = Any
"""An array of 32-bit numbers."""


class KnownKeys:
    """Reads the rows that groups need, by the places of their keys. Thread-safe."""

    def __init__(self, rows_max: int = ROWS_MAX) -> None:
        """Know nothing yet, and remember at most so many rows."""
        self._rows_max = rows_max
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, str], _Keys] = {}
        """By incarnation and column, the one that was asked for last at the end."""

    def read(self, info: TableInfo, dataset: lance.LanceDataset, scan: BaseScan) -> pa.Table:
        """Return the rows that have a group's keys, and maybe others; a `ReadBase`."""
        wanted = None
        if len(scan.keys) == 1:
            [(name, values)] = scan.keys.items()
            wanted = _hashes(values) if len(values) <= KEYS_MAX else None
        if wanted is None:
            return scan_base(dataset, scan)
        known = self._known(info.incarnation, name)
        with known.lock:
            known.groups += 1
            is_known = bool(known.count) or (
                known.groups > SEARCHES_FIRST and dataset.count_rows() <= self._rows_max
            )
            addresses = known.find(dataset, wanted) if is_known else None
        self._make_room()
        if addresses is None:
            return scan_base(dataset, scan)
        return _rows_at(dataset, scan.columns, addresses)

    def _known(self, incarnation: str, column: str) -> _Keys:
        with self._lock:
            found = self._tables.pop((incarnation, column), None) or _Keys(column)
            self._tables[incarnation, column] = found
            return found

    def _make_room(self) -> None:
        """Forget the tables that were written longest ago."""
        with self._lock:
            count = sum(one.count for one in self._tables.values())
            while count > self._rows_max or len(self._tables) > TABLES_MAX:
                count -= self._tables.pop(next(iter(self._tables))).count


class _Keys:
    """The places of one table's rows, by the hashes of their keys."""

    def __init__(self, column: str) -> None:
        self.lock = threading.Lock()
        self.groups = 0
        self._column = column
        self._clear()

    def _clear(self) -> None:
        self._fragments: dict[int, _Files] = {}
        """The files of what was read, by fragment id."""
        self._sorted: tuple[Hashes, Any] = (np.empty(0, np.uint32), np.empty(0, np.uint64))
        """Hashes, ascending, and the address of each one's row."""
        self._newer: dict[int, list[int]] = {}
        """Addresses by hash, of what isn't sorted in yet."""
        self._newer_count = 0

    @property
    def count(self) -> int:
        return len(self._sorted[0]) + self._newer_count

    def find(self, dataset: lance.LanceDataset, wanted: Hashes) -> list[int] | None:
        """Return the addresses of all rows of a version whose keys may be wanted ones.

        None: a search does better.
        """
        there = {one.fragment_id: (one, _files_of(one)) for one in dataset.get_fragments()}
        if self.count > 2 * sum(files.rows for _, files in there.values()) + UNSORTED_MAX:
            self._clear()
        unread = [one for number, one in there.items() if self._fragments.get(number) != one[1]]
        if unread and not self._learn(dataset, unread):
            return None
        hashes, addresses = self._sorted
        first: Any = np.searchsorted(hashes, wanted, "left").tolist()
        last: Any = np.searchsorted(hashes, wanted, "right").tolist()
        found: set[int] = set()
        for start, end in zip(first, last, strict=True):
            if start < end:
                found.update(addresses[start:end].tolist())
        for one in wanted.tolist():
            found.update(self._newer.get(one, ()))
        living = sorted(address for address in found if address >> OFFSET_BITS in there)
        return living if len(living) <= PLACES_MAX else None

    def _learn(
        self, dataset: lance.LanceDataset, unread: Sequence[tuple[lance.LanceFragment, _Files]]
    ) -> bool:
        """Read the keys of fragments, of deleted rows too: a restored version has them again."""
        column = (
            dataset.scanner(
                columns=[self._column],
                fragments=[fragment for fragment, _ in unread],
                with_row_id=True,
                include_deleted_rows=True,
                scan_in_order=True,
            )
            .to_table()
            .column(self._column)
        )
        hashes = _hashes(column)
        if hashes is None or len(hashes) != sum(files.rows for _, files in unread):
            return False
        addresses = np.concatenate(
            [
                np.arange(files.rows, dtype=np.uint64) + np.uint64(one.fragment_id << OFFSET_BITS)
                for one, files in unread
            ]
        )
        if len(hashes) > UNSORTED_MAX or self._newer_count > UNSORTED_MAX:
            self._sort_in(hashes, addresses)
        else:
            for one, address in zip(hashes.tolist(), addresses.tolist(), strict=True):
                self._newer.setdefault(one, []).append(address)
            self._newer_count += len(hashes)
        self._fragments.update((one.fragment_id, files) for one, files in unread)
        return True

    def _sort_in(self, hashes: Hashes, addresses: Any) -> None:
        newer = [(one, at) for one, found in self._newer.items() for at in found]
        first, second = np.array(newer, np.uint64).reshape(-1, 2).T
        hashes = np.concatenate([self._sorted[0], first.astype(np.uint32), hashes])
        addresses = np.concatenate([self._sorted[1], second, addresses])
        order = np.argsort(hashes, kind="stable")
        self._sorted = (hashes[order], addresses[order])
        self._newer, self._newer_count = {}, 0


class _Files(NamedTuple):
    """What a fragment's rows are read from: another file may hold new values of a column."""

    paths: tuple[str, ...]
    overlays: str
    rows: int
    """Deleted ones, too."""


def _files_of(fragment: lance.LanceFragment) -> _Files:
    said: Any = fragment.metadata
    paths = tuple(one.path for one in said.files)
    return _Files(paths, str(said.overlays), said.physical_rows)


def _rows_at(
    dataset: lance.LanceDataset, columns: Iterable[str], addresses: Sequence[int]
) -> pa.Table:
    """Read the rows at some addresses that weren't deleted."""
    named = ",".join(map(str, addresses))
    return dataset.scanner(
        columns=list(columns),
        filter=f"_rowaddr IN ({named})" if addresses else "false",
        with_row_address=True,
        with_row_id=True,
    ).to_table()


def _hashes(values: pa.Array | pa.ChunkedArray) -> Hashes | None:
    """Return numbers that equal values have in common; None for types that have none here."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        whole = values.cast(pa.uint64() if kind == pa.uint64() else pa.int64())
        numbers = np.asarray(pc.fill_null(whole, 0)).astype(np.uint64)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        numbers = np.fromiter(map(hash, values.to_pylist()), np.int64).astype(np.uint64)
    else:
        return None
    return (numbers * _SPREAD >> _HASH_BITS).astype(np.uint32)
