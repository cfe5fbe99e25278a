"""Writes a file of the log even if something else has its name.

The name follows from the transaction, so the log can't choose another one, and a leader that waited
for someone to tidy up would block the table for ever. What is in the way is a stranger's, or of a
term that is over, or what this leader wrote when it meant to decide otherwise. Or it is the log's
own: a leader that was held up may be deposed, and the next one has committed the transaction with
other content. So what is in the way is only reported. Its leader has it displaced once it knows
that it led when that was read, and only if it is still the same.

A foreign file isn't deleted: it is renamed beside its own place, where `commitlog orphans` lists
it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import uuid
from typing import NamedTuple

from commitlog.adapters.storage import ObjectStore, local_path, sha256_of

MARK = ".quarantined-"
_OBSTACLES = frozenset({errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENOENT, errno.ENOTDIR})
"""What a file system says if something has a file's name, or stands where its folder should be."""
_UNREADABLE = _OBSTACLES | {errno.EACCES, errno.EPERM, errno.ENXIO, errno.EFBIG}
"""What is said of something that is there, but can't be read as a file, or is too large for one."""

logger = logging.getLogger(__name__)


class Obstacle(NamedTuple):
    """What is in the way of a file."""

    path: str
    """Below the table's location: the file's own, or where its folder should be."""
    sha256: str
    """Of its bytes; empty for what can't be read as a file."""


def put(
    store: ObjectStore,
    location: str,
    path: str,
    data: bytes,
    displaced: Obstacle | None = None,
    *,
    is_ours: bool = False,
) -> Obstacle | None:
    """Put a file of the log below `location`; return what is in its way, None once it is there.

    `displaced` was found by a call before, and nobody who leads has written it. It goes, unless
    it is another one by now; a copy is kept unless it `is_ours`. Raise OSError if the store fails.
    """
    try:
        if displaced is not None:
            if is_ours and displaced.sha256:
                if store.replace(path, data, displaced.sha256):
                    return None
            else:
                with contextlib.suppress(FileNotFoundError):  # somebody has removed it
                    _set_aside(store, location, displaced, path)
        if store.create(path, data):
            return None
    except OSError as error:
        # An object store's failures have no number: what it cannot say is not in the way.
        if error.errno not in _OBSTACLES:
            raise
        return Obstacle(_obstacle(location, path), "")
    found = _read(store, path)
    if found is None:
        return Obstacle(_obstacle(location, path), "")
    return None if found == data else Obstacle(path, sha256_of(found))


def _read(store: ObjectStore, path: str) -> bytes | None:
    """Return the bytes of what has a name, None if it can't be read as a file."""
    try:
        return store.read(path)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return None


def _set_aside(store: ObjectStore, location: str, obstacle: Obstacle, path: str) -> None:
    aside = f"{obstacle.path}{MARK}{uuid.uuid4().hex[:8]}"
    if not obstacle.sha256:
        if obstacle.path == path and _read(store, path) is not None:
            return  # it can be compared now: another leader may have put it there
        store.move(obstacle.path, aside)
    elif not store.set_aside(obstacle.path, aside, obstacle.sha256):
        return
    logger.error(
        "%s/%s was in the way of the log's own file; it is now %s", location, obstacle.path, aside
    )


def _obstacle(location: str, path: str) -> str:
    """Return what is in a file's way: a file where a folder should be, or what has its name."""
    folder = local_path(location)
    if folder is not None:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            above = "/".join(parts[:depth])
            full = folder / above
            if os.path.lexists(full) and not os.path.isdir(full):
                return above
    return path
