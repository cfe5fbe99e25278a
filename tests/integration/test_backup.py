"""Is what was backed up there again after a loss: whole, as of a position, and nothing else?"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import store_for
from commitlog.errors import CommitLogError, InvalidTransaction, Unavailable
from commitlog.model.records import OperationResult, Outcome, Status
from consumers import cli
from consumers.commands.exit_codes import ExitCode
from consumers.partition.checkpoints.checkpoint import Checkpoints
from consumers.partition.checkpoints.checkpoint_heads import HEAD
from consumers.runtime.config import load
from consumers.runtime.roots import RESTORING, RootInUse, RootUnusable, take
from consumers.tools.archive.proof import PROOF, Archive
from consumers.tools.archive.writer import archive, give_up
from consumers.tools.backup import writer
from consumers.tools.backup.archives import archives_of, missing_of, take_over, with_archived
from consumers.tools.backup.check import check
from consumers.tools.backup.checkpoints import put_back
from consumers.tools.backup.cut import Heads, cut, end_of, kept
from consumers.tools.backup.restore import _taken, restore
from consumers.tools.backup.saved import (
    ARCHIVE,
    NAME,
    Backup,
    BadBackup,
    Store,
    digest,
    files_of,
    need_backup,
)
from consumers.tools.backup.writer import back_up
from tests import forked
from tests.integration.test_up import COMMAND, LEAN
from tests.integration.test_up import run as commitlog
from tests.integration.test_up import service as running_up
from tests.service import Service, leading, rows, service
from tests.waiting import WAIT_SECONDS, wait_until

SCHEMA = pa.schema([("id", pa.int64())])


def numbers(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def log_of(made: Service) -> MemoryLog:
    return MemoryLog(made.cluster)


def test_a_second_run_copies_what_came_since(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    first = back_up(log_of(made), place, None)
    assert first.outcomes == first.positions[0] > 3
    assert first.files > 3
    idle = back_up(log_of(made), place, None)
    assert (idle.outcomes, idle.transactions, idle.files) == (0, 0, 0)
    made.client.append("shop$orders", rows(4))
    later = back_up(log_of(made), place, None)
    assert (later.outcomes, later.transactions) == (1, 1)
    assert later.positions[0] == first.positions[0] + 1
    assert 0 < later.files < first.files
    assert later.files_in_all > first.files_in_all


def test_a_run_that_was_killed_leaves_the_backup_as_it_was(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    before = (tmp_path / "backup" / NAME).read_bytes()
    made.client.append("shop$orders", rows(4))
    with monkeypatch.context() as patched:
        patched.setattr(writer, "_copy", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            back_up(log_of(made), place, None)
    assert (tmp_path / "backup" / NAME).read_bytes() == before
    assert back_up(log_of(made), place, None).outcomes == 1


def test_a_backup_that_was_killed_is_whole_once_it_is_run_again(tmp_path: Path) -> None:
    place = tmp_path / "backup"
    for point in ("log/0/transactions", "file", "backup.json"):
        shutil.rmtree(tmp_path / "root", ignore_errors=True)
        assert backed_up_by_child(tmp_path, point).returncode == -signal.SIGKILL
        assert not (place / NAME).exists()
    shutil.rmtree(tmp_path / "root")
    done = backed_up_by_child(tmp_path, "nowhere")
    position, count = map(int, done.stdout.split())
    store = store_for(str(place))
    backup = need_backup(store, str(place))
    assert cut(store, backup.partitions[0], Heads(), None, None).sequence == position
    copied = files_of(store, backup)
    assert len(copied) == count
    for path, one in copied.items():
        assert digest(store, path) == one.sha256
    assert not list(place.rglob("*.tmp-*"))


def test_what_a_killed_run_was_writing_is_named_and_removed_by_the_next_one(
    made: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "backup"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    # A leader was writing this one when it was copied: the backup has it like any other file.
    copied = made.root / "tables" / f"1.manifest.tmp-{ended.pid}-0"
    copied.write_bytes(b"whole")
    back_up(log_of(made), str(place), None)
    assert check(str(place)).leftovers == []
    [left, again, running] = [
        place / "tables" / f"2.manifest.tmp-{pid}-1"
        for pid in (ended.pid, os.getpid(), os.getppid())
    ]
    for one in (left, again, running):
        one.write_bytes(b"ha")
    assert cli.main(["backup", str(place), "--check"]) == ExitCode.OK
    said = capsys.readouterr().out
    assert "2 files" in said
    assert f"tables/{left.name}" in said or f"tables/{again.name}" in said
    assert back_up(log_of(made), str(place), None).leftovers == 2
    assert [one.exists() for one in (left, again, running)] == [False, False, True]
    assert (place / "tables" / copied.name).exists()
    assert check(str(place)).leftovers == []


def backed_up_by_child(folder: Path, point: str) -> subprocess.CompletedProcess[str]:
    return forked.run(["-m", "tests.backup_child", point, str(folder)], timeout=300)


def test_a_place_with_something_else_in_it_is_refused(made: Service, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    (place / "photos").mkdir(parents=True)
    back_up(log_of(made), str(place / "photos"), None)
    with pytest.raises(BadBackup, match=r"something else in it \(photos/.*name an empty place"):
        back_up(log_of(made), str(place), None)
    assert [one.name for one in place.iterdir()] == ["photos"]


def test_a_second_run_leaves_the_place_to_the_first(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    refused: list[str] = []

    def on_progress(what: str, count: int) -> None:
        if not refused:
            with pytest.raises(Unavailable, match=f"another .* writes to {place}") as caught:
                back_up(log_of(made), place, None)
            refused.append(str(caught.value))

    back_up(log_of(made), place, None, on_progress)
    assert refused
    assert back_up(log_of(made), place, None).outcomes == 0


def test_a_time_to_restore_to_keeps_its_milliseconds() -> None:
    backup = Backup("log", "id", "cluster", "", [])
    assert end_of("2004-10-19T12:40:37.656Z", backup) == (None, 1_098_189_637_656)
    assert end_of("2004-10-19T12:40:37.656", backup) == (None, 1_098_189_637_656)


def test_another_log_and_a_forked_one_are_refused(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    with service(tmp_path / "other") as other, pytest.raises(BadBackup, match="another log"):
        back_up(log_of(other), place, None)
    # As if the log had been restored to an earlier position, and had gone on otherwise.
    partition = made.cluster.topics["commitlog.outcomes"].partitions[0]
    partition.records[-1] = replace(partition.records[-1], value=b"otherwise")
    with pytest.raises(BadBackup, match="restored to an earlier time"):
        back_up(log_of(made), place, None)


def test_an_earlier_position_has_no_later_files(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    done = back_up(log_of(made), place, None)
    store = store_for(place)
    backup = need_backup(store, place)
    heads = Heads()
    end = cut(store, backup.partitions[0], heads, done.positions[0] - 1, None)
    assert not end.is_whole
    assert len(end.decided) == end.sequence == done.positions[0] - 1
    kept = [
        path.removeprefix("tables/")
        for path in files_of(store, backup)
        if heads.have(backup.tables_root, path.removeprefix("tables/"))
    ]
    manifests = [path for path in kept if path.endswith(".manifest")]
    assert len(manifests) == 2
    assert all("_commitlog/" in path or ".lance/" in path for path in kept)


def test_a_place_may_be_named_as_a_uri() -> None:
    made = OperationResult(
        ("ice",),
        "an-incarnation",
        "IcebergChange",
        location="file:///lake/tables/a%20b",
        metadata_location="file:///lake/tables/a%20b/metadata/0.metadata.json",
    )
    heads = Heads()
    heads.take(Outcome(1, "id", 1, Status.COMMITTED, results=(made,)))
    assert heads.have("/lake/tables", "a b/data/0.parquet")
    assert heads.metadata == {"/lake/tables/a b/metadata/0.metadata.json"}


@pytest.mark.parametrize("at", ["0", "99999", "yesterday", "-3", "1999-01-01"])
def test_an_end_that_is_not_there_is_refused(made: Service, tmp_path: Path, at: str) -> None:
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    with pytest.raises(InvalidTransaction, match="position|time"):
        restore(place, load({"root": tmp_path / "new"}), at)
    assert not (tmp_path / "new").exists()


def test_nothing_is_restored_over_anything(made: Service, tmp_path: Path) -> None:
    place = str(tmp_path / "backup")
    with pytest.raises(BadBackup, match="there is no backup"):
        restore(place, load({"root": tmp_path / "new"}))
    back_up(log_of(made), place, None)
    with pytest.raises(RootUnusable, match=r"something is there: .* \(--places .*=NEW\)"):
        restore(place, load({"root": tmp_path / "new"}))
    assert not (tmp_path / "new").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(RootUnusable, match="isn't empty"):
        restore(place, load({"root": tmp_path / "full"}))


def began(root: Path, backup: Backup, place: str) -> bool:
    """Begin a restore that ends in the middle; return True if it went on with an earlier one."""
    found = False
    with contextlib.suppress(InterruptedError), _taken(root, backup, place) as goes_on:
        found = goes_on
        raise InterruptedError
    return found


def test_a_restore_that_goes_on_puts_tables_where_it_began_to(
    made: Service, tmp_path: Path
) -> None:
    """Else a forgotten `--places` would overwrite the tables that are in use."""
    place = str(tmp_path / "backup")
    back_up(log_of(made), place, None)
    backup = need_backup(store_for(place), place)
    root, other = tmp_path / "new", tmp_path / "other"
    elsewhere = replace(backup, tables_root=str(other))
    assert not began(root, elsewhere, place)
    assert began(root, elsewhere, place)
    with pytest.raises(RootUnusable, match=f"put its tables in {other}"):
        began(root, backup, place)
    assert (root / RESTORING).is_file()


def test_a_second_restore_leaves_the_root_to_the_first(made: Service, tmp_path: Path) -> None:
    place, root = str(tmp_path / "backup"), tmp_path / "new"
    back_up(log_of(made), place, None)
    backup = need_backup(store_for(place), place)
    backup = replace(backup, tables_root=str(tmp_path / "other"))
    with _taken(root, backup, place):
        (root / "kafka").mkdir()
        with pytest.raises(RootInUse, match="another `commitlog restore`"):
            began(root, backup, place)
        assert (root / "kafka").is_dir()
    assert not (root / RESTORING).exists()
    with pytest.raises(RootUnusable, match="isn't empty"):
        began(root, backup, place)
    # A note that was begun and never written is no reason to empty what is there.
    (root / RESTORING).touch()
    with pytest.raises(RootUnusable, match="isn't empty"):
        began(root, backup, place)
    assert (root / "kafka").is_dir()


def checkpoint(made: Service) -> None:
    """Wait for a checkpoint."""
    folder = made.root / "checkpoints" / "0"

    def is_saved() -> bool:
        head = folder / HEAD
        return head.is_file() and json.loads(head.read_bytes())["chain"]["sequence"] >= 3

    wait_until(is_saved, "a checkpoint of three outcomes")


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_check_names_each_file_that_is_gone_or_damaged(
    made: Service, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "backup"
    checkpoint(made)
    done = back_up(log_of(made), str(place), made.root)
    whole = check(str(place))
    assert (whole.positions, whole.files, whole.damage) == (done.positions, done.files, [])
    beginnings = 2  # of the log and of the leader's term
    assert whole.records == done.outcomes + done.transactions + beginnings
    kinds = (
        "log/0/outcomes/*.parquet",
        "log/0/transactions/*.parquet",
        "tables/**/*.manifest",
        "checkpoints/0/heads/*.json",
        "checkpoints/0/*.part",
        "files/*.jsonl",
    )
    for pattern in kinds:
        one = min(place.glob(pattern))
        before = one.read_bytes()
        for harm, words in ((damage, "isn't what was written"), (Path.unlink, "is missing")):
            if (harm, pattern) == (Path.unlink, kinds[3]):
                continue  # an older checkpoint, or the log, does instead
            harm(one)
            found = check(str(place)).damage
            assert len(found) == 1
            assert f"{one.relative_to(place)} {words}" in found[0]
            one.write_bytes(before)
    damage(min(place.glob(kinds[0])))
    assert cli.main(["backup", str(place), "--check"]) == ExitCode.REFUSED
    assert "damage" in capfd.readouterr().out


def test_a_check_follows_the_chain_to_what_the_backup_claims(made: Service, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    done = back_up(log_of(made), str(place), None)
    path = place / NAME
    path.write_text(path.read_text().replace(f'"sequence": {done.positions[0]}', '"sequence": 99'))
    [found] = check(str(place)).damage
    assert f"end with position {done.positions[0]}" in found
    assert "backup.json has 99" in found


def test_nothing_starts_on_a_restore_that_did_not_finish(tmp_path: Path) -> None:
    (tmp_path / RESTORING).write_text("{}")
    with pytest.raises(RootUnusable, match="did not finish"):
        take(tmp_path)


def lost(root: Path) -> Path:
    """Lose the disk of a root's broker, see that nothing begins anew there, and move it aside."""
    shutil.rmtree(root / "kafka")
    refused = commitlog("up", "--root", str(root), "--port", "0")
    assert refused.returncode == ExitCode.MACHINE
    assert "--remains" in refused.stderr
    assert not (root / "kafka").exists()
    return Path(shutil.move(root, root.with_name(f"{root.name}.lost")))


