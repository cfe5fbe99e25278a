"""Iceberg views: names among tables, one record with them, and what clients see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uuid_utils

from commitlog.codecs.iceberg_changes import read_changes
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.views import ASSERT_CREATE, ASSERT_UUID, IcebergView
from commitlog.model.limits import PROTOCOL_SUPPORTED, Rules
from commitlog.model.operations import (
    CreateNamespace,
    DeregisterTable,
    DropNamespace,
    IcebergChange,
    RenameTable,
)
from commitlog.model.records import Code, Status
from commitlog.model.table import TableId
from tests.core_world import ROOT, append, replayed_from_parts
from tests.iceberg_server import IcebergServer
from tests.namespace_world import World, numbers
from tests.unit.test_iceberg_machine import EVENTS, IcebergWorld, made, set_property

pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

VIEW = ("db", "totals")
UUID = "0190b0a0-0000-7000-8000-00000000000a"
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}],
}


def version(sql: str = "SELECT 1 AS n", **more: Any) -> dict[str, Any]:
    return {
        "version-id": 1,
        "timestamp-ms": 1_700_000_000_000,
        "schema-id": -1,
        "summary": {"engine-name": "test"},
        "representations": [{"type": "sql", "sql": sql, "dialect": "spark"}],
        "default-namespace": ["db"],
        **more,
    }


def made_view(name: TableId = VIEW, *, location: str = "", sql: str = "") -> IcebergChange:
    updates = [
        {"action": "assign-uuid", "uuid": UUID},
        {"action": "set-location", "location": location or f"{ROOT}/ice/{name[-1]}"},
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "add-view-version", "view-version": version(sql or "SELECT 1 AS n")},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    return IcebergChange(name, dump_json([{"type": ASSERT_CREATE}]), dump_json(updates))


def replaced(sql: str, name: TableId = VIEW, uuid: str = UUID) -> IcebergChange:
    updates = [
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "add-view-version", "view-version": version(sql)},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    return IcebergChange(name, dump_json([{"type": ASSERT_UUID, "uuid": uuid}]), dump_json(updates))


@pytest.fixture
def core() -> IcebergWorld:
    world = IcebergWorld(rules=Rules(PROTOCOL_SUPPORTED))
    world.ask("ns", CreateNamespace(("db",)))
    return world


def members(core: IcebergWorld, name: TableId = VIEW) -> Any:
    found = core.machine.iceberg.tables[name]
    assert isinstance(found, IcebergView)
    assert core.files[found.metadata_location] == found.encode()
    return found.members


def test_a_view_is_made_replaced_renamed_and_dropped(core: IcebergWorld) -> None:
    first = core.ask("c", made_view())
    assert first.status is Status.COMMITTED, first.message
    assert first.results[0].operation == "IcebergView"
    assert members(core)["current-version-id"] == 1
    second = core.ask("r", replaced("SELECT 2 AS n"))
    assert second.status is Status.COMMITTED, second.message
    assert [one["version-id"] for one in members(core)["versions"]] == [1, 2]
    assert [one["version-id"] for one in members(core)["version-log"]] == [1, 2]
    assert members(core)["properties"] == {"commitlog.position": str(second.sequence)}
    core.ask("b", replaced("SELECT 1 AS n"))
    assert members(core)["current-version-id"] == 1, "the same content is the same version"
    for number in range(20):
        core.ask(f"h{number}", replaced(f"SELECT {number} AS x"))
    assert len(members(core)["versions"]) == 10
    named = ("db", "named")
    assert core.ask("n", RenameTable(VIEW, named)).status is Status.COMMITTED
    core.machine = replayed_from_parts(core.machine)
    assert core.ask("x", replaced("SELECT 3", named)).status is Status.COMMITTED
    assert core.ask("d", DeregisterTable(named)).status is Status.COMMITTED
    assert core.ask("y", replaced("SELECT 3", named)).code is Code.NO_SUCH_TABLE
    core.check_replay()


def test_tables_and_views_share_names_and_records(core: IcebergWorld) -> None:
    core.create("t")
    core.ask("c", made())
    both = core.ask("b", append(1, "a.lance"), set_property(a="1"), made_view())
    assert both.status is Status.COMMITTED, both.message
    assert [one.operation for one in both.results] == ["Append", "IcebergChange", "IcebergView"]
    assert core.ask("v", made_view(EVENTS)).status is Status.RETRYABLE, "a table has the name"
    assert core.ask("l", made_view(("t",), location=f"{ROOT}/x")).status is Status.RETRYABLE
    assert core.ask("m", made(VIEW, f"{ROOT}/y")).status is Status.RETRYABLE, "a view has it"
    assert core.ask("p", set_property(VIEW, a="1")).code is Code.NO_SUCH_TABLE
    assert core.ask("q", replaced("SELECT 1", EVENTS)).code is Code.NO_SUCH_TABLE
    assert core.ask("s", replaced("SELECT 9", uuid=UUID[:-1] + "b")).status is Status.RETRYABLE
    twice = core.ask("w", made(("db", "z")), made_view(("db", "z"), location=f"{ROOT}/z"))
    assert twice.code is Code.INVALID_OPERATION
    inside = core.ask("i", made_view(("db", "z"), location=f"{ROOT}/ice/events/x"))
    assert inside.code is Code.LOCATION_TAKEN
    nothing = core.ask("f", append(2, "b.lance"), replaced("SELECT 5", ("db", "nothing")))
    assert nothing.code is Code.NO_SUCH_TABLE
    assert core.state().version == 2
    assert core.ask("e", DropNamespace(("db",))).code is Code.INVALID_OPERATION
    assert core.ask("g", DropNamespace(("db",), cascade=True)).status is Status.COMMITTED
    assert core.machine.iceberg.tables == {}
    core.check_replay()


@pytest.mark.parametrize(
    "wrong",
    [
        {"action": "add-view-version", "view-version": {**version(), "schema-id": 9}},
        {"action": "set-current-view-version", "view-version-id": 9},
        {"action": "set-current-view-version", "view-version-id": -1},
        {"action": "add-snapshot", "snapshot": {}},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "assign-uuid", "uuid": UUID[:-1] + "c"},
        {"action": "set-location", "location": "relative"},
        {"action": "set-properties", "updates": {"version.history.num-entries": "0"}},
        {
            "action": "add-view-version",
            "view-version": {
                **version(),
                "schema-id": 0,
                "representations": version()["representations"] * 2,
            },
        },
        7,
    ],
)
def test_what_is_wrong_is_refused(core: IcebergWorld, wrong: Any) -> None:
    core.ask("c", made_view())
    before = members(core)
    requirement = dump_json([{"type": ASSERT_UUID, "uuid": UUID}])
    refused = core.ask("w", IcebergChange(VIEW, requirement, dump_json([wrong])))
    assert refused.code is Code.INVALID_OPERATION
    assert refused.message
    assert members(core) == before


def test_history_names_what_is_done_to_views() -> None:
    assert read_changes(made_view()).name == "create-view"
    assert read_changes(replaced("SELECT 2")).name == "replace-view"


def test_protocol_3_knows_no_views() -> None:
    core = IcebergWorld(rules=Rules(3))
    core.ask("ns", CreateNamespace(("db",)))
    assert core.ask("c", made_view()).code is Code.INVALID_OPERATION
    core.check_replay()


def create(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": SCHEMA, "view-version": version(), "properties": {}, **more}


@pytest.mark.slow
def test_clients_make_views_beside_tables(world: World, server: IcebergServer) -> None:
    pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
    from pyiceberg.catalog import load_catalog

    space = world.fresh_name()
    now = load_catalog("views", type="rest", uri=server.uri)
    now.create_namespace(space)
    rows = pa.table({"id": pa.array([1], pa.int64())})
    now.create_table(f"{space}.t", rows.schema)
    views = f"/v1/namespaces/{space}/views"
    assert not now.view_exists(f"{space}.v")
    reply = server.ask("POST", views, create("v"))
    assert reply.status == 200, reply.data
    loaded = server.ask("GET", f"{views}/v").json
    assert loaded["metadata"] == reply.json["metadata"]
    assert now.view_exists(f"{space}.v")
    assert now.list_views(space) == [(space, "v")]
    assert now.list_tables(space) == [(space, "t")]
    assert not now.table_exists(f"{space}.v")
    with pytest.raises(Exception, match="already exists"):
        now.create_table(f"{space}.v", rows.schema)
    for taken, words in (("v", "View already exists"), ("t", "Table with same name")):
        again = server.ask("POST", views, create(taken))
        assert (again.status, again.error["type"]) == (409, "AlreadyExistsException")
        assert words in again.error["message"]

    position = world.log.position()[0]
    body = {
        "requirements": [{"type": ASSERT_UUID, "uuid": loaded["metadata"]["view-uuid"]}],
        "updates": [
            {"action": "add-view-version", "view-version": {**version("SELECT 2"), "schema-id": 0}},
            {"action": "set-current-view-version", "view-version-id": -1},
        ],
    }
    assert server.ask("POST", f"{views}/v", body).json["metadata"]["current-version-id"] == 2
    body["requirements"][0]["uuid"] = UUID  # type: ignore[index]
    stale = server.ask("POST", f"{views}/v", body)
    assert (stale.status, stale.error["type"]) == (409, "CommitFailedException")
    wrong = server.ask("POST", f"{views}/v", {"requirements": [{"type": "x"}], "updates": []})
    assert wrong.status == 400
    names = {"source": {"namespace": [space], "name": "v"}}
    moved = {**names, "destination": {"namespace": [space], "name": "w"}}
    assert server.ask("POST", "/v1/views/rename", moved).status == 204
    now.drop_view(f"{space}.w")
    assert not now.view_exists(f"{space}.w")
    for method, path in (("GET", f"{views}/w"), ("DELETE", f"{views}/w"), ("GET", f"{views}/t")):
        gone = server.ask(method, path)
        assert (gone.status, gone.error["type"]) == (404, "NoSuchViewException")
    assert server.ask("POST", f"{views}/w", body).status == 404

    then = load_catalog("then", type="rest", uri=server.uri, warehouse=f"at:{position}")
    assert then.list_views(space) == [(space, "v")]
    assert then.view_exists(f"{space}.v")
    there = server.ask("GET", f"/v1/at-{position}/namespaces/{space}/views/v").json
    assert there == loaded
    world.log.undrop([space, "w"])
    again = server.ask("GET", f"{views}/w").json["metadata"]
    assert again["view-uuid"] == loaded["metadata"]["view-uuid"]
    assert again["current-version-id"] == 2
    assert [one["representations"][0]["sql"] for one in again["versions"]] == [
        "SELECT 1 AS n",
        "SELECT 2",
    ]
    position = world.log.position()[0]
    body["requirements"] = []
    body["updates"][0]["view-version"] = {**version("SELECT 3"), "schema-id": 0}  # type: ignore[index]
    assert server.ask("POST", f"{views}/w", body).json["metadata"]["current-version-id"] == 3
    world.log.restore([[space, "w"], [space, "t"]], position)
    assert server.ask("GET", f"{views}/w").json["metadata"]["current-version-id"] == 2
    assert world.log.restore([[space, "w"], [space, "t"]], position) is None


def test_a_lance_request_is_told_that_a_name_is_a_views(
    world: World, server: IcebergServer
) -> None:
    space = world.fresh_name()
    server.ask("POST", "/v1/namespaces", {"namespace": [space]})
    assert server.ask("POST", f"/v1/namespaces/{space}/views", create("v")).status == 200
    past = {"x-commitlog-sequence": str(world.log.position()[0])}
    for headers in ({}, past):
        status, body = world.post(f"/v1/table/{space}$v/describe", {}, headers=headers)
        assert (status, body["code"]) == (404, 4)
        assert "is an Iceberg view, not a Lance table" in body["error"]


def test_a_table_is_not_dropped_as_a_view(world: World, server: IcebergServer) -> None:
    """Whatever key comes with the request: Java's client sends one with each."""
    space = world.fresh_name()
    server.ask("POST", "/v1/namespaces", {"namespace": [space]})
    place = f"/v1/namespaces/{space}"
    assert server.ask("POST", f"{place}/tables", {"name": "t", "schema": SCHEMA}).status == 200
    world.write([space, "lance"], numbers(0, 1))
    for name in ("t", "lance"):
        for headers in ({}, {"Idempotency-Key": str(uuid_utils.uuid7())}):
            reply = server.ask("DELETE", f"{place}/views/{name}", headers=headers)
            assert (reply.status, reply.error["type"]) == (404, "NoSuchViewException")
    assert server.ask("HEAD", f"{place}/tables/t").status == 204
    assert world.log.table(f"{space}$lance").version == 1
    assert server.ask("POST", f"{place}/views", create("v")).status == 200
    key = {"Idempotency-Key": str(uuid_utils.uuid7())}
    for _ in range(2):
        assert server.ask("DELETE", f"{place}/views/v", headers=key).status == 204


