"""Ordered collections that share what they have in common with their earlier versions.

A commit to a table of ten thousand snapshots adds one: `PersistentRows` copies one chunk and
the list of chunks, `Index` one bucket and the list of buckets. Each entry keeps its JSON text, and
each full chunk the joined bytes, so that writing metadata joins them once and serializes only what
is new.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from commitlog.core.iceberg.reading import dump_json

_CHUNK = 64
_BUCKET = 32

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Value = Mapping[str, Any]


def _place(key: Hashable, buckets: int) -> int:
    # A number's own hash is the number: who chooses snapshot ids could put all into one bucket.
    return hash(str(key)) % buckets


class Index(Generic[K, V]):
    """A persistent mapping: changing it returns another, sharing all buckets but one."""

    __slots__ = ("_buckets", "_size")

    def __init__(self, items: Iterable[tuple[K, V]] = ()) -> None:
        """Fill it with items; a later one replaces an earlier one of the same key."""
        self._fill(dict(items))

    def _fill(self, items: Mapping[K, V]) -> None:
        count = 1
        while count * _BUCKET < len(items):
            count *= 4
        buckets: list[dict[K, V]] = [{} for _ in range(count)]
        for key, value in items.items():
            buckets[_place(key, count)][key] = value
        self._buckets = tuple(buckets)
        self._size = len(items)

    def __len__(self) -> int:
        return self._size

    def __contains__(self, key: K) -> bool:
        return key in self._buckets[_place(key, len(self._buckets))]

    def get(self, key: K) -> V | None:
        """Return a key's value, or None."""
        return self._buckets[_place(key, len(self._buckets))].get(key)

    def set(self, key: K, value: V) -> Index[K, V]:
        """Return the mapping with this key's value."""
        if self._size >= len(self._buckets) * _BUCKET and key not in self:
            grown: Index[K, V] = Index()
            grown._fill({k: v for b in self._buckets for k, v in b.items()} | {key: value})
            return grown
        bucket = dict(self._buckets[_place(key, len(self._buckets))])
        bucket[key] = value
        return self._with(bucket, key, self._size + (key not in self))

    def discard(self, key: K) -> Index[K, V]:
        """Return the mapping without this key."""
        if key not in self:
            return self
        bucket = dict(self._buckets[_place(key, len(self._buckets))])
        del bucket[key]
        return self._with(bucket, key, self._size - 1)

    def _with(self, bucket: dict[K, V], key: K, size: int) -> Index[K, V]:
        at = _place(key, len(self._buckets))
        changed: Index[K, V] = Index.__new__(Index)
        changed._buckets = (*self._buckets[:at], bucket, *self._buckets[at + 1 :])
        changed._size = size
        return changed


class Row(NamedTuple):
    """A value, its place in the order (which only grows), and its JSON."""

    ordinal: int
    value: Value
    text: str


class _Chunk:
    __slots__ = ("_data", "rows")

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self._data: bytes | None = None

    def data(self) -> bytes:
        if self._data is None:
            data = ",".join([row.text for row in self.rows]).encode("ascii")
            if len(self.rows) < _CHUNK:
                return data
            self._data = data
        return self._data


