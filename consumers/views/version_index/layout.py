"""Where the version index is: `ROOT/index.duckdb` for everybody, `ROOT/index/` for its keeper.

The public file is never written to: it is replaced as a whole. The private live file and the
segments belong to the one process that holds the lock. The lock is our own, since DuckDB's is lost
as soon as anything in the process closes another descriptor of the live file.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from consumers.runtime import locks
from consumers.runtime.roots import RootInUse


class Layout:
    """The paths of one version index."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        """Lay it out under a root folder."""
        self.root = Path(root).absolute()
        self.public = self.root / "index.duckdb"
        """The published file that anybody may open."""
        self.folder = self.root / "index"
        """The private folder."""
        self.live = self.folder / "live.duckdb"
        """The private file that rows are written to."""
        self.segments = self.folder / "segments"
        """The folder of Parquet segments, which public and live file refer to."""
        self.damaged = self.folder / "damaged"
        """Where a live file goes that cannot be read any more."""
        self.failure = self.folder / "failure.txt"
        """What the keeper said when it ended last."""
        self.counts = self.folder / "published.json"
        """What the published file has, to be asked each second: opening that file costs more."""

    def prepare(self) -> None:
        """Make the folders and remove what an interrupted publication left."""
        self.segments.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.tmp"):
            left.unlink()

    def take_lock(self) -> int:
        """Become the keeper; return the descriptor that holds the lock until it is closed.

        Raises RootInUse if another process is.
        """
        descriptor = os.open(self.folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
        if not locks.taken(descriptor):
            holder = locks.owner(descriptor)
            os.close(descriptor)
            raise RootInUse(
                f"process {holder or 'unknown'} keeps the version index of {self.root} already; "
                "stop it first, or use another --root"
            )
        with contextlib.suppress(OSError):  # a full disk: it is held without a number, too
            locks.sign(descriptor)
        return descriptor


def note_counts(layout: Layout, file: Path, log_id: str, sequences: Mapping[int, int]) -> None:
    """Leave what a file has that is about to be published; `file` is what it is called now."""
    said = {"file": _identity(file), "log_id": log_id, "sequences": list(sequences.items())}
    staged = layout.counts.with_suffix(".tmp")
    staged.write_text(json.dumps(said), encoding="utf-8")
    staged.replace(layout.counts)


def noted_counts(root: str | os.PathLike[str], log_id: str) -> dict[int, int] | None:
    """Return by partition how many outcomes the published file has; None: open it to know.

    None too if it is another log's.
    """
    layout = Layout(root)
    try:
        said = json.loads(layout.counts.read_text(encoding="utf-8"))
        if said["file"] != _identity(layout.public) or said["log_id"] != log_id:
            return None
        return {int(partition): int(sequence) for partition, sequence in said["sequences"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def note_whole(layout: Layout, at: float) -> None:
    """Leave when the log was seen to have nothing that the published file hasn't."""
    with contextlib.suppress(OSError):
        os.utime(layout.counts, (at, at))


def noted_whole(root: str | os.PathLike[str]) -> float:
    """Return when the published file was known to have all of the log, in seconds; 0 if never."""
    try:
        return Layout(root).counts.stat().st_mtime
    except OSError:
        return 0.0


def _identity(file: Path) -> list[int]:
    """Return what tells a file from the one before it, whatever it is called."""
    found = file.stat()
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def note_failure(root: str | os.PathLike[str], message: str) -> None:
    """Leave why the keeper ends, for a reader that finds the index late."""
    with contextlib.suppress(OSError):
        Layout(root).failure.write_text(message, encoding="utf-8")


def forget_failure(root: str | os.PathLike[str]) -> None:
    """Forget why the keeper ended: it has caught up since."""
    with contextlib.suppress(OSError):
        Layout(root).failure.unlink(missing_ok=True)


def last_failure(root: str | os.PathLike[str]) -> str:
    """Return why the keeper ended last; empty if it never failed, or has caught up since."""
    try:
        return Layout(root).failure.read_text(encoding="utf-8")
    except OSError:
        return ""
