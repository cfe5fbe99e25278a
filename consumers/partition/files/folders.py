"""Folders of a few small files, each of which outlasts a crash once it was put."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from commitlog.adapters import disk
from commitlog.adapters.storage import LocalStore, sha256_of

SEAL = "sha256"
"""In a JSON object: the hash of all else in it, which tells whether it is damaged."""


class Folder(Protocol):
    """A few files by name; each appears whole or not at all."""

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError."""

    def replace(self, name: str, data: bytes) -> None:
        """Put a file, which then outlasts a crash."""

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """Put files, in any order, which then outlast a crash."""

    def names(self) -> list[str]:
        """Return the files' names."""

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""


class DiskFolder:
    """A folder of this machine, made when the first file is put."""

    def __init__(self, path: Path) -> None:
        """Take a path."""
        self._path = path

    def __str__(self) -> str:
        return str(self._path)

    def read(self, name: str) -> bytes:
        """Return a file's bytes; raise FileNotFoundError."""
        return LocalStore(self._path).read(name)

    def replace(self, name: str, data: bytes) -> None:
        """Put a file, which then outlasts a crash."""
        self.replace_all({name: data})

    def replace_all(self, files: Mapping[str, bytes]) -> None:
        """Put files, in any order, which then outlast a crash."""
        full = ""
        for name, data in files.items():
            full = os.path.abspath(self._path / name)
            os.makedirs(self._path, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{full}.tmp")
            disk.put_new(f"{full}.tmp", data, durable=True)
            os.replace(f"{full}.tmp", full)
        if full:
            disk.keep_name(full)  # and with it those of the others

    def names(self) -> list[str]:
        """Return the files' names."""
        try:
            return os.listdir(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        (self._path / name).unlink(missing_ok=True)


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the hash of all that is in it."""
    return {**body, SEAL: _hash_of(body)}


def encode_sealed(body: Mapping[str, Any]) -> bytes:
    """Return a sealed JSON object as text, which is made once."""
    text = json.dumps(body, sort_keys=True)
    return f'{text[:-1]}, "{SEAL}": "{sha256_of(text.encode())}"}}'.encode()


def break_seal(body: dict[str, Any]) -> bool:
    """Take the hash out of a JSON object; return True if it is that of all else in it."""
    return bool(body.pop(SEAL, "") == _hash_of(body))


def _hash_of(body: Mapping[str, Any]) -> str:
    return sha256_of(json.dumps(body, sort_keys=True).encode())
