"""A request under an Idempotency-Key gets its first answer, whatever has become of its names."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests.iceberg_files_world import ROWS, FilesWorld
from tests.unit.iceberg_examples import schema

pytest.importorskip("pyiceberg", reason="pyiceberg is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:::pyiceberg.*", "ignore::DeprecationWarning")

Step = tuple[str, str, Any]


def _space(*name: str) -> Step:
    return "POST", "namespaces", {"namespace": name}


def _drop_space(name: str) -> Step:
    return "DELETE", f"namespaces/{name}", None


def _properties(name: str, *removals: str, **updates: str) -> Step:
    body = {"updates": updates, "removals": removals}
    return "POST", f"namespaces/{name}/properties", body


def _table(name: str = "t") -> Step:
    return "POST", "namespaces/s/tables", {"name": name, "schema": schema("id")}


def _drop(name: str = "t", kind: str = "tables") -> Step:
    return "DELETE", f"namespaces/s/{kind}/{name}", None


def _rename(kind: str, old: str, new: str) -> Step:
    source, destination = ({"namespace": ["s"], "name": name} for name in (old, new))
    return "POST", f"{kind}/rename", {"source": source, "destination": destination}


def _view(name: str = "t") -> Step:
    sql = {"type": "sql", "sql": "SELECT 1", "dialect": "spark"}
    version = {
        "version-id": 1,
        "schema-id": 0,
        "timestamp-ms": 1,
        "summary": {},
        "default-namespace": ["s"],
        "representations": [sql],
    }
    body = {"name": name, "schema": schema("id"), "view-version": version, "properties": {}}
    return "POST", "namespaces/s/views", body


_REPLACED: Step = (
    "POST",
    "namespaces/s/views/t",
    {"updates": [{"action": "set-properties", "updates": {"a": "b"}}]},
)

CASES: dict[str, tuple[list[Step], Step, list[Step]]] = {
    "a table made, its namespace gone": ([], _table(), [_drop(), _drop_space("s")]),
    "a table made, its namespace elsewhere": ([], _table(), [_properties("s", location="ROOT/z")]),
    "a table made, a view has its name": ([], _table(), [_drop(), _view()]),
    "a table dropped, a view has its name": ([_table()], _drop(), [_view()]),
    "a table dropped, made again": ([_table()], _drop(), [_table()]),
    "a table renamed, made again": ([_table()], _rename("tables", "t", "u"), [_table()]),
    "a table renamed, dropped": ([_table()], _rename("tables", "t", "u"), [_drop("u")]),
    "a namespace made, its parent gone": (
        [],
        _space("s", "x"),
        [_drop_space("s%1Fx"), _drop_space("s")],
    ),
    "a namespace made, a table has its name": (
        [],
        _space("s", "x"),
        [_drop_space("s%1Fx"), _table("x")],
    ),
    "a namespace dropped, made and filled again": ([], _drop_space("s"), [_space("s"), _table()]),
    "properties set, the namespace gone": ([], _properties("s", a="b"), [_drop_space("s")]),
    "properties removed": ([_properties("s", a="b")], _properties("s", "a", "none"), []),
    "properties removed, set again": (
        [_properties("s", a="b")],
        _properties("s", "a", "none"),
        [_properties("s", none="c"), _properties("s", a="d")],
    ),
    "a view made, its namespace gone": ([], _view(), [_drop("t", "views"), _drop_space("s")]),
    "a view changed, dropped": ([_view()], _REPLACED, [_drop("t", "views")]),
    "a view changed, made again": ([_view()], _REPLACED, [_drop("t", "views"), _view()]),
    "a view dropped, a table has its name": ([_view()], _drop("t", "views"), [_table()]),
    "a view renamed, made again": ([_view()], _rename("views", "t", "u"), [_view()]),
}


@pytest.mark.slow
def test_a_repeated_request_gets_its_first_answer(alone: tuple[Any, FilesWorld]) -> None:
    _, world = alone
    different = {}
    for number, (said, (before, asked, after)) in enumerate(CASES.items()):

        def ask(step: Step, key: str = "", space: str = f"s{number}") -> tuple[int, Any]:
            method, path, body = step
            path = path.replace("namespaces/s", f"namespaces/{space}")
            sent = json.dumps(body).replace('["s"', f'["{space}"')
            sent = sent.replace("ROOT", str(world.tables_root))
            headers = {
                "Content-Type": "application/json",
                **({"Idempotency-Key": key} if key else {}),
            }
            return world.send(method, f"/v1/{path}", sent.encode(), headers)

        for step in (_space("s"), *before):
            assert ask(step)[0] in (200, 204), (said, step)
        key = str(uuid.uuid4())
        first = ask(asked, key)
        assert first[0] in (200, 204), (said, first)
        for step in after:
            assert ask(step)[0] in (200, 204), (said, step)
        again = ask(asked, key)
        if again != first:
            different[said] = (first, again)
    assert not different


def test_a_key_excuses_no_first_request(alone: tuple[Any, FilesWorld]) -> None:
    catalog, world = alone
    catalog.create_table("files.t", ROWS.schema)
    for method, path, body, status in (
        ("DELETE", "namespaces/files", None, 409),
        ("DELETE", "namespaces/files/views/t", None, 404),
        ("POST", "namespaces", {"namespace": ["none", "t"]}, 404),
        ("POST", "namespaces/none/properties", {"updates": {"a": "b"}}, 404),
        ("POST", "namespaces/none/tables", {"name": "t", "schema": schema("id")}, 404),
    ):
        headers = {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
        sent = json.dumps(body).encode() if body else b""
        assert world.send(method, f"/v1/{path}", sent, headers)[0] == status, path
