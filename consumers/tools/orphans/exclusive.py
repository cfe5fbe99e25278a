"""Folders that one run at a time changes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from commitlog.errors import Unavailable
from consumers.runtime.locks import taken

logger = logging.getLogger(__name__)


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
