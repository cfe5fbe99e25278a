"""An Iceberg table has its place and its uuid for itself."""

from __future__ import annotations

import json

import pytest

from commitlog.core.decisions import ChangeKind
from commitlog.core.iceberg.creating import register_change
from commitlog.model.limits import (
    ICEBERG_COPIES_ELSEWHERE_SINCE,
    ICEBERG_COPIES_SINCE,
    ICEBERG_NAMED_PLACES_SINCE,
    ICEBERG_PLACES_SINCE,
    PROTOCOL_SUPPORTED,
    Rules,
)
from commitlog.model.operations import (
    CreateNamespace,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    RenameTable,
)
from commitlog.model.records import Code, Status
from tests.core_world import ROOT, replayed_from_parts
from tests.unit.iceberg_examples import LOCATION, change, metadata, snapshot
from tests.unit.test_iceberg_machine import (
    EVENTS,
    OTHER,
    IcebergWorld,
    made,
    metadata_at,
    set_property,
)

PLACE = f"{ROOT}/ice/events"
FILE = f"{PLACE}/metadata/00001-x.metadata.json"


@pytest.fixture
def world() -> IcebergWorld:
    made_world = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    made_world.ask("ns", CreateNamespace(("db",)))
    return made_world


@pytest.mark.parametrize("place", [PLACE, f"{PLACE}/data", f"{ROOT}/ice", f"file://{PLACE}/x"])
def test_a_table_is_not_made_in_or_around_another(world: IcebergWorld, place: str) -> None:
    world.ask("c", made())
    for restored in (False, True):
        if restored:
            world.machine = replayed_from_parts(world.machine)
        refused = world.ask(f"o{restored}", made(OTHER, place))
        assert refused.code is Code.LOCATION_TAKEN, refused.message
        assert "db$events" in refused.message
    both = world.ask("two", made(("db", "a"), f"{ROOT}/a"), made(("db", "b"), f"{ROOT}/a/data"))
    assert both.code is Code.LOCATION_TAKEN
    world.check_replay()


