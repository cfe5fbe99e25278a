"""What clients of the Iceberg catalogue are told, above all when something goes wrong."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote
from uuid import uuid4

import pytest
from lance_namespace import CreateNamespaceRequest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError
from starlette.requests import Request

from commitlog.errors import CorruptLog, OutcomeUnknown, Overloaded, RecordTooLarge, Unavailable
from commitlog.model.limits import NAME_PARTS_MAX
from commitlog.model.operations import CreateNamespace
from consumers.servers import name_pages
from consumers.servers.iceberg import rest
from consumers.servers.iceberg.catalog import IcebergCatalog
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.request_context import IcebergRequest
from consumers.servers.iceberg.service import IcebergSettings
from consumers.servers.vending.vendor import Subject
from tests.iceberg_server import IcebergServer, Reply, serving
from tests.namespace_world import World
from tests.unit.iceberg_examples import create_updates, schema
from tests.unit.test_iceberg_views import version

_COMMIT = "/v1/transactions/commit"
_TABLES = "/v1/namespaces/analytics/tables"
_KEY = {"Idempotency-Key": "0190a0a0-0000-7000-8000-00000000beef"}


@pytest.fixture(scope="module")
def service(world: World) -> LogIcebergService:
    return LogIcebergService(world.log)


@pytest.fixture(scope="module")
def server(service: LogIcebergService) -> Iterator[IcebergServer]:
    settings = IcebergSettings(
        f"file://{service.tables_root}", tables_max=3, updates_max=4, body_bytes_max=4_000
    )
    with serving(service, settings) as running:
        assert running.ask("POST", "/v1/namespaces", {"namespace": ["analytics"]}).status == 200
        yield running


@pytest.fixture
def table(server: IcebergServer, request: pytest.FixtureRequest) -> str:
    name = request.node.name.split("[")[0]
    if server.ask("HEAD", f"{_TABLES}/{name}").status == 404:
        assert _create(server, name).status == 200
    return str(name)


def _create(server: IcebergServer, name: str, **more: Any) -> Reply:
    body = {"name": name, "schema": schema("id"), **more}
    return server.ask("POST", _TABLES, body)


def _change(name: str, key: str = "k", requirements: Any = ()) -> dict[str, Any]:
    return {
        "identifier": {"namespace": ["analytics"], "name": name},
        "requirements": list(requirements),
        "updates": [{"action": "set-properties", "updates": {key: "v"}}],
    }


def _commit(
    server: IcebergServer, *changes: dict[str, Any], headers: dict[str, str] | None = None
) -> Reply:
    return server.ask("POST", _COMMIT, {"table-changes": list(changes)}, headers)


@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (OutcomeUnknown("no answer in 30 s", "some-id"), 500, "CommitStateUnknownException"),
        (Unavailable("no leader"), 503, "ServiceUnavailableException"),
        (Overloaded("busy", 2.6), 503, "ServiceUnavailableException"),
        (RecordTooLarge("17 MB"), 400, "BadRequestException"),
        (CorruptLog("hash differs"), 500, "ServerError"),
        (RuntimeError("our bug"), 500, "ServerError"),
    ],
)
def test_only_what_did_not_land_is_a_4xx(
    server: IcebergServer,
    service: LogIcebergService,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    status: int,
    kind: str,
) -> None:
    monkeypatch.setattr(service, "submit", Mock(side_effect=failure))
    reply = _commit(server, _change("t"))
    assert (reply.status, reply.error["type"], reply.error["code"]) == (status, kind, status)
    assert ("retry-after" in reply.headers) == (status == 503)
    assert set(reply.error) == {"message", "type", "code"}
    if isinstance(failure, Overloaded):
        assert reply.headers["retry-after"] == "3"
    if isinstance(failure, OutcomeUnknown):
        # The client had no key; with this one it hears how it ended.
        assert "Idempotency-Key: some-id" in reply.error["message"]


def test_limits_and_sizes_are_the_operators(server: IcebergServer, table: str) -> None:
    many = _commit(server, *[_change(f"t{i}") for i in range(4)])
    assert (many.status, "4 tables" in many.error["message"]) == (400, True)
    large = server.ask("POST", _COMMIT, b"[" + b" " * 4_000 + b"]")
    assert (large.status, "4000 bytes" in large.error["message"]) == (413, True)
    change = _change(table)
    change["updates"] *= 5
    assert _commit(server, change).status == 400


def test_the_same_key_gets_the_same_answer(server: IcebergServer, table: str) -> None:
    first = _commit(server, _change(table), headers=_KEY)
    made = server.ask("GET", f"{_TABLES}/{table}").data
    second = _commit(server, _change(table), headers=_KEY)
    assert first.data == second.data
    assert first.json["commit-id"] == f"txn-{_KEY['Idempotency-Key']}"
    assert server.ask("GET", f"{_TABLES}/{table}").data == made
    other = _commit(server, _change(table, key="other"), headers=_KEY)
    assert (other.status, other.error["type"]) == (400, "BadRequestException")
    assert "the Idempotency-Key was used for another request" in other.error["message"]
    bad = _commit(server, _change(table), headers={"Idempotency-Key": "mine"})
    assert (bad.status, "Idempotency-Key" in bad.error["message"]) == (400, True)


def test_the_id_of_a_request_without_a_key_is_its_key(server: IcebergServer, table: str) -> None:
    first = _commit(server, _change(table))
    number = first.json["commit-id"].removeprefix("txn-")
    again = _commit(server, _change(table), headers={"Idempotency-Key": number})
    assert (first.status, again.data) == (200, first.data)


def test_a_create_may_be_repeated_under_its_key(server: IcebergServer) -> None:
    key = {"Idempotency-Key": "0190a0a0-0000-7000-8000-00000000cafe"}
    body = {"name": "made_once", "schema": schema("id")}
    first = server.ask("POST", _TABLES, body, key)
    assert (first.status, first.data) == (200, server.ask("POST", _TABLES, body, key).data)
    again = server.ask("POST", _TABLES, body)
    assert (again.status, again.error["type"]) == (409, "AlreadyExistsException")
    assert server.ask("DELETE", f"{_TABLES}/made_once").status == 204
    assert server.ask("DELETE", f"{_TABLES}/made_once").status == 404


def test_the_file_holds_what_the_catalogue_says(server: IcebergServer, table: str) -> None:
    reply = server.ask("POST", f"{_TABLES}/{table}", {**_change(table)})
    assert reply.status == 200
    path = Path(reply.json["metadata-location"].removeprefix("file://"))
    assert json.loads(path.read_text()) == reply.json["metadata"]
    assert server.ask("GET", f"{_TABLES}/{table}").data == reply.data
    assert path.name.startswith("00001-")


def test_nothing_to_do_leaves_the_location(server: IcebergServer, table: str) -> None:
    before = server.ask("GET", f"{_TABLES}/{table}").json["metadata-location"]
    reply = _commit(server, {**_change(table), "updates": []})
    assert reply.json["results"][0]["metadata-location"] == before


def test_a_table_can_be_made_within_a_transaction(server: IcebergServer, table: str) -> None:
    create = {
        **_change("made_along", requirements=[{"type": "assert-create"}]),
        "updates": [*create_updates("file:///nowhere/x")][:4],
    }
    assert _commit(server, create).status == 400  # four updates do not make a table
    assert server.ask("HEAD", f"{_TABLES}/made_along").status == 404
    nowhere = {**create, "identifier": {"namespace": ["no"], "name": "t"}}
    reply = _commit(server, _change(table), nowhere)
    assert (reply.status, reply.error["type"]) == (404, "NoSuchTableException")


def test_staging_makes_nothing(world: World, server: IcebergServer) -> None:
    before = world.log.runtime().request(0, "status")["sequence"]
    reply = _create(server, "staged", **{"stage-create": True})
    assert reply.status == 200
    assert "metadata-location" not in reply.json
    assert reply.json["metadata"]["location"].startswith("file://")
    assert world.log.runtime().request(0, "status")["sequence"] == before
    assert server.ask("HEAD", f"{_TABLES}/staged").status == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a#1", "a?b", "a%20b", "*", "[x]", "a b", "\u00fc" * 255, "x" * 255, ".hidden"]
)
def test_a_place_holds_nothing_that_a_client_misreads(server: IcebergServer, name: str) -> None:
    space = f"in {name}"[:255]
    path = f"/v1/namespaces/{quote(space)}"
    assert server.ask("POST", "/v1/namespaces", {"namespace": [space]}).status == 200
    body = {"name": name, "schema": schema("id")}
    made = server.ask("POST", f"{path}/tables", body)
    assert made.status == 200
    staged = server.ask("POST", f"{path}/tables", {**body, "name": "s", "stage-create": True})
    for reply in (made, staged):
        location = reply.json["metadata"]["location"]
        parts = location.split("/")[-2:]
        assert all(re.fullmatch(r"[A-Za-z0-9._~-]{1,200}", part) for part in parts), location
    assert server.ask("GET", f"{path}/tables/{quote(name)}").status == 200


def test_missing_and_taken_names(server: IcebergServer, table: str) -> None:
    for method, path, status, kind in [
        ("GET", f"{_TABLES}/nope", 404, "NoSuchTableException"),
        ("GET", "/v1/namespaces/nope/tables", 404, "NoSuchNamespaceException"),
        ("GET", "/v1/namespaces/nope", 404, "NoSuchNamespaceException"),
        ("DELETE", "/v1/namespaces/nope", 404, "NoSuchNamespaceException"),
        ("DELETE", "/v1/namespaces/analytics", 409, "NamespaceNotEmptyException"),
        ("GET", "/v1/namespaces/..", 400, "BadRequestException"),
        ("GET", f"{_TABLES}/{table}?snapshots=some", 400, "BadRequestException"),
        ("GET", f"{_TABLES}?pageSize=x", 400, "BadRequestException"),
        ("GET", f"{_TABLES}?pageSize={'9' * 5_000}", 400, "BadRequestException"),
        ("GET", f"{_TABLES}?pageSize={quote('٣')}", 400, "BadRequestException"),
    ]:
        reply = server.ask(method, path)
        assert (reply.status, reply.error["type"]) == (status, kind), path
    deep = server.ask("POST", "/v1/namespaces", {"namespace": ["x", "y"]})
    assert (deep.status, deep.error["type"]) == (404, "NoSuchNamespaceException")
    both = {"removals": ["a"], "updates": {"a": "b"}}
    reply = server.ask("POST", "/v1/namespaces/analytics/properties", both)
    assert (reply.status, reply.error["type"]) == (422, "UnprocessableEntityException")
    head = server.ask("HEAD", f"{_TABLES}/nope")
    assert (head.status, head.data) == (404, b"")


def test_a_table_and_a_namespace_may_share_a_name(server: IcebergServer, table: str) -> None:
    inner = f"/v1/namespaces/analytics%1F{table}"
    for namespace in (["analytics", table], ["analytics", f"{table}_later"]):
        assert server.ask("POST", "/v1/namespaces", {"namespace": namespace}).status == 200
    assert _create(server, f"{table}_later").status == 200
    made = server.ask("POST", f"{inner}/tables", {"name": "t", "schema": schema("id")})
    assert made.status == 200
    assert server.ask("DELETE", f"{_TABLES}/{table}").status == 204
    assert server.ask("HEAD", f"{inner}/tables/t").status == 204


def test_a_missing_metadata_file_is_told(server: IcebergServer, table: str) -> None:
    path = f"{_TABLES}/{table}"
    file = Path(server.ask("GET", path).json["metadata-location"].removeprefix("file://"))
    aside = file.rename(file.with_suffix(".aside"))
    reply = server.ask("GET", path)
    aside.rename(file)
    assert (reply.status, reply.error["type"]) == (404, "NotFoundException")
    assert server.ask("GET", path).status == 200


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"type": "assert-create"}, "table already exists"),
        ({"type": "assert-table-uuid", "uuid": "x"}, "UUID does not match"),
        (
            {"type": "assert-default-spec-id", "default-spec-id": 7},
            "default partition spec changed",
        ),
        ({"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}, "main is missing"),
    ],
)
def test_one_tables_refusal_is_said_as_java_says_it(
    server: IcebergServer, table: str, wish: dict[str, Any], said: str
) -> None:
    reply = server.ask("POST", f"{_TABLES}/{table}", _change(table, requirements=[wish]))
    assert (reply.status, reply.error["type"]) == (409, "CommitFailedException")
    assert reply.error["message"].startswith("Requirement failed: ")
    assert said in reply.error["message"]


def test_a_purge_is_wished_for_clearly(server: IcebergServer, table: str) -> None:
    for said in ("yes", "1", ""):
        reply = server.ask("DELETE", f"{_TABLES}/{table}?purgeRequested={said}")
        assert (reply.status, reply.error["message"]) == (
            400,
            f"purgeRequested must be true or false, not {said!r}",
        )
    both = f"{_TABLES}/{table}?purgeRequested=false&purgeRequested=true"
    reply = server.ask("DELETE", both)
    assert reply.status == 400
    assert reply.error["message"] == "the parameter purgeRequested is given twice. Give it once."
    assert server.ask("DELETE", f"{_TABLES}/{table}?purgeRequested=True").status == 204


def test_without_a_guard_nobody_is_shown_any_name() -> None:
    """Who may see what is the guard's to say; where it was left out, nothing says it."""
    scope = {"type": "http", "headers": [], "query_string": b""}
    viewer = IcebergRequest(Request(scope), b"").viewer
    assert not viewer.sees(("shop",))
    with pytest.raises(PermissionDeniedError):
        viewer.need(("shop",))


