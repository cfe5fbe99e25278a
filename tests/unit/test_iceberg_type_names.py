"""Types in requests have any case, as in Iceberg's Java library; what is kept has one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from commitlog.client.commits.iceberg_text import checked_change
from commitlog.model.operations import IcebergChange
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.service import IcebergSettings
from tests.iceberg_server import IcebergServer, serving
from tests.namespace_world import World
from tests.unit.test_iceberg_views import version

pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")
_ROOT = "/v1/namespaces/a"


def field(number: int, kind: Any, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": f"c{number}", "required": False, "type": kind, **more}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "schema-id": 0, "fields": list(fields)}


LIST = {"type": "list", "element-id": 3, "element": "INT", "element-required": False}
MAP = {"type": "map", "key-id": 5, "key": "Date", "value-id": 6, "value": struct(field(7, "UUID"))}
SENT = struct(field(1, "STRING"), field(2, LIST), field(4, {**MAP, "value-required": False}),
              field(8, "Decimal(9,2)"), field(9, "FIXED[ 4 ]"))  # fmt: skip


def kinds(schema: dict[str, Any]) -> list[Any]:
    string, several, mapped, decimal, fixed = (one["type"] for one in schema["fields"])
    (inner,) = mapped["value"]["fields"]
    return [string, several["element"], mapped["key"], inner["type"], decimal, fixed]


KEPT = ["string", "int", "date", "uuid", "decimal(9, 2)", "fixed[4]"]


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[IcebergServer]:
    with serving(LogIcebergService(world.log), IcebergSettings(f"{world.tables_root}")) as running:
        assert running.ask("POST", "/v1/namespaces", {"namespace": ["a"]}).status == 200
        yield running


def test_a_table_s_types_are_written_as_everybody_reads_them(server: IcebergServer) -> None:
    properties = {"format-version": "3"}
    made = server.ask(
        "POST", f"{_ROOT}/tables", {"name": "t", "schema": SENT, "properties": properties}
    )
    assert made.status == 200, made.data
    assert kinds(made.json["metadata"]["schemas"][0]) == KEPT
    more = struct(*SENT["fields"], field(10, "STRING"))
    updates = [{"action": "add-schema", "schema": more}]
    change = {"identifier": {"namespace": ["a"], "name": "t"}, "requirements": []}
    changes = {"table-changes": [{**change, "updates": updates}]}
    assert server.ask("POST", "/v1/transactions/commit", changes).status in (200, 204)
    last = server.ask("GET", f"{_ROOT}/tables/t").json["metadata"]["schemas"][-1]
    assert last["fields"][-1]["type"] == "string"
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("log", type="rest", uri=server.uri)
    assert "string" in str(catalog.load_table("a.t").schema().as_struct().fields[0])


def test_a_change_by_the_client_is_kept_like_one_over_http(
    server: IcebergServer, world: World
) -> None:
    wanted = {"name": "by_log", "schema": struct(field(1, "string"))}
    assert server.ask("POST", f"{_ROOT}/tables", wanted).status == 200
    schema = struct(field(1, "STRING"), field(10, "LONG"))
    updates = [{"action": "add-schema", "schema": schema}]
    change = IcebergChange(("a", "by_log"), "[]", json.dumps(updates))
    world.log.submit(None, change).result(timeout=30).raise_for_conflict()
    last = server.ask("GET", f"{_ROOT}/tables/by_log").json["metadata"]["schemas"][-1]
    assert [one["type"] for one in last["fields"]] == ["string", "long"]
    spaced = IcebergChange(("a", "by_log"), "[ ]", "[ ]")
    assert checked_change(spaced) is spaced, "its text is part of what a repetition has in common"


def view(name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "schema": schema, "view-version": version(), "properties": {}}


def test_a_view_s_types_and_defaults_are_those_of_tables(
    server: IcebergServer, world: World
) -> None:
    made = server.ask("POST", f"{_ROOT}/views", view("v", SENT))
    assert made.status == 200, made.data
    assert kinds(made.json["metadata"]["schemas"][0]) == KEPT
    wrong = struct(field(1, "INT", **{"initial-default": "x"}))
    refused = server.ask("POST", f"{_ROOT}/views", view("w", wrong))
    assert (refused.status, "initial-default" in refused.error["message"]) == (400, True)
    updates = [{"action": "add-schema", "schema": wrong}]
    refused = server.ask("POST", f"{_ROOT}/views/v", {"updates": updates})
    assert (refused.status, "initial-default" in refused.error["message"]) == (400, True)
    sent = {"table": ["a", "v"], "updates": updates}
    sent["requirements"] = [
        {"type": "assert-view-uuid", "uuid": made.json["metadata"]["view-uuid"]}
    ]
    status, body = world.post("/v1/log/transactions", {"operations": [{"iceberg_change": sent}]})
    assert (status, "initial-default" in body["error"]) == (400, True), body
