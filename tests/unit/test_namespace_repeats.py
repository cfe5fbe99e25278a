"""A request that comes again under its Idempotency-Key gets the first answer again."""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from consumers.servers.namespace.service import Service
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers
from tests.waiting import WAIT_SECONDS

BATCH_COMMIT = "/v1/table/batch-commit"


@pytest.fixture(scope="module")
def world(world: World) -> World:
    assert world.post("/v1/namespace/a/create", {})[0] == 200
    assert world.rows("/v1/table/a$t/create", numbers(0, 5))[0] == 200
    assert world.post("/v1/table/a$declared/declare", {})[0] == 200
    assert world.post("/v1/namespace/empty/create", {})[0] == 200
    assert world.post("/v1/namespace/full/create", {})[0] == 200
    assert world.post("/v1/table/full$t/declare", {})[0] == 200
    return world


def twice(world: World, path: str, body: Any) -> Any:
    is_json = isinstance(body, dict)
    data = json.dumps(body).encode() if is_json else arrow_stream(body)
    headers = {"Content-Type": "application/json" if is_json else ARROW_STREAM}
    headers["Idempotency-Key"] = str(uuid4())
    first, again = (world.send("POST", path, data, headers) for _ in range(2))
    assert first == again
    assert first[0] == 200, first
    return first[1]


def test_a_table_that_was_overwritten_names_its_version(world: World) -> None:
    before = world.log.table("a$t").version
    made = twice(world, "/v1/table/a$t/create?mode=overwrite", numbers(0, 3))
    assert made["version"] == before + 1


def test_first_rows_of_a_declared_table_are_counted(world: World) -> None:
    assert twice(world, "/v1/table/a$declared/insert", numbers(0, 7))["num_inserted_rows"] == 7


@pytest.mark.parametrize(
    ("namespace", "body"), [("empty", {}), ("full", {"behavior": "Cascade", "mode": "Skip"})]
)
def test_a_dropped_namespace_is_dropped(world: World, namespace: str, body: Any) -> None:
    assert (
        world.post("/v1/log/properties", {"namespace": namespace, "values": {"k": "v"}})[0] == 200
    )
    dropped = twice(world, f"/v1/namespace/{namespace}/drop", body)
    assert len(dropped["transaction_id"]) == 1
    assert dropped["properties"] == {"k": "v"}