def test_lists_come_in_pages(server: IcebergServer) -> None:
    server.ask("POST", "/v1/namespaces", {"namespace": ["paged"]})
    for i in range(3):
        body = {"name": f"t{i}", "schema": schema("id")}
        assert server.ask("POST", "/v1/namespaces/paged/tables", body).status == 200
    names, token = [], ""
    while True:
        path = f"/v1/namespaces/paged/tables?pageSize=2&pageToken={token}"
        page = server.ask("GET", path).json
        names += [item["name"] for item in page["identifiers"]]
        token = page["next-page-token"]
        if token is None:
            break
    assert names == ["t0", "t1", "t2"]
    # As the specification has it for a client that doesn't begin with an empty token.
    for asked in ("", "?pageSize=2"):
        page = server.ask("GET", f"/v1/namespaces/paged/tables{asked}").json
        assert [item["name"] for item in page["identifiers"]] == names
        assert page["next-page-token"] is None


def test_a_page_costs_the_leader_what_is_on_it(
    server: IcebergServer, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside 5,000 namespaces, each page took as long as a list of all of them."""
    monkeypatch.setattr(name_pages, "ASKED_LEAST", 2)
    numbers = [f"n{number:02}" for number in range(12)]
    for parts in ([], *([one] for one in numbers), ["n03", "deep"]):
        assert server.ask("POST", "/v1/namespaces", {"namespace": ["wide", *parts]}).status == 200
    view = {"name": "v", "schema": schema("id"), "view-version": version(), "properties": {}}
    assert server.ask("POST", "/v1/namespaces/wide/views", view).status == 200
    for number in numbers:
        body = {"name": number, "schema": schema("id")}
        assert server.ask("POST", "/v1/namespaces/wide/tables", body).status == 200
    runtime, told = world.log.runtime(), list[int]()
    ask = runtime.request

    def noted(partition: int, method: str, **params: Any) -> Any:
        found = ask(partition, method, **params)
        told.extend([len(found)] if method in ("namespaces", "iceberg_tables") else [])
        return found

    monkeypatch.setattr(runtime, "request", noted)

    def pages(path: str, kind: str) -> list[list[Any]]:
        found, token = list[list[Any]](), ""
        while token is not None:
            body = server.ask("GET", f"{path}pageSize=5&pageToken={token}").json
            found.append([one["name"] if kind == "identifiers" else one[1] for one in body[kind]])
            token = body["next-page-token"]
        return found

    in_pages = [numbers[:5], numbers[5:10], numbers[10:]]
    assert pages("/v1/namespaces?parent=wide&", "namespaces") == in_pages
    assert pages("/v1/namespaces/wide/tables?", "identifiers") == in_pages
    assert pages("/v1/namespaces/wide/views?", "identifiers") == [["v"]]
    assert max(told) == 6, "one more than a page shows"


def test_the_configuration_names_every_route(server: IcebergServer) -> None:
    config = server.ask("GET", "/v1/config?warehouse=w").json
    assert "POST /v1/{prefix}/transactions/commit" in config["endpoints"]
    assert "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert config["idempotency-key-lifetime"] == "P7D"


def test_access_is_told_for_a_place_without_a_slash_at_its_end(
    service: LogIcebergService, server: IcebergServer, table: str
) -> None:
    found = server.ask("GET", f"{_TABLES}/{table}").json
    assert server.ask("DELETE", f"{_TABLES}/{table}").status == 204
    home, uuid = found["metadata"]["location"], found["metadata"]["table-uuid"]
    members = {**found["metadata"], "location": f"{home}/", "table-uuid": uuid.upper()}
    place = Path(f"{home.removeprefix('file://')}/metadata/slashed.metadata.json")
    place.write_text(json.dumps(members))
    body = {"name": table, "metadata-location": str(place)}
    assert server.ask("POST", "/v1/namespaces/analytics/register", body).status == 200
    told: list[Subject] = []

    def tell(subject: Subject) -> dict[str, Any]:
        told.append(subject)
        return {}

    catalog = IcebergCatalog(service, IcebergSettings(""))
    catalog.tell = lambda asked: tell  # type: ignore[method-assign]
    scope = {"type": "http", "headers": [], "query_string": b""}
    asked = Request({**scope, "path_params": {"namespace": "analytics", "table": table}})
    assert catalog.load_table(IcebergRequest(asked, b"")).status_code == 200
    assert told == [Subject(("analytics", table), uuid, home)]


def test_a_report_is_of_a_table_that_exists(server: IcebergServer, table: str) -> None:
    report = {"report-type": "scan-report"}
    assert server.ask("POST", f"{_TABLES}/{table}/metrics", report).status == 204
    missing = server.ask("POST", f"{_TABLES}/missing/metrics", report)
    assert (missing.status, missing.error["type"]) == (404, "NoSuchTableException")


def test_a_table_that_did_not_change_is_not_sent_again(server: IcebergServer, table: str) -> None:
    path = f"{_TABLES}/{table}"
    first = server.ask("GET", path)
    tag = first.headers["etag"]
    for known in (tag, f'W/{tag}, "other"', "*"):
        same = server.ask("GET", path, headers={"If-None-Match": known})
        assert (same.status, same.data, same.headers["etag"]) == (304, b"", tag)
    refs = server.ask("GET", f"{path}?snapshots=refs", headers={"If-None-Match": tag})
    assert (refs.status, refs.headers["etag"] == tag) == (200, False)
    updates = [{"action": "set-properties", "updates": {"tag": "new"}}]
    changed = server.ask("POST", path, {"requirements": [], "updates": updates})
    assert changed.headers["etag"] != tag
    after = server.ask("GET", path, headers={"If-None-Match": tag})
    assert (after.status, after.headers["etag"]) == (200, changed.headers["etag"])


@pytest.mark.parametrize(
    "path", ["/v1/config", "/v1/namespaces", _TABLES, "/v1/namespaces/no/tables"]
)
def test_what_can_be_read_can_be_asked_for_its_head(server: IcebergServer, path: str) -> None:
    """HTTP asks it of every server, and what watches one does so."""
    read, head = server.ask("GET", path), server.ask("HEAD", path)
    assert (head.status, head.data) == (read.status, b"")
    assert head.headers["content-length"] in ("0", read.headers["content-length"])


@pytest.mark.parametrize("is_old", [False, True])
def test_of_snapshots_those_that_refs_name_are_shown(
    service: LogIcebergService, server: IcebergServer, table: str, is_old: bool
) -> None:
    """A table of an old format may have no refs: its current snapshot is the main branch's."""
    found = server.ask("GET", f"{_TABLES}/{table}").json["metadata"]
    one = {"timestamp-ms": 1, "manifest-list": "/m.avro", "summary": {"operation": "append"}}
    found["snapshots"] = [{**one, "snapshot-id": n, "sequence-number": n} for n in (1, 2, 3)]
    found |= {"current-snapshot-id": 2, "last-sequence-number": 3}
    found["refs"] = {"main": {"type": "branch", "snapshot-id": 2}}
    if is_old:
        del found["refs"]
    file = Path(service.tables_root) / f"{table}-{is_old}.metadata.json"
    file.write_text(json.dumps({**found, "table-uuid": str(uuid4()), "location": f"{file}.d"}))
    body = {"name": file.name, "metadata-location": str(file)}
    assert server.ask("POST", "/v1/namespaces/analytics/register", body).status == 200
    shown = server.ask("GET", f"{_TABLES}/{file.name}?snapshots=refs").json["metadata"]
    whole = server.ask("GET", f"{_TABLES}/{file.name}").json["metadata"]
    assert [one["snapshot-id"] for one in shown["snapshots"]] == [2]
    assert {**shown, "snapshots": 0} == {**whole, "snapshots": 0, "refs": shown["refs"]}
    assert shown["refs"] == {"main": {"type": "branch", "snapshot-id": 2}}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/namespaces/analytics/tables/t/tasks"),
        ("POST", "/v1/namespaces/analytics/tables/t/plan"),
        ("POST", "/v1/namespaces/analytics/tables/t/unregister"),
        ("GET", "/v1/namespaces/analytics/tables/t/credentials"),
        ("GET", "/v1/namespaces/analytics/functions/f"),
    ],
)
def test_what_is_not_offered_is_said_so(server: IcebergServer, method: str, path: str) -> None:
    reply = server.ask(method, path, {} if method == "POST" else None)
    assert reply.status == 406
    if method != "HEAD":
        assert reply.error["type"] == "UnsupportedOperationException"
        assert path in reply.error["message"]
    endpoints = server.ask("GET", "/v1/config").json["endpoints"]
    assert not [one for one in endpoints if "tasks" in one or "plan" in one]


