"""Remembers where the rows of each key are, from one operation on a table to the next.

Lance's search reads the key's column of all fragments for each operation. Here each fragment's keys
are read once: its rows keep their places while the fragment exists, and can only be
deleted. So memory may name too many rows, but never too few. Lance then reads the rows that
still live, and the caller compares their keys, or lets Lance evaluate the predicate.
For integers and timestamps the values themselves are remembered, so nothing has to be compared.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

from commitlog.client.leader.arguments import heed_interrupt
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.key_numbers import Numbers, is_number, is_text, numbers_of
from commitlog.client.rows.known_fragments import KnownFragments
from commitlog.client.rows.row_groups import BaseScan, scan_base
from commitlog.client.rows.rows import OFFSET_BITS, Prepared
from commitlog.client.rows.rows_at import KnowsPlaces, read_column, rows_at
from commitlog.client.rows.single_rows import single_value
from commitlog.client.rows.version_files import ReadVersion, VersionFiles
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.newest import Newest

SEARCHES_FIRST = 3
"""How many searches of a table Lance does before its keys are read: most tables get few."""
SMALL_ROWS_MAX, SMALL_FRAGMENTS_MAX = 100_000, 100
"""For a table no larger than this, Lance's search takes as long as reading the keys."""
ROWS_MAX, TABLES_MAX = 15_000_000, 100
"""What a row writer remembers, 16 bytes a row; a table that has no place is searched."""
CLIENT_ROWS_MAX = 3_000_000
"""What any other client remembers."""
ROW_BYTES, FRAGMENT_BYTES = 16, 200
"""What a row takes in memory, and a fragment beside its own bytes."""
UNSORTED_MAX = 5_000
"""How many rows are kept in a dict before they are sorted in."""
WRITTEN_MAX = 16
"""For how many new files the keys are kept until a version that has them is read."""
KEYS_MAX = 20_000
PLACES_MAX = 40_000
"""For an operation with more keys or places than this, a search reads hardly more."""


class KeyPlaces(NamedTuple):
    """Where some values are."""

    rows: Sequence[tuple[int, int]]
    """An address and the position of the value that its row has, ascending."""
    fragments: Mapping[int, bytes]
    """The fragments that these rows are in, encoded, by id."""


class _Column(NamedTuple):
    name: str
    field_id: int
    kind: pa.DataType
    location: str


class KnownKeys(KnowsPlaces):
    """Finds rows by the places of their keys. Thread-safe."""

    def __init__(
        self,
        rows_max: int = ROWS_MAX,
        searches_first: int = SEARCHES_FIRST,
        files: VersionFiles | None = None,
    ) -> None:
        """Know nothing yet, and remember at most so many rows."""
        self._rows_max, self._searches_first = rows_max, searches_first
        self._files = files or VersionFiles()
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
        """Take the keys of rows that this process wrote, so that it needn't read them."""
        if (rows := prepared.written) is None:
            return
        names = {number: name for name, number in info.column_ids.items()}
        with self._lock:
            tables = [(at, one) for (of, at), one in self._tables.items() if of == info.incarnation]
        for number, known in tables:
            name = names.get(number)
            if known.count and name in rows.schema.names:
                with known.lock:
                    known.wrote(prepared.added, rows.column(name))

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
        wanted = numbers_of(values) if len(values) <= KEYS_MAX else None
        if wanted is None:
            return None
        key = _column(info, column)
        known = self._known(info.incarnation, key.field_id)
        with known.lock:
            known.asked += 1
            if not known.count and known.asked <= self._searches_first:
                return None
            version = self._files.opened(info, dataset)
            found = known.find(version, key, wanted, self._rows_max)
        self._make_room()
        return None if found is None else sorted({address for address, _ in found})

    def found(
        self,
        info: TableInfo,
        version: Callable[[], ReadVersion | None],
        column: str,
        values: pa.Array | pa.ChunkedArray,
        *,
        exactly: bool,
    ) -> KeyPlaces | None:
        """Return where the rows are that have one of some values in a column, dead rows too.

        Other rows may be among them, unless the places are to be known `exactly`. None: they aren't
        known, or a search does better. `version` is called at most once.
        """
        kind = info.schema.field(column).type
        if not (is_number(kind) or (is_text(kind) and not exactly)):
            return None
        if values.null_count or not 0 < len(values) <= KEYS_MAX:
            return None
        key = _column(info, column)
        known = self._known(info.incarnation, key.field_id)
        is_early = not known.count and known.asked < self._searches_first
        read = version()
        if read is None or (is_early and not (is_number(kind) and _is_small(read))):
            return None
        with known.lock:
            found = known.find(read, key, numbers_of(values), self._rows_max, exactly=exactly)
            places = None if found is None else KeyPlaces(found, known.fragments_of(found))
        self._make_room()
        return places

    def searched(self, info: TableInfo, column: str) -> None:
        """Hear that Lance has to look for values of a column."""
        known = self._known(info.incarnation, info.column_ids[column])
        with known.lock:
            known.asked += 1

    def _known(self, incarnation: str, field_id: int) -> _Keys:
        with self._lock:
            found = self._tables.pop((incarnation, field_id), None) or _Keys()
            self._tables[incarnation, field_id] = found
            return found

    def _make_room(self) -> None:
        """Forget the tables that were used longest ago."""
        with self._lock:
            count = sum([one.count for one in self._tables.values()])
            while count > self._rows_max or len(self._tables) > TABLES_MAX:
                count -= self._tables.pop(next(iter(self._tables))).count