class PersistentRows:
    """A persistent sequence that grows at its end."""

    __slots__ = ("_chunks", "_size", "next_ordinal")

    def __init__(self, values: Iterable[Value] = ()) -> None:
        """Hold these values, in this order."""
        rows = [Row(i, value, dump_json(value)) for i, value in enumerate(values)]
        self._chunks = tuple(
            _Chunk(tuple(rows[i : i + _CHUNK])) for i in range(0, len(rows), _CHUNK)
        )
        self._size = self.next_ordinal = len(rows)

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Row]:
        for chunk in self._chunks:
            yield from chunk.rows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PersistentRows):
            return NotImplemented
        return self is other or b"".join(self.pieces()) == b"".join(other.pieces())

    __hash__ = None  # type: ignore[assignment]

    def append(self, value: Value) -> PersistentRows:
        """Return the sequence with one more value."""
        row = Row(self.next_ordinal, value, dump_json(value))
        if self._chunks and len(self._chunks[-1].rows) < _CHUNK:
            last = _Chunk((*self._chunks[-1].rows, row))
            return self._with((*self._chunks[:-1], last), self._size + 1, row.ordinal + 1)
        return self._with((*self._chunks, _Chunk((row,))), self._size + 1, row.ordinal + 1)

    def without(self, ordinals: Iterable[int]) -> PersistentRows:
        """Return the sequence without the rows at these places."""
        wanted = list(ordinals)
        if not wanted:
            return self
        firsts = [chunk.rows[0].ordinal for chunk in self._chunks]
        gone: dict[int, set[int]] = {}
        for ordinal in wanted:
            gone.setdefault(bisect_right(firsts, ordinal) - 1, set()).add(ordinal)
        chunks, removed = list(self._chunks), 0
        for at, places in gone.items():
            kept = tuple(row for row in chunks[at].rows if row.ordinal not in places)
            removed += len(chunks[at].rows) - len(kept)
            chunks[at] = _Chunk(kept)
        left = tuple(chunk for chunk in chunks if chunk.rows)
        return self._with(left, self._size - removed, self.next_ordinal)

    def after(self, ordinal: int) -> PersistentRows:
        """Return the rows behind a place."""
        chunks: list[_Chunk] = []
        for chunk in self._chunks:
            if chunk.rows[-1].ordinal > ordinal:
                kept = tuple(row for row in chunk.rows if row.ordinal > ordinal)
                chunks.append(chunk if len(kept) == len(chunk.rows) else _Chunk(kept))
        size = sum(len(chunk.rows) for chunk in chunks)
        return self._with(tuple(chunks), size, self.next_ordinal)

    def last(self) -> Value | None:
        """Return the last value."""
        return self._chunks[-1].rows[-1].value if self._chunks else None

    def tail(self, ordinal: int) -> list[Row]:
        """Return the rows from a place on; costs what it returns."""
        found: list[Row] = []
        for chunk in reversed(self._chunks):
            if chunk.rows[-1].ordinal < ordinal:
                break
            found[:0] = [row for row in chunk.rows if row.ordinal >= ordinal]
        return found

    def newest(self, count: int) -> PersistentRows:
        """Return the last `count` rows."""
        if self._size <= count:
            return self
        chunks: list[_Chunk] = []
        left = count
        for chunk in reversed(self._chunks):
            if left <= 0:
                break
            chunks.append(chunk if len(chunk.rows) <= left else _Chunk(chunk.rows[-left:]))
            left -= len(chunk.rows)
        return self._with(tuple(reversed(chunks)), count, self.next_ordinal)

    def pieces(self) -> Iterator[bytes]:
        """Yield the values as the inside of a JSON array."""
        between = b""
        for chunk in self._chunks:
            yield between
            yield chunk.data()
            between = b","

    def _with(self, chunks: tuple[_Chunk, ...], size: int, next_ordinal: int) -> PersistentRows:
        changed = PersistentRows.__new__(PersistentRows)
        changed._chunks, changed._size, changed.next_ordinal = chunks, size, next_ordinal
        return changed


class Shelf:
    """Values in order, each found by the integer that one of its members holds."""

    __slots__ = ("_member", "_places", "rows")

    def __init__(self, member: str, values: Iterable[Value] = ()) -> None:
        """Shelve `values` by `member`, which must differ among them."""
        self._member = member
        self.rows = PersistentRows(values)
        self._places: Index[int, Row] = Index((row.value[member], row) for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Value]:
        return (row.value for row in self.rows)

    def __eq__(self, other: object) -> bool:
        return self.rows == other.rows if isinstance(other, Shelf) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def get(self, key: int) -> Value | None:
        """Return the value of a key, or None."""
        row = self._places.get(key)
        return None if row is None else row.value

    def add(self, value: Value) -> Shelf:
        """Return the shelf with one more value at its end; one of the same key leaves."""
        key = value[self._member]
        base = self.remove([key]) if key in self else self
        rows = base.rows.append(value)
        row = Row(rows.next_ordinal - 1, value, "")
        return self._with(rows, base._places.set(key, row))

    def remove(self, keys: Iterable[int]) -> Shelf:
        """Return the shelf without these keys; unknown ones are ignored."""
        found = [(key, row) for key in set(keys) if (row := self._places.get(key)) is not None]
        places = self._places
        for key, _ in found:
            places = places.discard(key)
        return self._with(self.rows.without(row.ordinal for _, row in found), places)

    def _with(self, rows: PersistentRows, places: Index[int, Row]) -> Shelf:
        changed = Shelf.__new__(Shelf)
        changed._member, changed.rows, changed._places = self._member, rows, places
        return changed
