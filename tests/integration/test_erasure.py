"""Erased rows are nowhere any more, the log keeps its chain, and says who erased, when and why."""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import gmtime, strftime
from typing import Any

import pyarrow as pa
import pytest
from lance import LanceOperation

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.errors import InvalidRequest, InvalidTransaction, Unavailable
from commitlog.model.operations import AlterProperties, RenameTable
from commitlog.ports import ArchivableLog
from commitlog.protocol import transactions_topic
from consumers.tools.archive import rows as archive_rows
from consumers.tools.archive import writer as archive_writer
from consumers.tools.archive.log import FOLDER, with_archive
from consumers.tools.archive.proof import Archive, alone
from consumers.tools.archive.rows import decided, take_out
from consumers.tools.archive.writer import ArchiveRun, archive, give_up
from consumers.tools.backup import writer
from consumers.tools.backup.writer import back_up
from consumers.tools.erasure import carrying
from consumers.tools.erasure import erase as erasing
from consumers.tools.erasure.acts import Position, property_of
from consumers.tools.erasure.carrying import QUIET_SECONDS, Places
from consumers.tools.erasure.erase import Erasure, erase
from consumers.tools.orphans.file_ledger import Why
from consumers.tools.orphans.orphans import Leftovers
from consumers.tools.verify import ProblemKind, VerifyOptions, verify
from tests.integration.test_row_writer import writing
from tests.service import Service, service, with_bytes
from tests.unlistable import refuse_to_list

T, OTHER = "shop$people", "shop$others"
SCHEMA = pa.schema([("id", pa.int64()), ("email", pa.string()), ("n", pa.int64())])
SECRET = "mallory-7f3a@example.org"
WHERE = f"email = '{SECRET}'"


def people(*ids: int, email: str = "a@b", n: int = 0) -> pa.Table:
    columns = {"id": list(ids), "email": [email] * len(ids), "n": [n] * len(ids)}
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Service]:
    """A table with rows that came by the log in several ways, one person's among them."""
    with service(tmp_path / "root") as made, writing(made, age_seconds=0.01):
        made.client.create_table(T, SCHEMA, primary_key="id", properties={"rows": "log"})
        filled(made.client)
        yield made


def filled(client: CommitLog) -> None:
    """Write rows of one person, by all ways, between those of others."""
    for number in range(5):
        client.write_rows(T, people(number), mode="upsert").result(60)
    client.write_rows(T, people(100, email=SECRET), mode="upsert").result(60)
    client.create_index(T, "email", "BTREE")
    client.write_rows(T, [{"id": 100, "n": 5}], mode="upsert").result(60)  # by key only
    client.append(T, people(101, email=SECRET), by_log=False).raise_for_conflict()
    large = pa.concat_tables([people(*range(1_000, 61_000)), people(102, email=SECRET)])
    client.write_rows(T, large, mode="upsert").result(60)
    # Refused, and in the log all the same.
    refused = client.write_rows(T, people(103, email=SECRET), mode="append", on=None)
    refused.result(60)


def open_log(world: Service) -> ArchivableLog:
    return with_archive(MemoryLog(world.cluster), world.root)


@contextmanager
def cleaning(world: Service) -> Iterator[None]:
    world.cluster.compact(transactions_topic(world.log.name))
    yield


def run(world: Service, where: str = WHERE, reason: str = "asked for it", **more: Any) -> Erasure:
    places = Places(world.root, more.pop("backups", ()), lambda: cleaning(world))
    table = more.pop("table", T)
    return erase(world.client, lambda: open_log(world), table, where, places, reason=reason, **more)


def secrets(world: Service, *folders: Path) -> list[str]:
    """Return where the person's address is found, byte by byte."""
    word = SECRET.encode()
    folders = folders or (world.root,)
    found = with_bytes(word, *folders)
    for name, topic in world.cluster.topics.items() if world.root in folders else ():
        for partition in topic.partitions:
            found += [
                f"{name} {r.offset}"
                for r in partition.records
                if word in (r.value or b"") + (r.key or b"")
            ]
    return found


