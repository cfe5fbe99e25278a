"""A simulated object store, and a simulated disk for checkpoints.

The store keeps whole objects under `location/path`. It may fail before or after its effect, list
what was true a while ago, show a new object late, and leave torn temporaries behind when a writer
dies; whether it has put-if-absent is decided per run: without, `create` looks first and then
overwrites.
"""

from __future__ import annotations

import errno
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import ClassVar

from commitlog.adapters.storage import FileFound, sha256_of
from tests.simulation.scheduler import Killed, Process, Scheduler

STALE_SECONDS = 2.0
"""A list may lack what was put since."""


class Objects:
    """The bytes of all tables, and what goes wrong with them."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Begin empty and sound."""
        self.scheduler = scheduler
        self.has_put_if_absent = True
        self.error_rate = 0.0
        self.stale_rate = 0.0
        self.bytes: dict[str, bytes] = {}
        self.put_at: dict[str, float] = {}
        self.now_ms: Callable[[], int] = lambda: 0
        self.modified_ms: dict[str, int] = {}
        """When each was put, by the store's clock."""
        self.failing: set[str] = set()
        """Locations at which every call fails."""
        self.hidden: dict[str, float] = {}
        """Objects that show up only at a time."""
        self.on_put: Callable[[Process, str, bytes], None] = lambda process, path, data: None
        self.on_gone: Callable[[Process, str, bytes], None] = lambda process, path, data: None
        self.torn = 0

    @property
    def counters(self) -> Counter[str]:
        """The faults injected so far."""
        return self.scheduler.counters

    def put(self, process: Process, path: str, data: bytes) -> None:
        """Put an object whole."""
        self.scheduler.trace("put", process.name, path, len(data), hash_of(data))
        self.keep(path, data)
        self.on_put(process, path, data)

    def keep(self, path: str, data: bytes) -> None:
        """Have an object, whoever put it."""
        self.bytes[path] = data
        self.put_at[path] = self.scheduler.now
        self.modified_ms[path] = self.now_ms()

    def remove(self, process: Process, path: str) -> None:
        """Remove an object."""
        self.scheduler.trace("remove", process.name, path)
        data = self.bytes.pop(path, None)
        if data is not None:
            self.on_gone(process, path, data)

    def is_visible(self, path: str) -> bool:
        """Say whether an object shows up yet."""
        return path in self.bytes and self.hidden.get(path, 0.0) <= self.scheduler.now


def hash_of(data: bytes) -> str:
    """Return a short name for bytes in a trace."""
    return f"{zlib.crc32(data):08x}"


