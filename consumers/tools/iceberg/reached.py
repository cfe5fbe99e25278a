"""What the metadata files of Iceberg tables lead to; each file is read once.

Metadata files, manifest lists and manifests never change under their names. So what one names is
remembered: for the metadata files of a table as spans of them, since two that follow each other
differ by little; for manifests as hashes of paths. Paths that share a hash keep a file too much.
"""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from urllib.parse import unquote

from commitlog.codecs.avro_manifests import data_paths, manifest_paths
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from consumers.partition.files.iceberg_files import (
    IcebergFiles,
    RemovableFiles,
    listed,
    named_by,
    plain_place,
)
from consumers.runtime.progress import Tally


class Kind(Enum):
    """What a metadata file names."""

    LIST = "manifest list"
    MANIFEST = "manifest"
    FILE = "file"


Reference = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Known:
    """What some metadata files lead to, as far as that could be read."""

    hashes: Set[int]
    """Of the files' places."""
    unread: Mapping[str, Exception]
    """Metadata files, lists of manifests and manifests that can't be read: they may lead to any
    file that was there when they were written."""
    homes: Set[str]
    """The locations of tables to which these belong."""

    def has(self, place: str) -> bool:
        """Return True if a file is needed, as far as that is known."""
        return as_hashed(place) in self.hashes

    @property
    def failure(self) -> str:
        """Name a file that the store didn't hand out; what was handed out and is damaged is none.

        Through a damaged one nobody finds a file.
        """
        failed = (one for one in self.unread.items() if isinstance(one[1], OSError))
        return next((f"{place}: {error}" for place, error in failed), "")


@dataclass(slots=True)
class _Life:
    """What the metadata files of one table name, in the order in which they were read."""

    count: int = 0
    present: dict[Reference, int] = field(default_factory=dict)
    """What the last one names, and since which one."""
    past: dict[Reference, list[tuple[int, int]]] = field(default_factory=dict)
    """What it doesn't name any more: from which one to which."""

    def add(self, named: Collection[Reference]) -> int:
        """Take what another one names; return its number."""
        for gone in self.present.keys() - named:
            self.past.setdefault(gone, []).append((self.present.pop(gone), self.count - 1))
        for one in named:
            self.present.setdefault(one, self.count)
        self.count += 1
        return self.count - 1

    def named(self, numbers: list[int]) -> Iterator[Reference]:
        """Yield what some of them name, by their ascending numbers; the others never come back."""
        for one, first in self.present.items():
            if numbers and numbers[-1] >= first:
                yield one
        for one, spans in list(self.past.items()):
            if any(_any_within(numbers, first, last) for first, last in spans):
                yield one
            else:
                del self.past[one]


def _any_within(numbers: list[int], first: int, last: int) -> bool:
    place = bisect_left(numbers, first)
    return place < len(numbers) and numbers[place] <= last