def test_a_view_is_registered_by_its_metadata(world: World, server: IcebergServer) -> None:
    from pyiceberg.catalog import load_catalog

    space = world.fresh_name()
    now = load_catalog("views", type="rest", uri=server.uri)
    now.create_namespace(space)
    now.create_table(f"{space}.t", pa.schema([("n", pa.int64())]))
    views = f"/v1/namespaces/{space}/views"
    assert server.ask("POST", views, create("w")).status == 200
    body = {
        "updates": [
            {"action": "add-view-version", "view-version": {**version("SELECT 2"), "schema-id": 0}},
            {"action": "set-current-view-version", "view-version-id": -1},
        ]
    }
    whole = server.ask("POST", f"{views}/w", body).json
    again, again_at = whole["metadata"], whole["metadata-location"]
    now.drop_view(f"{space}.w")
    place = server.ask("GET", f"/v1/namespaces/{space}/tables/t").json["metadata-location"]
    at = {"name": "w", "metadata-location": again_at}
    register = f"/v1/namespaces/{space}/register-view"
    endless = Path(again_at).with_name("endless.metadata.json")
    endless.write_text(Path(again_at).read_text().replace('"schemas":', '"x":1e400,"schemas":', 1))
    places = (place, str(endless))
    for other in ({**at, "name": "t"}, *({**at, "metadata-location": one} for one in places)):
        assert server.ask("POST", register, other).status in (400, 409)
    back = now.register_view(f"{space}.w", again_at)
    assert str(back.metadata.view_uuid) == again["view-uuid"]
    registered = server.ask("GET", f"{views}/w").json["metadata"]
    for member in ("versions", "version-log", "schemas", "current-version-id", "location"):
        assert registered[member] == again[member]
    assert server.ask("POST", register, at).error["type"] == "AlreadyExistsException"