def ids(world: Service) -> list[int]:
    found = world.client.open(T).to_table(columns=["id"])["id"].to_pylist()
    return sorted(one for one in found if one < 1_000)


def is_proven(world: Service) -> Any:
    log = open_log(world)
    verdict = verify(log, 0, VerifyOptions(root=world.root, contents=True))
    assert verdict.problems == []
    return verdict


def test_erased_rows_are_nowhere_and_the_log_says_who_erased_them(
    world: Service, tmp_path: Path
) -> None:
    assert secrets(world), "the person is there before"
    # A part of the log was given up before, with its digests in the log.
    result = archive(open_log(world), 0, world.root / FOLDER)
    give_up(open_log(world), 0, world.root / FOLDER, result)
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    back_up(open_log(world), old, world.root)
    is_proven(world)

    planned = run(world, reason="", dry_run=True)
    assert (planned.rows, planned.writes, planned.copies) == (4, 4, [])
    assert not planned.to_json()["done"]
    done = run(world, backups=[old])
    left = {copy.name for copy in done.copies if not copy.is_gone}
    assert left == {f"backup {old}"}, done.to_json()
    assert secrets(world, world.root) == []
    assert ids(world) == [0, 1, 2, 3, 4]
    verdict = is_proven(world)
    [said] = verdict.erased.newest
    assert (verdict.erased.records, verdict.erased.writes) == (1, 4)
    assert said.startswith(f"rows of {T} were erased")
    assert said.endswith("asked for it")

    back_up(open_log(world), new, world.root)
    again = run(world, backups=[new])
    assert (again.is_done, again.record, again.rows, again.writes) == (True, 0, 0, 0)
    assert secrets(world, Path(new)) == []
    # Who writes on is not held up, and what is written later is erased by a later act.
    world.client.write_rows(T, people(104, email=SECRET), mode="upsert").result(60)
    assert run(world).is_done
    assert secrets(world, world.root) == []
    assert is_proven(world).erased.records == 2


