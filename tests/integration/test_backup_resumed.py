"""Does a long backup say how far it is, and go on where it was interrupted?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from commitlog.adapters.storage import store_for
from consumers.runtime.config import load
from consumers.tools.backup import writer
from consumers.tools.backup.check import check
from consumers.tools.backup.restore import restore
from consumers.tools.backup.saved import Backup, Store
from consumers.tools.backup.writer import back_up
from tests.integration.test_backup import log_of
from tests.service import Service, rows, service


def test_what_a_killed_run_had_copied_is_not_copied_again(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten hours of copying, the next run repeats seconds; what came since it copies."""
    place, copy, tried = tmp_path / "backup", writer._copy, list[str]()

    def copied(source: Store, target: Store, path: str) -> str:
        tried.append(path)
        if len(tried) == dies_at:
            raise KeyboardInterrupt
        return copy(source, target, path)

    monkeypatch.setattr(writer, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(writer, "_copy", copied)
    dies_at = 5
    with pytest.raises(KeyboardInterrupt):
        back_up(log_of(made), str(place), None)
    first, lost, changed, _, unfinished = tried
    (place / "tables" / lost).unlink()
    os.utime(made.root / "tables" / changed, (1, 1))
    tried.clear()
    dies_at = 0
    done = back_up(log_of(made), str(place), None)
    assert {lost, changed, unfinished} <= {*tried}
    assert first not in tried
    assert done.files == len(tried) == done.files_in_all - 2
    assert check(str(place)).damage == []
    backup = Backup.read(store_for(str(place)), str(place))
    assert backup is not None
    assert {f"files/{one.name}" for one in (place / "files").iterdir()} == {*backup.file_lists}


def test_the_progress_of_a_backup_names_records_as_they_are_copied(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHUNK_RECORDS", 2)
    told: dict[str, list[int]] = {}
    done = back_up(
        log_of(made),
        str(tmp_path / "backup"),
        None,
        lambda kind, count: told.setdefault(kind, []).append(count),
    )
    assert told.keys() == {"outcomes", "transactions", "files"}
    assert told["outcomes"][-1] == done.outcomes
    assert told["transactions"][-1] == done.transactions
    assert len(told["outcomes"]) > 1
    assert len(told["transactions"]) > 1


@pytest.mark.broker
def test_a_restore_shows_records_as_it_puts_them_back_and_compares_them(
    tmp_path: Path,
) -> None:
    place, told = str(tmp_path / "backup"), dict[str, int]()
    with service(tmp_path / "home") as running:
        running.client.create_table("shop$orders", rows().schema)
        back_up(log_of(running), place, None)
    shutil.rmtree(tmp_path / "home")
    there = load({"root": tmp_path / "home"})
    restore(place, there, on_progress=lambda kind, done: told.update({kind: done}))
    assert told["records put back"] == told["records compared"] > 2


def test_what_a_backup_names_is_on_the_disk(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut no list names a file that is torn, and `backup.json` isn't either."""
    place, sync, synced = tmp_path / "backup", os.fsync, set[int]()
    replace, torn = os.replace, list[str]()

    def noted(file: int) -> None:
        synced.add(os.fstat(file).st_ino)
        sync(file)

    def named(new: str, path: str) -> None:
        if os.stat(new).st_ino not in synced:
            torn.append(path)
        replace(new, path)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", named)
    back_up(log_of(made), str(place), None)
    assert [one for one in torn if one.startswith(str(place))] == []
    there = {path for path in place.rglob("*") if path.name != writer.LOCK}
    assert {path for path in there if path.stat().st_ino not in synced} == set()
