"""Publishes the live file: a copy right after a checkpoint, renamed over `index.duckdb`.

Readers open the public file whenever they like: its bytes never change, only the name moves on to
a newer file. After CHECKPOINT the live file needs no write-ahead log, so its bytes alone are one
consistent state; they are copied through the one kept descriptor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import duckdb

from commitlog.adapters.disk import sync
from commitlog.client.history.index_file import SETTINGS, attach
from consumers.views.version_index.layout import Layout, note_counts
from consumers.views.version_index.live import Damaged, Live, read_whole

COPY_BYTES = 1 << 24


def publish(live: Live, log_id: str, sequences: Mapping[int, int]) -> None:
    """Make what is committed in the live file visible to everybody, atomically.

    It holds these sequences of this log, by partition. Raises Damaged if another program wrote to
    the live file and damaged it; the published file stays as it was.
    """
    layout = live.layout
    is_untouched = live.is_as_left()
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
    live.query("UPDATE meta SET value = ? WHERE key = 'published_at'", [now])
    live.connection.execute("CHECKPOINT live")
    live.leave()
    staged = layout.folder / f"{layout.public.name}.tmp"
    target = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        _copy(live.descriptor, target)
        os.fsync(target)
    finally:
        os.close(target)
    if not is_untouched:
        _check(staged)
    # An index that `verify` builds to compare is bound to no log, and never asked what it has.
    if log_id:
        note_counts(layout, staged, log_id, sequences)
    os.replace(staged, layout.public)
    sync(layout.root)


def _copy(source: int, target: int) -> None:
    size, done = os.fstat(source).st_size, 0
    while done < size:
        # Linux copies without taking the bytes through this process.
        if hasattr(os, "copy_file_range"):
            copied = os.copy_file_range(source, target, size - done, done)
        else:
            copied = os.write(target, os.pread(source, min(COPY_BYTES, size - done), done))
        if not copied:
            raise OSError(f"the live file ended at byte {done} of {size}")
        done += copied


def _check(staged: Path) -> None:
    """Read all of a copy; raise Damaged if that fails."""
    try:
        with duckdb.connect(":memory:", config=SETTINGS) as connection:
            attach(connection, staged)
            read_whole(connection)
    except duckdb.Error as error:
        raise Damaged(str(error)) from error


def published_positions(layout: Layout) -> dict[int, int]:
    """Return what readers of the public file see now: the sequence per partition; {} if nothing."""
    if not layout.public.exists():
        return {}
    try:
        with duckdb.connect(":memory:", config=SETTINGS) as connection:
            attach(connection, layout.public)
            found = connection.execute("SELECT path FROM segments").fetchall()
            if not all((layout.folder / path).is_file() for (path,) in found):
                return {}
            rows = connection.execute("SELECT partition, sequence FROM positions")
            return dict(rows.fetchall())
    except duckdb.Error:
        return {}