@pytest.mark.parametrize(
    ("method", "path", "status", "allowed"),
    [
        ("GET", _COMMIT, 405, "POST"),
        ("PUT", f"{_TABLES}/t", 405, "DELETE, GET, HEAD, POST"),
        ("OPTIONS", "/v1/namespaces", 405, "GET, HEAD, POST"),
        ("POST", f"{_TABLES}/t/c", 404, None),
        ("GET", "/v1/transactions", 404, None),
        ("GET", "/v1/at-5/namespaces", 404, None),
    ],
)
def test_what_is_no_route_is_refused_in_the_catalogues_shape(
    server: IcebergServer, method: str, path: str, status: int, allowed: str | None
) -> None:
    reply = server.ask(method, path)
    assert (reply.status, reply.error["code"]) == (status, status)
    assert reply.headers.get("allow") == allowed
    assert set(reply.error) == {"message", "type", "code"}
    assert reply.error["type"] == "UnsupportedOperationException"
    assert f"{method} {path}" in reply.error["message"]
    assert server.ask("HEAD", _COMMIT).data == b""


def test_no_view_is_there(server: IcebergServer) -> None:
    path = "/v1/namespaces/analytics/views/v"
    assert server.ask("HEAD", path).status == 404
    reply = server.ask("GET", path)
    assert (reply.status, reply.error["type"]) == (404, "NoSuchViewException")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/namespaces/a%00b", None),
        ("GET", "/v1/namespaces?pageToken=%00", None),
        ("GET", "/v1/namespaces?parent=a%00", None),
        ("POST", "/v1/namespaces", {"namespace": ["n"], "properties": {"a": "x\0y"}}),
        ("POST", "/v1/namespaces", {"namespace": ["n"], "properties": {"x\0y": "a"}}),
        ("POST", "/v1/namespaces/n/register", {"name": "r", "metadata-location": "/t/\0"}),
    ],
)
def test_a_nul_is_refused_wherever_it_is(
    server: IcebergServer, method: str, path: str, body: Any
) -> None:
    reply = server.ask(method, path, body)
    assert (reply.status, reply.error["type"]) == (400, "BadRequestException")
    assert "NUL" in reply.error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{_TABLES}/t", '{"requirements": [], "updates": [{"action": "nothing", "x": 1e400}]}'),
        (f"{_TABLES}/t", '{"requirements": [{"type": "assert-create", "x": 1E+400}]}'),
        (_TABLES, '{"name": "n", "schema": {"type": "struct", "fields": [], "x": -1e999}}'),
        (_COMMIT, '{"table-changes": [], "x": %s.0}' % ("1" * 400)),
        ("/v1/namespaces/analytics/views", '{"name": "n", "view-version": {"x": [1e0400]}}'),
        ("/v1/namespaces/analytics/properties", '{"updates": {}, "x": 1.5e309}'),
    ],
)
def test_a_number_that_no_float_holds_is_refused(
    server: IcebergServer, path: str, body: str
) -> None:
    reply = server.ask("POST", path, body.encode())
    assert (reply.status, reply.error["type"]) == (400, "BadRequestException")
    assert "64-bit float" in reply.error["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/namespaces", b'{"namespace": ["one"], "namespace": ["two"]}'),
        (_TABLES, b'{"name": "a", "name": "b", "schema": {"type": "struct", "fields": []}}'),
        (_COMMIT, b'{"table-changes": [{"updates": [{"action": "a", "action": "b"}]}]}'),
        (f"{_TABLES}/t", b'{"requirements": [], "updates": [], "requirements": []}'),
        ("/v1/tables/rename", b'{"source": {}, "destination": {}, "source": {}}'),
        ("/v1/namespaces/analytics/views", b'{"name": "a", "name": "b"}'),
    ],
)
def test_a_field_that_is_there_twice_is_refused(
    server: IcebergServer, path: str, body: bytes
) -> None:
    reply = server.ask("POST", path, body)
    assert (reply.status, reply.error["type"]) == (400, "BadRequestException")
    assert "twice; give it once" in reply.error["message"]
    names = server.ask("GET", "/v1/namespaces").json["namespaces"]
    assert ["one"] not in names
    assert ["two"] not in names


