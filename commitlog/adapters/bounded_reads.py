"""Reads files that others wrote, and no more of them than there is room for."""

from __future__ import annotations

from commitlog.adapters.storage import LocalStore, ObjectStore, sha256_of
from commitlog.adapters.storage_remote import RemoteStore
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import READ_BYTES_MAX


class TooLarge(UnsupportedFormat):
    """A file that is larger than what may be read of it."""

    def __init__(self, size: int, most: int) -> None:
        """Say both in bytes."""
        super().__init__(f"it has {size} bytes, over {most}")
        self.size = size


def read_at_most(store: ObjectStore, path: str, bytes_max: int = 0) -> bytes:
    """Return a file's bytes; raise TooLarge if there are more, or more than a leader reads of any.

    Raises FileNotFoundError.
    """
    most = min(bytes_max or READ_BYTES_MAX, READ_BYTES_MAX)
    if isinstance(store, RemoteStore):
        size, read = store.opened(path)
    else:
        size = store.size(path)

        def read() -> bytes:
            return store.read(path)

    if size > most:
        raise TooLarge(size, most)
    return read()


def digest_of(store: ObjectStore, path: str) -> str:
    """Return what `ObjectStore.set_aside` compares of a file; on a disk it may have any size.

    Raises FileNotFoundError.
    """
    return store.digest(path) if isinstance(store, LocalStore) else sha256_of(store.read(path))
