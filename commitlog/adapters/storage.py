"""Where tables are: bytes under a location.

Paths are relative to a location and confined to it. A file appears whole or not at all: it is
written under a temporary name first. `create` is the store's put-if-absent, which keeps what
somebody else has put under a name; the order of manifests rests on the log alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from commitlog.adapters import disk
from commitlog.adapters.places import bound, leads_outside
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import READ_BYTES_MAX

if TYPE_CHECKING:
    from commitlog.adapters.storage_remote import RemoteStore

CHUNK_BYTES = 8 * 1024 * 1024
_is_durable = False


def keep_on_disk(durable: bool = True) -> None:
    """Have this process's local stores put each file on the disk before they say that it is there.

    Object stores do so anyway.
    """
    global _is_durable
    _is_durable = durable
    _folder.cache_clear()  # a store keeps its files as was said when it was made


class UnlistableError(OSError):
    """A name in a folder is none that the store's client takes, so it lists nothing there."""


class FileFound(NamedTuple):
    """A file as a store lists it."""

    path: str
    """Relative to the store's location."""
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """Bytes by relative path under one location."""

    renames: ClassVar[bool]
    """Whether `move` takes the same time however large the file is."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes; FileNotFoundError, or OSError (EFBIG) above READ_BYTES_MAX."""

    def opened(self, path: str) -> tuple[int, Callable[[], bytes]]:
        """Return a file's size in bytes, and what reads it; -1, or FileNotFoundError."""

    def digest(self, path: str) -> str:
        """Return what `set_aside` compares of a file, of any size; raise FileNotFoundError."""

    def size(self, path: str) -> int:
        """Return a file's size in bytes, or -1 if there is none."""

    def write(self, path: str, data: bytes) -> None:
        """Put a file, replacing what was there."""

    def create(self, path: str, data: bytes) -> bool:
        """Put a file if there is none; return True if this call did."""

    def write_ahead(self, path: str, data: bytes) -> None:
        """Put a file, maybe not at once whole, that isn't read until one written later names it."""

    def write_hint(self, path: str, data: bytes) -> None:
        """Put a file, replacing what was there, that nobody misses if a power cut empties it."""

    def keep(self, path: str) -> None:
        """Put what another process left on the disk, where files are kept so; objects are safe."""

    def move(self, path: str, to: str) -> None:
        """Give a file another path; raise FileNotFoundError."""

    def set_aside(self, path: str, to: str, sha256: str) -> bool:
        """Give a file another path if its bytes still have this digest; return True if they had.

        Another process may have put its own file there since. Raise FileNotFoundError.
        """

    def replace(self, path: str, data: bytes, sha256: str) -> bool:
        """Put a file in place of one whose bytes have this digest; return True if this call did."""

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the files directly in a folder."""


def sha256_of(data: bytes) -> str:
    """Return the digest of a file's bytes, as `ObjectStore.set_aside` compares it."""
    return hashlib.sha256(data).hexdigest()


def local_path(location: str) -> Path | None:
    """Return the folder that a location means now, or None if it isn't a local one."""
    location = bound(location)
    if _is_plain_folder(location):
        return Path(location)
    parts = urlsplit(location)
    if parts.scheme in {"file", "file-object-store"}:
        return Path(unquote(parts.path))
    return None


def is_local(location: str) -> bool:
    """Return True if a location means a folder of this machine now."""
    # Without the making of a path, which costs more than all the rest.
    return _is_plain_folder(bound(location)) or local_path(location) is not None


def _is_plain_folder(location: str) -> bool:
    return "://" not in location and not location.startswith("file:/")


def store_for(location: str) -> LocalStore | RemoteStore:
    """Open the store of a location, where it is now."""
    location = bound(location)
    if location.startswith(os.sep):
        return _folder(location)
    path = local_path(location)
    if path is None:
        from commitlog.adapters.storage_remote import SCHEMES, remote_store

        scheme = location.split("://", 1)[0]
        if scheme not in SCHEMES:
            raise UnsupportedFormat(
                f"location {location!r} has the scheme {scheme!r}; this version knows local paths,"
                f" file:// and {', '.join(f'{name}://' for name in sorted(SCHEMES))}"
            )
        return remote_store(location)
    return LocalStore(path)


