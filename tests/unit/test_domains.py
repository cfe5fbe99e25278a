"""Do tables and namespaces of a domain with its own partition behave as all others do?"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from consumers.servers.namespace.service import Service
from tests.namespace_world import World, numbers

LOG_PROPERTIES = "/v1/log/properties"
TABLE = {
    "name": "t",
    "schema": {
        "type": "struct",
        "fields": [{"id": 1, "name": "n", "required": False, "type": "long"}],
    },
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, domains={"own": 1})
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", "other"])
def test_a_namespace_is_decided_where_its_tables_are(world: World, name: str) -> None:
    made = world.post(f"/v1/namespace/{name}/create", {"properties": {"a": "1"}})
    assert made[0] == 200, made
    world.write([name, "t"], numbers(0, 3))
    changed = world.post(LOG_PROPERTIES, {"namespace": [name], "values": {"b": "2"}})
    assert changed[0] == 200, changed
    assert world.post(f"/v1/namespace/{name}/describe")[1] == {"properties": {"a": "1", "b": "2"}}
    status, said = world.post(f"/v1/namespace/{name}/drop")
    assert (status, said["code"]) == (409, 3), said
    assert world.post(f"/v1/namespace/{name}/drop", {"behavior": "cascade"})[0] == 200
    assert world.post(f"/v1/table/{name}$t/exists")[0] == 404
    again = world.post(f"/v1/namespace/{name}/create", {"mode": "overwrite"})
    assert again[1]["properties"] == {}
    # Iceberg's protocol names the same ones.
    asked = {"updates": {"c": "3"}, "removals": []}
    assert world.post(f"/v1/namespaces/{name}/properties", asked)[0] == 200
    assert world.send("DELETE", f"/v1/namespaces/{name}")[0] == 204
    assert world.post("/v1/namespaces", {"namespace": [name]})[0] == 200
    assert world.send("GET", f"/v1/namespaces/{name}")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own", "other"])
def test_a_repeated_request_gets_the_first_answer(world: World, name: str) -> None:
    def twice(method: str, path: str, body: bytes = b"") -> None:
        key = {"Idempotency-Key": str(uuid4()), "Content-Type": "application/json"}
        first, second = (world.send(method, path, body, key) for _ in range(2))
        assert first == second
        assert first[0] in {200, 204}, first

    world.post("/v1/namespaces", {"namespace": [name]})
    twice("POST", f"/v1/namespace/{name}$x/create", b"{}")
    twice("POST", f"/v1/table/{name}$x$d/declare", b"{}")
    twice("POST", f"/v1/table/{name}$x$d/drop")
    twice("POST", f"/v1/namespace/{name}$x/drop")
    twice("POST", f"/v1/namespaces/{name}/properties", b'{"updates": {"c": "3"}, "removals": []}')
    twice("DELETE", f"/v1/namespaces/{name}")
    twice("POST", "/v1/namespaces", b'{"namespace": ["%s"]}' % name.encode())


def test_a_key_of_iceberg_holds_for_one_request_whatever_partition_decides_it(
    world: World,
) -> None:
    for name in ("own", "other"):
        world.post("/v1/namespaces", {"namespace": [name]})
    for first, second in (("own", "other"), ("other", "own")):
        key = {"Idempotency-Key": str(uuid4())}
        made = {"namespace": [first, f"before_{second}"]}
        assert world.post("/v1/namespaces", made, headers=key)[0] == 200
        another = {"namespace": [second, f"after_{first}"]}
        status, said = world.post("/v1/namespaces", another, headers=key)
        assert (status, said["error"]["type"]) == (400, "BadRequestException"), said
        assert world.send("GET", f"/v1/namespaces/{second}%1Fafter_{first}")[0] == 404
        assert world.post("/v1/namespaces", made, headers=key)[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("is_iceberg", [False, True])
def test_two_requests_under_one_key_at_once_are_carried_out_one_after_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch, is_iceberg: bool
) -> None:
    for name in ("own", "other"):
        world.post("/v1/namespaces", {"namespace": [name]})
    both_ask, whole = threading.Barrier(2), Service.transaction

    def asked(self: Service, transaction_id: str) -> Any:
        found = whole(self, transaction_id)
        with suppress(threading.BrokenBarrierError):
            both_ask.wait(0.3)  # until the other has asked, too, where it may
        return found

    monkeypatch.setattr(Service, "transaction", asked)
    key = {"Idempotency-Key": str(uuid4())}

    def ask(domain: str, name: str) -> int:
        if is_iceberg:
            return world.post("/v1/namespaces", {"namespace": [domain, name]}, headers=key)[0]
        return world.post(f"/v1/namespace/{domain}${name}/create", {}, headers=key)[0]

    with ThreadPoolExecutor() as threads:
        ended = list(threads.map(ask, ("own", "other"), ("one", "two")))
    assert sorted(ended) in ([200, 400], [200, 409])
    made = [world.send("GET", f"/v1/namespaces/{name}")[0] for name in ("own%1Fone", "other%1Ftwo")]
    assert sorted(made) == [200, 404]


@pytest.mark.parametrize("position", [1, "1", -1])
def test_a_position_names_each_partition(world: World, position: int | str) -> None:
    status, said = world.post("/v1/log/restore", {"tables": ["own$t"], "position": position})
    assert status == 400
    assert f"'{position}' is not a position of the log" in said["error"]
    assert "one for each partition, with commas between" in said["error"]


@pytest.mark.slow
def test_a_partition_without_a_leader_stops_no_request_about_another(tmp_path: Path) -> None:
    world = World(tmp_path, request_seconds=3.0, domains={"own": 1})
    try:
        # A request that waits for the leader that is gone ends with 503.
        world.post("/v1/namespace/other/create")
        world.write(["other", "t"], numbers(0, 3))
        world.stop_leader(1)
        for path in ("table/other$t/describe", "table/other$x/declare", "namespace/other/describe"):
            status, said = world.post(f"/v1/{path}")
            assert status == 200, said
        assert world.post("/v1/table/other$missing/describe")[0] == 404
        assert world.send("GET", "/v1/namespace/other/table/list")[0] == 200
        assert world.send("GET", "/v1/namespace/other/list")[0] == 200
        assert world.post("/v1/namespace/other$new/create")[0] == 200
        assert world.post("/v1/namespace/other$new/drop")[0] == 200
        # Iceberg's protocol
        start = "/v1/namespaces/other"
        assert world.send("GET", start)[0] == 200
        assert world.send("GET", f"{start}/tables")[0] == 200
        assert world.send("GET", f"{start}/views")[0] == 200
        assert world.send("GET", "/v1/namespaces?parent=other")[0] == 200
        assert world.post("/v1/namespaces", {"namespace": ["other", "ice"]})[0] == 200
        assert world.post(f"{start}%1Fice/tables", TABLE)[0] == 200
        assert world.send("DELETE", f"{start}%1Fice/tables/t")[0] == 204
        assert world.send("DELETE", f"{start}%1Fice")[0] == 204
        assert world.send("GET", f"{start}/tables/missing")[0] == 404
        assert world.send("GET", "/v1/namespaces/own")[0] == 503
    finally:
        world.close()
