"""Reads files that others wrote, and no more of them than there is room for."""

from __future__ import annotations

from commitlog.adapters.storage import ObjectStore
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
    size, read = store.opened(path)
    if size > most:
        raise TooLarge(size, most)
    return read()