def test_a_table_does_not_move_into_another(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("o", made(OTHER))
    inside = f"{ROOT}/ice/other/metadata"
    assert world.ask("p", metadata_at(inside)).code is Code.LOCATION_TAKEN
    move = {"action": "set-location", "location": f"{ROOT}/ice/other/x"}
    assert world.ask("m", change([move], (), EVENTS)).code is Code.LOCATION_TAKEN
    own = {"action": "set-location", "location": f"{PLACE}/deeper"}
    assert world.ask("d", change([own], (), EVENTS)).status is Status.COMMITTED
    world.check_replay()


def test_a_place_is_free_once_its_table_is_dropped(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("d", DropTable(EVENTS))
    assert world.ask("o", made(OTHER, PLACE)).status is Status.COMMITTED
    world.ask("r", RenameTable(OTHER, ("db", "third")))
    assert world.ask("again", made(EVENTS, PLACE)).code is Code.LOCATION_TAKEN
    world.check_replay()


def test_metadata_of_a_table_is_not_registered_under_a_second_name(world: IcebergWorld) -> None:
    found = metadata(location=PLACE)

    def register(name: tuple[str, ...], replaces: str = "") -> Code:
        operation = register_change(name, metadata=found, metadata_location=FILE, replaces=replaces)
        return world.ask(f"{len(world.log)}", operation).code

    assert register(EVENTS) is Code.NONE
    assert register(("db", "copy")) is Code.NONE, "nobody committed to it yet"
    world.check_replay()
    assert world.ask("p", set_property(a="1")).status is Status.COMMITTED
    assert register(OTHER) is Code.LOCATION_TAKEN
    world.ask("x", DropTable(("db", "copy")))
    assert register(OTHER) is Code.LOCATION_TAKEN
    assert register(EVENTS, str(found["table-uuid"])) is Code.NONE
    world.ask("m", RenameTable(EVENTS, ("db", "moved")))
    world.ask("q", set_property(("db", "moved"), a="2"))
    assert register(EVENTS) is Code.LOCATION_TAKEN
    world.ask("d", DeregisterTable(("db", "moved")))
    world.machine = replayed_from_parts(world.machine)
    assert register(OTHER) is Code.NONE
    world.check_replay()


@pytest.mark.parametrize("protocol", [ICEBERG_COPIES_SINCE - 1, PROTOCOL_SUPPORTED])
def test_a_table_that_came_back_has_one_name(protocol: int) -> None:
    world = IcebergWorld(rules=Rules(protocol))
    world.ask("ns", CreateNamespace(("db",)))
    world.ask("c", made())
    again, other = second(world, EVENTS), second(world)
    world.ask("d", DropTable(EVENTS))
    assert world.ask("u", again).status is Status.COMMITTED
    found = world.ask("s", other)
    is_shared = protocol < ICEBERG_COPIES_SINCE
    assert found.code is (Code.NONE if is_shared else Code.LOCATION_TAKEN), found.message
    world.check_replay()


def test_a_first_name_comes_back_beside_its_second_ones(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("s", second(world, read_only=True))
    world.ask("p", set_property(a="1"))
    back = second(world, EVENTS)
    world.ask("d", DropTable(EVENTS))
    returned = world.ask("u", back)
    assert returned.status is Status.COMMITTED, returned.message
    assert world.ask("q", set_property(a="2")).status is Status.COMMITTED
    assert world.ask("w", set_property(OTHER, a="2")).code is Code.UNSUPPORTED_OPERATION
    world.check_replay()


def test_earlier_protocols_let_tables_share() -> None:
    world = IcebergWorld(rules=Rules(ICEBERG_PLACES_SINCE - 1))
    world.ask("ns", CreateNamespace(("db",)))
    world.ask("c", made())
    assert world.ask("o", made(OTHER, f"{PLACE}/data")).status is Status.COMMITTED
    world.check_replay()


def second(
    world: IcebergWorld, name: tuple[str, ...] = OTHER, *, read_only: bool = False
) -> IcebergChange:
    table = world.machine.iceberg.tables[EVENTS]
    return register_change(
        name,
        metadata=json.loads(table.to_json()),
        metadata_location=table.metadata_location,
        read_only=read_only,
    )


def test_a_second_name_is_read_only(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("p", set_property(a="1"))
    assert world.ask("r", second(world)).code is Code.LOCATION_TAKEN
    taken = world.ask("s", second(world, read_only=True))
    assert taken.status is Status.COMMITTED, taken.message
    for restored in (False, True):
        if restored:
            world.machine = replayed_from_parts(world.machine)
        refused = world.ask(f"w{restored}", set_property(OTHER, a="2"))
        assert (refused.status, refused.code) == (Status.REJECTED, Code.UNSUPPORTED_OPERATION)
        assert "db$other is a second name" in refused.message
        again = world.ask(f"a{restored}", second(world, read_only=True))
        assert again.status is Status.RETRYABLE, "the name is taken"
        # The first name is as free as before, also to move in its own place.
        assert world.ask(f"f{restored}", set_property(b=str(restored))).status is Status.COMMITTED
        own = {"action": "set-location", "location": f"{PLACE}/{restored}"}
        moved = world.ask(f"m{restored}", change([own], (), EVENTS))
        assert moved.status is Status.COMMITTED, moved.message
    both = world.ask("b", set_property(c="1"), set_property(OTHER, c="1"))
    assert both.code is Code.UNSUPPORTED_OPERATION
    assert world.machine.iceberg.tables[EVENTS].properties["b"] == "True"
    world.check_replay()


def test_files_of_a_second_name_stay(world: IcebergWorld) -> None:
    world.ask("c", made())
    world.ask("s", second(world, read_only=True))
    world.ask("t", second(world, ("db", "third"), read_only=True))
    assert world.ask("n", RenameTable(OTHER, ("db", "named"))).status is Status.COMMITTED
    refused = world.ask("w", set_property(("db", "named"), a="2"))
    assert refused.code is Code.UNSUPPORTED_OPERATION
    dropped = world.ask("d", DropTable(("db", "named")))
    assert dropped.results[0].operation == "DeregisterTable"
    world.ask("o", DropTable(EVENTS))
    emptied = world.ask("e", DropNamespace(("db",), cascade=True))
    assert emptied.status is Status.COMMITTED, emptied.message
    ended = [change.kind for change in world.changes[-3:]]
    assert ended == [ChangeKind.DEREGISTERED, ChangeKind.DROPPED, ChangeKind.DEREGISTERED]
    assert world.machine.iceberg.read_only == {}
    world.check_replay()


def test_a_second_name_may_lie_in_a_lance_table(world: IcebergWorld) -> None:
    world.create("ice")
    file = f"{ROOT}/ice/x/metadata/00001-x.metadata.json"
    there = metadata(location=f"{ROOT}/ice/x")
    owned = register_change(OTHER, metadata=there, metadata_location=file)
    assert world.ask("r", owned).code is Code.LOCATION_TAKEN
    shared = register_change(OTHER, metadata=there, metadata_location=file, read_only=True)
    taken = world.ask("s", shared)
    assert taken.status is Status.COMMITTED, taken.message
    outside = register_change(
        EVENTS, metadata=metadata(location="/elsewhere/x"),
        metadata_location="/elsewhere/x/metadata/1.metadata.json", read_only=True,
    )  # fmt: skip
    assert world.ask("o", outside).code is Code.LOCATION_NOT_ALLOWED
    world.check_replay()


def test_protocol_3_knows_no_second_names() -> None:
    world = IcebergWorld(rules=Rules(3))
    world.ask("ns", CreateNamespace(("db",)))
    world.ask("c", made())
    assert world.ask("s", second(world, read_only=True)).status is Status.COMMITTED
    assert world.ask("w", set_property(OTHER, a="2")).status is Status.COMMITTED
    world.check_replay()


def _snapshot(**places: object) -> dict[str, object]:
    return {"action": "add-snapshot", "snapshot": {**snapshot(9, 1), **places}}


def _statistics(place: str) -> dict[str, object]:
    sizes = {"file-size-in-bytes": 1, "file-footer-size-in-bytes": 1, "blob-metadata": []}
    found = {"snapshot-id": 9, "statistics-path": place, **sizes}
    return {"action": "set-statistics", "statistics": found}


@pytest.mark.parametrize(
    "place",
    [
        "/elsewhere/x.avro",
        f"{ROOT}/../elsewhere/x.avro",
        f"{ROOT}-too/x.avro",
        "file:/elsewhere/x.avro",
        "s3://another/x.avro",
        "relative.avro",
        f"{ROOT}/{'x' * 2_000}/../x",
    ],
)
def test_files_outside_of_the_root_are_what_the_leader_allows(
    world: IcebergWorld, place: str
) -> None:
    world.ask("c", made())
    allowed = world.ask("a", change([_snapshot()], (), EVENTS))
    assert allowed.status is Status.COMMITTED, allowed.message
    assert [seen.path for seen in allowed.observed] == [f"{LOCATION}/metadata/snap-9.avro"]
    partition = _statistics(place) | {"action": "set-partition-statistics"}
    partition["partition-statistics"] = partition.pop("statistics")
    registered = metadata(location=f"{ROOT}/ice/other", snapshots=1)
    registered["snapshots"][0]["manifest-list"] = place
    file = f"{ROOT}/ice/other/metadata/1.metadata.json"
    late = {"snapshot-id": 10, "sequence-number": 2}
    asked = [
        change([_snapshot(**{**late, "manifest-list": place})], (), EVENTS),
        change([_statistics(place)], (), EVENTS),
        change([partition], (), EVENTS),
        register_change(OTHER, metadata=registered, metadata_location=file),
    ]
    for name in ("write.data.path", "write.object-storage.path"):
        update = {"action": "set-properties", "updates": {name: place}}
        asked.append(change([update], (), EVENTS))
    for number, one in enumerate(asked):
        refused = world.ask(f"r{number}", one)
        assert refused.code is Code.LOCATION_NOT_ALLOWED, (one, refused.message)
        assert "allowed_locations" in refused.message
        # One of two: all or nothing.
        both = world.ask(f"b{number}", set_property(a="1"), one)
        assert both.status is Status.REJECTED
    assert "a" not in world.machine.iceberg.tables[EVENTS].properties
    world.check_replay()


def test_protocol_4_asks_nobody_where_files_are() -> None:
    world = IcebergWorld(rules=Rules(ICEBERG_NAMED_PLACES_SINCE - 1))
    world.ask("ns", CreateNamespace(("db",)))
    world.ask("c", made())
    update = _snapshot(**{"manifest-list": "/elsewhere/x.avro"})
    taken = world.ask("s", change([update], (), EVENTS))
    assert taken.status is Status.COMMITTED
    assert not taken.observed
    world.check_replay()


def copy(name: str, place: str) -> IcebergChange:
    """Register what a copy of a table's files has: its uuid, at another place."""
    found = metadata(location=place)
    file = f"{place}/metadata/00001-x.metadata.json"
    return register_change(("db", name), metadata=found, metadata_location=file)


def test_copies_at_places_of_their_own_are_tables_of_their_own(world: IcebergWorld) -> None:
    places = {name: f"{ROOT}/ice/{name}" for name in ("a", "b", "c")}
    for name, place in places.items():
        found = world.ask(name, copy(name, place))
        assert found.status is Status.COMMITTED, found.message
    for restored in (False, True):
        if restored:
            world.machine = replayed_from_parts(world.machine)
        all_at_once = [set_property(("db", name), a=f"{name}{restored}") for name in places]
        assert world.ask(f"p{restored}", *all_at_once).status is Status.COMMITTED
    heads = {world.machine.iceberg.tables["db", name].metadata_location for name in places}
    assert len(heads) == len(places)
    for number, place in enumerate((places["a"], f"{places['b']}/data", f"{ROOT}/ice")):
        inside = world.ask(f"i{number}", copy("d", place))
        assert inside.code is Code.LOCATION_TAKEN, "a copy has its place for itself"
    move = {"action": "set-location", "location": f"{places['b']}/x"}
    assert world.ask("m", change([move], (), ("db", "a"))).code is Code.LOCATION_TAKEN
    assert world.ask("r", RenameTable(("db", "a"), ("db", "e"))).status is Status.COMMITTED
    assert world.ask("again", copy("d", places["a"])).code is Code.LOCATION_TAKEN
    world.ask("x", DropTable(("db", "e")))
    assert world.ask("free", copy("d", places["a"])).status is Status.COMMITTED
    world.check_replay()


def test_copies_that_one_record_registers_have_their_places(world: IcebergWorld) -> None:
    first, second_, third = (copy(name, f"{ROOT}/ice/{name}") for name in ("a", "b", "c"))
    inside = copy("d", f"{ROOT}/ice/a")
    assert world.ask("i", first, second_, inside).code is Code.LOCATION_TAKEN
    assert world.ask("c", first, second_, third).status is Status.COMMITTED
    world.check_replay()


def test_copies_elsewhere_are_refused_by_earlier_protocols() -> None:
    world = IcebergWorld(rules=Rules(ICEBERG_COPIES_ELSEWHERE_SINCE - 1))
    world.ask("ns", CreateNamespace(("db",)))
    assert world.ask("a", copy("a", f"{ROOT}/ice/a")).status is Status.COMMITTED
    world.ask("p", set_property(("db", "a"), a="1"))
    assert world.ask("b", copy("b", f"{ROOT}/ice/b")).code is Code.LOCATION_TAKEN
    world.check_replay()
