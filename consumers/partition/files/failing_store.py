"""A stand-in for a store that can't be opened: every use of it raises OSError.

A transaction may name any location. If no store can be opened for it, only its own table fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.errors import CommitLogError

PROBED = "_versions/_probe"
"""The file needn't exist: a store that says so can be reached."""


class FailingStore:
    """An object store each of whose operations raises OSError with the same reason."""

    renames: ClassVar[bool] = True

    def __init__(self, reason: str) -> None:
        """Take the reason."""
        self._reason = reason

    def _fail(self, *given: Any, **named: Any) -> NoReturn:
        raise OSError(self._reason)

    read = opened = digest = size = names = _fail
    write = create = write_ahead = write_hint = keep = _fail
    move = replace = set_aside = delete = _fail


def why_unreachable(location: str) -> str:
    """Return why a location can't be read, in one sentence; empty if it can."""
    try:
        store_for(location).size(PROBED)
    except (CommitLogError, ValueError, OSError) as error:
        return f"{str(error).partition(chr(10))[0] or type(error).__name__}."
    return ""


def open_or_fail_later(
    open_store: Callable[[str], ObjectStore], location: str
) -> ObjectStore | FailingStore:
    """Open a store, or return one that fails at its first use."""
    try:
        return open_store(location)
    except (CommitLogError, ValueError) as error:
        return FailingStore(str(error))
