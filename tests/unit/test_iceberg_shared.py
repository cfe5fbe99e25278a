"""Files that a purged Iceberg table leaves behind stay if others need them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from commitlog.codecs.avro_manifests import data_paths
from commitlog.model.operations import DropNamespace, DropTable
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.runtime.places import MARKS, check_place
from consumers.tools.iceberg.reached import Reached
from consumers.tools.maintenance import iceberg_purges
from tests.iceberg_files_world import ROWS, FilesWorld, age, below, catalogue, made, reasons
from tests.unlistable import refuse_to_list

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

READ_ONLY = {"x-commitlog-read-only": "true"}


def _removed_after_weeks(world: FilesWorld) -> None:
    """Purge and remove all that is due if nothing was written for weeks."""
    world.maintain()
    world.remove_after_weeks()


def _register(world: FilesWorld, name: str, place: str) -> None:
    body = {"name": name, "metadata-location": place}
    assert world.post("/v1/namespaces/files/register", body, headers=READ_ONLY)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("has_metadata_elsewhere", [False, True])
def test_a_second_name_keeps_the_files_of_a_purged_table(
    alone: tuple[Any, FilesWorld], has_metadata_elsewhere: bool
) -> None:
    catalog, world = alone
    elsewhere = {"write.metadata.path": f"{world.tables_root}/metadata-elsewhere"}
    table = made(catalog, world, properties=elsewhere if has_metadata_elsewhere else {})
    _register(world, "then", table.metadata_location)
    catalog.purge_table(table.name())
    _removed_after_weeks(world)
    assert catalog.load_table("files.then").scan().to_arrow().num_rows == 5
    catalog.drop_table("files.then")
    _removed_after_weeks(world)
    assert not below(table.location())


@pytest.mark.slow
def test_a_purged_table_that_came_back_by_older_metadata_keeps_its_files(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    older = table.metadata.metadata_log[-1].metadata_file
    catalog.purge_table(table.name())
    catalog.register_table("files.older", older)
    _removed_after_weeks(world)
    assert catalog.load_table("files.older").scan().to_arrow().num_rows == 2


@pytest.mark.slow
@pytest.mark.parametrize("ends_as", ["standing", "dropped", "gone"])
def test_what_a_purged_table_had_of_others_stays(
    alone: tuple[Any, FilesWorld], ends_as: str
) -> None:
    catalog, world = alone
    owner = made(catalog, world)
    borrower = catalog.create_table(("files", "borrower"), ROWS.schema)
    theirs = [task.file.file_path for task in owner.scan().plan_files()]
    borrower.add_files(theirs)
    if ends_as != "standing":
        catalog.drop_table(owner.name())
    catalog.purge_table(borrower.name())
    if ends_as == "gone":
        catalog.register_table(owner.name(), owner.metadata_location)
        catalog.purge_table(owner.name())
    _removed_after_weeks(world)
    assert [Path(one).exists() for one in theirs] == [ends_as != "gone"] * len(theirs)
    _removed_after_weeks(world)
    assert not [one for one in below(borrower.location()) if ends_as == "gone"]


def test_a_purged_table_takes_no_file_of_a_lance_table(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
    world.log.create_table("files$lance", ROWS.schema)
    world.log.append("files$lance", ROWS)
    [info] = world.log.tables()
    [theirs] = (Path(info.location) / "data").iterdir()
    borrower = catalog.create_table(("files", "borrower"), ROWS.schema)
    borrower.append(ROWS)
    with pytest.MonkeyPatch.context() as patched:
        # As if a manifest named it: to write one takes a client that does what none should.
        named = "consumers.partition.files.iceberg_files.data_paths"
        patched.setattr(named, lambda data: [*data_paths(data), str(theirs)])
        catalog.purge_table(borrower.name())
        _removed_after_weeks(world)
    assert theirs.exists()


@pytest.mark.slow
def test_tables_that_one_record_drops_are_purged_together(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, world = alone
    tables = [made(catalog, world) for _ in range(3)]
    made(catalog, world)
    looks = Counter[str]()
    for kind, name in ((IcebergFiles, "locations"), (Reached, "look")):
        inner = getattr(kind, name)

        def counted(*given: Any, name: str = name, inner: Any = inner) -> Any:
            looks[name] += 1
            return inner(*given)

        monkeypatch.setattr(kind, name, counted)
    with world.log.transact() as transaction:
        for table in tables:
            transaction.submit(None, DropTable(table.name()))
    assert world.maintain() == ["purge: all its files are removed"] * len(tables)
    assert not any(below(table.location()) for table in tables)
    assert looks == {"locations": 1, "look": 1}, "what others need is looked for once"


def test_tables_that_went_with_their_namespace_are_left_alone(
    alone: tuple[Any, FilesWorld],
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    stray = Path(table.location()) / "data" / "by-another-catalogue"
    stray.write_bytes(b"stray")
    world.log.submit(None, DropNamespace(("files",), cascade=True)).result(30)
    before = below(table.location())
    _removed_after_weeks(world)
    assert below(table.location()) == before


@pytest.mark.slow
def test_a_table_of_another_log_is_left_alone_until_this_one_has_changed_it(
    alone: tuple[Any, FilesWorld], tmp_path: Path
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    catalog.drop_table(table.name())
    # A log that never heard of it: what it finds there has the names that it would give.
    other = FilesWorld(tmp_path / "other")
    home = other.tables_root / Path(table.location()).relative_to(world.tables_root)
    renamed = str(world.tables_root), str(other.tables_root)
    try:
        _copied(Path(table.location()), home, *renamed)
        stray = home / "data" / "by-its-task"
        stray.write_bytes(b"stray")
        before = below(str(home))
        place = table.metadata_location.replace(*renamed)
        other.iceberg.ask("POST", "/v1/namespaces", {"namespace": ["files"]})
        body = {"name": "copied", "metadata-location": place}
        assert other.iceberg.ask("POST", "/v1/namespaces/files/register", body).status == 200
        _removed_after_weeks(other)
        assert below(str(home)) == before
        change = {"requirements": [], "updates": [SET]}
        assert other.iceberg.ask("POST", "/v1/namespaces/files/tables/copied", change).status == 200
        _removed_after_weeks(other)
        assert set(before) - set(below(str(home))) == {stray}
    finally:
        other.close()


@pytest.mark.slow
def test_two_logs_over_one_tables_root_leave_each_others_files_alone(
    alone: tuple[Any, FilesWorld], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    with catalogue(tmp_path / "other", world.tables_root) as (others, other):
        for one in (world, other):
            check_place(one.other)  # as each leader does before it starts
        theirs = others.create_table("files.theirs", ROWS.schema)
        theirs.append(ROWS)
        taken = others.register_table("files.taken", table.metadata_location)
        taken.append(ROWS)
        aside = Path(theirs.location()) / "metadata" / "x.quarantined-0123abcd"
        aside.write_bytes(b"in the way of the other log")
        strays = [Path(one.location()) / "data" / "by-its-task" for one in (table, theirs)]
        own = made(catalog, world)
        strays.append(Path(own.location()) / "data" / "by-its-task")
        for path in strays:
            path.write_bytes(b"stray")
        before = below(str(world.tables_root))
        for one in (world, other, world):
            for path in below(str(world.tables_root)):
                age(path, 24 * 30)
            one.remove()
        # Only they know what their tables need: of a table that both write, nobody does.
        assert set(before) - set(below(str(world.tables_root))) == {*strays[1:]}
        assert theirs.scan().to_arrow().num_rows == 3
        assert others.load_table("files.taken").scan().to_arrow().num_rows == 8
    assert f"{world.tables_root}/{MARKS}/{other.other.genesis().log_id}.json" in caplog.text


@pytest.mark.slow
def test_nothing_goes_while_it_cannot_be_listed_whose_files_are_there(
    alone: tuple[Any, FilesWorld],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    catalog, world = alone
    stray = Path(made(catalog, world).location()) / "data" / "stray"
    stray.write_bytes(b"stray")
    with catalogue(tmp_path / "other", world.tables_root) as (others, other):
        for one in (world, other):
            check_place(one.other)
        theirs = others.create_table("files.theirs", ROWS.schema)
        theirs.append(ROWS)
        before = below(str(world.tables_root))
        with monkeypatch.context() as patched:
            refuse_to_list(patched, f"/{MARKS}")
            world.remove_after_weeks()
        assert below(str(world.tables_root)) == before
        assert f"left for later: [Errno 13] Permission denied: '{world.tables_root}" in caplog.text
        world.remove_after_weeks()
        assert [one for one in before if not one.exists()] == [stray]
        assert theirs.scan().to_arrow().num_rows == 3


SET = {"action": "set-properties", "updates": {"a": "b"}}


def _copied(source: Path, target: Path, old: str, new: str) -> None:
    """Copy a table without manifests: only its metadata files say where they are."""
    (target / "metadata").mkdir(parents=True)
    (target / "data").mkdir()
    for path in (source / "metadata").glob("*.metadata.json"):
        members = json.loads(path.read_text().replace(old, new))
        members |= {"snapshots": [], "snapshot-log": [], "refs": {}, "current-snapshot-id": -1}
        (target / "metadata" / path.name).write_text(json.dumps(members))


@pytest.mark.slow
@pytest.mark.parametrize("is_inner", [False, True])
def test_a_tables_root_in_that_of_another_log(
    alone: tuple[Any, FilesWorld],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_inner: bool,
) -> None:
    catalog, world = alone
    table = made(catalog, world)  # in `files`, which the other log calls its root
    with catalogue(tmp_path / "other", world.tables_root / "files") as (others, other):
        for one in (world, other):
            check_place(one.other)
        theirs = others.create_table("files.theirs", ROWS.schema)
        theirs.append(ROWS)
        before = below(str(world.tables_root))
        (other if is_inner else world).remove_after_weeks()
        assert set(before) <= set(below(str(world.tables_root)))
        assert theirs.scan().to_arrow().num_rows == 3
    assert table.scan().to_arrow().num_rows == 5
    place, log = (world.tables_root, world) if is_inner else (world.tables_root / "files", other)
    assert f"{place}/{MARKS}/{log.other.genesis().log_id}.json" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_purge_leaves_what_another_table_has_by_add_files(
    alone: tuple[Any, FilesWorld], is_dropped: bool
) -> None:
    catalog, world = alone
    owner, other = made(catalog, world), made(catalog, world)
    borrower = catalog.create_table(("files", "borrower"), ROWS.schema)
    theirs = [task.file.file_path for task in owner.scan().plan_files()]
    borrower.add_files(theirs)
    borrower.overwrite(ROWS)  # only an older snapshot has them now
    past = borrower.history()[0].snapshot_id
    last = borrower.refresh().metadata_location
    if is_dropped:
        catalog.drop_table(borrower.name())
    catalog.purge_table(owner.name())
    catalog.purge_table(other.name())
    first, second = world.maintain()
    recorded = len(reasons(world.other))
    assert (world.maintain(), len(reasons(world.other))) == ([first], recorded), "nothing to go"
    said, _, named = first.rpartition(": ")
    assert said == f"purge: {len(theirs)} files stay, since another table needs them"
    assert named in theirs
    assert second == "purge: all its files are removed"
    _removed_after_weeks(world)
    if is_dropped:
        borrower = catalog.register_table(borrower.name(), last)
    assert borrower.scan(snapshot_id=past).to_arrow().num_rows == 5
    catalog.purge_table(borrower.name())
    world.maintain()
    assert not below(borrower.location())
    world.maintain()
    assert not below(owner.location())


@pytest.mark.slow
@pytest.mark.parametrize("step", ["before", "meanwhile"])
def test_a_purge_stops_at_a_table_registered_by_older_metadata(
    alone: tuple[Any, FilesWorld], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    catalog, world = alone
    table = made(catalog, world)
    older = table.metadata.metadata_log[-1].metadata_file
    files = below(table.location())
    catalog.purge_table(table.name())
    registered: list[bool] = []
    record = "consumers.tools.maintenance.iceberg_purges.record_removal"
    inner = iceberg_purges.IcebergPurges._sharing

    def register() -> None:
        from pyiceberg.exceptions import BadRequestError

        try:
            catalog.register_table("files.older", older)
        except BadRequestError:
            registered.append(False)
        else:
            registered.append(True)

    def sharing(self: iceberg_purges.IcebergPurges, home: str) -> str:
        found = inner(self, home)
        if not registered:
            register()
        return found

    if step == "before":
        monkeypatch.setattr(iceberg_purges.IcebergPurges, "_sharing", sharing)
    else:
        monkeypatch.setattr(record, lambda client, why: register())
    [told] = world.maintain()
    if step == "before":
        assert registered == [True]
        assert "is also the location of" in told
        assert below(table.location()) == files
        assert catalog.load_table("files.older").scan().to_arrow().num_rows == 2
    else:
        assert registered == [False]
        assert told == "purge: all its files are removed"
        assert not below(table.location())
