"""Many tables as of one position of the log, read by an unmodified client."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest

from commitlog.client.history.feed_events import Start, token_of
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import InvalidRequest
from commitlog.model.operations import IcebergChange
from tests.iceberg_server import IcebergServer
from tests.namespace_world import World, numbers

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

_ROWS = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
_COMMITS = 15


def catalog(server: IcebergServer, position: object = None) -> Any:
    from pyiceberg.catalog import load_catalog

    more = {} if position is None else {"warehouse": f"at:{position}"}
    return load_catalog(f"at-{position}", type="rest", uri=server.uri, **more)


def head(world: World) -> int:
    return world.log.snapshot().positions[0]


@pytest.mark.slow
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


@pytest.mark.parametrize("at", ["at:", "AT:"])
@pytest.mark.parametrize(
    "position", ["x", "", "-1", "1,2", "999999", "1/../..", "2026-99-01", "9ms"]
)
def test_what_is_no_position_is_refused(
    world: World, server: IcebergServer, position: str, at: str
) -> None:
    reply = server.ask("GET", f"/v1/config?warehouse={at}{position}")
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


def test_metadata_that_is_gone_is_told(world: World, server: IcebergServer) -> None:
    from pyiceberg import exceptions

    now = catalog(server)
    now.create_namespace("gone")
    table = now.create_table("gone.short", _ROWS.schema)
    position, place = head(world), table.metadata_location
    table.append(_ROWS)
    Path(place.removeprefix("file://")).unlink()
    then = catalog(server, position)
    with pytest.raises(exceptions.NoSuchTableError, match="Failed to open input stream"):
        then.load_table("gone.short")
    assert then.table_exists("gone.short")


@pytest.mark.slow
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


def lance_at(world: World, position: object) -> Any:
    """An unmodified client of the Lance namespace, configured at a position."""
    headers = {"headers.x-commitlog-sequence": str(position)}
    return lance_namespace.connect("rest", {"uri": world.uri, **headers})


def lance_rows(namespace: Any, table: list[str]) -> pa.Table:
    return lance.dataset(namespace_client=namespace, table_id=table).to_table()


def test_a_token_of_another_log_is_a_wrong_request(world: World, server: IcebergServer) -> None:
    token = token_of("another", [Start(ChainPlace(1, 3, 1, bytes(32)), 1)])
    said = world.post("/v1/namespace/$/describe", headers={"x-commitlog-sequence": token})
    assert (said[0], said[1]["code"]) == (400, 13), said
    told = server.ask("GET", f"/v1/config?warehouse=at:{token}")
    assert (told.status, told.error["type"]) == (400, "BadRequestException"), told


@pytest.mark.slow
def test_positions_have_names(world: World, server: IcebergServer) -> None:
    space = world.fresh_name()
    now = catalog(server)
    now.create_namespace(space)
    table = now.create_table(f"{space}.t", _ROWS.schema)
    world.write([space, "l"], numbers(0, 5))
    table.append(_ROWS)
    position = head(world)
    stood = world.log.tag("month-end").time_ms
    while time.time_ns() // 1_000_000 <= stood + 1:
        time.sleep(0.001)
    table.append(_ROWS)
    world.open([space, "l"]).insert(numbers(5, 7))

    moment = datetime.fromtimestamp(stood / 1000, UTC).isoformat()
    for name in (position, f"{stood}ms", moment, "month-end"):
        assert world.log.snapshot(name).positions[0] >= position
        assert catalog(server, name).load_table(f"{space}.t").scan().to_arrow().num_rows == 3
        assert lance_rows(lance_at(world, name), [space, "l"]).num_rows == 5
    assert world.log.tags()["month-end"] == {0: position}
    world.log.tag("month-end")
    assert catalog(server, "month-end").load_table(f"{space}.t").scan().to_arrow().num_rows == 6
    assert lance_rows(lance_at(world, "month-end"), [space, "l"]).num_rows == 7
    assert () not in world.log.snapshot().namespaces, "the log's own properties are no namespace"
    assert [] not in server.ask("GET", "/v1/namespaces").json["namespaces"]

    world.log.untag("month-end")
    assert "month-end" not in world.log.tags()
    assert server.ask("GET", "/v1/config?warehouse=at:month-end").status == 400
    for wrong in ("now", "9th", "a b", "", "x" * 65):
        with pytest.raises(InvalidRequest, match="not a valid tag name"):
            world.log.tag(wrong)
    with pytest.raises(InvalidRequest, match="in the future"):
        world.log.position("2999-01-01T00:00:00Z")
    with pytest.raises(InvalidRequest, match="had no commits"):
        world.log.position("1999-01-01")


def test_lances_clients_see_what_stood_by_its_name_of_then(world: World) -> None:
    space = world.fresh_name()
    for name in ("kept", "gone", "renamed"):
        world.write([space, name], numbers(0, 3))
    position = head(world)
    world.post(f"/v1/table/{space}$renamed/rename", {"new_table_name": "moved"})
    world.post(f"/v1/table/{space}$gone/drop")
    world.write([space, "gone"], numbers(0, 9))
    world.write([space, "renamed"], numbers(0, 9))
    world.open([space, "kept"]).insert(numbers(3, 4))
    world.open([space, "kept"]).add_columns({"y": "id"})

    then = lance_at(world, position)
    listed = then.list_tables(lance_namespace.ListTablesRequest(id=[space])).tables
    assert sorted(listed) == ["gone", "kept", "renamed"]
    page = then.list_tables(lance_namespace.ListTablesRequest(id=[space], limit=2))
    assert (page.tables, page.page_token) == (["gone", "kept"], "kept")
    for name in ("kept", "gone", "renamed"):
        assert lance_rows(then, [space, name]).equals(numbers(0, 3))
        described = then.describe_table(
            lance_namespace.DescribeTableRequest(id=[space, name], load_detailed_metadata=True)
        )
        assert [field.name for field in described.var_schema.fields] == ["id", "x"]
    with pytest.raises(Exception, match="no table"):
        then.describe_table(lance_namespace.DescribeTableRequest(id=[space, "moved"]))
    before = head(world)
    opened = lance.dataset(namespace_client=then, table_id=[space, "kept"])
    with pytest.raises(Exception, match="Commit result .* unknown|read only"):
        opened.insert(numbers(0, 1))  # Lance has its own words for a refused version
    with pytest.raises(Exception, match="read-only|read only"):
        then.drop_table(lance_namespace.DropTableRequest(id=[space, "kept"]))
    assert head(world) == before


def test_metadata_says_by_which_position_it_was_committed(
    world: World, server: IcebergServer
) -> None:
    space = world.fresh_name()
    now = catalog(server)
    now.create_namespace(space)
    table = now.create_table(f"{space}.t", _ROWS.schema)
    said = [int(table.properties["commitlog.position"])]
    assert said == [head(world)]
    table.append(_ROWS)
    said.append(int(table.properties["commitlog.position"]))
    changed = {"commitlog.position": "7", "a": "b"}
    table.transaction().set_properties(changed).commit_transaction()
    said.append(int(table.refresh().properties["commitlog.position"]))
    assert said == [said[0], said[0] + 1, said[0] + 2]
    for number, position in enumerate(said):
        then = catalog(server, position).load_table(f"{space}.t")
        assert int(then.properties["commitlog.position"]) == position
        assert len(then.metadata.metadata_log) == number
    path = table.metadata.metadata_log[-1].metadata_file
    assert json.loads(Path(path).read_text())["properties"]["commitlog.position"] == str(said[1])


def test_a_second_name_is_read_and_never_written(world: World, server: IcebergServer) -> None:
    from pyiceberg import exceptions
    from pyiceberg.catalog import load_catalog

    space = world.fresh_name()
    now = catalog(server)
    now.create_namespace(space)
    table = now.create_table(f"{space}.t", _ROWS.schema)
    table.append(_ROWS)
    with pytest.raises(exceptions.BadRequestError):
        now.register_table(f"{space}.second", table.metadata_location)
    header = {"header.x-commitlog-read-only": "true"}
    reader = load_catalog("second", type="rest", uri=server.uri, **header)
    second = reader.register_table(f"{space}.second", table.metadata_location)
    table.append(_ROWS)
    assert second.scan().to_arrow().num_rows == 3, "as it was registered"
    with pytest.raises(exceptions.BadRequestError, match="is a second name of a table"):
        second.append(_ROWS)
    reader.purge_table(f"{space}.second")
    assert table.refresh().scan().to_arrow().num_rows == 6


_WRITERS, _TRANSFERS = 3, 5


@pytest.mark.slow
def test_sums_over_tables_of_both_formats_hold_at_every_position(
    world: World, server: IcebergServer
) -> None:
    space = world.fresh_name()
    schema = pa.schema([("id", pa.int64()), ("amount", pa.int64())])
    now = catalog(server)
    now.create_namespace(space)
    tables = [f"{space}.a", f"{space}.b"]
    for name in tables:
        now.create_table(name, schema)
    world.write([space, "l"], schema.empty_table())
    began = head(world)
    numbered = itertools.count()
    model: dict[int, list[tuple[int, int]]] = {}
    """By position, the rows of that record: how much went to each of the tables."""

    def write(writer: int) -> None:
        mine = catalog(server)
        for _ in range(_TRANSFERS):
            number = next(numbered)
            amounts = [number + 1, 10 * number, -11 * number - 1]
            with world.log.transact() as record:
                for name, amount in zip(tables, amounts, strict=False):
                    made = mine.load_table(name).transaction()
                    made.append(pa.table({"id": [number], "amount": [amount]}, schema))
                    parts = ([one.model_dump(mode="json", by_alias=True) for one in part]
                             for part in (made._requirements, made._updates))  # fmt: skip
                    told, asked = (json.dumps(part) for part in parts)
                    change = IcebergChange(tuple(name.split(".")), told, asked)
                    record.submit(None, change)
                rows = pa.table({"id": [number], "amount": [amounts[2]]}, schema)
                record.append(f"{space}$l", rows)
            assert record.outcome is not None
            model[record.outcome.sequence] = [(number, amount) for amount in amounts]

    def expected(position: int) -> list[Counter[tuple[int, int]]]:
        known = [rows for sequence, rows in model.items() if sequence <= position]
        return [Counter(rows[i] for rows in known) for i in range(3)]

    def found(position: object) -> list[Counter[tuple[int, int]]]:
        then = catalog(server, position)
        read = [then.load_table(name).scan().to_arrow() for name in tables]
        read.append(lance_rows(lance_at(world, position), [space, "l"]))
        return [
            Counter(zip(*(one[name].to_pylist() for name in schema.names), strict=True))
            for one in read
        ]

    with ThreadPoolExecutor(_WRITERS) as pool:
        writing = [pool.submit(write, writer) for writer in range(_WRITERS)]
        seen: dict[int, list[Counter[tuple[int, int]]]] = {}
        while not all(one.done() for one in writing):
            position = head(world)
            seen[position] = found(position)
            assert sum(amount for rows in seen[position] for _, amount in rows.elements()) == 0
        for one in writing:
            one.result()
    assert len(model) == _WRITERS * _TRANSFERS
    for position in (began, *sorted(model)):
        seen.setdefault(position, found(position))
    for position, rows in seen.items():
        assert rows == expected(position), position
