"""What the metadata files of Iceberg tables lead to; each file is read once.

Metadata files, manifest lists and manifests never change under their names. So what one names is
remembered: for the metadata files of a table as spans of them, since two that follow each other
differ by little; for manifests as hashes of paths. Paths that share a hash keep a file too much.
"""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from urllib.parse import unquote

from commitlog.codecs.avro_iceberg import data_paths, manifest_paths
from commitlog.core.iceberg.iceberg_table import IcebergTable
from consumers.partition.iceberg_files import (
    IcebergFiles,
    RemovableFiles,
    listed,
    named_by,
    plain_place,
)


class Kind(Enum):
    """What a metadata file names."""

    LIST = "manifest list"
    MANIFEST = "manifest"
    FILE = "file"


Reference = tuple[Kind, str]


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

    def __init__(self, files: IcebergFiles) -> None:
        self._files = files
        self._lives: dict[str, _Life] = {}
        """By the UUIDs and locations of tables."""
        self._numbers: dict[str, tuple[str, int]] = {}
        """By metadata file: whose life it belongs to, and its number there."""
        self._lists: dict[str, tuple[str, ...]] = {}
        self._manifests: dict[str, array[int]] = {}
        self._missing: set[str] = set()
        self.files: set[int] | None = None
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
        self, places: Iterable[str], there: Collection[str], heads: Collection[str]
    ) -> set[int] | None:
        """Return the hashes of all that some metadata files lead to; they are there.

        None if anything can't be read, for it may lead to any file. What is not among the files
        `there` is asked for once. Tables of `heads` stay known. Raises OSError or Invalid for a
        metadata file.
        """
        self.files = None
        numbers: dict[str, tuple[str, int]] = {}
        for place in places:
            number = self._numbers.get(place)
            if number is None:
                table = self.table(place) if place in heads else self._files.table(place)
                # A copy of a table has its uuid, and names other files.
                table_there = f"{table.uuid} {table.location}"
                life = self._lives.setdefault(table_there, _Life())
                number = table_there, life.add(set(_named(table)))
            numbers[place] = self._numbers[place] = number
        self._numbers = numbers
        self._tables = {at: table for at, table in self._tables.items() if at in heads}
        standing: dict[str, list[int]] = {}
        for table_there, number_there in numbers.values():
            standing.setdefault(table_there, []).append(number_there)
        self._lives = {one: life for one, life in self._lives.items() if one in standing}
        named: dict[Kind, set[str]] = {kind: set() for kind in Kind}
        for table_there, life in self._lives.items():
            for kind, place in life.named(sorted(standing[table_there])):
                named[kind].add(place)
        self.files = set(hashes(named[Kind.FILE]))
        return self._followed(named, there)

    def _followed(self, named: Mapping[Kind, set[str]], there: Collection[str]) -> set[int] | None:
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
                unreadable.unreadable[place] = None
            if not is_there and not found:
                self._missing.add(place)
            return found

        for place in named[Kind.LIST]:
            lists[place] = self._lists.get(place) or tuple(read(place, manifest_paths))
            named[Kind.MANIFEST].update(lists[place])
        for place in named[Kind.MANIFEST]:
            manifests[place] = self._manifests.get(place) or hashes(read(place, data_paths))
        self._lists, self._manifests = lists, manifests
        self._missing.intersection_update((*lists, *manifests))
        if unreadable.unreadable:
            return None
        return {
            *hashes(chain.from_iterable(named.values())),
            *chain.from_iterable(manifests.values()),
        }


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
