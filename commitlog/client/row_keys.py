"""Where the rows of a key are, remembered from one operation on a table to the next.

Lance's search reads the key's column of all fragments for each operation. Here each fragment's keys
are read once instead: a fragment's rows keep their places as long as it exists, and only are
deleted. So what is remembered may name too many rows, and never too few; Lance then reads those
that still live, and whoever asked compares their keys, or has Lance evaluate the predicate.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata

from commitlog.adapters.lance_datasets import encoded_fragments, take_rows
from commitlog.client.key_predicates import comparison
from commitlog.client.row_groups import BaseScan, scan_base
from commitlog.client.rows import OFFSET_BITS, ROW_ADDRESS, ROW_ID, Prepared, fragment_of
from commitlog.client.tables import TableInfo
from commitlog.lancepb.table_pb2 import DataFragment

SEARCHES_FIRST = 3
"""So many searches of a table are left to Lance, before its keys are read: most tables get few."""
ROWS_MAX, TABLES_MAX = 20_000_000, 100
"""What a row writer remembers, 12 bytes a row; a table that has no place is searched."""
CLIENT_ROWS_MAX = 4_000_000
"""What any other client remembers."""
ROW_BYTES, FRAGMENT_BYTES = 12, 200
"""What a row takes in memory, and a fragment beside its own bytes."""
UNSORTED_MAX = 5_000
"""So many rows are found by a dict before they are sorted in."""
WRITTEN_MAX = 16
"""Of so many new files the keys are kept until a version is looked at that has them."""
KEYS_MAX = 20_000
FEW = 16
PLACES_MAX = 40_000
"""Of an operation with more keys or places than this, a search reads hardly more."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_HASH_BITS = np.uint64(32)
Hashes = Any
"""An array of 32-bit numbers."""


class KnownKeys:
    """Finds rows by the places of their keys. Thread-safe."""

    def __init__(self, rows_max: int = ROWS_MAX, searches_first: int = SEARCHES_FIRST) -> None:
        """Know nothing yet, and remember at most so many rows."""
        self._rows_max, self._searches_first = rows_max, searches_first
        self._lock = threading.Lock()
        self._tables: dict[tuple[str, int], _Keys] = {}
        """By incarnation and field, the one that was asked for last at the end."""

    def read(self, info: TableInfo, dataset: lance.LanceDataset, scan: BaseScan) -> pa.Table:
        """Return the rows that have a group's keys, and maybe others; a `ReadBase`."""
        addresses = None
        if len(scan.keys) == 1:
            [(name, values)] = scan.keys.items()
            addresses = self.places(info, dataset, name, values)
        if addresses is None:
            return scan_base(dataset, scan)
        return rows_at(dataset, scan.columns, addresses)

    def wrote(self, info: TableInfo, prepared: Prepared) -> None:
        """Take the keys of rows that this process wrote, which it needs not read then."""
        if (rows := prepared.written) is None:
            return
        names = {number: name for name, number in info.column_ids.items()}
        with self._lock:
            tables = [(at, one) for (of, at), one in self._tables.items() if of == info.incarnation]
        added: Any = getattr(prepared.operation, "new_fragments", None)
        fragments = prepared.operation.fragments if added is None else added
        for number, known in tables:
            name = names.get(number)
            if known.count and name in rows.schema.names:
                with known.lock:
                    known.wrote(fragments, _hashes(rows.column(name)))

    def scan(
        self,
        info: TableInfo,
        dataset: lance.LanceDataset,
        columns: list[str] | dict[str, str],
        predicate: str,
    ) -> pa.Table | None:
        """Return the rows of a predicate with their addresses and ids; None: search for them."""
        compared = comparison(predicate, info.schema)
        if compared is None:
            return None
        addresses = self.places(info, dataset, compared.column, compared.values)
        if addresses is None:
            return None
        if compared.is_all and not columns:
            rows = rows_at(dataset, [compared.column], addresses)
            return _having(rows, compared.column, compared.values)
        return _scan_at(dataset, columns, addresses, f" AND ({predicate})")

    def places(
        self,
        info: TableInfo,
        dataset: lance.LanceDataset,
        column: str,
        values: pa.Array | pa.ChunkedArray,
    ) -> list[int] | None:
        """Return the addresses of all rows that may have one of some values in a column.

        None: a search does better.
        """
        wanted = _hashes(values) if len(values) <= KEYS_MAX else None
        if wanted is None:
            return None
        # Not by its name, which another column may get.
        known = self._known(info.incarnation, info.column_ids[column])
        with known.lock:
            known.asked += 1
            if not known.count and known.asked <= self._searches_first:
                return None
            try:
                addresses = known.find(dataset, column, wanted, self._rows_max)
            except (ValueError, OSError, RuntimeError):
                addresses = None  # whoever searches is told what is wrong
        self._make_room()
        return addresses

    def _known(self, incarnation: str, field_id: int) -> _Keys:
        with self._lock:
            found = self._tables.pop((incarnation, field_id), None) or _Keys()
            self._tables[incarnation, field_id] = found
            return found

    def _make_room(self) -> None:
        """Forget the tables that were asked for longest ago."""
        with self._lock:
            count = sum(one.count for one in self._tables.values())
            while count > self._rows_max or len(self._tables) > TABLES_MAX:
                count -= self._tables.pop(next(iter(self._tables))).count


