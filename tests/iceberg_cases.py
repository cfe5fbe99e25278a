"""The cases of the multi-table commit, over HTTP, as their own `how_to_run` says."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.iceberg_server import IcebergServer
from tests.namespace_world import World as NamespaceWorld

_FILE = Path(__file__).parent / "conformance" / "data" / "transactions-commit-cases.json"
DATA: dict[str, Any] = json.loads(_FILE.read_text())
_COPIES = 100


@dataclass(frozen=True)
class World:
    """A catalogue with the namespace `analytics`, and the files that it sees."""

    server: IcebergServer
    root: str
    """The folder that stands for `s3://bucket`."""
    copies_files: bool = False
    """Whether a copy has files of its own, as `rewrite_table_path` makes them, or all one."""

    def placed(self, value: Any) -> Any:
        """Return a part of the cases with locations of this world."""
        return json.loads(json.dumps(value).replace("s3://bucket", self.root))

    def forget_tables(self) -> None:
        """Drop all tables of the namespace."""
        tables = "/v1/namespaces/analytics/tables"
        for found in self.server.ask("GET", tables).json["identifiers"]:
            assert self.server.ask("DELETE", f"{tables}/{found['name']}").status == 204


def over_memory(log: NamespaceWorld) -> World:
    """Return the catalogue of a log in memory."""
    assert log.iceberg.ask("POST", "/v1/namespaces", {"namespace": ["analytics"]}).status == 200
    return World(log.iceberg, f"{log.tables_root}/bucket")


def _register(world: World, fixture: str, name: str = "") -> None:
    server = world.server
    text = json.dumps(DATA["fixtures"][fixture])
    if name and world.copies_files:
        text = text.replace(f"s3://bucket/{fixture}/", f"s3://bucket/{name}/").replace(
            f'"s3://bucket/{fixture}"', f'"s3://bucket/{name}"'
        )
    given = world.placed(json.loads(text))
    location = given["metadata-location"]
    path = Path(location)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(given["metadata"]))
    body = {"name": name or fixture, "metadata-location": location}
    reply = server.ask("POST", "/v1/namespaces/analytics/register", body)
    assert reply.status == 200, reply.data
    assert reply.json["metadata"] == given["metadata"]


def _load(server: IcebergServer, name: str) -> Any:
    reply = server.ask("GET", f"/v1/namespaces/analytics/tables/{name}")
    return reply.json if reply.status == 200 else None


def _body(request: dict[str, Any]) -> Any:
    if "raw_body" in request:
        return request["raw_body"].encode()
    generator = request.get("body_generator")
    if generator is None:
        return request["body"]
    if generator["kind"] == "tables":
        names = [f"t{i:03d}" for i in range(generator["count"])]
        updates = [{"action": "set-properties", "updates": {"x": "1"}}]
    else:
        names = [generator["table"]]
        updates = [
            {"action": "set-properties", "updates": {f"k{i}": "v"}}
            for i in range(generator["count"])
        ]
    return {
        "table-changes": [
            {
                "identifier": {"namespace": ["analytics"], "name": name},
                "requirements": [],
                "updates": updates,
            }
            for name in names
        ]
    }


def _at(document: Any, pointer: str) -> Any:
    for part in pointer.split("/")[1:]:
        key: Any = int(part) if isinstance(document, list) else part
        try:
            document = document[key]
        except (KeyError, IndexError):
            return None
    return document


def _check(table: Any, check: dict[str, Any]) -> None:
    found = _at(table["metadata"], check["pointer"])
    if check.get("absent"):
        assert found is None
    elif "length" in check:
        assert len(found) == check["length"]
    else:
        assert found == check["equals"]


def run_case(case: dict[str, Any], world: World) -> None:
    """Run one case; AssertionError says what differs."""
    case, server = world.placed(case), world.server
    for fixture in case["given"]:
        _register(world, fixture)
    if case["request"].get("body_generator", {}).get("kind") == "tables":
        for i in range(_COPIES):
            _register(world, "events", f"t{i:03d}")
    expected = case["expect"]
    before = {name: _load(server, name) for name in expected.get("unchanged", [])}

    reply = server.ask(case["request"]["method"], case["request"]["path"], _body(case["request"]))

    assert reply.status == expected["status"], reply.data
    if reply.status == 200:
        assert reply.json["commit-id"].startswith("txn-")
        results = reply.json["results"]
        if "results" in expected:
            assert [result["identifier"] for result in results] == expected["results"]
        for result in results:
            metadata = json.loads(Path(result["metadata-location"]).read_bytes())
            assert metadata == _load(server, result["identifier"]["name"])["metadata"]
    else:
        for member, value in expected["error"].items():
            assert reply.error[member] == value
        assert set(reply.error) <= {"message", "type", "code", "failed-requirements"}
    for name, checks in expected.get("tables", {}).items():
        for check in checks:
            _check(_load(server, name), check)
    assert {name: _load(server, name) for name in before} == before