@pytest.mark.broker
def test_a_lost_root_is_there_again_whole_and_as_of_a_position(
    broker: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, place, name = tmp_path / "root", tmp_path / "backup", f"lost-{time.time_ns()}"
    here = ("--root", str(root), "--log", name)
    with running_up(root, "--log", name, *LEAN) as up, up.connect() as log:
        log.create_table("shop$orders", SCHEMA)
        for number in range(5):
            log.append("shop$orders", numbers(number))
        log.create_table("later", SCHEMA)
        last = log.append("shop$orders", numbers(5))
        assert commitlog("archive", *here, "--give-up").returncode == 0
        made = commitlog("backup", str(place), *here, "--json")
        assert made.returncode == 0, made.stderr
        assert json.loads(made.stdout)["positions"] == {"0": last.sequence}
        # Acknowledged, and in no backup.
        late = log.append("shop$orders", numbers(6))
        latest = log.create_table("latest", SCHEMA)
        assert up.stop() == (0, ANY)
    left = lost(root)

    # Killed in the middle, it leaves a root that nothing starts on; run again, it is whole.
    restoring = forked.start([*COMMAND[1:], "restore", str(place), *here], stdout=2, stderr=2)
    wait_until((root / "kafka" / "data").is_dir, "a restore under way")
    restoring.send_signal(signal.SIGKILL)
    restoring.wait(WAIT_SECONDS)
    refused = commitlog("up", *here, "--port", "0")
    assert refused.returncode == ExitCode.MACHINE
    assert "did not finish" in refused.stderr
    again = commitlog("restore", str(place), *here, "--remains", str(left), "--json")
    assert again.returncode == 0, again.stderr
    said = json.loads(again.stdout)
    assert said["positions"] == {"0": last.sequence}
    assert (said["undecided"], said["missing"]) == (0, 0), "tombstones are no transactions"
    named = said["remains"]
    assert (named["positions"], named["unread"]) == ({"0": latest.sequence}, [])
    # The index may not have had the last ones yet: then only their files tell of them.
    told_of = {(one["table"], one["version"], one["transaction_id"]) for one in named["lost"]}
    assert told_of == {
        ("shop$orders", late.version, late.transaction_id),
        ("latest", 1, latest.transaction_id),
    }
    assert {one["position"] for one in named["lost"]} <= {0, late.sequence, latest.sequence}
    for one in named["lost"]:
        manifest = Path(one["file"])
        assert lance.dataset(manifest.parents[1], version=one["version"]).version == one["version"]
    with running_up(root, "--log", name, *LEAN) as up, up.connect() as log:
        opened = log.open("shop$orders")
        assert sorted(opened.to_table()["id"].to_pylist()) == [0, 1, 2, 3, 4, 5]
        assert opened.version == last.version
        assert log.open("shop$orders", 3).count_rows() == 2
        told = log.outcome(last.transaction_id)
        assert (told.status, told.version) == (last.status, last.version)
        assert log.append("shop$orders", numbers(7)).version == last.version + 1
        verified = commitlog("verify", *here, "--contents")
        assert verified.returncode == 0, verified.stdout
    shutil.rmtree(root)

    # As of a position, on a cluster that runs: the name of the log is free there.
    servers = broker.bootstrap_servers
    there = ("--root", str(root), "--log", name, "--bootstrap-servers", servers)
    assert cli.main(["restore", str(place), *there, "--at", "4", "--json"]) == ExitCode.OK
    with contextlib.closing(KafkaLog.connect(servers, name)) as restored, leading(restored, root):
        goes_on_as_of_position_4(servers, name)
        assert cli.main(["verify", *there, "--contents"]) == ExitCode.OK
        capsys.readouterr()
        assert cli.main(["backup", str(place), *there]) != ExitCode.OK
        assert "restored to an earlier time" in capsys.readouterr().err


def goes_on_as_of_position_4(servers: str, name: str) -> None:
    with CommitLog.connect(servers, name) as log:
        assert [info.name for info in log.tables()] == ["shop$orders"]
        had = log.open("shop$orders").count_rows()
        assert log.append("shop$orders", numbers(8)).sequence == 5
        assert log.open("shop$orders").count_rows() == had + 1


@pytest.mark.parametrize("is_early", [False, True])
def test_what_only_the_archive_has_is_there_again(
    made: Service, tmp_path: Path, is_early: bool
) -> None:
    place, log, folder = str(tmp_path / "backup"), log_of(made), made.root / ARCHIVE
    run = archive(log, 0, folder)
    give_up(log, 0, folder, run)
    made.cluster.compact("commitlog.transactions")
    made.client.append("shop$orders", rows(4))
    back_up(log, place, made.root)
    backup = need_backup(store_for(place), place)
    [saved] = backup.partitions
    # Whole, all that was archived stays there; earlier, a part of its last segment goes back.
    sequence = None if not is_early else run.through - 1
    end = cut(store_for(place), saved, Heads(), sequence, None)
    copied = archives_of(Path(place) / ARCHIVE, {0: end})
    topic = list(kept(store_for(place), saved, end))
    taken = end.decided - {one.offset for one in topic}
    assert taken, "the cleaner took some"
    put = list(with_archived(topic, copied[0], end))
    offsets = [one.offset for one in put]
    assert offsets == sorted(set(offsets))
    assert missing_of(set(offsets), copied[0], end) == set()
    assert missing_of(set(offsets), None, end) == (set() if is_early else taken)
    with service(tmp_path / "other") as other:
        take_over(copied, log_of(other), {0: end})
        again = Archive.open(Path(place) / ARCHIVE, log_of(other).identity(), other.log.genesis())
        assert len(again.segments) == (0 if is_early else 1)


def test_an_archive_that_grows_meanwhile_is_copied_with_all_that_its_proof_names(
    made: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, log, folder = tmp_path / "backup", log_of(made), made.root / ARCHIVE
    archive(log, 0, folder)
    original = writer._copy

    def growing(source: Store, target: Store, path: str) -> str:
        if path.endswith(PROOF):
            made.client.append("shop$orders", rows(4))
            archive(log, 0, folder)
        return original(source, target, path)

    monkeypatch.setattr(writer, "_copy", growing)
    back_up(log, str(place), made.root)
    copied = Archive.as_written(place / ARCHIVE, 0)
    assert copied is not None
    assert len(copied.segments) == 2
    names = [one.name for s in copied.segments for one in (s.outcomes, s.transactions)]
    assert all((place / ARCHIVE / "0" / name).is_file() for name in names)


def test_checkpoints_are_copied_and_put_back(made: Service, tmp_path: Path) -> None:
    place, log = tmp_path / "backup", log_of(made)
    checkpoint(made)
    done = back_up(log, str(place), made.root)
    assert done.checkpoint_files > 1
    backup = need_backup(store_for(str(place)), str(place))
    whole, early = (
        cut(store_for(str(place)), backup.partitions[0], Heads(), end, None) for end in (None, 1)
    )
    harm: list[str] = []
    assert put_back(str(place), tmp_path / "new", log, {0: whole}, harm) == 1
    saved = Checkpoints(tmp_path / "new", log.identity(), log.genesis()).load()
    assert saved is not None
    assert 3 <= saved.chain.sequence <= whole.sequence
    assert put_back(str(place), tmp_path / "early", log, {0: early}, harm) == 0, "it is beyond that"
    assert not (tmp_path / "early").exists()
    with service(tmp_path / "other") as other:
        found = put_back(str(place), tmp_path / "strange", log_of(other), {0: whole}, harm)
        assert found == 0, "no log that lacks what it was made from begins with it"
        assert not (tmp_path / "strange" / "checkpoints" / "0" / HEAD).exists()
    damaged = next((place / "checkpoints" / "0").glob("*.part"))
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert harm == []
    assert put_back(str(place), tmp_path / "again", log, {0: whole}, harm) == 0
    assert f"{damaged.name} isn't what was written" in harm[0], "and the log does instead"
    assert not (tmp_path / "again" / "checkpoints" / "0" / HEAD).exists()


@pytest.mark.parametrize("damage", ["cut short", "flipped", "gone"])
def test_a_damaged_list_of_files_is_noticed(made: Service, tmp_path: Path, damage: str) -> None:
    place = tmp_path / "backup"
    back_up(log_of(made), str(place), None)
    backup = need_backup(store_for(str(place)), str(place))
    [names] = (place / "files").iterdir()
    data = names.read_bytes()
    if damage == "gone":
        names.unlink()
    elif damage == "flipped":
        names.write_bytes(data[:9] + bytes([data[9] ^ 0xFF]) + data[10:])
    else:
        names.write_bytes(data[: data.index(b"\n") + 1])
    named = "is missing" if damage == "gone" else "isn't what was written"
    with pytest.raises(BadBackup, match=f"{names.name} {named}"):
        files_of(store_for(str(place)), backup)


def test_a_damaged_backup_is_noticed(made: Service, tmp_path: Path) -> None:
    place = tmp_path / "backup"
    back_up(log_of(made), str(place), None)
    chunk = next((place / "log" / "0" / "outcomes").iterdir())
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    backup = need_backup(store_for(str(place)), str(place))
    with pytest.raises(CommitLogError, match="isn't what was written"):
        cut(store_for(str(place)), backup.partitions[0], Heads(), None, None)
    assert back_up(log_of(made), str(tmp_path / "fresh"), None).outcomes > 3
