"""What keeps a backup or a restore from its work: is it told, and is nothing left out?"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from confluent_kafka.admin import AdminClient

from commitlog import CommitLog
from commitlog.adapters import disk
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import store_for
from commitlog.errors import Unavailable
from consumers import cli
from consumers.broker.errors import DiskFull
from consumers.broker.home import Home
from consumers.commands.exit_codes import ExitCode
from consumers.runtime.config import ConfigurationError, load
from consumers.runtime.places import RootMoved
from consumers.tools.backup import restore
from consumers.tools.backup.cut import Heads, cut, kept
from consumers.tools.backup.remains import look_at
from consumers.tools.backup.saved import NAME, TABLES, Backup, BadBackup, files_of, need_backup
from consumers.tools.backup.writer import back_up
from tests.integration.test_backup import SCHEMA, began, log_of, numbers
from tests.service import Service, leading, rows, service
from tests.unlistable import refuse_to_list
from tests.waiting import wait_until


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    """A service with a table."""
    with service(tmp_path / "home") as running:
        running.client.create_table("shop$orders", rows().schema)
        running.client.append("shop$orders", rows(1, 2))
        yield running


def test_what_cannot_be_listed_is_not_left_out(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "backup")
    with monkeypatch.context() as patched:
        refuse_to_list(patched, "/data")
        with pytest.raises(PermissionError):
            back_up(log_of(made), place, None)
    assert not (tmp_path / "backup" / NAME).exists()
    back_up(log_of(made), place, None)


def test_remains_that_cannot_be_listed_are_named_and_the_others_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "metadata").mkdir(parents=True)
        (tmp_path / name / "metadata" / "1.metadata.json").touch()
    refuse_to_list(monkeypatch, "/a/metadata")
    found = look_at(str(tmp_path), Heads(), {}, "/was/here")
    assert [one.table for one in found.lost] == ["b"]
    assert found.unread == [f"{tmp_path}/a/metadata: Permission denied"]
    with pytest.raises(ConfigurationError, match="--remains .*nowhere has nothing"):
        look_at(str(tmp_path / "nowhere"), Heads(), {}, "/was/here")


def test_tables_that_are_not_mounted_are_not_taken_for_none(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    before = (tmp_path / "backup" / NAME).read_bytes()
    made.client.append("shop$orders", rows(4))
    tables = Path(log_of(made).genesis().tables_root)
    tables.rename(tmp_path / "unmounted")
    try:
        tables.mkdir()
        with pytest.raises(RootMoved, match="nothing is there"):
            back_up(log_of(made), place, None)
    finally:
        shutil.rmtree(tables)
        (tmp_path / "unmounted").rename(tables)
    assert (tmp_path / "backup" / NAME).read_bytes() == before
    assert back_up(log_of(made), place, None).outcomes == 1


def test_a_restore_that_goes_on_waits_for_the_broker_of_the_one_before(
    made: Service, tmp_path: Path
) -> None:
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    backup = need_backup(store_for(place), place)
    shutil.rmtree(log_of(made).genesis().tables_root)
    root = tmp_path / "root"
    assert began(root, backup, place) is False
    home = Home(root)
    home.folder.mkdir()
    lock = home.lock()
    # As if the restore had been killed, and its broker still ended.
    os.ftruncate(lock, 0)
    os.pwrite(lock, b"4194304 4194305\n", 0)
    was_there = []

    def end() -> None:
        was_there.append(home.folder.is_dir())
        os.close(lock)

    threading.Timer(0.5, end).start()
    assert began(root, backup, place) is True
    assert was_there == [True]
    assert not home.folder.exists()


def test_a_restore_that_goes_on_to_an_earlier_position_leaves_no_later_manifest(
    made: Service, tmp_path: Path
) -> None:
    place, to = str(tmp_path / "backup"), str(tmp_path / "tables")
    back_up(log_of(made), place, None)
    source = store_for(place)
    backup = need_backup(source, place)
    files, done = files_of(source, backup).values(), restore.Restored("", to)

    def manifests(at: int, *, goes_on: bool) -> int:
        heads = Heads()
        cut(source, backup.partitions[0], heads, at, None)
        own = log_of(made).genesis().tables_root
        heads.versions = {of.replace(own, to): head for of, head in heads.versions.items()}
        restore._files(files, TABLES, to, place, heads, done, lambda *_: None, goes_on=goes_on)
        return len(list(Path(to).glob("**/*.manifest")))

    last = backup.partitions[0].sequence
    assert manifests(last, goes_on=False) == 2
    assert manifests(last - 1, goes_on=True) == 1


def test_a_damaged_file_of_a_table_keeps_no_other_from_being_restored(
    made: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, to = tmp_path / "backup", tmp_path / "tables"
    for one in range(3):
        made.client.append("shop$orders", rows(one)).raise_for_conflict()
    back_up(log_of(made), str(place), None)
    source = store_for(str(place))
    backup = need_backup(source, str(place))
    heads = Heads()
    cut(source, backup.partitions[0], heads, None, None)
    own = log_of(made).genesis().tables_root
    heads.versions = {of.replace(own, str(to)): head for of, head in heads.versions.items()}
    files = files_of(source, backup)
    torn, gone, unreadable, *others = sorted(path for path in files if path.endswith(".lance"))
    (place / torn).write_bytes((place / torn).read_bytes()[:-1])
    (place / gone).unlink()
    opened = disk.opened

    def on_a_bad_disk(path: str) -> int:
        if path == str(place / unreadable):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path)

    monkeypatch.setattr(disk, "opened", on_a_bad_disk)
    done = restore.Restored("", str(to))
    restore._files(files.values(), TABLES, str(to), str(place), heads, done, lambda *_: None)
    words = {gone: "is missing", torn: "isn't what was written", unreadable: "can't be read"}
    for path, said in words.items():
        assert [f"{path} {said}" in one for one in done.damage].count(True) == 1
    assert len(done.damage) == len(words)
    left = {f"{TABLES}/{one.relative_to(to)}" for one in to.rglob("*.lance") if one.is_file()}
    assert left == set(others)
    monkeypatch.setattr(restore, "restore", lambda *_: done)
    assert cli.main(["restore", str(place), "--root", str(tmp_path / "new")]) == ExitCode.REFUSED
    assert capsys.readouterr().out.count("fail  damage") == 3


def test_a_restore_can_end_before_a_damaged_file_of_the_log(made: Service, tmp_path: Path) -> None:
    place, log = tmp_path / "backup", log_of(made)
    first = back_up(log, str(place), None).positions[0]
    made.client.append("shop$orders", rows(99)).raise_for_conflict()
    back_up(log, str(place), None)
    source = store_for(str(place))
    backup = need_backup(source, str(place))
    [saved] = backup.partitions
    whole, early = (cut(source, saved, Heads(), at, None) for at in (None, first))
    for chunk in (saved.outcomes[-1], saved.transactions[-1]):
        (place / chunk.path).unlink()
    with pytest.raises(BadBackup, match=f"is missing. Through position {first} of partition 0"):
        cut(source, saved, Heads(), None, None)
    assert cut(source, saved, Heads(), first, None) == early
    assert len(list(kept(source, saved, early))) == len(early.decided) < len(whole.decided)


@pytest.mark.parametrize("failure", [None, DiskFull("no space left")])
def test_a_broker_that_ends_says_why_a_restore_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: DiskFull | None
) -> None:
    broker = MagicMock()
    broker.failure.return_value = failure
    broker.__enter__.return_value = broker
    broker.__exit__.return_value = None
    start = "consumers.tools.backup.restore.EmbeddedBroker.start"
    monkeypatch.setattr(start, Mock(return_value=broker))
    backup = Backup("log", "id", "cluster", "", [])
    config = load({"root": tmp_path})
    with (
        pytest.raises(DiskFull if failure else Unavailable),
        restore._cluster(config, tmp_path, backup),
    ):
        raise Unavailable("Kafka doesn't answer")


@pytest.mark.broker
def test_a_restore_names_the_files_that_no_backup_has(
    broker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, place, name = tmp_path / "root", str(tmp_path / "backup"), f"lacks-{time.time_ns()}"
    in_memory = MemoryLog(log=name)
    in_memory.create(tables_root=str(root / "tables"))
    with leading(in_memory, root), CommitLog(lambda: MemoryLog(in_memory.cluster, name)) as log:
        log.create_table("shop$orders", SCHEMA)
        log.append("shop$orders", numbers(1))
        data = Path(log.table("shop$orders").location) / "data"
        early = set(data.iterdir())
        back_up(in_memory, place, root)
        between = log.append("shop$orders", numbers(2, 3))
        [gone] = set(data.iterdir()) - early
        log.compact("shop$orders")
        gone.unlink()  # as maintenance does when a version has expired
        back_up(in_memory, place, root)
    shutil.rmtree(root)
    lacking = [{"table": "shop$orders", "version": 3, "rows": 2, "files": [str(gone)]}]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    where = ("--root", str(root), "--bootstrap-servers", broker.bootstrap_servers)
    for at, named in ((str(between.sequence), lacking), ("", [])):
        flags = ["--at", at, "--json", "--strict"] if at else ["--json", "--strict"]
        code = cli.main(["restore", place, *where, *flags])
        said = capsys.readouterr()
        assert code == (ExitCode.REFUSED if named else ExitCode.OK), said.err
        assert json.loads(said.out)["lacking"] == named
        shutil.rmtree(root)
        for deleted in admin.delete_topics(topics_of(admin, name)).values():
            deleted.result(120)
        wait_until(lambda: not topics_of(admin, name), "the end of its topics")


def topics_of(admin: AdminClient, log: str) -> list[str]:
    return [one for one in admin.list_topics(timeout=60).topics if one.startswith(f"{log}.")]