class Reached:
    """Remembers what was read."""

    def __init__(self, files: IcebergFiles, tally: Tally) -> None:
        self._files, self._tally = files, tally
        self._lives: dict[tuple[str, str], _Life] = {}
        """By the UUIDs and locations of tables."""
        self._numbers: dict[str, tuple[tuple[str, str], int]] = {}
        """By metadata file: whose life it belongs to, and its number there."""
        self._lists: dict[str, tuple[str, ...]] = {}
        self._manifests: dict[str, array[int]] = {}
        self._missing: set[str] = set()
        self.files: set[int] = set()
        """Hashes of what metadata files name themselves, metadata before them included."""
        self._tables: dict[str, IcebergTable] = {}

    def table(self, place: str) -> IcebergTable:
        """Return the table, or view, of a metadata file; raise OSError or Invalid."""
        if place not in self._tables:
            self._tables[place] = self._files.table(place)
        return self._tables[place]

    def is_whole(self, table: IcebergTable, there: Collection[str]) -> bool:
        """Return True if all is there that leads to a table's data; it was looked at."""
        named = named_by(table)
        listed_in = (self._lists.get(one, ()) for one in named.manifest_lists)
        leading = chain(named.manifest_lists, named.manifests, *listed_in)
        return all(plain_place(one) in there or self._files.exists(one) for one in leading)

    def look(
        self, places: Mapping[str, str], there: Collection[str], heads: Collection[str]
    ) -> Known:
        """Return what some metadata files lead to; they are there.

        They come with the locations of their tables, empty if that isn't known. What is not among
        the files `there` is asked for once. Tables of `heads` stay known.
        """
        self.files = set()
        unread: dict[str, Exception] = {}
        numbers: dict[str, tuple[tuple[str, str], int]] = {}
        for place in self._tally.of("metadata files read", places, each=10):
            number = self._numbers.get(place)
            if number is None:
                try:
                    table = self.table(place) if place in heads else self._files.table(place)
                except (OSError, Invalid) as error:
                    if place in heads or not self._is_gone(place, error):
                        unread[place] = error
                    continue
                # A copy of a table has its uuid, and names other files.
                table_there = (table.uuid, plain_place(table.location))
                life = self._lives.setdefault(table_there, _Life())
                number = table_there, life.add(set(_named(table)))
            numbers[place] = self._numbers[place] = number
        self._numbers = numbers
        self._tables = {at: table for at, table in self._tables.items() if at in heads}
        standing: dict[tuple[str, str], list[int]] = {}
        for table_there, number_there in numbers.values():
            standing.setdefault(table_there, []).append(number_there)
        self._lives = {one: life for one, life in self._lives.items() if one in standing}
        named: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        for table_there, life in self._lives.items():
            for kind, place in life.named(sorted(standing[table_there])):
                named[kind].add(place)
        self.files = set(hashes(named[Kind.FILE]))
        homes = {places[one] for one in unread}
        known, unreadable = self._followed(named, there)
        for of_table, life in self._lives.items() if unreadable else ():
            leading = {place for _, place in life.named(sorted(standing[of_table]))}
            leading.update(*(self._lists.get(one, ()) for one in leading))
            if not leading.isdisjoint(unreadable):
                homes.add(of_table[1])
        return Known(known, unread | unreadable, homes)

    def _is_gone(self, place: str, error: Exception | None = None) -> bool:
        """Return True if a file that was listed isn't any more: its client removed it meanwhile."""
        if error is not None and not isinstance(error, FileNotFoundError):
            return False
        folder, _, name = place.rpartition("/")
        return name not in set(self._files.names(folder))

    def _followed(
        self, named: Mapping[Kind, set[str]], there: Collection[str]
    ) -> tuple[set[int], dict[str, Exception]]:
        unreadable = RemovableFiles()
        lists: dict[str, tuple[str, ...]] = {}
        manifests: dict[str, array[int]] = {}

        def read(place: str, paths: Callable[[bytes], list[str]]) -> list[str]:
            is_there = plain_place(place) in there
            if not is_there and place in self._missing:
                return []
            found = listed(self._files, place, paths, unreadable)
            if is_there and not found and not self._files.exists(place):
                # It is gone by now, or its name is written as only its client reads it.
                if self._is_gone(plain_place(place)):
                    return []
                unreadable.unreadable[place] = FileNotFoundError(f"{place} is gone")
            if not is_there and not found:
                self._missing.add(place)
            return found

        for place in self._tally.of("manifest lists read", named[Kind.LIST], each=100):
            lists[place] = self._lists.get(place) or tuple(read(place, manifest_paths))
            named[Kind.MANIFEST].update(lists[place])
        for place in self._tally.of("manifests read", named[Kind.MANIFEST], each=100):
            manifests[place] = self._manifests.get(place) or hashes(read(place, data_paths))
        self._lists, self._manifests = lists, manifests
        self._missing.intersection_update((*lists, *manifests))
        reached = {
            *hashes(chain.from_iterable(named.values())),
            *chain.from_iterable(manifests.values()),
        }
        return reached, unreadable.unreadable


def as_hashed(place: str) -> int:
    """Return what `Reached.look` says of a file, however its client writes where the store is.

    That is `s3://`, `s3a://` or `s3n://`, `az://` or `abfss://` with an account, `file:` or none:
    it is the path that counts. Nor may a name be odd: any file could be it.
    """
    _, is_uri, path = place.partition("://")
    path = path.partition("/")[2] if is_uri else place.removeprefix("file:")
    if "//" in path or "/." in path:
        path = posixpath.normpath(path)
    return hash(path.strip("/"))


def hashes(places: Iterable[str]) -> array[int]:
    """Return what `Reached.look` says of files."""
    return array("q", (as_hashed(one) for place in places for one in _spellings(place)))


def _spellings(place: str) -> Iterator[str]:
    yield place
    if "%" in place and place.startswith("file:"):
        yield unquote(place)


def _named(table: IcebergTable) -> Iterator[Reference]:
    named = named_by(table)
    yield from ((Kind.LIST, place) for place in named.manifest_lists)
    yield from ((Kind.MANIFEST, place) for place in named.manifests)
    yield from ((Kind.FILE, place) for place in chain(named.data, named.previous, named.last))
