"""Are versions of Lance 7's library for Java committed as it staged them, or refused?"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from consumers.servers.namespace import landings
from tests.namespace_world import World, numbers
from tests.unit.test_namespace_landings import Connection
from tests.unit.test_namespace_versions import decided, path, stage

IN_JAVA: dict[str, Any] = {"context": {}}


@pytest.fixture
def table(world: World) -> list[str]:
    name = world.fresh_name()
    world.write([name, "t"], numbers(0, 10))
    return [name, "t"]


def test_it_is_refused_what_others_are_told_the_version_of(world: World, table: list[str]) -> None:
    loser, later, winner = (stage(world, table, number) for number in (100, 200, 300))
    assert world.post(path(table, "create"), winner)[0] == 200
    before = decided(world)
    with closing(Connection(world, table)) as java, closing(Connection(world, table)) as python:
        java.read_table(**IN_JAVA)
        python.read_table()
        assert java.post("create", loser)[0] == 409
        assert decided(world) == before
        assert python.post("create", later)[0] == 303
    assert world.open(table).count_rows() == 20


def test_it_is_known_by_its_host_on_a_connection_that_it_has_just_opened(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loser, winner = stage(world, table, 100), stage(world, table, 200)
    assert world.post(path(table, "create"), winner)[0] == 200
    with closing(Connection(world, table)) as one, closing(Connection(world, table)) as another:
        one.read_table(**IN_JAVA)
        assert another.post("create", loser)[0] == 409
        monkeypatch.setattr(landings, "REMEMBERED_SECONDS", 0.0)
        assert another.post("create", loser)[0] == 303
    assert world.open(table).count_rows() == 20


def test_it_counts_rows_and_lists_tags_by_get(world: World, table: list[str]) -> None:
    world.open(table).tags.create("first", 1)
    where = f"/v1/table/{'$'.join(table)}"
    assert world.send("GET", f"{where}/count_rows?delimiter=%24")[:2] == (200, 10)
    status, body = world.send("GET", f"{where}/tags/list?delimiter=%24&limit=1")[:2]
    assert (status, list(body["tags"])) == (200, ["first"])