def test_equal_schemas_and_versions_of_a_registered_view_are_one(
    world: World, server: IcebergServer
) -> None:
    space = world.fresh_name()
    server.ask("POST", "/v1/namespaces", {"namespace": [space]})
    views = f"/v1/namespaces/{space}/views"
    fields = [{"id": 1, "name": "n", "required": False, "type": "string"}]
    other = {**SCHEMA, "fields": fields}
    one, two = {**version(), "schema-id": 1}, {**version("SELECT 'x' AS n"), "schema-id": 3}
    found = {
        "view-uuid": UUID,
        "format-version": 1,
        "location": f"{world.tables_root}/{space}/w",
        "schemas": [{**SCHEMA, "schema-id": 1}, {**SCHEMA, "schema-id": 2}]
        + [{**other, "schema-id": 3}],
        "versions": [
            {**one, "version-id": 4},
            {**one, "version-id": 5, "schema-id": 2},
            {**two, "version-id": 6},
        ],
        "version-log": [{"timestamp-ms": 1_700_000_000_000, "version-id": n} for n in (4, 5, 6)],
        "current-version-id": 6,
        "properties": {},
    }
    place = world.tables_root / space / "w.metadata.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(found))
    body = {"name": "w", "metadata-location": str(place)}
    answer = server.ask("POST", f"/v1/namespaces/{space}/register-view", body)
    assert answer.status == 200, answer.data
    registered = server.ask("GET", f"{views}/w").json["metadata"]
    (current,) = (
        one
        for one in registered["versions"]
        if one["version-id"] == registered["current-version-id"]
    )
    (schema,) = (one for one in registered["schemas"] if one["schema-id"] == current["schema-id"])
    assert current["representations"] == two["representations"]
    assert schema["fields"] == fields


