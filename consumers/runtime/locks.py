"""Locks on files, which a process holds until the last of their descriptors is closed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from commitlog.errors import Unavailable

logger = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 10.0
_POLL_SECONDS = 0.05


def taken(file: int | IO[str] | IO[bytes]) -> bool:
    """Lock an open file; return False if somebody else has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def exclusive(lock: Path, *, busy: str, unlocked: str) -> Iterator[None]:
    """Hold a lock file, against other machines too where its file system has locks.

    Raises Unavailable, which says `busy`, while another run holds it. Where there are no locks, a
    warning says why, and `unlocked`.
    """
    with open(lock, "ab") as held:
        try:
            if not taken(held):
                raise Unavailable(busy)
        except OSError as error:
            logger.warning("%s has no locks (%s): %s", lock.parent, error, unlocked)
        yield


def inherited(file: int) -> bool:
    """Lock an open file; return False if its owner lives, or a dead owner's children don't end.

    Children inherit a lock. Those of a process that was killed end a moment later.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not taken(file):
        pid = owner(file)
        if (pid is not None and is_alive(pid)) or time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def sign(file: int, *others: int) -> None:
    """Write into a locked file that this process owns it, and which others hold it too."""
    os.ftruncate(file, 0)
    os.pwrite(file, f"{' '.join(map(str, (os.getpid(), *others)))}\n".encode(), 0)


def owner(file: int, place: int = 0) -> int | None:
    """Return the process that signed a lock, or another one that it named."""
    pids = [int(word) for word in os.pread(file, 64, 0).split() if word.isdigit()]
    return pids[place] if place < len(pids) else None


def is_alive(pid: int) -> bool:
    """Return True if a process with this id runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
