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
from dataclasses import dataclass
from pathlib import Path

from commitlog.errors import Unavailable
from consumers.runtime import locks


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one version index; `root` is absolute."""

    root: Path

    @classmethod
    def of(cls, root: str | os.PathLike[str]) -> Layout:
        """Return the layout under a root folder."""
        return cls(Path(root).absolute())

    @property
    def public(self) -> Path:
        """The published file that anybody may open."""
        return self.root / "index.duckdb"

    @property
    def folder(self) -> Path:
        """The private folder."""
        return self.root / "index"

    @property
    def live(self) -> Path:
        """The private file that rows are written to."""
        return self.folder / "live.duckdb"

    @property
    def segments(self) -> Path:
        """The folder of Parquet segments, which public and live file refer to."""
        return self.folder / "segments"

    @property
    def damaged(self) -> Path:
        """Where a live file goes that cannot be read any more."""
        return self.folder / "damaged"

    @property
    def failure(self) -> Path:
        """What the keeper said when it ended last."""
        return self.folder / "failure.txt"

    @property
    def counts(self) -> Path:
        """What the published file has, to be asked each second: opening that file costs more."""
        return self.folder / "published.json"

    def prepare(self) -> None:
        """Make the folders and remove what an interrupted publication left."""
        self.segments.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob("*.tmp"):
            left.unlink()

    def take_lock(self) -> int:
        """Become the keeper; return the descriptor that holds the lock until it is closed."""
        descriptor = os.open(self.folder / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
        if not locks.taken(descriptor):
            holder = locks.owner(descriptor)
            os.close(descriptor)
            raise Unavailable(
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
    layout = Layout.of(root)
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
        return Layout.of(root).counts.stat().st_mtime
    except OSError:
        return 0.0


def _identity(file: Path) -> list[int]:
    """Return what tells a file from the one before it, whatever it is called."""
    found = file.stat()
    return [found.st_ino, found.st_mtime_ns, found.st_size]


def note_failure(root: str | os.PathLike[str], message: str) -> None:
    """Leave why the keeper ends, for a reader that finds the index late."""
    with contextlib.suppress(OSError):
        Layout.of(root).failure.write_text(message, encoding="utf-8")


def forget_failure(root: str | os.PathLike[str]) -> None:
    """Forget why the keeper ended: it has caught up since."""
    with contextlib.suppress(OSError):
        Layout.of(root).failure.unlink(missing_ok=True)


def last_failure(root: str | os.PathLike[str]) -> str:
    """Return why the keeper ended last; empty if it never failed, or has caught up since."""
    try:
        return Layout.of(root).failure.read_text(encoding="utf-8")
    except OSError:
        return ""
