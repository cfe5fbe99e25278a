"""Which files an Iceberg table has, and what a purge leaves of them, over a log in memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commitlog.adapters.storage import LocalStore
from consumers.partition.files.iceberg_files import IcebergFiles, contents, purge
from consumers.tools.maintenance.iceberg_purges import DroppedTables, IcebergPurges
from tests.iceberg_files_world import ROWS, FilesWorld, age, below, made, reasons
from tests.iceberg_server import IcebergServer
from tests.kills import Kills

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FilesWorld]:
    running = FilesWorld(tmp_path_factory.mktemp("iceberg-files"))
    yield running
    running.close()


@pytest.fixture
def catalog(world: FilesWorld) -> Any:
    from pyiceberg.catalog import load_catalog

    found = load_catalog("files", type="rest", uri=world.uri)
    found.create_namespace_if_not_exists("files")
    return found


@pytest.fixture
def files(world: FilesWorld) -> IcebergFiles:
    return IcebergFiles(str(world.tables_root))


def test_the_contents_are_all_files_of_the_table(
    catalog: Any, world: FilesWorld, files: IcebergFiles
) -> None:
    table = made(catalog, world)
    found = contents(files.table(table.metadata_location), files)
    named = [Path(place) for layer in found.layers() for place in layer]
    assert sorted(named) == sorted(below(table.location()))
    assert not found.unreadable
    assert list(found.last) == [table.metadata_location]


@pytest.mark.slow
def test_a_purge_removes_all_files_and_a_drop_none(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
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


@pytest.mark.slow
def test_what_a_purge_leaves_is_listed_until_it_is_gone(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
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
    standing = {("files", "twin"): twin.metadata_location}
    monkeypatch.setattr(IcebergPurges, "_standing", lambda self: standing)
    (result,) = world.maintain()
    assert "is also the location" in result
    assert twin.scan().to_arrow().num_rows == 5
    monkeypatch.undo()
    world.maintain()
    assert not below(twin.location())


@pytest.mark.slow
def test_a_purge_that_is_killed_at_any_step_is_ended_by_the_next(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, gone = made(catalog, world), made(catalog, world)
    before = below(kept.location())
    catalog.purge_table(gone.name())
    kills, steps = Kills(monkeypatch, (LocalStore, "move"), (LocalStore, "delete")), 1
    while kills.at(steps, world.maintain):
        steps += 1
        assert below(kept.location()) == before
    assert steps > 4
    assert not below(gone.location())
    monkeypatch.undo()
    assert world.maintain() == []
    assert not [one for one in world.orphans() if one.location.startswith(gone.location())]


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


@pytest.mark.slow
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
        table = catalog.create_table(("files", name), ROWS.schema, properties=properties)
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
            age(place, hours)
        removed = [f"remove files${name}: 1 files removed"] * is_on
        assert world.remove() == removed
        age(places[2], 1.1)
        assert world.remove() == removed
        if is_on:
            places = places[2:]
        assert sorted(map(str, below(table.location()))) == sorted(places)


def test_a_metadata_file_decompresses_to_a_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.partition.files.iceberg_files.ICEBERG_METADATA_BYTES_MAX", 1000)
    files = IcebergFiles(str(tmp_path))
    for size, name in ((1000, "fits"), (1001, "bomb")):
        (tmp_path / f"{name}.gz.metadata.json").write_bytes(gzip.compress(b" " * size))
    assert len(files.metadata(str(tmp_path / "fits.gz.metadata.json"))) == 1000
    with pytest.raises(OSError, match="over 1000 bytes"):
        files.metadata(str(tmp_path / "bomb.gz.metadata.json"))


def test_a_purge_begins_with_a_record(
    catalog: Any, world: FilesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = made(catalog, world)
    catalog.purge_table(gone.name())
    delete, records = IcebergFiles.delete, list[str]()

    def deleted(files: IcebergFiles, *given: Any) -> None:
        records.extend(reasons(world.other)[-1:])
        delete(files, *given)

    monkeypatch.setattr(IcebergFiles, "delete", deleted)
    assert world.maintain() == ["purge: all its files are removed"]
    [said] = set(records)
    assert said.startswith("$".join(gone.name()))
    assert "dropped it" in said
