"""Writes a file of the log even if a foreign file or folder has its name.

The name follows from the transaction, so the log can't choose another one, and a leader that waited
for someone to tidy up would block the table for ever. The foreign file isn't deleted: it is renamed
beside its own place, where `commitlog orphans` lists it.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid

from commitlog.adapters.storage import ObjectStore, local_path

MARK = ".quarantined-"
_ATTEMPTS = 3
_OBSTACLES = frozenset(
    {
        errno.EEXIST,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EACCES,
        errno.EPERM,
    }
)
"""What a file system says if something has a file's name, or stands where its folder should be."""

logger = logging.getLogger(__name__)


def put(store: ObjectStore, location: str, path: str, data: bytes) -> None:
    """Put a file of the log below `location`, renaming what has its name or blocks its folder.

    Raise OSError if the store fails, FileExistsError if another program keeps writing there.
    """
    for _ in range(_ATTEMPTS):
        if _is_put(store, path, data):
            return
        obstacle = _obstacle(location, path)
        aside = f"{obstacle}{MARK}{uuid.uuid4().hex[:8]}"
        store.move(obstacle, aside)
        logger.error(
            "%s/%s was in the way of the log's own file; it is now %s", location, obstacle, aside
        )
    raise FileExistsError(
        f"{location}/{path}: another program keeps writing files where the log's own file belongs"
    )


def _is_put(store: ObjectStore, path: str, data: bytes) -> bool:
    """Put the file; return whether it is there, False if something else is in its way."""
    try:
        return store.create(path, data) or store.read(path) == data
    except OSError as error:
        # An object store's failures have no number: what it cannot say is not in the way.
        if error.errno not in _OBSTACLES:
            raise
        return False


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