@pytest.mark.parametrize("way", ["deregister", "drop", "batch-commit"])
def test_a_table_that_ended_is_described_as_it_was(world: World, way: str) -> None:
    name = f"ended-{way}"
    assert world.post(f"/v1/table/a${name}/declare", {"properties": {"owner": "me"}})[0] == 200
    path, body = f"/v1/table/a${name}/{way}", dict[str, Any]()
    if way == "batch-commit":
        path, body = BATCH_COMMIT, {"operations": [{"deregister_table": {"id": ["a", name]}}]}
    told = twice(world, path, body)
    described = told["results"][0]["deregister_table"] if "results" in told else told
    assert described["properties"] == {"owner": "me"}
    said = world.post(f"/v1/transaction/{told['transaction_id']}/describe", {})[1]
    assert "owner" not in str(said)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/namespace/placed/create", {}),
        ("/v1/table/a$placed/declare", {}),
        ("/v1/table/a$t/restore", {"version": 1}),
        ("/v1/table/a$t/add_columns", {"new_columns": [{"name": "more", "expression": "id"}]}),
    ],
)
def test_the_position_of_a_commit_is_told_each_time(world: World, path: str, body: Any) -> None:
    """What pylance changed had none in its first answer, the catalogue none in its second."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid4())}
    asked = urllib.request.Request(world.uri + path, json.dumps(body).encode(), headers)
    told = []
    for _ in range(2):
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS) as answer:
            told.append(answer.headers["x-commitlog-sequence"])
    assert told == [str(world.log.position()[0])] * 2


def test_properties_of_transactions_are_set_once(world: World) -> None:
    made = world.post("/v1/table/a$t/update", {"updates": [["x", "x + 1"]]})[1]
    path = f"/v1/transaction/{made['transaction_id']}/alter"
    sets = {"set_property_action": {"key": "k", "value": "v", "mode": "Fail"}}
    assert twice(world, path, {"actions": [sets]})["properties"]["k"] == "v"
    unsets = {"unset_property_action": {"key": "k", "mode": "Fail"}}
    assert "k" not in twice(world, path, {"actions": [unsets]})["properties"]


def staged(world: World, table: str) -> dict[str, Any]:
    """Make a table, and stage its next version."""
    world.write(["a", table], numbers(0, 5))
    (request,) = world.stage(["a", table], lambda dataset: dataset.insert(numbers(5, 7)))
    return request


def test_a_version_is_created_once(world: World) -> None:
    request, key = staged(world, "v"), {"Idempotency-Key": str(uuid4())}
    path = "/v1/table/a$v/version/create"
    first = world.post(path, request, headers=key)
    assert first[0] == 200, first
    assert world.post(path, request, headers=key) == first
    status, body = world.post(path, {**request, "metadata": {"by": "other"}}, headers=key)
    assert (status, body["code"]) == (400, 13)
    assert "Idempotency-Key" in body["error"]
    assert world.post("/v1/table/a$v/deregister")[0] == 200
    status, body = world.post(path, request, headers=key)
    assert (status, body["version"]["version"]) == (200, 2)
    assert body["version"]["manifest_path"] == first[1]["version"]["manifest_path"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["create", "batch-create", "batch-create without a key", "delete", "deregister"]
)
def test_a_request_that_is_repeated_while_it_runs_gets_the_same_answer(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = kind.replace(" ", "-")
    version, ranges = staged(world, table), [{"start_version": 0, "end_version": -1}]
    path, body = {
        "create": (f"/v1/table/a${table}/version/create", version),
        "delete": (f"/v1/table/a${table}/version/delete", {"ranges": ranges}),
        "deregister": (BATCH_COMMIT, {"operations": [{"deregister_table": {"id": ["a", table]}}]}),
    }.get(kind, ("/v1/table/version/batch-create", {"entries": [version]}))
    headers = {} if "without" in kind else {"Idempotency-Key": str(uuid4())}
    first = world.post(path, body, headers=headers)
    assert first[0] == 200, first

    known, asked = Service.transaction, list[str]()

    def transaction(self: Service, transaction_id: str) -> Any:
        asked.append(transaction_id)
        # The repetition asked before the first request had committed.
        return None if len(asked) == 1 else known(self, transaction_id)

    monkeypatch.setattr(Service, "transaction", transaction)
    assert world.post(path, body, headers=headers) == first
    assert len(asked) > 1
    if kind == "delete":
        asked.clear()
        other = {"ranges": [{"start_version": 0, "end_version": 1}]}
        status, said = world.post(path, other, headers=headers)
        assert (status, said["code"]) == (400, 13), said
        assert len(asked) > 1


@pytest.mark.parametrize("name", ["context", "identity"])
@pytest.mark.parametrize("kind", ["properties of a batch", "properties", "rows"])
def test_what_users_call_a_context_is_part_of_the_request(
    world: World, kind: str, name: str
) -> None:
    def body(value: str, caller: str) -> dict[str, Any]:
        said = {"identity": {"api_key": caller}, "context": {"try": caller}}
        if kind == "properties":
            return {"properties": {name: value}, **said}
        if kind == "properties of a batch":
            made = {"id": ["a", f"by batch, {name}"], "properties": {name: value}, **said}
            return {"operations": [{"declare_table": made}], **said}
        rows = [{"id": 1, name: value}]
        return {"operations": [{"append": {"table": f"a${name}", "rows": rows}}], **said}

    path = {
        "properties": f"/v1/table/a$with-{name}/declare",
        "properties of a batch": BATCH_COMMIT,
        "rows": "/v1/log/transactions",
    }[kind]
    if kind == "rows":
        table = pa.table({"id": [0], name: ["x"]})
        assert world.rows(f"/v1/table/a${name}/create", table)[0] == 200
    key = {"Idempotency-Key": str(uuid4())}
    first = world.post(path, body("one", "first"), headers=key)
    assert first[0] == 200, first
    assert world.post(path, body("one", "second"), headers=key) == first
    status, answer = world.post(path, body("two", "first"), headers=key)
    assert (status, answer.get("code")) == (400, 13), answer
