"""What makes starts quick: classes that a JVM maps, and formatted data to copy.

Both are made once for a Java and the pinned jars, by a broker that is started and stopped for it,
and kept in the cache. A start takes less than half the CPU with them. Without them it is only
slower, so what can't be made isn't an error.
"""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commitlog.java import Java
from consumers.broker.errors import BrokerError
from consumers.broker.jars import RESOLVE_TIMEOUT_SECONDS, Progress, locked, making


@dataclass(frozen=True, slots=True)
class QuickStart:
    """A folder in the cache."""

    folder: Path

    @property
    def classes(self) -> Path:
        """The archive of classes."""
        return self.folder / "classes.jsa"

    @property
    def data(self) -> Path:
        """Formatted data, whose ids aren't to be used."""
        return self.folder / "data"


def ensure_prepared(
    java: Java, jars: Path, make: Callable[[Path, QuickStart], None], on_progress: Progress | None
) -> QuickStart | None:
    """Return what was prepared for this Java and these jars; None if that fails.

    If nothing was prepared yet, `make` is called with a folder to run a broker in and with where
    the results belong.
    """
    found = QuickStart(jars.with_name(f"prepared-{_key(java, jars)}"))
    if found.folder.is_dir():
        return found
    deadline = time.monotonic() + RESOLVE_TIMEOUT_SECONDS
    try:
        with locked(jars.with_suffix(".lock"), deadline, on_progress):
            if not found.folder.is_dir():  # Another process may have made it meanwhile.
                _prepare(found, make, on_progress)
    except (BrokerError, OSError) as error:
        if on_progress:
            on_progress(f"starting without prepared classes: {error}")
        return None
    return found


def _prepare(
    wanted: QuickStart, make: Callable[[Path, QuickStart], None], on_progress: Progress | None
) -> None:
    if on_progress:
        on_progress("preparing Kafka, once, for quick starts")
    with making(wanted.folder.parent, f"preparing-{wanted.folder.name}") as scratch:
        made = QuickStart(Path(scratch) / "made")
        made.folder.mkdir()
        make(Path(scratch) / "root", made)
        # What isn't there after that, this Java doesn't make.
        made.folder.rename(wanted.folder)


def _key(java: Java, jars: Path) -> str:
    """Name a Java and its jars; a JVM reads archives of its own build only."""
    executable = java.path.resolve()
    identity = f"{jars} {executable} {os.stat(executable).st_mtime_ns}"
    return hashlib.sha256(identity.encode()).hexdigest()[:12]
