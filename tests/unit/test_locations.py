"""Who has a location, for a leader that was restarted too, and what that costs a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from commitlog.core.partition.driving import drive
from commitlog.core.tables.lance_tables import LocationParts, Locations, Place, location_parts
from commitlog.model.limits import PLACES_SORTED_SINCE, PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import CreateNamespace, CreateTable
from tests.core_world import FORMAT, World, column, replayed_from_parts
from tests.unit.test_iceberg_machine import IcebergWorld, made

RULES = Rules(PROTOCOL_SUPPORTED)


def creating(name: str, location: str) -> CreateTable:
    return CreateTable(
        (name,), f"i-{name}", location, (column("c0", 0),), data_storage_version=FORMAT
    )


def test_a_restarted_leader_names_the_same_of_several_tables_in_a_location() -> None:
    world = World(rules=RULES)
    for name in ("b", "a", "c"):
        assert world.ask(name, creating(name, f"/tables/x/{name}")).status == "committed"
    restored = replayed_from_parts(world.machine)
    outcome = world.ask("above", creating("above", "/tables/x"))
    assert "overlaps the location of table a (" in outcome.message
    assert drive(restored, world.log[-1][0], world.observe).outcome == outcome


def test_it_names_the_same_of_several_iceberg_tables() -> None:
    world = IcebergWorld(rules=RULES)
    world.ask("ns", CreateNamespace(("db",)))
    for name in ("b", "a"):
        assert world.ask(name, made(("db", name), f"/tables/x/{name}")).status == "committed"
    restored = replayed_from_parts(world.machine)
    outcome = world.ask("above", made(("db", "above"), "/tables/x"))
    assert "db$a" in outcome.message
    assert drive(restored, world.log[-1][0], world.observe).outcome == outcome


@pytest.mark.parametrize("protocol", [PLACES_SORTED_SINCE - 1, PLACES_SORTED_SINCE])
def test_places_are_found_as_by_comparing_all(protocol: int, seed: int) -> None:
    chance, rules = random.Random(seed), Rules(protocol)
    known, locations = dict[LocationParts, Place](), Locations()
    for number in range(300):
        location = "/" + "/".join(chance.choice("ab\0é") for _ in range(chance.randrange(1, 5)))
        location = chance.choice([location, f"s3:/{location}"])
        parts = location_parts(location)
        around = [known[parts[:n]] for n in range(2, len(parts) + 1) if parts[:n] in known]
        inside = [p for p in known if len(p) > len(parts) and p[: len(parts)] == parts]
        if protocol >= PLACES_SORTED_SINCE:
            inside.sort()
        expected = [*around, *(known[one] for one in inside)]
        assert list(locations.clashes(location, rules)) == expected
        assert locations.clash(location, rules) == (expected[0] if expected else None)
        is_in = any(parts[:n] in known for n in range(2, len(parts)))
        assert locations.is_above(location) == (not is_in and bool(expected))
        assert locations.at(location) == known.get(parts)
        if chance.random() < 0.3:
            known[parts] = Place(("t",), f"i{number}", chance.random() < 0.5)
            locations.take(location, known[parts])
    assert locations.items() == known


def test_a_checkpoint_encodes_only_places_that_are_new() -> None:
    asked, locations = list[str](), Locations()

    def encode(parts: LocationParts, place: Place) -> bytes:
        asked.append(place.incarnation)
        return place.incarnation.encode()

    def encoded() -> Iterator[str]:
        asked.clear()
        yield b",".join(locations.encoded(encode)).decode()
        yield ",".join(asked)

    for name in "cab":
        locations.take(f"/x/{name}", Place((name,), name, is_live=True))
    assert list(encoded()) == ["a,b,c", "a,b,c"]
    assert list(encoded()) == ["a,b,c", ""]
    locations.take("/x/b", Place(("b",), "new", is_live=False))
    locations.take("/x/aa", Place(("aa",), "aa", is_live=True))
    assert list(encoded()) == ["a,aa,new,c", "aa,new"]