class SimulatedStore:
    """One location as one process sees it; see `commitlog.adapters.storage.ObjectStore`."""

    renames: ClassVar[bool] = True

    def __init__(self, objects: Objects, process: Process, location: str) -> None:
        """Open a location."""
        self._objects = objects
        self._process = process
        self._root = location.rstrip("/") + "/"

    def read(self, path: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError."""
        self._before("read", path)
        full = self._root + path
        if not self._objects.is_visible(full):
            raise FileNotFoundError(full)
        return self._objects.bytes[full]

    def opened(self, path: str) -> tuple[int, Callable[[], bytes]]:
        """Return a file's size in bytes, and what reads it."""
        return self.size(path), partial(self.read, path)

    def digest(self, path: str) -> str:
        """Return what `set_aside` compares of a file; raise FileNotFoundError."""
        return sha256_of(self.read(path))

    def size(self, path: str) -> int:
        """Return a file's size in bytes, or -1 if there is none."""
        self._before("size", path)
        full = self._root + path
        return len(self._objects.bytes[full]) if self._objects.is_visible(full) else -1

    def write(self, path: str, data: bytes) -> None:
        """Put a file, replacing what was there."""
        self._put(path, data)
        self._after("write", path)

    def create(self, path: str, data: bytes) -> bool:
        """Put a file if there is none; return whether this call did."""
        objects = self._objects
        if objects.has_put_if_absent:
            if not self._put(path, data, is_exclusive=True):
                return False
        else:
            objects.counters["store without put-if-absent"] += 1
            if self.size(path) >= 0:
                return False
            # Another writer may come between looking and putting.
            self._put(path, data)
        self._after("create", path)
        return True

    def write_ahead(self, path: str, data: bytes) -> None:
        """Put a file that another one is to name.

        At once, and it never fails: the put of the other one, right behind it, does both.
        """
        self._objects.put(self._process, self._root + path, data)

    def write_hint(self, path: str, data: bytes) -> None:
        """Put a file, as any other."""
        self.write(path, data)

    def keep(self, path: str) -> None:
        """Do nothing: what is there stays there."""

    def move(self, path: str, to: str) -> None:
        """Give a file another path; raise FileNotFoundError."""
        data = self.read(path)
        self._put(to, data)
        self._objects.scheduler.point(self._process, f"move {self._root}{path}")
        self._objects.remove(self._process, self._root + path)

    def set_aside(self, path: str, to: str, sha256: str) -> bool:
        """Give a file another path if its bytes have this digest; return whether they had."""
        data = self.read(path)
        if sha256_of(data) != sha256:
            return False
        self._put(to, data)
        full = self._root + path
        self._objects.scheduler.point(self._process, f"move {full}")
        if self._objects.bytes.get(full) != data:
            return False
        self._objects.remove(self._process, full)
        return True

    def replace(self, path: str, data: bytes, sha256: str) -> bool:
        """Put a file in place of one whose bytes have this digest; return whether this did."""
        self._before("put", path)
        found = self._objects.bytes.get(self._root + path)
        if found is None or sha256_of(found) != sha256:
            return False
        self._objects.put(self._process, self._root + path, data)
        self._after("write", path)
        return True

    def delete(self, path: str) -> None:
        """Remove a file if it is there."""
        self._before("delete", path)
        if self._root + path in self._objects.bytes:
            self._objects.remove(self._process, self._root + path)

    def names(self, folder: str) -> Iterator[str]:
        """Yield the names of the files directly in a folder."""
        self._before("list", folder)
        objects, prefix = self._objects, f"{self._root}{folder}/"
        since = float("inf")
        if objects.scheduler.chance(objects.stale_rate):
            objects.counters["stale list"] += 1
            since = objects.scheduler.now - STALE_SECONDS
        for full in sorted(objects.bytes):
            is_inside = full.startswith(prefix) and "/" not in full[len(prefix) :]
            if is_inside and objects.put_at[full] <= since and objects.is_visible(full):
                yield full[len(prefix) :]

    def files(self, below: str = "") -> Iterator[FileFound]:
        """Yield all files in a folder."""
        self._before("list", below)
        objects, start = self._objects, self._root + (f"{below}/" if below else "")
        for full in sorted(objects.bytes):
            if full.startswith(start) and objects.is_visible(full):
                path, data = full[len(self._root) :], objects.bytes.get(full, b"")
                yield FileFound(path, len(data), objects.modified_ms.get(full, 0))

    def prune(self, folder: str = "") -> None:
        """Do nothing: such a store has no folders."""

    def _before(self, what: str, path: str) -> None:
        objects = self._objects
        objects.scheduler.point(self._process, f"{what} {self._root}{path}")
        is_failing = self._root.rstrip("/") in objects.failing and not self._process.is_spared
        if is_failing or self._fails():
            objects.counters["store error before the effect"] += 1
            raise OSError(f"simulated: {what} {path} failed")

    def _after(self, what: str, path: str) -> None:
        objects = self._objects
        objects.scheduler.point(self._process, f"{what}-done {self._root}{path}")
        if self._fails():
            objects.counters["store error after the effect"] += 1
            raise OSError(f"simulated: {what} {path} failed, or so it seems")

    def _fails(self) -> bool:
        objects = self._objects
        return not self._process.is_spared and objects.scheduler.chance(objects.error_rate)

    def _put(self, path: str, data: bytes, *, is_exclusive: bool = False) -> bool:
        objects, full = self._objects, self._root + path
        try:
            self._before("put", path)
        except Killed:
            # Half of it is there under a temporary name, for ever.
            objects.torn += 1
            objects.counters["torn write"] += 1
            torn = f"{full}.tmp-{objects.torn}"
            objects.keep(torn, data[: len(data) // 2])
            raise
        if is_exclusive and full in objects.bytes:
            return False
        objects.put(self._process, full, data)
        return True


class MemoryFolder:
    """A node's own disk as one process sees it; see `consumers.partition.files.folders.Folder`."""

    def __init__(self, scheduler: Scheduler, process: Process, files: dict[str, bytes]) -> None:
        """Open `files`, which outlast the process."""
        self._scheduler, self._process, self._files = scheduler, process, files

    def __str__(self) -> str:
        return "in memory"

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError."""
        self._scheduler.point(self._process, f"disk-read {name}")
        if name not in self._files:
            raise FileNotFoundError(name)
        return self._files[name]

    def replace(self, name: str, data: bytes) -> None:
        """Put a file, which then outlasts a crash."""
        self._scheduler.point(self._process, f"disk-replace {name}")
        if self._process.is_disk_full:
            self._scheduler.counters["disk full"] += 1
            self._files[f"{name}.tmp"] = data[: len(data) // 2]
            raise OSError(errno.ENOSPC, "simulated: no space left on device")
        self._files[name] = data
        self._scheduler.trace("disk", self._process.name, name, len(data), hash_of(data))
        self._scheduler.point(self._process, f"disk-replaced {name}")

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """Put files, in any order, which then outlast a crash."""
        for name, data in files.items():
            self.replace(name, data)

    def names(self) -> list[str]:
        """Return the files' names."""
        return list(self._files)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        self._scheduler.point(self._process, f"disk-remove {name}")
        self._files.pop(name, None)
