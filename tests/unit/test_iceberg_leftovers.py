"""Which files of Iceberg tables nobody needs, and that they go by policy after a record."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.storage import LocalStore
from commitlog.model.names import REASON
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.tools.iceberg.leftovers import IcebergLeftovers
from consumers.tools.iceberg.notes import NOTES
from consumers.tools.iceberg.orphans import IcebergOrphans
from consumers.tools.maintenance import iceberg_purges
from consumers.tools.maintenance.cleaning import clean
from consumers.tools.maintenance.iceberg_purges import IcebergPurges
from consumers.tools.maintenance.maintenance_policy import Policies
from consumers.tools.maintenance.removals import Removals
from consumers.tools.verify import VerifyOptions, verify
from tests.iceberg_files_world import ROWS, FilesWorld, age, below, made, reasons, transactions
from tests.kills import Kills

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")


@pytest.mark.slow
def test_what_no_snapshot_leads_to_is_listed_and_removed_once_it_is_old(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    table, dropped = made(catalog, world), made(catalog, world)
    names = ("data/by-a-task-that-died.parquet", "metadata/snap-refused.avro")
    mine, strays = ([Path(one.location()) / name for name in names] for one in (table, dropped))
    for path in (*mine, *strays):
        path.write_bytes(b"stray")
    catalog.drop_table(dropped.name())  # another catalogue may have it now
    elsewhere = Path(table.location()) / "checkpoint"
    elsewhere.write_bytes(b"not Iceberg's")
    found = {one.location: one.reason for one in world.orphans()}
    assert {Path(place) for place in found} >= set(mine)
    assert all(found[str(path)] == "no snapshot leads to it" for path in mine)
    judged = [one for one in found if one.startswith((table.location(), dropped.location()))]
    assert sorted(judged) == sorted(map(str, mine))
    world.clean(age_seconds=3600)
    assert all(path.exists() for path in mine)
    world.clean(age_seconds=0)
    assert not any(path.exists() for path in mine)
    assert elsewhere.exists()
    assert all(path.exists() for path in strays)
    assert catalog.load_table(table.name()).scan().to_arrow().num_rows == 5
    past = table.history()[0].snapshot_id
    assert table.scan(snapshot_id=past).to_arrow().num_rows == 3
    mine[0].write_bytes(b"stray")
    Path(table.current_snapshot().manifest_list).write_bytes(b"Obj\x01rubbish")
    assert str(mine[0]) not in {one.location for one in world.orphans()}
    Path(table.current_snapshot().manifest_list).unlink()
    assert str(mine[0]) not in {one.location for one in world.orphans()}


def test_what_fell_out_of_the_metadata_log_is_listed_and_goes_after_a_record(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    places = _superseded(catalog, world, "t")
    table = catalog.load_table("files.t")
    found = clean(world.other, None, 0)
    assert sorted(one["location"] for one in found) == sorted(places[:2])
    assert all(one["size"] > 0 and one["why"] == "expired" for one in found)
    assert {one["reason"] for one in found} == {"it fell out of its table's metadata log"}
    order: list[str] = []
    submit, delete = world.log.submit, IcebergFiles.delete

    def submitted(*given: Any, **options: Any) -> Any:
        order.append(options["properties"][REASON])
        return submit(*given, **options)

    def deleted(files: IcebergFiles, *given: Any) -> None:
        order.append("delete")
        delete(files, *given)

    monkeypatch.setattr(world.log, "submit", submitted)
    monkeypatch.setattr(IcebergFiles, "delete", deleted)
    world.clean(age_seconds=0)
    assert order[0].startswith("removes 2 unneeded files of ")
    assert order[0].endswith(" bytes: 2 expired")
    assert order[1:] == ["delete"] * 2
    assert sorted(map(str, below(table.location()))) == sorted(places[2:])
    said = [dict(one.properties).get(REASON) for one in transactions(world.other)]
    assert said[-1] == order[0]
    world.clean(age_seconds=0)
    assert len(order) == 3


@pytest.mark.slow
def test_maintenance_removes_what_no_snapshot_leads_to_by_policy_after_a_record(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    monkeypatch.setattr("consumers.tools.maintenance.removals.REST_FACTOR", 0)
    removals = Removals(
        world.log,
        lambda: world.other,
        Policies(world.log, {"commitlog.maintain.remove-after-days": "1"}),
        lambda act, result: None,
        0.0,
    )
    off = {"commitlog.maintain.mode": "off"}
    never = {"commitlog.maintain.remove-after-days": "0"}
    plain, *others = (
        made(catalog, world, properties=properties) for properties in ({}, off, never)
    )
    old, young, *kept = (
        Path(table.location()) / "data" / name
        for table, name in zip(
            (plain, plain, *others), ("old", "young", "off", "never"), strict=True
        )
    )
    for path in (old, young, *kept):
        path.write_bytes(b"by a task that died")
        age(path, 23 if path is young else 25)
    for path in (path for table in (plain, *others) for path in below(table.location())):
        if path not in (old, young):
            age(path, 100)
    before = sorted(path for table in (plain, *others) for path in below(table.location()))
    delete, order = IcebergFiles.delete, list[str]()

    def deleted(files: IcebergFiles, *given: Any) -> None:
        order.extend(reasons(world.other)[-1:])
        delete(files, *given)

    monkeypatch.setattr(IcebergFiles, "delete", deleted)
    [planned] = removals.look(dry_run=True)
    name = "$".join(plain.name())
    assert (planned.kind, planned.table) == ("remove", name)
    assert old.exists()
    removals.look()
    assert order == [planned.reason]
    assert order == ["removes 1 unneeded files of 19 bytes: 1 abandoned"]
    after = sorted(path for table in (plain, *others) for path in below(table.location()))
    assert after == [path for path in before if path != old]
    assert removals.look() == []
    assert plain.scan().to_arrow().num_rows == 5


def test_files_stay_for_readers_that_began_while_a_snapshot_led_to_them(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    table = catalog.create_table("files.t", ROWS.schema)
    table.append(ROWS)
    table.overwrite(ROWS)
    first, *_ = table.metadata.snapshots
    scan = table.scan(snapshot_id=first.snapshot_id)
    theirs = [Path(one.file.file_path) for one in scan.plan_files()]
    before = Path(table.metadata_location).parent

    def looked(hours: int) -> None:
        for path in below(table.location()):
            age(path, 24 * 30)
        hours_said = {"commitlog.maintain.remove-expired-after-hours": str(hours)}
        removals._policies = Policies(world.log, hours_said)
        removals._at = 0.0
        removals.look()

    def begun() -> Removals:
        opened, policies = (lambda: MemoryLog(world.cluster)), Policies(world.log, {})
        return Removals(world.log, opened, policies, lambda *_: None, 0.0)

    removals = begun()
    looked(6)
    names = [one.snapshot_id for one in table.metadata.snapshots[:-1]]
    gone = {"action": "remove-snapshots", "snapshot-ids": names}
    asked = {"requirements": [], "updates": [gone]}
    status, reply = world.post("/v1/namespaces/files/tables/t", asked)
    assert status == 200
    # As pyiceberg does if a table lets metadata go.
    for path in before.glob("*.metadata.json"):
        if str(path) != reply["metadata-location"]:
            path.unlink()
    for is_other_process in (False, True):
        if is_other_process:
            removals.close()
            removals = begun()
        looked(6)
        assert all(path.exists() for path in theirs)
    # What was noticed once is as old in each process, however often the service is restarted.
    [notes] = (world.tables_root / NOTES).iterdir()
    kept = json.loads(notes.read_text())
    kept["strays"] = {place: at_ms - 6 * 3_600_000 for place, at_ms in kept["strays"].items()}
    notes.write_text(json.dumps(kept))
    removals.close()
    removals = begun()
    looked(7)
    assert all(path.exists() for path in theirs)
    looked(6)
    assert not any(path.exists() for path in theirs)
    removals.close()


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [b"{", b"[]", b'{"strays": {"a": "b"}, "unread": {}}'])
def test_notes_that_are_damaged_begin_anew(
    alone: tuple[Any, FilesWorld], caplog: pytest.LogCaptureFixture, damaged: bytes
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    stray = Path(table.location()) / "data" / "by-a-task-that-died"
    stray.write_bytes(b"stray")
    age(stray, 24 * 8)
    notes = world.tables_root / NOTES / f"{world.other.genesis().log_id}.json"
    notes.parent.mkdir(parents=True)
    notes.write_bytes(damaged)
    world.remove()
    assert "its times begin anew" in caplog.text
    assert stray.exists()
    assert list(json.loads(notes.read_text())["strays"]) == [str(stray)]


@pytest.mark.slow
def test_a_wrong_policy_of_an_iceberg_table_is_told_and_holds_up_no_other(
    alone: tuple[Any, FilesWorld], caplog: pytest.LogCaptureFixture
) -> None:
    catalog, world = alone
    wrong = made(catalog, world, properties={"commitlog.maintain.remove-after-days": "soon"})
    right = made(catalog, world)
    strays = [Path(table.location()) / "data" / "by-a-task-that-died" for table in (wrong, right)]
    for path in strays:
        path.write_bytes(b"stray")
        age(path, 24 * 8)
    world.remove()
    assert [path.exists() for path in strays] == [True, False]
    told = [one for one in caplog.messages if "remove-after-days cannot be 'soon'" in one]
    assert len(told) == 2, "no snapshot expires either"
    assert all("$".join(wrong.name()) in one for one in told)


@pytest.mark.slow
def test_what_was_read_once_is_not_read_again(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    stray = Path(table.location()) / "data" / "by-a-task-that-died"
    stray.write_bytes(b"stray")
    read, count = IcebergFiles.read, Counter[str]()

    def counted(files: IcebergFiles, location: str) -> bytes:
        count[location] += 1
        return read(files, location)

    monkeypatch.setattr(IcebergFiles, "read", counted)
    orphans = IcebergOrphans(MemoryLog(world.cluster), str(world.tables_root))

    def found() -> list[str]:
        return sorted(one.location for one in orphans.find())

    assert found() == [str(stray)]
    first = count.total()
    assert found() == [str(stray)]
    assert count.total() == first
    for number in range(20):
        with table.transaction() as transaction:
            transaction.set_properties({"number": str(number)})
    table.append(ROWS)
    count.clear()
    assert found() == [str(stray)]
    # Each metadata file that came, and the new manifest with its list.
    assert len(count) == count.total() == 21 + 2
    # What only one that is gone led to is unneeded, and what comes back is needed again.
    last = Path(table.refresh().metadata_location)
    snapshot = Path(table.current_snapshot().manifest_list)
    last.rename(last.with_suffix(".away"))
    heads = orphans._named.heads.by_name
    [(name, head)] = heads.items()
    before = str(table.metadata.metadata_log[-1].metadata_file)
    heads[name] = replace(head, place=before)
    assert str(snapshot) in found()
    last.with_suffix(".away").rename(last)
    assert found() == [str(stray)]
    # If the last one itself is missing, nobody knows what its table needs.
    heads[name] = head
    last.rename(last.with_suffix(".away"))
    assert found() == []
    orphans.close()


def test_old_metadata_stays_as_long_as_another_name_reads_it(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    places = _superseded(catalog, world, "t")
    body = {"name": "then", "metadata-location": places[0]}
    path = "/v1/namespaces/files/register"
    assert world.post(path, body, headers={"x-commitlog-read-only": "true"})[0] == 200
    catalog.rename_table("files.then", "files.second")
    assert clean(world.other, None, 0) == []
    assert world.remove({"commitlog.maintain.remove-expired-after-hours": "0"}) == []
    assert catalog.load_table("files.second").metadata_location == places[0]
    catalog.drop_table("files.second")
    found = clean(world.other, None, 0)
    assert sorted(one["location"] for one in found) == sorted(places[:2])


def _superseded(catalog: Any, world: FilesWorld, name: str) -> list[str]:
    """Make a table whose first two of five metadata files fell out of its metadata log."""
    properties = {
        "write.metadata.previous-versions-max": "2",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    table = catalog.create_table(("files", name), ROWS.schema, properties=properties)
    places = [str(table.metadata_location)]
    for number in range(4):
        # Not by pyiceberg, which removes such files by itself.
        update = {"action": "set-properties", "updates": {"number": str(number)}}
        asked = {"requirements": [], "updates": [update]}
        _, reply = world.post(f"/v1/namespaces/files/tables/{name}", asked)
        places.append(reply["metadata-location"])
    return places


@pytest.mark.slow
def test_a_removal_that_is_killed_at_any_step_is_ended_by_the_next(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    places = _superseded(catalog, world, "t")
    table = made(catalog, world)
    strays = [Path(table.location()) / "data" / f"by-a-task-that-died-{n}" for n in range(3)]
    for path in strays:
        path.write_bytes(b"stray")
    kept = set(below(table.location())) - set(strays)
    kills, steps = Kills(monkeypatch, (CommitLog, "submit"), (LocalStore, "delete")), 1
    # A record comes first, so that files go at all from the second step on.
    while kills.at(steps, lambda: world.clean(age_seconds=0)):
        steps += 1
        assert set(below(table.location())) >= kept
    assert steps > 3
    assert set(below(table.location())) == kept
    assert not any(Path(place).exists() for place in places[:2])
    assert all(Path(place).exists() for place in places[2:])
    assert table.scan().to_arrow().num_rows == 5
    options = VerifyOptions(root=world.tables_root.parent, contents=True)
    assert verify(world.other, 0, options).problems == []


def test_a_purged_table_of_which_nothing_is_left_is_asked_for_no_more(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    catalog.purge_table(table.name())
    asked: list[str] = []
    exists = IcebergFiles.exists

    def noting(files: IcebergFiles, place: str) -> bool:
        asked.append(place)
        return exists(files, place)

    monkeypatch.setattr(IcebergFiles, "exists", noting)
    monkeypatch.setattr(iceberg_purges, "AGAIN_SECONDS", 0.0)
    purges = IcebergPurges(world.other, world.log)
    orphans = IcebergOrphans(world.other, str(world.tables_root))
    with closing(purges), closing(orphans):
        for is_asked in (True, True, False):
            asked.clear()
            orphans.find()
            by_orphans = table.metadata_location in asked
            asked.clear()
            for act in purges.due():
                act.do()
            assert (by_orphans, table.metadata_location in asked) == (is_asked, is_asked)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["metadata", "older metadata", "manifest list", "manifest"])
def test_a_table_that_cannot_be_read_is_named_and_keeps_what_it_may_lead_to(
    alone: tuple[Any, FilesWorld], caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    catalog, world = alone
    table, other = made(catalog, world), made(catalog, world)
    snapshot = table.current_snapshot()
    place = {
        "metadata": table.metadata_location,
        "older metadata": table.metadata.metadata_log[1].metadata_file,
        "manifest list": snapshot.manifest_list,
        "manifest": snapshot.manifests(table.io)[0].manifest_path,
    }[broken]
    Path(place).write_bytes(b"Obj\x01rubbish")
    old, new = (Path(other.location()) / "data" / name for name in ("old", "new"))
    own = Path(table.location()) / "data" / "own"
    old.write_bytes(b"by a task that died, or the other table's by add_files")
    with closing(IcebergLeftovers(world.other)) as leftovers:
        assert not list(leftovers.find())
        [told] = [one for one in caplog.messages if "is left alone" in one]
        assert "$".join(table.name()) in told
        assert "$".join(other.name()) not in told
        assert place in told
        for path in (new, own):
            path.write_bytes(b"by a task that died")
            age(path, -0.01)  # a file system's clock is coarser
        assert [one.location for one, _ in leftovers.find()] == [str(new)]
        catalog.drop_table(table.name())
        assert [one.location for one, _ in leftovers.find()] == [str(new)]


@pytest.mark.slow
def test_what_a_client_removes_during_a_look_holds_up_no_other(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, world = alone
    table, other = made(catalog, world), made(catalog, world)
    first, *_ = table.metadata.snapshots
    gone = {"action": "remove-snapshots", "snapshot-ids": [first.snapshot_id]}
    path = f"/v1/namespaces/files/tables/{table.name()[-1]}"
    assert world.post(path, {"requirements": [], "updates": [gone]})[0] == 200
    stray = Path(other.location()) / "data" / "by-a-task-that-died"
    stray.write_bytes(b"stray")
    removed = [Path(first.manifest_list), Path(table.metadata.metadata_log[0].metadata_file)]
    listed = IcebergFiles.locations

    def locations(files: IcebergFiles) -> set[str]:
        found = listed(files)
        for one in removed:
            one.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(IcebergFiles, "locations", locations)
    with closing(IcebergLeftovers(world.other)) as leftovers:
        assert str(stray) in [one.location for one, _ in leftovers.find()]
    assert not [one for one in caplog.messages if "is left alone" in one]


@pytest.mark.slow
def test_a_purge_waits_for_a_store_that_does_not_say_what_others_need(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    table, other = made(catalog, world), made(catalog, world)
    before = below(table.location())
    catalog.purge_table(table.name())
    place = other.current_snapshot().manifest_list
    read = IcebergFiles.read

    def refused(files: IcebergFiles, location: str) -> bytes:
        if location == place:
            raise PermissionError(location)
        return read(files, location)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergFiles, "read", refused)
        [told] = world.maintain()
    assert told.startswith("purge: left: what other tables need is not known: ")
    assert place in told
    assert below(table.location()) == before
    assert reasons(world.other) == [], "nothing was to be removed yet"
    # What is damaged leads nobody to a file.
    Path(place).write_bytes(b"Obj\x01rubbish")
    assert world.maintain() == ["purge: all its files are removed"]
