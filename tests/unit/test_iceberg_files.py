"""Which files an Iceberg table has, and what a purge leaves of them, over a log in memory."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.adapters.storage import LocalStore
from commitlog.model.records import Transaction
from consumers.partition.iceberg_files import IcebergFiles, contents, purge
from consumers.servers.iceberg.catalog import IcebergSettings
from consumers.servers.iceberg.log import LogIcebergService
from consumers.tools.cleaning import clean
from consumers.tools.file_ledger import REASON
from consumers.tools.iceberg_orphans import Orphan, find_orphans
from consumers.tools.iceberg_purges import DroppedTables, IcebergPurges
from consumers.tools.maintenance_policy import Policies
from consumers.tools.removals import Removals
from tests.iceberg_server import IcebergServer, serving
from tests.namespace_world import World

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})


class FilesWorld(World):
    """Its log can be read by others."""

    def __init__(self, root: Path) -> None:
        self.cluster = MemoryCluster()
        super().__init__(root, lambda: MemoryLog(self.cluster))
        self._other = MemoryLog(self.cluster)

    def orphans(self) -> list[Orphan]:
        return find_orphans(self._other, str(self.tables_root))

    def clean(self, *, age_seconds: float) -> None:
        """Remove what nobody needs."""
        clean(self._other, None, age_seconds, self.log)

    def maintain(self) -> list[str]:
        """Do what is due, as a new process would; return what came of it."""
        purges = IcebergPurges(self._other, self.log)
        try:
            return [f"{one.kind}: {one.do()}" for one in purges.due()]
        finally:
            purges.close()

    def remove(self, policy: dict[str, str] | None = None) -> list[str]:
        """Remove what is due, as a new process would; return what came of it."""
        told = list[str]()
        removals = Removals(
            self.log,
            lambda: MemoryLog(self.cluster),
            Policies(self.log, policy or {}),
            lambda act, result: told.append(f"{act.kind} {act.table}: {result}"),
            0.0,
        )
        removals.look()
        removals.close()
        return told


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilesWorld]:
    running = FilesWorld(tmp_path_factory.mktemp("iceberg-files"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(world: FilesWorld) -> Iterator[IcebergServer]:
    service = LogIcebergService(world.log)
    with serving(service, IcebergSettings(service.tables_root)) as running:
        yield running


@pytest.fixture
def catalog(world: FilesWorld, server: IcebergServer) -> Any:
    from pyiceberg.catalog import load_catalog

    found = load_catalog("files", type="rest", uri=server.uri)
    found.create_namespace_if_not_exists("files")
    return found


@pytest.fixture
def files(world: FilesWorld) -> IcebergFiles:
    return IcebergFiles(str(world.tables_root))


def made(catalog: Any, world: FilesWorld, **more: Any) -> Any:
    """A table with two snapshots, deletes and four metadata files."""
    table = catalog.create_table(("files", world.fresh_name()), _ROWS.schema, **more)
    table.append(_ROWS)
    table.delete("id = 2")
    table.append(_ROWS)
    return table


def below(location: str) -> list[Path]:
    return [path for path in Path(location).rglob("*") if path.is_file()]


def test_the_contents_are_all_files_of_the_table(
    catalog: Any, world: FilesWorld, files: IcebergFiles
) -> None:
    table = made(catalog, world)
    found = contents(files.table(table.metadata_location), files)
    named = [Path(place) for layer in found.layers() for place in layer]
    assert sorted(named) == sorted(below(table.location()))
    assert not found.unreadable
    assert list(found.last) == [table.metadata_location]


def test_a_purge_removes_all_files_and_a_drop_none(catalog: Any, world: FilesWorld) -> None:
    kept, gone = made(catalog, world), made(catalog, world)
    before = below(kept.location())
    catalog.purge_table(gone.name())
    catalog.drop_table(kept.name())
    assert below(gone.location()), "what a drop began is for maintenance to do"
    assert world.maintain() == ["purge: all its files are removed"]
    assert not below(gone.location())
    assert world.maintain() == []
    assert below(kept.location()) == before
    again = catalog.register_table(("files", world.fresh_name()), kept.metadata_location)
    assert again.scan().to_arrow().num_rows == 5


def test_files_elsewhere_stay_and_so_does_what_names_them(
    catalog: Any, world: FilesWorld, files: IcebergFiles
) -> None:
    elsewhere = world.tables_root / f"elsewhere-{world.fresh_name()}"
    table = made(catalog, world, properties={"write.data.path": str(elsewhere)})
    data = below(str(elsewhere))
    assert data
    left = purge(files.table(table.metadata_location), files)
    assert sorted(map(Path, left)) == sorted(data)
    assert Path(table.metadata_location).exists()
    for path in data:
        path.unlink()
    assert purge(files.table(table.metadata_location), files) == []
    assert not below(table.location())


def test_what_a_purge_leaves_is_listed_until_it_is_gone(catalog: Any, world: FilesWorld) -> None:
    elsewhere = world.tables_root / f"elsewhere-{world.fresh_name()}"
    table = made(catalog, world, properties={"write.data.path": str(elsewhere)})
    (world.tables_root / "other.metadata.json").write_text("{}")
    last = made(catalog, world)
    catalog.purge_table(table.name())
    catalog.purge_table(last.name())
    world.maintain()
    assert not below(last.location())
    found = {orphan.location for orphan in world.orphans()}
    assert found == {str(path) for path in (*below(table.location()), *below(str(elsewhere)))}
    for place in found:
        Path(place).unlink()
    assert not world.orphans()


def test_what_cannot_be_read_stays_with_all_that_leads_to_it(
    catalog: Any, world: FilesWorld, files: IcebergFiles
) -> None:
    table = made(catalog, world)
    broken = Path(table.current_snapshot().manifest_list)
    broken.write_bytes(b"Obj\x01rubbish")
    left = purge(files.table(table.metadata_location), files)
    assert left == [str(broken)]
    assert Path(table.metadata_location).exists()


def test_a_link_out_of_the_table_is_not_followed(
    catalog: Any, world: FilesWorld, files: IcebergFiles
) -> None:
    kept, gone = made(catalog, world), made(catalog, world)
    data = Path(gone.location()) / "data"
    names = [path.name for path in data.iterdir()]
    for path in data.iterdir():
        path.unlink()
    data.rmdir()
    others = Path(kept.location()) / "data"
    for name in names:
        (others / name).write_text("not the purged table's")
    data.symlink_to(others)
    left = purge(files.table(gone.metadata_location), files)
    assert sorted(Path(place).name for place in left) == sorted(names)
    assert all((others / name).exists() for name in names)


def test_a_place_that_another_table_has_is_not_purged(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under earlier protocols, metadata could be registered under two names."""
    twin = made(catalog, world)
    catalog.purge_table(twin.name())
    monkeypatch.setattr(IcebergPurges, "_standing", lambda self: [twin.metadata_location])
    (result,) = world.maintain()
    assert "is also the location" in result
    assert twin.scan().to_arrow().num_rows == 5
    monkeypatch.undo()
    world.maintain()
    assert not below(twin.location())


