"""Writes one table's pending changes: the files of its next versions, by its policy."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from commitlog.adapters.storage import ObjectStore, is_local
from commitlog.core.decisions import ENDS, Change, ChangeKind
from commitlog.model.table import Policy
from consumers.partition.files.lance_branches import follow_branch
from consumers.partition.files.owed_writer import PaysOwed
from consumers.partition.files.table_files import (
    Deletions,
    NewestInLog,
    TableFiles,
    delete_versions,
    write_manifest,
    written_by_others,
)

GIVEN_UP_AFTER = {Policy.EVERY: 100, Policy.LATEST: 3}
"""After so many failures in a row, minutes or a second, a dropped table is given up."""

logger = logging.getLogger(__name__)


class TableWriter:
    """Writes tables; many threads may, each another table."""

    def __init__(
        self,
        open_store: Callable[[str], ObjectStore],
        newest_in_log: NewestInLog,
        clock: Callable[[], float],
        work_clock: Callable[[], float],
        *,
        is_alone: bool,
    ) -> None:
        """Who isn't alone helps a leader, and looks for what that one has written."""
        self._open_store = open_store
        self._newest_in_log = newest_in_log
        self._clock, self._work_clock = clock, work_clock
        self.is_alone = is_alone
        self.deletions = Deletions()
        self.pays_owed: PaysOwed | None = None
        """Writes what a checkpoint owes."""

    def write(self, files: TableFiles, versions_max: int) -> None:
        """Write a table's pending versions by its policy: under `every` only this many."""
        if files.owed is not None and self._still_owes(files, versions_max):
            return
        if files.policy is Policy.EVERY:
            while files.pending and versions_max:
                written = 0 if self.is_alone else written_by_others(files)
                self._write_next(files, max(1, written, files.applied))
                versions_max -= 1
        else:
            work_clock = self._work_clock if is_local(files.location) else self._clock
            started, count = work_clock(), len(files.pending)
            self._write_next(files, count)
            files.gather(count, work_clock() - started, self._clock)

    def _still_owes(self, files: TableFiles, steps_max: int) -> bool:
        """Write what a checkpoint owes; return True if it is not all, or nothing comes after it."""
        assert self.pays_owed is not None
        while files.owed is not None and steps_max:
            ends = files.owed.end is not None or _is_ended(files)
            if ends and files.failures >= GIVEN_UP_AFTER[files.policy]:
                self._give_up(files)
                files.paid += files.owed.changes
                files.owed = None
            else:
                deletes = files.owed.change(ChangeKind.VERSIONS_DELETED)
                self.pays_owed(files, self._write_version)
                steps_max -= 1
                if files.owed is None:
                    self.deletions.forget(deletes)
        return files.owed is not None or not files.pending

    def _write_version(self, files: TableFiles, change: Change) -> bool:
        """Write the version that a change made, unless it had a file or a later one deletes it."""
        if change.kind is ChangeKind.REGISTERED or self.deletions.include(change):
            return False
        write_manifest(files, change, self._newest_in_log, is_alone=self.is_alone)
        return True

    @staticmethod
    def _give_up(files: TableFiles) -> None:
        files.given_up = True
        logger.warning("table %s was dropped: its files are given up", files.location)

    def _write_next(self, files: TableFiles, count: int) -> None:
        """Apply the next `count` pending changes and write the version that they end at."""
        last: Change | None = None
        # It would fail for ever.
        is_given_up = files.failures >= GIVEN_UP_AFTER[files.policy] and _is_ended(files)
        if is_given_up:
            self._give_up(files)
        # Another thread appends meanwhile, which an iterator of the queue would trip over.
        changes = [files.pending[position][0] for position in range(count)]
        for position, change in enumerate(changes):
            if change.delta is not None:
                last = change
            if position >= files.applied:
                files.apply(change)
                files.applied = position + 1
        if last is not None and not files.given_up:  # also before a drop: `undrop` needs it
            self._write_version(files, last)
            files.written_version = last.version
        for change in changes:
            if change.deleted:
                delete_versions(files, change)
                self.deletions.forget(change)
        if not is_given_up:
            follow_branch(self._open_store, files, changes)
        for _ in range(count):
            change, event = files.pending.popleft()
            files.applied -= 1
            files.done.append(event)
            if change.staged_path:
                # A staged file that stays behind does no harm.
                with contextlib.suppress(OSError):
                    files.store.delete(change.staged_path)


def _is_ended(files: TableFiles) -> bool:
    return bool(files.pending) and files.pending[-1][0].kind in ENDS
