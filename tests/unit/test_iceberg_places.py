"""An Iceberg table has its place and its uuid for itself."""

from __future__ import annotations

import pytest

from commitlog.core.iceberg.creating import register_change
from commitlog.model.limits import ICEBERG_PLACES_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateNamespace, DeregisterTable, DropTable, RenameTable
from commitlog.model.records import Code, Status
from tests.core_world import ROOT, replayed_from_parts
from tests.unit.iceberg_examples import change, metadata
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
    uuid = {"action": "assign-uuid", "uuid": found["table-uuid"]}
    operation = made(("db", "forged"), f"{ROOT}/ice/forged")
    forged = change([uuid, *_updates(operation.updates)], [{"type": "assert-create"}], ("db", "f"))
    assert world.ask("f", forged).code is Code.LOCATION_TAKEN
    world.check_replay()


def _updates(text: str) -> list[object]:
    import json

    return list(json.loads(text))


def test_earlier_protocols_let_tables_share() -> None:
    world = IcebergWorld(rules=Rules(ICEBERG_PLACES_SINCE - 1))
    world.ask("ns", CreateNamespace(("db",)))
    world.ask("c", made())
    assert world.ask("o", made(OTHER, f"{PLACE}/data")).status is Status.COMMITTED
    world.check_replay()
