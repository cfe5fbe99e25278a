"""What stands for a store that cannot be opened: every use of it fails, and stops nobody else.

A transaction may name any location. One that no store here knows is a matter of its own table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.errors import CommitLogError

PROBED = "_versions/_probe"
"""Need not be there: a store that says so can be reached."""


class UnusableStore:
    """Raises OSError with the reason, whatever is asked of it."""

    def __init__(self, reason: str) -> None:
        """Remember why."""
        self._reason = reason

    def read(self, path: str) -> bytes:
        """Raise OSError."""
        raise OSError(self._reason)

    def size(self, path: str) -> int:
        """Raise OSError."""
        raise OSError(self._reason)

    def write(self, path: str, data: bytes) -> None:
        """Raise OSError."""
        raise OSError(self._reason)

    def create(self, path: str, data: bytes) -> bool:
        """Raise OSError."""
        raise OSError(self._reason)

    def write_ahead(self, path: str, data: bytes) -> None:
        """Raise OSError."""
        raise OSError(self._reason)

    def move(self, path: str, to: str) -> None:
        """Raise OSError."""
        raise OSError(self._reason)

    def delete(self, path: str) -> None:
        """Raise OSError."""
        raise OSError(self._reason)

    def names(self, folder: str) -> Iterator[str]:
        """Raise OSError."""
        raise OSError(self._reason)


def why_unreachable(location: str) -> str:
    """Say why nothing can be read at a location; empty if something could be."""
    try:
        store_for(location).size(PROBED)
    except (CommitLogError, ValueError, OSError) as error:
        return f"{str(error).partition(chr(10))[0] or type(error).__name__}."
    return ""


def open_or_fail_later(
    open_store: Callable[[str], ObjectStore], location: str
) -> ObjectStore | UnusableStore:
    """Open a store; one that cannot be opened fails when it is used."""
    try:
        return open_store(location)
    except (CommitLogError, ValueError) as error:
        return UnusableStore(str(error))