class _Keys:
    """The places of one table's rows, by the numbers of their keys."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0
        self._clear()

    def _clear(self) -> None:
        self._there = KnownFragments()
        self._fragment_rows = 0
        """How many rows take as much memory as these fragments."""
        self._files: dict[int, bytes] = {}
        """What was read, by fragment id: another file may hold new values."""
        self._changed: set[int] = set()
        """Fragments that were read again: what they held before is still remembered."""
        self._has_nulls = False
        self._sorted: tuple[Numbers, Any] = (np.empty(0, np.uint64), np.empty(0, np.uint64))
        """Values, ascending, and the address of each one's row."""
        self._newer: dict[int, list[int]] = {}
        """Addresses by value, of what isn't sorted in yet."""
        self._newer_count = self._rows = 0
        self._written: Newest[str, Numbers] = Newest(WRITTEN_MAX)
        """The values in the newest files that this process wrote, by their paths."""

    @property
    def count(self) -> int:
        """How many rows take as much memory as all of this."""
        return self._rows + self._fragment_rows

    def find(
        self,
        version: ReadVersion,
        key: _Column,
        wanted: Numbers,
        rows_max: int,
        exactly: bool = False,
    ) -> list[tuple[int, int]] | None:
        """Return the addresses of all rows of a version that may have a wanted value, and which.

        None: a search does better, or more than `rows_max` would have to be remembered; or it
        has to be known `exactly`, and isn't: null is remembered as zero.
        """
        try:
            is_read = self._look(version, key, rows_max)
        except (ValueError, OSError, RuntimeError) as error:
            heed_interrupt(error)
            is_read = False  # whoever searches is told what is wrong
        if not is_read or (exactly and self._has_nulls and 0 in wanted):
            return None
        values, addresses = self._sorted
        first: Any = np.searchsorted(values, wanted, "left").tolist()
        last: Any = np.searchsorted(values, wanted, "right").tolist()
        found: list[tuple[int, int]] = []
        for position, (start, end) in enumerate(zip(first, last, strict=True)):
            if start < end:
                found += [(address, position) for address in addresses[start:end].tolist()]
        if self._newer:
            for position, one in enumerate(wanted.tolist()):
                found += [(address, position) for address in self._newer.get(one, ())]
        there = self._there.by_id
        living = sorted([one for one in found if one[0] >> OFFSET_BITS in there])
        if exactly and self._changed and any(a >> OFFSET_BITS in self._changed for a, _ in living):
            return None
        return living if len(living) <= PLACES_MAX else None

    def wrote(self, fragments: Sequence[FragmentMetadata], keys: pa.ChunkedArray) -> None:
        """Take the keys of new fragments' rows, in their order."""
        values = numbers_of(keys)
        if values is None:
            return
        self._has_nulls = self._has_nulls or keys.null_count > 0
        start = 0
        for fragment in fragments:
            end = start + fragment.physical_rows
            self._written[fragment.files[0].path] = values[start:end]
            start = end

    def _own(self, fragment: DataFragment) -> Numbers | None:
        """Return the keys of a fragment that this process wrote."""
        if len(fragment.files) != 1 or fragment.overlays:
            return None
        values = self._written.pop(fragment.files[0].path, None)
        return values if values is not None and len(values) == fragment.physical_rows else None

    def fragments_of(self, rows: Iterable[tuple[int, int]]) -> dict[int, bytes]:
        """Return the fragments of some rows of the version that was looked at last, encoded."""
        by_id = self._there.by_id
        return {number: by_id[number] for number in {address >> OFFSET_BITS for address, _ in rows}}

    def _look(self, version: ReadVersion, key: _Column, rows_max: int) -> bool:
        """Read what a version has and the ones before didn't; False if that isn't possible."""
        changes = self._there.compared(version.fragments)
        new, _, size, all_rows = changes
        unread: dict[int, DataFragment] = {}
        rows = 0
        for fragment in new.values():
            if self._files.get(fragment.id) != _files_of(fragment):
                unread[fragment.id] = fragment
                rows += fragment.physical_rows
        fragment_rows = (FRAGMENT_BYTES * len(version.fragments) + size) // ROW_BYTES
        if unread:
            is_old = self._rows > 2 * all_rows + UNSORTED_MAX
            is_full = self._rows + rows + fragment_rows > rows_max
            if self._files and (is_old or is_full):
                self._clear()  # and begin again with what is there now
                return self._look(version, key, rows_max)
            if is_full or not self._learn(version, key, unread):
                return False
        self._there.take(changes)
        self._fragment_rows = fragment_rows
        return True

    def _learn(
        self, version: ReadVersion, key: _Column, unread: Mapping[int, DataFragment]
    ) -> bool:
        """Take the keys of fragments, or read those that aren't known."""
        found: dict[int, Numbers] = {}
        left: list[int] = []
        for number, fragment in unread.items():
            own = self._own(fragment)
            if own is None:
                value = single_value(key.location, fragment, key.field_id, key.kind)
                own = None if value is None else np.array([value], np.uint64)
            if own is None:
                left.append(number)
            else:
                found[number] = own
        if left:
            dataset = version.open(unread[number].SerializeToString() for number in left)
            keys = read_column(dataset, key.name, left)
            read = numbers_of(keys)
            if read is None or len(read) != sum(unread[number].physical_rows for number in left):
                return False
            self._has_nulls = self._has_nulls or keys.null_count > 0
            start = 0
            for number in left:
                found[number] = read[start : start + unread[number].physical_rows]
                start += unread[number].physical_rows
        values = np.concatenate(list(found.values()))
        self._rows += len(values)
        addresses = np.concatenate(
            [
                np.arange(len(own), dtype=np.uint64) + np.uint64(number << OFFSET_BITS)
                for number, own in found.items()
            ]
        )
        if len(values) + self._newer_count > UNSORTED_MAX:
            self._sort_in(values, addresses)
        else:
            for one, address in zip(values.tolist(), addresses.tolist(), strict=True):
                self._newer.setdefault(one, []).append(address)
            self._newer_count += len(values)
        self._changed.update(number for number in unread if number in self._files)
        for number, fragment in unread.items():
            self._files[number] = _files_of(fragment)
        return True

    def _sort_in(self, values: Numbers, addresses: Any) -> None:
        newer = [(one, at) for one, found in self._newer.items() for at in found]
        first, second = np.array(newer, np.uint64).reshape(-1, 2).T
        values = np.concatenate([first, values])
        addresses = np.concatenate([second, addresses])
        order = np.argsort(values, kind="stable")
        values, addresses = values[order], addresses[order]
        places = np.searchsorted(self._sorted[0], values)
        self._sorted = (
            np.insert(self._sorted[0], places, values),
            np.insert(self._sorted[1], places, addresses),
        )
        self._newer, self._newer_count = {}, 0


def _column(info: TableInfo, name: str) -> _Column:
    """Return a column by its id: another one may get its name."""
    return _Column(name, info.column_ids[name], info.schema.field(name).type, info.location)


def _is_small(version: ReadVersion) -> bool:
    if len(version.fragments) > SMALL_FRAGMENTS_MAX:
        return False
    rows = sum(DataFragment.FromString(one).physical_rows for one in version.fragments)
    return rows <= SMALL_ROWS_MAX


def _files_of(fragment: DataFragment) -> bytes:
    """Return what a fragment's rows are read from, encoded."""
    said = DataFragment(
        files=fragment.files, overlays=fragment.overlays, physical_rows=fragment.physical_rows
    )
    return said.SerializeToString(deterministic=True)