class _Keys:
    """The places of one table's rows, by the hashes of their keys."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0
        self._clear()

    def _clear(self) -> None:
        self._there: dict[bytes, int] = {}
        """The fragments of the version that was looked at last, with their ids."""
        self._fragment_rows = 0
        """How many rows take as much memory as these fragments."""
        self._files: dict[int, bytes] = {}
        """What was read, by fragment id: another file may hold new values of the column."""
        self._sorted: tuple[Hashes, Any] = (np.empty(0, np.uint32), np.empty(0, np.uint64))
        """Hashes, ascending, and the address of each one's row."""
        self._newer: dict[int, list[int]] = {}
        """Addresses by hash, of what isn't sorted in yet."""
        self._newer_count = 0
        self._written: dict[str, Hashes] = {}
        """The hashes of the newest files that this process wrote, by their paths."""

    @property
    def _rows(self) -> int:
        return len(self._sorted[0]) + self._newer_count

    @property
    def count(self) -> int:
        """How many rows take as much memory as all of this."""
        return self._rows + self._fragment_rows

    def find(
        self, dataset: lance.LanceDataset, column: str, wanted: Hashes, rows_max: int
    ) -> list[int] | None:
        """Return the addresses of all rows of a version whose keys may be wanted ones.

        None: a search does better, or more than `rows_max` would have to be remembered.
        """
        if not self._look(dataset, column, rows_max):
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
        there = set(self._there.values())
        living = sorted(address for address in found if address >> OFFSET_BITS in there)
        return living if len(living) <= PLACES_MAX else None

    def wrote(self, fragments: Sequence[FragmentMetadata], hashes: Hashes | None) -> None:
        """Take the hashes of new fragments' rows, in their order."""
        if hashes is None:
            return
        start = 0
        for fragment in fragments:
            end = start + fragment.physical_rows
            self._written[fragment.files[0].path] = hashes[start:end]
            start = end
        while len(self._written) > WRITTEN_MAX:
            del self._written[next(iter(self._written))]

    def _hashes_of(self, fragment: DataFragment) -> Hashes | None:
        """Return the hashes of a fragment that this process wrote."""
        if len(fragment.files) != 1 or fragment.overlays:
            return None
        hashes = self._written.pop(fragment.files[0].path, None)
        return hashes if hashes is not None and len(hashes) == fragment.physical_rows else None

    def _look(self, dataset: lance.LanceDataset, column: str, rows_max: int) -> bool:
        """Read what a version has and the ones before didn't; False if that isn't possible."""
        there: dict[bytes, int] = {}
        unread: dict[int, bytes] = {}
        hashes: dict[int, Hashes | None] = {}
        rows = 0
        for encoded in encoded_fragments(dataset):
            number = self._there.get(encoded)
            if number is None:
                fragment = DataFragment.FromString(encoded)
                number, files = fragment.id, _files_of(fragment)
                if self._files.get(number) != files:
                    unread[number] = files
                    hashes[number] = self._hashes_of(fragment)
                    rows += fragment.physical_rows
            there[encoded] = number
        fragment_rows = sum(FRAGMENT_BYTES + len(encoded) for encoded in there) // ROW_BYTES
        if unread:
            is_old = self._rows > 2 * dataset.count_rows() + UNSORTED_MAX
            is_full = self._rows + rows + fragment_rows > rows_max
            if self._files and (is_old or is_full):
                self._clear()  # and begin again with what is there now
                return self._look(dataset, column, rows_max)
            if is_full or not self._learn(dataset, column, hashes, rows):
                return False
            self._files.update(unread)
        self._there, self._fragment_rows = there, fragment_rows
        return True

    def _learn(
        self,
        dataset: lance.LanceDataset,
        column: str,
        known: Mapping[int, Hashes | None],
        rows: int,
    ) -> bool:
        """Take the keys of fragments, or read those that aren't known."""
        unknown = [fragment_of(dataset, number) for number, own in known.items() if own is None]
        found = {number: own for number, own in known.items() if own is not None}
        if unknown:
            keys = _hashes(_column(dataset, column, unknown))
            if keys is None or len(keys) != sum(one.physical_rows for one in unknown):
                return False
            start = 0
            for one in unknown:
                found[one.fragment_id] = keys[start : start + one.physical_rows]
                start += one.physical_rows
        hashes = np.concatenate(list(found.values()))
        if len(hashes) != rows:
            return False
        addresses = np.concatenate(
            [
                np.arange(len(own), dtype=np.uint64) + np.uint64(number << OFFSET_BITS)
                for number, own in found.items()
            ]
        )
        if len(hashes) + self._newer_count > UNSORTED_MAX:
            self._sort_in(hashes, addresses)
        else:
            for one, address in zip(hashes.tolist(), addresses.tolist(), strict=True):
                self._newer.setdefault(one, []).append(address)
            self._newer_count += len(hashes)
        return True

    def _sort_in(self, hashes: Hashes, addresses: Any) -> None:
        newer = [(one, at) for one, found in self._newer.items() for at in found]
        first, second = np.array(newer, np.uint64).reshape(-1, 2).T
        hashes = np.concatenate([first.astype(np.uint32), hashes])
        addresses = np.concatenate([second, addresses])
        order = np.argsort(hashes, kind="stable")
        hashes, addresses = hashes[order], addresses[order]
        places = np.searchsorted(self._sorted[0], hashes)
        self._sorted = (
            np.insert(self._sorted[0], places, hashes),
            np.insert(self._sorted[1], places, addresses),
        )
        self._newer, self._newer_count = {}, 0