def test_what_looks_like_such_a_number_is_none(server: IcebergServer, table: str) -> None:
    values = {"a": "1e400", "b": "1" * 400, "c": "ff1e4009"}
    change = {**_change(table), "x": [1e300, 2**1024], "y": 1e-400}
    change["updates"] = [{"action": "set-properties", "updates": values}]
    reply = server.ask("POST", f"{_TABLES}/{table}", change)
    assert reply.status == 200
    assert reply.json["metadata"]["properties"].items() >= values.items()


def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_failure_of_ours(
    server: IcebergServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, body = threading.Event(), rest._body

    async def noting(*given: Any) -> bytes:
        try:
            return await body(*given)
        finally:
            left.set()

    monkeypatch.setattr(rest, "_body", noting)
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        head = "POST /v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
        client.sendall(head.encode())
    assert left.wait(60)
    assert server.ask("GET", "/v1/namespaces").status == 200
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_a_namespace_of_too_many_levels_is_refused_in_the_clients_words(
    server: IcebergServer, world: World
) -> None:
    levels = ["n"] * (NAME_PARTS_MAX + 1)
    world.log.submit(None, CreateNamespace(tuple(levels[:-1]))).result().raise_for_conflict()
    reply = server.ask("POST", "/v1/namespaces", {"namespace": levels})
    said = f"has {len(levels)} parts; a new name has {NAME_PARTS_MAX} at most"
    assert (reply.status, said in reply.error["message"]) == (400, True), reply
    with pytest.raises(InvalidInputError, match=said):
        world.namespace.create_namespace(CreateNamespaceRequest(id=levels))
