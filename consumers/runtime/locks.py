"""Locks on files, which a process holds until the last of their descriptors is closed."""

from __future__ import annotations

import fcntl
from typing import IO


def taken(file: int | IO[str] | IO[bytes]) -> bool:
    """Lock an open file; return False if somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
