"""One run at a time changes an archive: each one replaces the proof by what it has read of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from consumers.runtime.locks import exclusive


def alone(folder: Path) -> AbstractContextManager[None]:
    """Keep other runs off an archive, from other machines too where its file system has locks.

    Two that wrote the same proof would lose segments: one would name files that the other removed.
    Raises Unavailable while another run changes it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    return exclusive(
        # Beside the folder: a backup copies all that is in it.
        folder.with_name(f"{folder.name}.lock"),
        busy=f"another `commitlog archive` or `erase` changes {folder}: wait for its end, then run"
        " this again",
        unlocked="let one run at a time change the archive",
    )