def test_a_view_and_tables_of_both_formats_commit_over_http_by_one_record(world: World) -> None:
    space = world.fresh_name()
    world.write([space, "l"], pa.table({"n": pa.array([1], pa.int64())}))
    place = f"{world.tables_root}/{space}.v"
    change = made_view((space, "v"), location=place)
    updates = json.loads(change.updates)
    operations = [
        {"append": {"table": f"{space}$l", "rows": [{"n": 2}]}},
        {"iceberg_change": {"table": [space, "v"], "requirements": [{"type": ASSERT_CREATE}],
                            "updates": updates}},
    ]  # fmt: skip
    status, body = world.post("/v1/log/transactions", {"operations": operations})
    assert status == 200, body
    assert [one["operation"] for one in body["results"]] == ["Append", "IcebergView"]
    status, body = world.post("/v1/log/transactions", {"operations": operations})
    assert status == 409, body
    assert world.open([space, "l"]).count_rows() == 2, "all or nothing"
    forbidden = {"action": "commitlog-register", "metadata-location": "x", "metadata": {}}
    wrong = {"table": [space, "w"], "updates": [forbidden]}
    status, body = world.post("/v1/log/transactions", {"operations": [{"iceberg_change": wrong}]})
    assert status == 400
    assert "operations[0]" in body["error"]
    for field in ("requirements", "updates"):
        endless = {"table": [space, "w"], "updates": [], field: [{"type": "x", "y": float("inf")}]}
        sent = json.dumps({"operations": [{"iceberg_change": endless}]}).replace(
            "Infinity", "1e400"
        )
        status, body = world.post("/v1/log/transactions", sent.encode())
        assert (status, "64-bit float" in body["error"]) == (400, True)