@lru_cache(maxsize=1024)
def _folder(location: str) -> LocalStore:
    return LocalStore(location)


_PLAIN_PATH = re.compile(r"[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
"""Most paths: they are as they would be resolved."""


class LocalStore:
    """Files below a folder of this machine."""

    has_put_if_absent = True
    renames: ClassVar[bool] = True

    def __init__(self, root: Path | str, *, durable: bool | None = None) -> None:
        """Take a folder, which is made with its first file; keep files as this process does."""
        self._root = os.path.abspath(root)
        self._is_durable = _is_durable if durable is None else durable

    def _resolve(self, path: str) -> str:
        if _PLAIN_PATH.fullmatch(path) and self._root != os.sep:
            return f"{self._root}{os.sep}{path}"
        full = os.path.normpath(os.path.join(self._root, path))
        if os.path.isabs(path) or not full.startswith(self._root + os.sep):
            raise leads_outside(path)
        return full

    def link_target(self, path: str) -> str | None:
        """Return what a path resolves to if a symbolic link is on its way, else None.

        The store's own folder counts as part of the way, and nothing above it does.
        """
        full = here = self._resolve(path)
        while len(here) >= len(self._root):
            if os.path.islink(here):
                return os.path.realpath(full)
            here = os.path.dirname(here)
        return None

    def read(self, path: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError. A pipe or a device isn't waited for."""
        full = self._resolve(path)  # in as few calls as there can be, since each commit reads some
        descriptor = os.open(full, disk.TO_READ)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > READ_BYTES_MAX:
                raise disk.unreadable(full, found)
            data = os.read(descriptor, found.st_size)
            while len(data) < found.st_size and (more := os.read(descriptor, found.st_size)):
                data += more
            return data
        except OSError as error:
            error.filename = full  # the calls themselves know none
            raise
        finally:
            os.close(descriptor)

    def opened(self, path: str) -> tuple[int, Callable[[], bytes]]:
        """Return a file's size, -1 if there is none, and what reads it."""
        return self.size(path), partial(self.read, path)

    def digest(self, path: str) -> str:
        """Return what `set_aside` compares of a file, of any size; raise FileNotFoundError."""
        return disk.digest(self._resolve(path))

    def size(self, path: str) -> int:
        """Return a file's size in bytes, or -1 if there is none."""
        try:
            found = os.stat(self._resolve(path))
        except (FileNotFoundError, NotADirectoryError):
            return -1
        return found.st_size if stat.S_ISREG(found.st_mode) else -1

    def write(self, path: str, data: bytes) -> None:
        """Put a file, replacing what was there."""
        full = self._resolve(path)
        disk.replace(self._temporary(full, data), full)
        self._keep_name(full)

    def write_hint(self, path: str, data: bytes) -> None:
        """Put a file, replacing what was there, that nobody misses if a power cut empties it."""
        if self._is_durable:
            self.write(path, data)
            return
        full = self._resolve(path)
        disk.take_place(self._temporary(full, data), full)

    def create(self, path: str, data: bytes) -> bool:
        """Put a file if there is none; return True if this call did."""
        full = self._resolve(path)
        if os.path.lexists(full):
            self.keep(path)
            return False
        temporary = self._temporary(full, data)
        try:
            disk.take_free(temporary, full)
        except OSError as error:
            disk.discard(temporary)
            if not isinstance(error, FileExistsError):
                raise
            self.keep(path)
            return False
        self._keep_name(full)
        return True

    def keep(self, path: str) -> None:
        """Put on the disk what may be there, if this store's files are kept so."""
        if self._is_durable:
            disk.keep_if_there(self._resolve(path))

    def write_ahead(self, path: str, data: bytes) -> None:
        """Put a file that is not read until another one, written afterwards, names it."""
        full = self._resolve(path)
        try:
            disk.put_new(full, data, durable=self._is_durable)
            self._keep_name(full)
        except FileNotFoundError:
            self.write(path, data)
        except FileExistsError:
            # Written before a crash, perhaps not to its end.
            if self.read(path) != data:
                self.write(path, data)
            self.keep(path)

    def move(self, path: str, to: str) -> None:
        """Give a file another path; raise FileNotFoundError."""
        target = self._resolve(to)
        disk.make_folder(os.path.dirname(target))
        source = self._resolve(path)
        os.replace(source, target)
        self._keep_name(target)
        self._keep_name(source)

    def set_aside(self, path: str, to: str, sha256: str) -> bool:
        """Give a file another path if its bytes still have this digest; return True if they had.

        No system call compares and renames: what was replaced at the last moment is put back at
        once, and who is killed leaves it at the other path. Raise FileNotFoundError.
        """
        if self.digest(path) != sha256:
            return False
        source, target = self._resolve(path), self._resolve(to)
        disk.make_folder(os.path.dirname(target))
        os.rename(source, target)
        try:
            is_same = self.digest(to) == sha256
        except OSError:
            with suppress(OSError):
                disk.take_free(target, source)
            raise
        if not is_same:
            with suppress(FileExistsError):
                disk.take_free(target, source)
            disk.discard(target)
        self._keep_name(target)
        self._keep_name(source)
        return is_same

    def replace(self, path: str, data: bytes, sha256: str) -> bool:
        """Put a file in place of one whose bytes have this digest; return True if this call did.

        For a moment there is none.
        """
        aside = disk.beside(path)
        try:
            if not self.set_aside(path, aside, sha256):
                return False
        except FileNotFoundError:
            return False
        is_put = self.create(path, data)
        self.delete(aside)
        return is_put

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""
        full = self._resolve(path)
        with suppress(FileNotFoundError):
            os.unlink(full)
            self._keep_name(full)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the files directly in a folder."""
        with suppress(FileNotFoundError), os.scandir(self._resolve(folder)) as entries:
            for entry in entries:
                if entry.is_file():
                    yield entry.name

    def walk(self, below: str = "", on_error: disk.OnError = disk.raised) -> Iterator[str]:
        """Yield the paths of all files in a folder, as `disk.walk` finds them."""
        for folder, names in disk.walk(self._resolve(below) if below else self._root, on_error):
            here = os.path.relpath(folder, self._root)
            for name in names:
                yield name if here == "." else f"{here}/{name}"

    def files(self, below: str = "") -> Iterator[FileFound]:
        """Yield all files in a folder; those that go away meanwhile are passed over."""
        for path in self.walk(below):
            with suppress(FileNotFoundError):
                found = os.lstat(os.path.join(self._root, path))
                yield FileFound(path, found.st_size, int(found.st_mtime * 1000))

    def prune(self, folder: str = "") -> None:
        """Remove a folder below which no file is left, and the folders in it."""
        top = self._resolve(folder) if folder else self._root
        for here, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                os.rmdir(here)  # refused, if something is in it

    def chunks(self, path: str) -> Iterator[bytes]:
        """Yield a file's bytes, some at a time; raise FileNotFoundError."""
        with open(disk.opened(self._resolve(path)), "rb", buffering=0) as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def take(self, path: str, source: LocalStore | RemoteStore) -> None:
        """Put a file of another store's under the same path, whatever its size."""
        full = self._resolve(path)
        temporary = disk.beside(full)
        disk.make_folder(os.path.dirname(full))
        try:
            with open(temporary, "xb") as file:
                file.writelines(source.chunks(path))
            if self._is_durable:
                disk.keep(temporary)
            os.replace(temporary, full)
            self._keep_name(full)
        except OSError:
            disk.discard(temporary)
            raise

    def _temporary(self, full: str, data: bytes) -> str:
        temporary = disk.beside(full)
        try:
            disk.put_new(temporary, data, durable=self._is_durable)
        except FileNotFoundError:
            disk.make_folder(os.path.dirname(full))
            disk.put_new(temporary, data, durable=self._is_durable)
        return temporary

    def _keep_name(self, full: str) -> None:
        if self._is_durable:
            disk.keep_name(full)