def _column(
    dataset: lance.LanceDataset, column: str, fragments: Sequence[lance.LanceFragment]
) -> pa.ChunkedArray:
    """Read a column of fragments, of deleted rows too: a restored version has them again."""
    scanner = dataset.scanner(
        columns=[column],
        fragments=list(fragments),
        with_row_id=True,
        include_deleted_rows=True,
        scan_in_order=True,
    )
    return scanner.to_table().column(column)


def _files_of(fragment: DataFragment) -> bytes:
    """Return what a fragment's rows are read from, encoded."""
    said = DataFragment(
        files=fragment.files, overlays=fragment.overlays, physical_rows=fragment.physical_rows
    )
    return said.SerializeToString(deterministic=True)


def rows_at(
    dataset: lance.LanceDataset, columns: Iterable[str], addresses: Sequence[int]
) -> pa.Table:
    """Read the rows at some addresses that weren't deleted, with their addresses and ids."""
    if dataset.has_stable_row_ids or not addresses:
        return _scan_at(dataset, list(columns), addresses)
    return take_rows(dataset, [*columns, ROW_ADDRESS, ROW_ID], addresses)


def _having(rows: pa.Table, column: str, values: pa.Array) -> pa.Table:
    """Return the rows that have one of some values: other keys may have the same hash."""
    if rows.num_rows <= FEW:  # with so few a filter costs more than a look
        wanted = set(values.to_pylist())
        if all(one in wanted for one in rows[column].to_pylist()):
            return rows
    return rows.filter(pc.is_in(rows[column], values))


def _scan_at(
    dataset: lance.LanceDataset,
    columns: list[str] | dict[str, str],
    addresses: Sequence[int],
    condition: str = "",
) -> pa.Table:
    numbers = dict.fromkeys(address >> OFFSET_BITS for address in addresses)
    there = f"{ROW_ADDRESS} IN ({','.join(map(str, addresses))})" if addresses else "false"
    return dataset.scanner(
        columns=columns,
        filter=there + condition,
        fragments=[fragment_of(dataset, number) for number in numbers] or None,
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
