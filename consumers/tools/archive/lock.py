"""One run at a time changes an archive: each one replaces the proof by what it has read of it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
from collections.abc import Iterator
from pathlib import Path

from commitlog.errors import Unavailable

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other runs off an archive, from other machines too where its file system has locks.

    Two that wrote the same proof would lose segments: one would name files that the other removed.
    Raises Unavailable while another run changes it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the folder: a backup copies all that is in it.
    with open(folder.with_name(f"{folder.name}.lock"), "ab") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unavailable(
                f"another `commitlog archive` or `erase` changes {folder}: wait for its end, then"
                " run this again"
            ) from None
        except OSError as error:
            logger.warning("%s has no locks (%s): let one run at a time change it", folder, error)
        yield