def test_what_a_backup_that_was_killed_or_goes_on_has_copied_counts(
    world: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backup.json names none of that yet, or never will."""
    place = str(tmp_path / "backup")
    run(world)
    back_up(open_log(world), place, world.root)
    assert secrets(world, Path(place)) == []
    world.client.write_rows(T, people(104, email=SECRET), mode="upsert").result(60)
    world.client.append(T, people(105, email=SECRET), by_log=False).raise_for_conflict()
    said: list[str] = []

    def meanwhile(what: str, count: int) -> None:
        if what == "files" and not said:
            done = run(world, backups=[place])
            said.extend(copy.said for copy in done.copies if not copy.is_gone)

    def dies(*_: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "write_list", dies)
    with pytest.raises(KeyboardInterrupt):
        back_up(open_log(world), place, world.root, meanwhile)
    assert said == ["a run of `commitlog backup` writes to it: run this again once that has ended"]
    assert secrets(world, Path(place))
    assert secrets(world, world.root) == []
    # What it names is as good as there: of a large table nearly all files stay.
    named = json.loads((Path(place) / "backup.json").read_text())
    (Path(place) / "backup.json").write_text(json.dumps({**named, "file_lists": []}))
    left = {copy.name for copy in run(world, backups=[place]).copies if not copy.is_gone}
    assert left == {f"backup {place}"}


def dies_after(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Have a function work, and end the process that called it."""
    whole = getattr(owner, name)

    def dying(*arguments: Any, **options: Any) -> Any:
        whole(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, dying)


STEPS = [
    (erasing, "_record"),
    (carrying, "archive"),
    (archive_rows, "write_file"),
    (Archive, "with_changed"),
    (carrying, "take_out"),
    (archive_writer, "_say"),
    (MemoryLog, "tombstone"),
    (carrying, "give_up"),
    (CommitLog, "compact"),
    (CommitLog, "optimize"),
    (CommitLog, "expire_versions"),
    (Leftovers, "_remove_of_table"),
]


def test_it_may_be_killed_after_each_step(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, (owner, name) in enumerate(STEPS):
        with monkeypatch.context() as patch:
            dies_after(patch, owner, name)
            # All that comes after the act needs no predicate.
            with pytest.raises(KeyboardInterrupt):
                run(world, WHERE if number == 0 else "")
    assert run(world, "").is_done
    assert secrets(world, world.root) == []
    assert ids(world) == [0, 1, 2, 3, 4]
    assert is_proven(world).erased.records == 1


def test_a_table_that_is_written_to_all_the_time_is_done_with(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions that came since have no such rows, and nothing holds them."""
    expire = CommitLog.expire_versions

    def expire_beside_writers(client: CommitLog, table: str, **more: Any) -> Any:
        expired = expire(client, table, **more)
        for number in (5, 6):
            client.append(table, people(number), by_log=False).raise_for_conflict()
        return expired

    monkeypatch.setattr(CommitLog, "expire_versions", expire_beside_writers)
    assert run(world).is_done
    assert secrets(world, world.root) == []
    assert ids(world) == [0, 1, 2, 3, 4, 5, 6]


def test_a_segment_that_ends_before_its_writes_are_applied_is_given_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy log each segment ends so, and each run left the rows in the topic."""
    with service(tmp_path / "root") as world:
        for table in (T, OTHER):
            world.client.create_table(table, SCHEMA, primary_key="id", properties={"rows": "log"})
        with writing(world, age_seconds=0.01):
            world.client.write_rows(T, people(100, email=SECRET), mode="upsert").result(60)
        later = world.client.write_rows(OTHER, people(1), mode="upsert")
        later.result(60, wait="accepted")
        archive(open_log(world), 0, world.root / FOLDER)
        with monkeypatch.context() as patched:
            patched.setattr(carrying, "_PAUSES", (0.01,))
            [left] = [one for one in run(world).copies if not one.is_gone]
        assert (left.name, "start a row writer" in left.said) == ("topic", True)
        assert secrets(world, world.root)
        with writing(world, age_seconds=0.01):
            later.result(60)
        assert run(world, "").is_done
        assert secrets(world, world.root) == []
        is_proven(world)


def test_what_a_killed_index_build_left_goes_once_no_build_can_write_it(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    [built, *_] = (world.location(T) / "_indices").iterdir()
    killed = built.with_name(str(uuid.uuid4()))
    shutil.copytree(built, killed)
    now = int(time.time())
    old, new = now - QUIET_SECONDS - 60, now - QUIET_SECONDS + 600
    for path in killed.iterdir():
        os.utime(path, (old, old))
    # A folder is as new as the file that was written last.
    os.utime(killed / "page_data.lance", (new, new))
    [left] = [one for one in run(world).copies if not one.is_gone]
    assert left.name == "table"
    found = secrets(world, world.root)
    assert found
    assert all(one in left.said for one in found)
    again = strftime("%Y-%m-%d %H:%M", gmtime(new + QUIET_SECONDS + 1))
    assert f"run this again after {again}" in left.said
    os.utime(killed / "page_data.lance", (old, old))
    with monkeypatch.context() as patched:
        wrong = "this machine's clock is 7,200 s ahead of that of the leader"
        patched.setattr(carrying, "clock_difference", lambda client: wrong)
        [left] = [one for one in run(world, "").copies if not one.is_gone]
    assert (wrong in left.said, killed.exists()) == (True, True)
    assert run(world, "").is_done
    assert not killed.exists()
    assert secrets(world, world.root) == []
    is_proven(world)


@pytest.mark.parametrize("folder", ["/data", "/archive/0"])
def test_rows_are_not_called_erased_while_a_folder_cannot_be_looked_into(
    world: Service, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    archive(open_log(world), 0, world.root / FOLDER)
    with monkeypatch.context() as patched:
        refuse_to_list(patched, folder)
        with pytest.raises(PermissionError):
            run(world)
    assert run(world, "").is_done
    assert secrets(world, world.root) == []


def test_rows_that_only_older_versions_have_are_erased_too(tmp_path: Path) -> None:
    with service(tmp_path / "root") as world:
        client = world.client
        client.create_table(T, SCHEMA, primary_key="id")
        client.append(T, people(1, 2))
        client.append(T, people(100, email=SECRET))
        client.delete(T, "id = 100")
        planned = run(world, reason="", dry_run=True)
        assert (planned.rows, planned.writes, planned.older) == (0, 0, 3)
        done = run(world)
        assert (done.is_done, bool(done.record)) == (True, True)
        assert secrets(world, world.root) == []
        assert (ids(world), run(world).record) == ([1, 2], 0)
        is_proven(world)


def test_nothing_is_erased_for_a_predicate_that_no_version_has_rows_for(tmp_path: Path) -> None:
    with service(tmp_path / "root") as world:
        world.client.create_table(T, SCHEMA, primary_key="id")
        world.client.append(T, people(1))
        world.client.append(T, people(2))
        done = run(world, "id = 777", backups=[str(tmp_path / "mistyped")])
        [missing] = [copy.said for copy in done.copies if not copy.is_gone]
        assert missing.startswith("no backup is there")
        done = run(world, "id = 777")
        assert (done.record, done.older, done.is_done) == (0, 0, True)
        assert world.client.open(T, 2).count_rows() == 1, "its history stays"


def test_versions_that_lack_a_column_of_the_predicate_are_named(tmp_path: Path) -> None:
    with service(tmp_path / "root") as world:
        world.client.create_table(T, SCHEMA, primary_key="id")
        world.client.append(T, people(1))
        world.client.add_columns(T, {"told": "'no'"})
        with pytest.raises(InvalidTransaction, match=r"version 2 of shop\$people .*told"):
            run(world, "told = 'yes'")


def test_what_keeps_rows_is_named_and_what_is_wrong_changes_nothing(tmp_path: Path) -> None:
    with service(tmp_path / "root") as world:
        with writing(world, age_seconds=0.01):
            world.client.create_table(T, SCHEMA, primary_key="id", properties={"rows": "log"})
            world.client.write_rows(T, people(1, email=SECRET), mode="upsert").result(60)
        world.client.open(T).tags.create("before", world.client.table(T).version)
        with pytest.raises(InvalidTransaction, match="nobody"):
            run(world, "nobody = 1")
        with pytest.raises(InvalidRequest, match="no erasure .* is recorded"):
            run(world, "")
        waits = world.client.write_rows(T, people(2, email=SECRET), mode="upsert")
        waits.result(60, "accepted")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(erasing, "APPLY_SECONDS", 0.0)
            with pytest.raises(Unavailable, match="row writer"):
                run(world)
        # Nor is what waits given up: a row writer reads it from the topic.
        result = archive(open_log(world), 0, world.root / FOLDER)
        give_up(open_log(world), 0, world.root / FOLDER, result)
        assert (result.waiting, result.given_up) == (1, 0)
        with writing(world, age_seconds=0.01):
            assert waits.result(60).version
        archive(open_log(world), 0, world.root / FOLDER)
        result = ArchiveRun(0)
        give_up(open_log(world), 0, world.root / FOLDER, result)
        assert result.waiting == 0
        assert result.given_up
        done = run(world)
        [kept] = [copy for copy in done.copies if not copy.is_gone]
        assert (kept.name, "kept by a tag" in kept.said) == ("table", True)
        world.client.open(T).tags.delete("before")
        assert run(world, "").is_done
        assert secrets(world, world.root) == []


@pytest.mark.parametrize("way", ["erased too", "dropped"])
def test_a_clone_that_reads_files_with_such_rows_is_named(tmp_path: Path, way: str) -> None:
    """Its source is done once no file in its folder has them."""
    clone = "shop$copy"
    with service(tmp_path / "root") as world:
        world.client.create_table(T, SCHEMA, primary_key="id")
        for rows in (people(1, 2), people(3, email=SECRET)):
            world.client.append(T, rows).raise_for_conflict()
        source = world.client.open(T)
        operation = LanceOperation.Clone(True, None, source.version, str(source.uri), None)
        world.client.submit(clone, operation, read_version=0).result(60).raise_for_conflict()
        for where in (WHERE, ""):
            [kept] = [copy for copy in run(world, where).copies if not copy.is_gone]
            assert kept.name == "table"
            assert f"files that may have such rows are read by {clone}" in kept.said
        assert secrets(world, world.root / "tables")
        if way == "dropped":
            world.client.drop_table(clone)
        else:
            assert run(world, table=clone).is_done
            assert world.client.open(clone).count_rows() == 2
        assert run(world, "").is_done
        assert ids(world) == [1, 2]
        assert secrets(world, world.root / "tables") == []


def test_an_archive_that_another_run_changes_is_left_alone(world: Service) -> None:
    with alone(world.root / FOLDER), pytest.raises(Unavailable, match="another .*archive"):
        run(world)
    assert secrets(world)
    assert run(world, "").is_done
    assert secrets(world) == []


def test_rows_that_no_record_erased_are_a_problem(world: Service) -> None:
    leftovers = Leftovers(world.log, 0)
    [file] = [one for one in leftovers.find(T) if one.path.startswith("_rows/")]
    leftovers.close()
    assert (file.why, "were applied" in file.reason) == (Why.APPLIED, True)
    archive(open_log(world), 0, world.root / FOLDER)
    log = open_log(world)
    kept = Archive.open(world.root / FOLDER, log.identity(), log.genesis(0))
    outcome = next(o for s in kept.segments for o, t in decided(kept, s) if t.payloads)
    take_out(kept, {outcome.sequence: {0}})
    [problem] = verify(open_log(world), 0, VerifyOptions(root=world.root)).problems
    assert (problem.kind, problem.sequence) == (ProblemKind.ROWS, outcome.sequence)
    # Nor does it help that an act on another table names it.
    world.client.create_table("other", SCHEMA)
    said = dict([property_of("none", [Position(outcome.sequence, 0)])])
    world.client.submit(None, AlterProperties(("other",)), properties=said).result(60)
    assert verify(open_log(world), 0, VerifyOptions(root=world.root)).problems == [problem]
    world.client.submit(None, AlterProperties(("shop", "people")), properties=said).result(60)
    assert not verify(open_log(world), 0, VerifyOptions(root=world.root)).problems


def test_rows_of_another_table_that_has_its_former_name_stay(world: Service) -> None:
    client = world.client
    renamed, other = ("shop", "old"), people(100, email=SECRET, n=7)
    client.submit(None, RenameTable(("shop", "people"), renamed)).result(60).raise_for_conflict()
    client.create_table(T, SCHEMA, primary_key="id", properties={"rows": "log"})
    ticket = client.write_rows(T, other, mode="upsert")
    accepted = ticket.result(60, "accepted").sequence
    ticket.result(60)
    places = Places(world.root, (), lambda: cleaning(world))
    assert erase(client, lambda: open_log(world), renamed, WHERE, places, reason="asked").is_done
    [act], _ = erasing.recorded(
        client, lambda: open_log(world), client.describe(renamed, fresh=True)
    )
    assert act.writes
    assert Position(accepted, 0) not in act.writes
    assert ids(world) == [100]
    is_proven(world)
