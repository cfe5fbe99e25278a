"""What a backup knows of copied files, of which each run adds a list."""

from __future__ import annotations

from pathlib import Path
from threading import Barrier

import pytest

from commitlog.adapters.storage import LocalStore
from consumers.tools.backup.saved import Backup, BadBackup, SavedFile, files_of, write_list

RUNS = 40


def test_lists_are_read_side_by_side_and_the_last_one_counts(tmp_path: Path) -> None:
    """In a bucket, those of a year of hourly runs took minutes of each run."""
    store, backup = LocalStore(tmp_path), Backup("log", "id", "cluster", "tables", [])
    for run in range(RUNS):
        files = [SavedFile("again", run, 0, ""), SavedFile(f"once-{run}", 1, 0, "")]
        backup.file_lists.append(write_list(store, files))
    several = Barrier(2)

    class Slow(LocalStore):
        def read(self, path: str) -> bytes:
            several.wait(60)  # for another one
            return super().read(path)

    found = files_of(Slow(tmp_path), backup)
    assert (found["again"].size, len(found)) == (RUNS - 1, RUNS + 1)
    (tmp_path / backup.file_lists[7]).unlink()
    with pytest.raises(BadBackup, match=r"file files/.*\.jsonl is missing"):
        files_of(store, backup)