class Killed(BaseException):
    """Ends a process at once."""


def test_a_purge_that_is_killed_at_any_step_is_ended_by_the_next(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = made(catalog, world), made(catalog, world)
    before = below(kept.location())
    catalog.purge_table(gone.name())
    left = 0

    def counted(name: str) -> None:
        inner = getattr(LocalStore, name)

        def call(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if not left:
                raise Killed
            return inner(*arguments)

        monkeypatch.setattr(LocalStore, name, call)

    counted("move")
    counted("delete")
    kills = 0
    for step in range(1, 100):
        left = step
        try:
            world.maintain()
        except Killed:
            kills += 1
        assert below(kept.location()) == before
        if left > 0:
            break
    assert kills >= 4
    assert not below(gone.location())
    monkeypatch.undo()
    assert world.maintain() == []
    assert not world.orphans()


def test_a_table_that_was_registered_again_keeps_its_files(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = made(catalog, world)
    files, last = below(table.location()), table.metadata_location
    catalog.purge_table(table.name())
    read, again = DroppedTables.read, ("files", world.fresh_name())

    def registered_meanwhile(self: DroppedTables) -> None:
        if Path(f"{last}.gone").exists():
            Path(f"{last}.gone").rename(last)
            catalog.register_table(again, last)
            Path(last).rename(f"{last}.gone")
            monkeypatch.undo()
        read(self)

    monkeypatch.setattr(DroppedTables, "read", registered_meanwhile)
    assert world.maintain() == ["purge: "]
    assert below(table.location()) == files
    assert catalog.load_table(again).scan().to_arrow().num_rows == 5
    # A purge that was killed after it had put the file aside.
    Path(last).rename(f"{last}.gone")
    assert world.maintain() == []
    assert catalog.load_table(again).scan().to_arrow().num_rows == 5


def test_nothing_outside_the_root_is_read_or_removed(tmp_path: Path) -> None:
    root, outside = tmp_path / "tables", tmp_path / "secret"
    root.mkdir()
    outside.write_text("x")
    (root / "link").symlink_to(outside)
    files = IcebergFiles(str(root))
    for place in (str(outside), f"{root}/../secret", f"{root}/link", "s3://b/x", "relative", "/"):
        assert not files.exists(place)
        with pytest.raises(FileNotFoundError):
            files.read(place)
        with pytest.raises(FileNotFoundError):
            files.delete(place, str(root))
    assert outside.read_text() == "x"
    (root / "inside").write_text("x")
    files.delete(f"{root}/inside", str(root))
    assert not files.exists(f"{root}/inside")


def test_metadata_that_fell_out_of_the_log_goes_if_the_table_says_so(
    catalog: Any, world: FilesWorld, server: IcebergServer
) -> None:
    for wish in ("true", "false"):
        properties = {
            "write.metadata.previous-versions-max": "2",
            "write.metadata.delete-after-commit.enabled": wish,
            "commitlog.maintain.remove-expired-after-hours": "1",
        }
        name = world.fresh_name()
        table = catalog.create_table(("files", name), _ROWS.schema, properties=properties)
        places = [table.metadata_location]
        for number in range(4):
            # Not by pyiceberg, which removes such files by itself.
            update = {"action": "set-properties", "updates": {"number": str(number)}}
            reply = server.ask(
                "POST",
                f"/v1/namespaces/files/tables/{name}",
                {"requirements": [], "updates": [update]},
            )
            places.append(reply.json["metadata-location"])
        listed = [entry["metadata-file"] for entry in reply.json["metadata"]["metadata-log"]]
        assert listed == places[2:4]
        is_on = wish == "true"
        # The grace counts from when another one took a file's place, not from when it was written.
        for place, hours in zip(places, (9, 2, 0.9, 0, 0), strict=True):
            _age(place, hours)
        removed = [f"remove files${name}: 1 files removed"] * is_on
        assert world.remove() == removed
        _age(places[2], 1.1)
        assert world.remove() == removed
        if is_on:
            places = places[2:]
        assert sorted(map(str, below(table.location()))) == sorted(places)


def _age(place: str | Path, hours: float) -> None:
    written = time.time() - hours * 3600
    os.utime(place, (written, written))


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[tuple[Any, FilesWorld]]:
    """A catalogue of its own: no other test has broken a file there."""
    from pyiceberg.catalog import load_catalog

    running = FilesWorld(tmp_path)
    service = LogIcebergService(running.log)
    with serving(service, IcebergSettings(service.tables_root)) as at:
        found = load_catalog("alone", type="rest", uri=at.uri)
        found.create_namespace("files")
        yield found, running
    running.close()


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


def test_a_metadata_file_decompresses_to_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.partition.iceberg_files.ICEBERG_METADATA_BYTES_MAX", 1000)
    files = IcebergFiles(str(tmp_path))
    for size, name in ((1000, "fits"), (1001, "bomb")):
        (tmp_path / f"{name}.gz.metadata.json").write_bytes(gzip.compress(b" " * size))
    assert len(files.metadata(str(tmp_path / "fits.gz.metadata.json"))) == 1000
    with pytest.raises(OSError, match="over 1000 bytes"):
        files.metadata(str(tmp_path / "bomb.gz.metadata.json"))


def test_what_fell_out_of_the_metadata_log_is_listed_and_goes_after_a_record(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    places = _superseded(catalog, world, "t")
    table = catalog.load_table("files.t")
    found = clean(world._other, None, 0)
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
    said = [dict(one.properties).get(REASON) for one in _transactions(world._other)]
    assert said[-1] == order[0]
    world.clean(age_seconds=0)
    assert len(order) == 3


def test_maintenance_removes_what_no_snapshot_leads_to_by_policy_after_a_record(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    monkeypatch.setattr("consumers.tools.removals.REST_FACTOR", 0)
    removals = Removals(
        world.log,
        lambda: world._other,
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
        _age(path, 23 if path is young else 25)
    for path in (path for table in (plain, *others) for path in below(table.location())):
        if path not in (old, young):
            _age(path, 100)
    before = sorted(path for table in (plain, *others) for path in below(table.location()))
    delete, order = IcebergFiles.delete, list[str]()

    def deleted(files: IcebergFiles, *given: Any) -> None:
        order.extend(_reasons(world._other)[-1:])
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


def test_a_purge_begins_with_a_record(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = made(catalog, world)
    catalog.purge_table(gone.name())
    delete, records = IcebergFiles.delete, list[str]()

    def deleted(files: IcebergFiles, *given: Any) -> None:
        records.extend(_reasons(world._other)[-1:])
        delete(files, *given)

    monkeypatch.setattr(IcebergFiles, "delete", deleted)
    assert world.maintain() == ["purge: all its files are removed"]
    [said] = set(records)
    assert said.startswith("$".join(gone.name()))
    assert "dropped it" in said


def test_old_metadata_stays_as_long_as_another_name_reads_it(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    places = _superseded(catalog, world, "t")
    body = {"name": "then", "metadata-location": places[0]}
    path = "/v1/namespaces/files/register"
    assert world.post(path, body, headers={"x-commitlog-read-only": "true"})[0] == 200
    catalog.rename_table("files.then", "files.second")
    assert clean(world._other, None, 0) == []
    assert world.remove({"commitlog.maintain.remove-expired-after-hours": "0"}) == []
    assert catalog.load_table("files.second").metadata_location == places[0]
    catalog.drop_table("files.second")
    found = clean(world._other, None, 0)
    assert sorted(one["location"] for one in found) == sorted(places[:2])


def _superseded(catalog: Any, world: FilesWorld, name: str) -> list[str]:
    """Make a table whose first two of five metadata files fell out of its metadata log."""
    properties = {
        "write.metadata.previous-versions-max": "2",
        "write.metadata.delete-after-commit.enabled": "true",
    }
    table = catalog.create_table(("files", name), _ROWS.schema, properties=properties)
    places = [str(table.metadata_location)]
    for number in range(4):
        # Not by pyiceberg, which removes such files by itself.
        update = {"action": "set-properties", "updates": {"number": str(number)}}
        asked = {"requirements": [], "updates": [update]}
        _, reply = world.post(f"/v1/namespaces/files/tables/{name}", asked)
        places.append(reply["metadata-location"])
    return places


def _reasons(log: MemoryLog) -> list[str]:
    """What maintenance said in the log of what it did."""
    found = (dict(one.properties).get(REASON) for one in _transactions(log))
    return [one for one in found if one is not None]


def _transactions(log: MemoryLog) -> list[Transaction]:
    reader = log.read_transactions(0, 0)
    found: list[Transaction] = []
    while reader.position() < reader.end_offset():
        records = (one.record for one in reader.poll(timeout_seconds=1))
        found += [one for one in records if isinstance(one, Transaction)]
    reader.close()
    return found
