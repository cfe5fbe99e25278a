"""A file system that forgets, at a power cut, what wasn't synced.

It stands between the program's own file calls and the system's, for files that the program writes.
A file's bytes are kept once it was synced, a name once its folder was. What wasn't kept may be lost
by the cut, or come out empty, torn or full of zeros; or be there after all.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from commitlog.adapters import disk, storage
from consumers.partition.files import folders


class PowerCut(BaseException):
    """The machine is off; passes through every `except Exception`."""


@dataclass(eq=False)
class _File:
    """What a name stands for."""

    kept: bytes | None = None
    is_folder: bool = False


class Machine:
    """Stands for the module `os` until its power is cut."""

    def __init__(self, cut_at: int = 0, on_cut: Callable[[], None] = lambda: None) -> None:
        """Cut the power before the `cut_at`-th change; 0: never."""
        self.changes = 0
        self.is_off = threading.Event()
        self._cut_at = cut_at
        self._on_cut = on_cut
        self._lock = threading.RLock()
        self._names: dict[str, _File] = {}
        self._kept_names: dict[str, _File] = {}
        self._open: dict[int, str] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have the program's files go through here, each synced."""
        for module in (disk, storage, folders):
            monkeypatch.setattr(module, "os", self)
        monkeypatch.setattr(disk, "_kept_folders", set())
        monkeypatch.setattr(storage, "_is_durable", True)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _change(self) -> None:
        if not self.is_off.is_set():
            self.changes += 1
            if self.changes == self._cut_at:
                self.is_off.set()
                self._on_cut()
        if self.is_off.is_set():
            raise PowerCut

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        with self._lock:
            if flags & os.O_CREAT:
                self._change()
            descriptor = os.open(path, flags, mode)
            self._open[descriptor] = os.path.abspath(path)
            if flags & os.O_CREAT:
                self._names[os.path.abspath(path)] = _File()
            return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        with self._lock:
            self._change()
            return os.write(descriptor, data)

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._open.pop(descriptor, None)
            os.close(descriptor)

    def fsync(self, descriptor: int) -> None:
        with self._lock:
            self._change()
            path = self._open[descriptor]
            if not os.path.isdir(path):
                if path in self._names:
                    with open(path, "rb") as file:
                        self._names[path].kept = file.read()
                return
            for name in {*self._names, *self._kept_names}:
                if os.path.dirname(name) == path:
                    _set(self._kept_names, name, self._names.get(name))

    def link(self, source: str, target: str) -> None:
        with self._lock:
            self._change()
            os.link(source, target)
            self._names[os.path.abspath(target)] = self._names[os.path.abspath(source)]

    def replace(self, source: str, target: str) -> None:
        with self._lock:
            self._change()
            os.replace(source, target)
            moved = self._names.pop(os.path.abspath(source), None)
            _set(self._names, os.path.abspath(target), moved)

    def unlink(self, path: str) -> None:
        with self._lock:
            self._change()
            os.unlink(path)
            self._names.pop(os.path.abspath(path), None)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with self._lock:
            self._change()
            above = os.path.abspath(path)
            while not os.path.exists(above):
                self._names[above] = _File(is_folder=True)
                above = os.path.dirname(above)
            os.makedirs(path, exist_ok=exist_ok)

    def come_back(self, chance: random.Random) -> list[str]:
        """Leave on the disk what the cut left; return what is lost or damaged."""
        damaged: list[str] = []
        for path in sorted({*self._names, *self._kept_names}):
            now, kept = self._names.get(path), self._kept_names.get(path)
            found = now if now is kept else chance.choice((now, kept))
            if not os.path.isdir(os.path.dirname(path)):
                continue
            if found is None:
                damaged.append(f"lost {path}")
                _remove(path)
            elif not found.is_folder:
                data = found.kept
                if data is None:
                    data = _torn(path, chance)
                    damaged.append(f"torn to {len(data)} bytes {path}")
                _remove(path)
                with open(path, "wb") as file:
                    file.write(data)
        return damaged


def _torn(path: str, chance: random.Random) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        data = b""
    return chance.choice((b"", data[: len(data) // 2], bytes(len(data)), data))


def _set(names: dict[str, _File], path: str, file: _File | None) -> None:
    if file is None:
        names.pop(path, None)
    else:
        names[path] = file


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
