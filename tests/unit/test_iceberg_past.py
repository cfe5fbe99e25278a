"""Many tables as of one position of the log, read by an unmodified client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from consumers.runtime.config import load
from consumers.servers.iceberg.rest import routes
from tests.iceberg_server import IcebergServer, serving_routes
from tests.namespace_world import World, numbers

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
_COMMITS = 15


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    running = World(tmp_path_factory.mktemp("iceberg-past"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[IcebergServer]:
    with serving_routes(routes(world.log, load(environment={}))) as running:
        yield running


def catalog(server: IcebergServer, position: object = None) -> Any:
    from pyiceberg.catalog import load_catalog

    more = {} if position is None else {"warehouse": f"at:{position}"}
    return load_catalog(f"at-{position}", type="rest", uri=server.uri, **more)


def head(world: World) -> int:
    return world.log.snapshot().positions[0]


def test_all_tables_are_as_they_stood(world: World, server: IcebergServer) -> None:
    from pyiceberg import exceptions

    now = catalog(server)
    now.create_namespace("past", {"owner": "a"})
    now.create_namespace("past.empty")
    table = now.create_table("past.t", _ROWS.schema)
    table.append(_ROWS)
    world.write(["past", "lance"], numbers(0, 10))
    position = head(world)
    table.append(_ROWS)
    now.rename_table("past.t", "past.moved")
    now.create_table("past.later", _ROWS.schema)
    now.update_namespace_properties("past", updates={"owner": "b"})

    then = catalog(server, position)
    assert then.list_tables("past") == [("past", "t")]
    assert then.list_namespaces("past") == [("past", "empty")]
    assert then.load_namespace_properties("past") == {"owner": "a"}
    old = then.load_table("past.t")
    assert old.scan().to_arrow().num_rows == 3
    assert not then.table_exists("past.moved")
    assert not then.view_exists("past.moved")
    assert not now.view_exists("past.moved")
    writes: list[Callable[[], Any]] = [
        lambda: old.append(_ROWS),
        lambda: then.create_namespace("more"),
        lambda: then.drop_table("past.t"),
    ]
    for write in writes:
        with pytest.raises((exceptions.ForbiddenError, NotImplementedError)):
            write()
    assert now.load_table("past.moved").scan().to_arrow().num_rows == 6
    latest = catalog(server, "now")
    assert sorted(latest.list_tables("past")) == [("past", "later"), ("past", "moved")]
    assert catalog(server, position + 1).load_table("past.t").scan().to_arrow().num_rows == 6


@pytest.mark.parametrize("position", ["x", "", "-1", "1,2", "999999", "1/../.."])
def test_what_is_no_position_is_refused(world: World, server: IcebergServer, position: str) -> None:
    reply = server.ask("GET", f"/v1/config?warehouse=at:{position}")
    assert reply.status == 400, reply.data
    assert reply.error["type"] == "BadRequestException"


def test_other_warehouses_are_the_catalogue_as_it_is(server: IcebergServer) -> None:
    found = server.ask("GET", "/v1/config?warehouse=shop").json
    assert found == server.ask("GET", "/v1/config").json
    assert "prefix" not in found["overrides"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/at-1/transactions/commit"),
        ("POST", "/v1/at-1/namespaces"),
        ("POST", "/v1/at-1/namespaces/past/register"),
        ("POST", "/v1/at-1/tables/rename"),
        ("DELETE", "/v1/at-1/namespaces/past"),
    ],
)
def test_the_past_is_read_only(server: IcebergServer, method: str, path: str) -> None:
    reply = server.ask(method, path, {})
    assert (reply.status, reply.error["type"]) == (403, "ForbiddenException")


def test_readers_beside_writers_see_all_of_a_commit_or_nothing(
    world: World, server: IcebergServer
) -> None:
    names = ["a", "b"]
    now = catalog(server)
    now.create_namespace("cut")
    for name in names:
        now.create_table(f"cut.{name}", _ROWS.schema)
    began = head(world)

    def write() -> None:
        for number in range(_COMMITS):
            update = {"action": "set-properties", "updates": {"number": str(number)}}
            changes = [
                {
                    "identifier": {"namespace": ["cut"], "name": name},
                    "requirements": [],
                    "updates": [update],
                }
                for name in names
            ]
            reply = server.ask("POST", "/v1/transactions/commit", {"table-changes": changes})
            assert reply.status == 200, reply.data

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        then = catalog(server, "now")
        found = {then.load_table(f"cut.{name}").properties.get("number") for name in names}
        assert len(found) == 1
        seen |= found
    writer.join()
    for number in range(_COMMITS):
        then = catalog(server, began + 1 + number)
        for name in names:
            assert then.load_table(f"cut.{name}").properties["number"] == str(number)
