"""Do unmodified clients of the HTTP server work with tables whose recorded place is elsewhere?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import pytest

from commitlog.adapters.places import places_text, use_places
from commitlog.model.operations import DeclareTable, RegisterTable
from tests.namespace_world import World, numbers

OLD = "/nowhere/commitlog/tables"
"""What the log says; it can't be made unless somebody goes around the binding."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    before = places_text()
    use_places(f"{OLD}={tmp_path / 'tables'}")
    (tmp_path / "tables").mkdir()
    made = World(tmp_path, tables_root=OLD)
    yield made
    made.close()
    use_places(before)


def test_answers_name_the_bound_place_and_records_the_old_one(world: World) -> None:
    here = str(world.tables_root)
    world.write(["shop", "t"], numbers(0, 4))
    world.write(["shop", "t"], numbers(4, 6), "append")
    assert world.location(["shop", "t"]).startswith(f"{here}/")
    assert world.open(["shop", "t"]).count_rows() == 6
    assert world.open(["shop", "t"], 1).count_rows() == 4
    status, made = world.rows("/v1/table/shop$u/create", numbers(0, 3))
    assert (status, made["location"].startswith(f"{here}/")) == (200, True), made
    status, said = world.rows("/v1/table/shop$u/insert?mode=append", numbers(3, 5))
    assert status == 200, said
    assert lance.dataset(made["location"]).count_rows() == 5
    mine = f"{here}/mine.lance"
    status, said = world.post("/v1/table/shop$mine/declare", {"location": mine})
    assert (status, said["location"]) == (200, mine), said
    [declared] = world.record(said["transaction_id"]).operations
    assert isinstance(declared, DeclareTable)
    assert declared.location == f"{OLD}/mine.lance"
    lance.write_dataset(numbers(0, 2), f"{here}/there.lance")
    status, said = world.post("/v1/table/shop$r/register", {"location": f"{here}/there.lance"})
    assert (status, said["location"]) == (200, f"{here}/there.lance"), said
    [registered] = world.record(said["transaction_id"]).operations
    assert isinstance(registered, RegisterTable)
    assert registered.location == f"{OLD}/there.lance"
    status, said = world.post("/v1/table/shop$r/count_rows", {})
    assert (status, said) == (200, 2)
    body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
    status, said = world.post("/v1/namespaces/shop/tables", body)
    assert (status, "were moved" in str(said)) == (400, True), said
    assert not Path("/nowhere").exists()
