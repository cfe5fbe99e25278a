"""The Iceberg catalogue over a log in memory: both formats in one record, over HTTP."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import uuid_utils

from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.adapters.storage import LocalStore
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import IcebergChange
from consumers.partition.files.iceberg_files import IcebergFiles
from consumers.partition.observer import StoreObserver
from consumers.runtime.config import ConfigurationError, load
from consumers.servers.iceberg.access import VENDED
from consumers.servers.iceberg.log import LogIcebergService
from consumers.servers.iceberg.rest import routes
from consumers.servers.iceberg.service import IcebergSettings
from consumers.servers.namespace.service import Service
from consumers.servers.security.limits import Limits
from tests.iceberg_server import IcebergServer, Reply, serving
from tests.namespace_world import World, numbers
from tests.service import on_memory
from tests.waiting import wait_until

_COMMIT = "/v1/transactions/commit"


@pytest.fixture
def namespace(world: World, server: IcebergServer) -> str:
    """A namespace with the Iceberg table `ice` and the Lance table `lance` at version 1."""
    name = world.fresh_name()
    assert server.ask("POST", "/v1/namespaces", {"namespace": [name]}).status == 200
    body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
    assert server.ask("POST", f"/v1/namespaces/{name}/tables", body).status == 200
    world.write([name, "lance"], numbers(0, 10))
    return name


def request(namespace: str, lance: list[Any], requirements: Any = ()) -> dict[str, Any]:
    change = {
        "identifier": {"namespace": [namespace], "name": "ice"},
        "requirements": list(requirements),
        "updates": [{"action": "set-properties", "updates": {"a": "b"}}],
    }
    return {"table-changes": [change], "lance-operations": lance}


def properties(server: IcebergServer, namespace: str) -> Any:
    found = server.ask("GET", f"/v1/namespaces/{namespace}/tables/ice").json
    return found["metadata"]["properties"].get("a")


def test_a_lance_table_is_named_as_one(server: IcebergServer, namespace: str) -> None:
    tables = f"/v1/namespaces/{namespace}/tables"
    wanted = {"name": "lance", "schema": {"type": "struct", "fields": []}}
    for reply, status in (
        (server.ask("GET", f"{tables}/lance"), 404),
        (server.ask("POST", tables, wanted), 409),
        (server.ask("POST", tables, {**wanted, "stage-create": True}), 409),
    ):
        assert reply.status == status
        assert f": {namespace}.lance (a Lance table)" in reply.error["message"]
    gone = server.ask("GET", f"{tables}/none").error["message"]
    assert gone == f"Table does not exist: {namespace}.none"


def test_a_request_commits_both_formats_in_one_record(
    world: World, server: IcebergServer, namespace: str
) -> None:
    table = [namespace, "lance"]
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(10, 15)))
    before = world.log.runtime().request(0, "status")["sequence"]
    key = {"Idempotency-Key": "0199a000-0000-4000-8000-00000000000c"}
    body = request(namespace, [{"create_table_version": staged}])
    first = server.ask("POST", _COMMIT, body, key)
    assert first.status == 200, first.data
    assert world.log.runtime().request(0, "status")["sequence"] == before + 1
    assert world.open(table).count_rows() == 15
    assert properties(server, namespace) == "b"
    assert server.ask("POST", _COMMIT, body, key).data == first.data
    status, told = world.send("GET", f"/v1/log/transactions/{first.json['commit-id']}")
    assert (status, told["sequence"]) == (200, before + 1)


@pytest.mark.parametrize("kind", ["both formats", "rename"])
def test_a_request_that_is_repeated_while_it_runs_gets_the_same_answer(
    world: World,
    server: IcebergServer,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """At one server the second waits; this is what two of them do."""
    path, body = _COMMIT, request(namespace, [{"deregister_table": {"id": [namespace, "lance"]}}])
    if kind == "rename":
        names = [{"namespace": [namespace], "name": name} for name in ("ice", "new")]
        path, body = "/v1/tables/rename", dict(zip(("source", "destination"), names, strict=True))
    key = {"Idempotency-Key": str(uuid_utils.uuid7())}
    known, asked = Service.transaction, list[str]()

    def transaction(self: Service, transaction_id: str) -> Any:
        found = known(self, transaction_id)
        asked.append(transaction_id)
        if len(asked) == 1:  # the first request commits after the repetition looked for it
            assert server.ask("POST", path, body, key).status in (200, 204)
        return found

    async def turn(limits: Limits, key: str) -> asyncio.Lock:
        lock = asyncio.Lock()
        await lock.acquire()
        return lock

    monkeypatch.setattr(Limits, "turn", turn)
    monkeypatch.setattr(Service, "transaction", transaction)
    again = server.ask("POST", path, body, key)
    assert again.status in (200, 204), again.data
    assert again.data == server.ask("POST", path, body, key).data


def test_a_request_that_is_refused_changes_neither(
    world: World, server: IcebergServer, namespace: str
) -> None:
    table = [namespace, "lance"]
    (staged,) = world.stage(table, lambda dataset: dataset.insert(numbers(10, 15)))
    create = {"create_table_version": staged}
    wrong = [{"type": "assert-current-schema-id", "current-schema-id": 7}]
    refused = server.ask("POST", _COMMIT, request(namespace, [create], wrong))
    assert (refused.status, len(refused.error["failed-requirements"])) == (409, 1)
    world.open(table).insert(numbers(20, 21))
    late = server.ask("POST", _COMMIT, request(namespace, [create]))
    assert (late.status, late.error["type"]) == (409, "CommitFailedException"), late.data
    assert late.error["message"].startswith("lance-operations[0]: version 2 of ")
    assert (world.open(table).version, properties(server, namespace)) == (2, None)


def test_a_refusal_names_a_lance_operation_by_its_place_in_the_request(
    world: World, server: IcebergServer, namespace: str
) -> None:
    ranges = [{"start_version": 0, "end_version": -1}]
    delete = {"delete_table_versions": {"id": [namespace, "lance"], "ranges": ranges}}
    taken = {"declare_table": {"id": [namespace, "lance"]}}
    refused = server.ask("POST", _COMMIT, request(namespace, [delete, taken]))
    assert (refused.status, refused.error["type"]) == (409, "AlreadyExistsException")
    assert refused.error["message"].startswith("lance-operations[1]: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "status"),
    [
        ({}, 400),
        ({"drop_table": {"id": ["x"]}}, 400),
        ({"declare_table": {"id": ["x"], "location": "/etc"}}, 400),
        ({"deregister_table": {"id": ["nowhere"]}}, 404),
        (7, 400),
    ],
)
def test_what_is_wrong_with_lance_operations_is_said_before_anything_is_appended(
    world: World, server: IcebergServer, namespace: str, operation: Any, status: int
) -> None:
    before = world.log.runtime().request(0, "status")["sequence"]
    reply = server.ask("POST", _COMMIT, request(namespace, [operation]))
    assert reply.status == status, reply.data
    assert "lance-operations" in reply.error["message"]
    assert "pydantic" not in reply.error["message"]
    assert world.log.runtime().request(0, "status")["sequence"] == before


def test_a_missing_file_is_said_when_the_table_is_loaded(
    world: World, server: IcebergServer, namespace: str
) -> None:
    address = f"/v1/namespaces/{namespace}/tables/ice"
    location = server.ask("GET", address).json["metadata-location"]
    Path(location.removeprefix("file://")).unlink()
    reply = server.ask("GET", address)
    assert (reply.status, reply.error["type"]) == (404, "NotFoundException")
    assert server.ask("HEAD", address).status == 204


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"snapshots":[]', '"snapshots":[],"x":1e400'),
        ('"snapshots":[]', '"snapshots":[{"snapshot-id":1,"timestamp-ms":1,"x":1e400}]'),
        *(
            ('"snapshots":[]', f'"snapshots":[{{"snapshot-id":1,"timestamp-ms":1,{more}}}]')
            for more in (
                '"parent-snapshot-id":"one"',
                '"parent-snapshot-id":1.5',
                '"summary":"text"',
                '"summary":{"total-records":5}',
            )
        ),
        (
            '"metadata-log":[]',
            '"metadata-log":[],"format-version":1,"schemas":null,'
            '"schema":{"type":"struct","schema-id":"one","fields":[]}',
        ),
    ],
)
def test_metadata_that_the_log_cannot_go_on_from_is_not_registered(
    world: World, server: IcebergServer, namespace: str, old: str, new: str
) -> None:
    tables = f"/v1/namespaces/{namespace}/tables"
    found = server.ask("GET", f"{tables}/ice").json
    assert server.ask("DELETE", f"{tables}/ice").status == 204
    file = Path(found["metadata-location"])
    text = file.read_text()
    assert old in text
    place = file.with_name(f"00001-{world.fresh_name()}.metadata.json")
    place.write_text(text.replace(old, new))
    wanted = {"name": "ice", "metadata-location": str(place)}
    reply = server.ask("POST", f"/v1/namespaces/{namespace}/register", wanted)
    assert (reply.status, reply.error["type"]) == (400, "BadRequestException"), reply.error
    assert server.ask("HEAD", f"{tables}/ice").status == 404


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("ns", "[]", "[]"), "table"),
        ((("ns", ""), "[]", "[]"), "part"),
        ((("ns", "t"), None, "[]"), "requirements"),
        ((("ns", "t"), "[]", [{}]), "updates"),
        ((("ns", "t"), "[]", "no JSON"), "updates is not JSON"),
        ((("ns", "t"), "[]", '[{"action": "a", "action": "b"}]'), "field 'action' twice"),
        ((("ns", "t"), '[{"x": 1e400}]', "[]"), "64-bit float"),
        ((("ns", "t"), "[]", '[{"action": "set-properties", "x": -1e400}]'), "64-bit float"),
    ],
)
def test_a_change_that_is_no_json_is_not_appended(world: World, change: Any, said: str) -> None:
    builder = world.log.transact()
    with pytest.raises(InvalidTransaction, match=said):
        builder.submit(None, IcebergChange(*change))


def test_what_landed_is_no_4xx_though_its_file_cannot_be_read(
    world: World, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(location: str) -> bytes:
        raise OSError("input/output error")

    service, tables = LogIcebergService(world.log), f"/v1/namespaces/{namespace}/tables"
    views = f"/v1/namespaces/{namespace}/views"
    monkeypatch.setattr(service.files, "metadata", broken)
    version = {"version-id": 1, "schema-id": 0, "timestamp-ms": 1, "summary": {}}
    version |= {"default-namespace": [namespace], "representations": []}
    columns = {"type": "struct", "fields": []}
    with serving(service, IcebergSettings(service.tables_root)) as running:
        for path, body in [
            (tables, {"name": "landed", "schema": columns}),
            (f"{tables}/landed", {"requirements": [], "updates": []}),
            (views, {"name": "seen", "schema": columns, "view-version": version}),
        ]:
            reply = running.ask("POST", path, body)
            assert (reply.status, reply.error["type"]) == (500, "CommitStateUnknownException")
            assert "is committed" in reply.error["message"]
            assert "input/output error" in reply.error["message"]
        assert running.ask("HEAD", f"{tables}/landed").status == 204
        assert running.ask("HEAD", f"{views}/seen").status == 204


def test_a_store_that_fails_is_not_the_fault_of_a_request(
    world: World, server: IcebergServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"/v1/namespaces/{namespace}"
    place = server.ask("GET", f"{address}/tables/ice").json["metadata-location"]
    folder = place.rpartition("/")[0]
    asked = [("POST", f"{address}/{kind}") for kind in ("register", "register-view")]
    for name in ("missing", "", "x" * 300):
        for method, path in asked:
            body = {"name": "other", "metadata-location": f"{folder}/{name}"}
            reply = server.ask(method, path, body)
            assert (reply.status, "cannot be read" in reply.error["message"]) == (400, True), name

    def away(store: LocalStore, path: str) -> int:
        raise OSError("the store is away")

    monkeypatch.setattr(LocalStore, "size", away)
    for method, path in [*asked, ("GET", f"{address}/tables/ice")]:
        reply = server.ask(method, path, {"name": "other", "metadata-location": place})
        assert (reply.status, reply.error["type"]) == (503, "ServiceUnavailableException")
        assert "the store is away" in reply.error["message"]
        assert reply.headers["retry-after"] == "1"


def test_a_table_is_told_without_a_look_at_each_of_its_snapshots(
    server: IcebergServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(IcebergFiles, "table")
    address = f"/v1/namespaces/{namespace}/tables"
    loaded = server.ask("GET", f"{address}/ice", headers={"X-Iceberg-Access-Delegation": VENDED})
    assert loaded.json["metadata"]["format-version"] == 2
    assert server.ask("HEAD", f"{address}/ice").status == 204
    source, new = ({"namespace": [namespace], "name": name} for name in ("ice", "new"))
    renamed = server.ask("POST", "/v1/tables/rename", {"source": source, "destination": new})
    assert renamed.status == 204
    assert server.ask("GET", f"{address}/new").json["metadata"] == loaded.json["metadata"]


def test_a_name_is_looked_for_without_a_list_of_all_tables(
    world: World, server: IcebergServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, asked = world.log.runtime(), list[str]()
    ask = runtime.ask

    def noted(partition: int, method: str, **params: Any) -> Any:
        asked.append(method)
        return ask(partition, method, **params)

    monkeypatch.setattr(runtime, "ask", noted)
    tables, columns = f"/v1/namespaces/{namespace}/tables", {"type": "struct", "fields": []}
    for name, status in (("new", 200), ("ice", 409), ("lance", 409)):
        staged = {"name": name, "schema": columns, "stage-create": True}
        assert server.ask("POST", tables, staged).status == status
        inner = server.ask("POST", "/v1/namespaces", {"namespace": [namespace, name]})
        assert inner.status == 200
    source = {"namespace": [namespace], "name": "ice"}
    for name, status in (("lance", 409), ("moved", 204)):
        body = {"source": source, "destination": {**source, "name": name}}
        assert server.ask("POST", "/v1/tables/rename", body).status == status
    for name, status in (("lance", 404), ("moved", 204)):
        assert server.ask("DELETE", f"{tables}/{name}").status == status
    assert not {"tables", "iceberg_tables"}.intersection(asked)


def test_damaged_metadata_is_told_as_the_log_has_it(server: IcebergServer, namespace: str) -> None:
    address = f"/v1/namespaces/{namespace}/tables/ice"
    whole = server.ask("GET", address)
    place = Path(whole.json["metadata-location"].removeprefix("file://"))
    place.write_bytes(place.read_bytes()[:-9])
    assert server.ask("GET", address).data == whole.data


def test_a_registration_may_be_repeated_under_its_key(
    server: IcebergServer, namespace: str
) -> None:
    tables = f"/v1/namespaces/{namespace}/tables"
    body = {"name": "other", "schema": {"type": "struct", "fields": []}}
    there = server.ask("POST", tables, body).json["metadata-location"]
    assert server.ask("DELETE", f"{tables}/other").status == 204
    key = {"Idempotency-Key": str(uuid_utils.uuid7())}
    register = f"/v1/namespaces/{namespace}/register"
    wanted = {"name": "ice", "metadata-location": there, "overwrite": True}
    first = server.ask("POST", register, wanted, key)
    assert first.status == 200
    assert server.ask("POST", register, wanted, key).data == first.data
    for other in ({**wanted, "name": "third"}, {**wanted, "metadata-location": f"{there}.x"}):
        assert server.ask("POST", register, other, key).status == 400
    assert server.ask("POST", register, {**wanted, "overwrite": False}).status == 409


def test_a_place_behind_a_file_is_refused_and_holds_up_nobody(
    world: World, server: IcebergServer, namespace: str
) -> None:
    tables = f"/v1/namespaces/{namespace}/tables"
    root = world.log.runtime().genesis.tables_root
    before = server.ask("GET", f"{tables}/ice").json["metadata-location"]
    file = f"{root}/{namespace}-plain"
    Path(file).write_text("somebody's")
    body = {"name": "behind", "schema": {"type": "struct", "fields": []}}
    for place in (file, f"{file}/deeper/still"):
        reply = server.ask("POST", tables, {**body, "location": place})
        assert (reply.status, reply.error["type"]) == (400, "BadRequestException")
        assert f"{file} is a file" in reply.error["message"]
    metadata_path = {"write.metadata.path": f"{file}/x"}
    change = {
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": metadata_path}],
    }
    assert server.ask("POST", f"{tables}/ice", change).status == 400
    taken = server.ask("POST", tables, {**body, "location": f"{root}/{namespace}-free"})
    assert taken.status == 200, taken.data
    assert server.ask("GET", f"{tables}/ice").json["metadata-location"] == before


def test_a_location_as_java_writes_it_is_a_local_path(
    world: World, server: IcebergServer, namespace: str
) -> None:
    tables = f"/v1/namespaces/{namespace}/tables"
    place = f"file:{world.tables_root}/{namespace}-java"
    body = {"name": "java", "location": place, "schema": {"type": "struct", "fields": []}}
    made = server.ask("POST", tables, body)
    assert made.status == 200, made.data
    assert made.json["metadata-location"].startswith(f"{place}/metadata/")
    assert server.ask("GET", f"{tables}/java").json == made.json
    elsewhere = {**body, "name": "x", "location": "file:/elsewhere/x"}
    assert server.ask("POST", tables, elsewhere).status == 400


@pytest.mark.slow
def test_an_outcome_that_is_not_known_in_time_is_said_so_and_known_later(tmp_path: Path) -> None:
    cluster = MemoryCluster()
    world = World(tmp_path, lambda: MemoryLog(cluster))
    service = LogIcebergService(world.log)
    settings = IcebergSettings(service.tables_root, timeout_seconds=1)
    with serving(service, settings) as server:
        server.ask("POST", "/v1/namespaces", {"namespace": ["late"]})
        body = {"name": "ice", "schema": {"type": "struct", "fields": []}}
        assert server.ask("POST", "/v1/namespaces/late/tables", body).status == 200
        world.stop_leader()
        key = {"Idempotency-Key": "0199a000-0000-4000-8000-00000000000e"}
        asked = request("late", [])
        del asked["lance-operations"]
        unknown = server.ask("POST", _COMMIT, asked, key)
        assert (unknown.status, unknown.error["code"]) == (500, 500)
        assert unknown.error["type"] == "CommitStateUnknownException"
        assert key["Idempotency-Key"] in unknown.error["message"]
        running = on_memory(cluster, tmp_path).await_leading()

        def answered() -> Reply | None:
            answer = server.ask("POST", _COMMIT, asked, key)
            return None if answer.status == 500 else answer

        known = wait_until(answered, "what came of the first attempt")
        assert known is not None
        assert known.status == 200, known.data
        (result,) = known.json["results"]
        assert "/00001-" in result["metadata-location"]
        loaded = server.ask("GET", "/v1/namespaces/late/tables/ice").json
        assert loaded["metadata-location"] == result["metadata-location"]
    world.close()
    running.stop()


def test_the_operators_limits_are_kept_and_must_make_sense(world: World) -> None:
    found = routes(world.log, load({"iceberg_tables_max": 3}, environment={}))
    assert {route.path for route in found} >= {_COMMIT, "/v1/config"}
    for name in ("iceberg_tables_max", "iceberg_updates_max", "iceberg_timeout"):
        with pytest.raises(ConfigurationError, match=f"{name} must be .* not 0"):
            routes(world.log, load({name: 0}, environment={}))


def test_a_table_whose_store_hangs_holds_up_no_other(
    server: IcebergServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, hangs, ends = StoreObserver.write, threading.Event(), threading.Event()

    def slow(self: StoreObserver, files: Any, *arguments: Any) -> Any:
        if any("/hanging-" in file.path for file in files):
            hangs.set()
            assert ends.wait(300)
        return write(self, files, *arguments)

    monkeypatch.setattr(StoreObserver, "write", slow)
    place = f"/v1/namespaces/{namespace}/tables"
    body = {"schema": {"type": "struct", "fields": []}}
    with ThreadPoolExecutor() as pool:
        hanging = pool.submit(server.ask, "POST", place, {"name": "hanging", **body})
        try:
            assert hangs.wait(300)
            assert server.ask("POST", place, {"name": "passing", **body}).status == 200
        finally:
            ends.set()
        hanging.result()
