"""The files of Iceberg tables: found below the tables root, and removed when a table is purged.

Nothing outside the tables root is read, and nothing outside a table's own location is removed,
whatever its metadata says. A purge goes from the leaves to the root, so that what it leaves behind
can still be found from the table's last metadata file.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import logging
import os
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from commitlog.adapters.storage import (
    FileFound,
    LocalStore,
    UnlistableError,
    local_path,
    store_for,
)
from commitlog.codecs.avro_manifests import data_paths, manifest_paths
from commitlog.core.decisions import Refused
from commitlog.core.iceberg.iceberg_table import IcebergTable, is_compressed
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.iceberg.views import read_any
from commitlog.core.tables.lance_tables import normalize_location, path_below
from commitlog.errors import CommitLogError
from commitlog.model.limits import ICEBERG_METADATA_BYTES_MAX

logger = logging.getLogger(__name__)


class UnusableFileError(OSError):
    """A file is there but isn't metadata; reading it again doesn't help."""


class IcebergFiles:
    """Files below a log's tables root, by their locations. Thread-safe."""

    def __init__(self, tables_root: str) -> None:
        """Take a local folder or a URI."""
        self.root = tables_root
        local = local_path(tables_root)
        self._folder = local.resolve() if local is not None else None
        self._store = store_for(tables_root if self._folder is None else str(self._folder))

    def read(self, location: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError, or OSError for one that is too large."""
        path = self._path(location)
        size = self._size(path)
        if size < 0:
            raise FileNotFoundError(f"there is no file {location}")
        if size > ICEBERG_METADATA_BYTES_MAX:
            said = f"{location} has {size} bytes, over {ICEBERG_METADATA_BYTES_MAX}"
            raise UnusableFileError(said)
        return self._store.read(path)

    def metadata(self, location: str) -> bytes:
        """Return the JSON of a metadata file; raise OSError if it cannot be read."""
        data = self.read(location)
        try:
            return _decompressed(data) if is_compressed(location) else data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UnusableFileError(f"{location} is not gzip: {error}") from error

    def table(self, location: str) -> IcebergTable:
        """Return the table, or view, of a metadata file; raise OSError or Invalid."""
        return read_table(self.read(location), location, read_any)

    def exists(self, location: str) -> bool:
        """Tell whether there is such a file."""
        try:
            return self._size(self._path(location)) >= 0
        except FileNotFoundError:
            return False

    def make_folders(self, location: str) -> None:
        """Make the folders in which clients put a new table's files; stores have none.

        A client that writes to an object store makes no folders on a local root either. What is
        elsewhere, or can't be made, is left to the client, who is told by its own write.
        """
        if self._folder is None:
            return
        with contextlib.suppress(OSError):
            inside = self._folder / self._path(location)
            for name in ("data", "metadata"):
                (inside / name).mkdir(parents=True, exist_ok=True)

    @property
    def renames(self) -> bool:
        """Whether a move costs the same however large a file is."""
        return self._store.renames

    def move(self, location: str, to: str) -> None:
        """Give a file another name; raise FileNotFoundError."""
        self._store.move(self._path(location), self._path(to))

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the files directly in a folder."""
        with contextlib.suppress(FileNotFoundError):
            yield from self._store.names(self._path(folder))

    def delete(self, location: str, within: str) -> None:
        """Remove a file if it is there; FileNotFoundError if links lead it out of `within`."""
        path = self._path(location)
        if within != self.root and not path.startswith(f"{self._path(within)}/"):
            raise FileNotFoundError(f"{location} is not below {within}")
        self._store.delete(path)

    def files(self, folder: str = "") -> Iterator[FileFound]:
        """Yield all files, or those in a folder, by their locations."""
        root = self.root.rstrip("/")
        for file in self._store.files(self._path(folder) if folder else ""):
            yield file._replace(path=f"{root}/{file.path}")

    def locations(self) -> set[str]:
        """Return the normalized locations of all files.

        A name that no table's file can have is told, and left out: it holds up nothing. So are a
        folder of an object store and what is below it if its client can't list them for a name.
        """
        found, odd = set[str](), dict[str, None]()
        root = self.root.rstrip("/")
        for path in self._walk(odd):
            place = plain_place(f"{root}/{path}")
            if place:
                found.add(place)
            else:
                odd[f"{root}/{path}"] = None
        if odd:
            told = (
                "%d files or folders have names that no table's file can have, and are left alone"
            )
            logger.warning(f"{told}; the first one is %r", len(odd), next(iter(odd)))
        return found

    def _walk(self, odd: dict[str, None]) -> Iterator[str]:
        try:
            yield from list(self._store.walk())
        except UnlistableError:
            yield from self._by_folder("", odd)

    def _by_folder(self, folder: str, odd: dict[str, None]) -> Iterator[str]:
        """Yield all files of an object store but those in folders that can't be listed."""
        assert not isinstance(self._store, LocalStore)
        try:
            paths, folders = self._store.folders(folder)
        except UnlistableError as error:
            told = str(error).partition("\n")[0]
            logger.warning("%s/%s cannot be listed: %s", self.root, folder, told)
            odd[f"{self.root}/{folder}"] = None
            return
        yield from paths
        for one in folders:
            yield from self._by_folder(one, odd)

    def found(self, places: Collection[str]) -> dict[str, FileFound]:
        """Return those of some files that are there, by their normalized locations."""
        try:
            there = ((plain_place(file.path), file) for file in self.files())
            return {place: file for place, file in there if place in places}
        except UnlistableError:
            assert not isinstance(self._store, LocalStore)
            each = ((place, self._store.found(self._path(place))) for place in places)
            return {place: file for place, file in each if file is not None}

    def _size(self, path: str) -> int:
        try:
            return self._store.size(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return -1
            raise

    def _path(self, location: str) -> str:
        """Return a path below the root; FileNotFoundError for a location elsewhere."""
        if self._folder is not None:
            try:
                path = local_path(location)
                real = os.path.realpath(path) if path is not None and path.is_absolute() else ""
            except ValueError:  # manifests may name anything: a NUL, half a host
                real = ""
            if not real:
                raise FileNotFoundError(f"{location} is not a local file")
            start = os.path.join(self._folder, "")
            if not real.startswith(start) or real == start:
                raise FileNotFoundError(f"{location} is not below the tables root {self.root}")
            return real.removeprefix(start)
        inside = below(location, self.root)
        if inside is None:
            raise FileNotFoundError(f"{location} is not below the tables root {self.root}")
        return inside


def _decompressed(data: bytes) -> bytes:
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        found = file.read(ICEBERG_METADATA_BYTES_MAX + 1)
    if len(found) > ICEBERG_METADATA_BYTES_MAX:
        raise zlib.error(f"it decompresses to over {ICEBERG_METADATA_BYTES_MAX} bytes")
    return found


def below(location: str, folder: str) -> str | None:
    """Return a location's path below a folder; None if it is elsewhere."""
    return path_below(location, plain_place(folder)) or None


def plain_place(location: str) -> str:
    """Return a normalized location, empty for an ambiguous one."""
    try:
        return normalize_location(location)
    except Refused:
        return ""


@dataclass
class RemovableFiles:
    """A table's files, in the order in which they may be removed."""

    data: dict[str, None] = field(default_factory=dict)
    """Data files, delete files, statistics."""
    manifests: dict[str, None] = field(default_factory=dict)
    manifest_lists: dict[str, None] = field(default_factory=dict)
    previous: dict[str, None] = field(default_factory=dict)
    """Metadata files before the last one."""
    last: dict[str, None] = field(default_factory=dict)
    unreadable: dict[str, Exception] = field(default_factory=dict)
    """Manifests and lists that are there and cannot be read: what they name is not known."""

    def layers(self) -> Iterator[dict[str, None]]:
        """Yield the files that may go together; a later layer names those of earlier ones."""
        yield from (self.data, self.manifests, self.manifest_lists, self.previous, self.last)


def named_by(table: IcebergTable) -> RemovableFiles:
    """Return what a table's last metadata file itself names, and that file."""
    found = RemovableFiles(last={table.metadata_location: None})
    for entry in table.metadata_log:
        found.previous[str(entry.value["metadata-file"])] = None
    for shelf in (table.statistics, table.partition_statistics):
        found.data.update(dict.fromkeys(str(value["statistics-path"]) for value in shelf))
    for snapshot in table.snapshots:
        if "manifest-list" in snapshot:
            found.manifest_lists[str(snapshot["manifest-list"])] = None
        else:  # as the first format also wrote it
            found.manifests.update(dict.fromkeys(map(str, snapshot.get("manifests", ()))))
    return found


def contents(table: IcebergTable, files: IcebergFiles) -> RemovableFiles:
    """Return all files that a table's last metadata leads to."""
    found = named_by(table)
    for place in found.manifest_lists:
        found.manifests.update(dict.fromkeys(listed(files, place, manifest_paths, found)))
    for manifest in found.manifests:
        found.data.update(dict.fromkeys(listed(files, manifest, data_paths, found)))
    return found


def listed(
    files: IcebergFiles, place: str, read: Callable[[bytes], list[str]], found: RemovableFiles
) -> list[str]:
    """Return what a manifest or a list of them names; nothing if it isn't there.

    One that can't be read is noted in `found`.
    """
    try:
        return read(files.read(place))
    except FileNotFoundError as error:
        if files.exists(place):
            found.unreadable[place] = error
    except (OSError, CommitLogError) as error:
        logger.warning("%s cannot be read: %s", place, error)
        found.unreadable[place] = error
    return []


def purge(
    table: IcebergTable,
    files: IcebergFiles,
    is_needed: Callable[[str], bool] = lambda place: False,
    older: Collection[str] = (),
    begin: Callable[[], None] = lambda: None,
) -> list[str]:
    """Remove a table's files, but those that others need; return those that are left.

    If a layer cannot be removed whole, the layers that name it stay. `older` are metadata files of
    the table that its last one may not name. `begin` is called once, before anything is removed.
    """
    found = contents(table, files)
    found.previous.update(dict.fromkeys(older))
    left, has_begun = list(found.unreadable), False
    for layer in found.layers():
        for place in layer:
            if place in found.unreadable:
                continue
            is_own = below(place, table.location) is not None
            if not has_begun and is_own and not is_needed(place) and files.exists(place):
                begin()
                has_begun = True
            if is_needed(place) or not _removed(table, files, place):
                left.append(place)
        if left:
            return left
    return []


def _removed(table: IcebergTable, files: IcebergFiles, place: str) -> bool:
    """Remove a file of a table; return whether it is gone."""
    try:
        if below(place, table.location) is not None:
            files.delete(place, table.location)
            return True
        # Outside of the table's location it may be anybody's.
        return below(place, files.root) is not None and not files.exists(place)
    except (OSError, CommitLogError) as error:
        logger.warning("%s cannot be removed: %s", place, error)
        return False
