"""`/v1/log/…`: transactions and the feed for programs in any language."""

from __future__ import annotations

import base64
import hashlib
import json
import urllib.request
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from consumers.servers.feed import feed_routes
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.namespace_world import World, arrow_stream, numbers

KEY = ["id"]
PATH = "/v1/log/transactions"


@pytest.fixture
def tables(world: World) -> tuple[str, str]:
    """Return two tables with the ids 0 to 4."""
    name = world.fresh_name()
    for table in ("a", "b"):
        assert world.rows(f"/v1/table/{name}${table}/create", numbers(0, 5))[0] == 200
    return f"{name}$a", f"{name}$b"


def count(world: World, table: str) -> Any:
    return world.post(f"/v1/table/{table}/count_rows", {})[1]


def test_many_tables_are_one_record(world: World, tables: tuple[str, str]) -> None:
    one, two = tables
    arrow = base64.b64encode(arrow_stream(numbers(5, 8))).decode()
    before = world.log.runtime().request(0, "status")["sequence"]
    body = {
        "operations": [
            {"append": {"table": one, "rows": [{"id": 5, "x": 1.5}, {"id": 6}]}},
            {"append": {"table": two.split("$"), "arrow": arrow}},
        ],
        "properties": {"job": "nightly"},
        "wait": "committed",
    }
    status, done = world.post(PATH, body)
    assert status == 200, done
    assert done["status"] == "committed"
    assert [(tuple(r["table"]), r["version"]) for r in done["results"]] == [
        (tuple(one.split("$")), 2),
        (tuple(two.split("$")), 2),
    ]
    assert world.log.runtime().request(0, "status")["sequence"] == before + 1
    assert (count(world, one), count(world, two)) == (7, 8)
    assert dict(world.record(done["transaction_id"]).properties)["job"] == "nightly"
    assert world.send("GET", f"{PATH}/{done['transaction_id']}") == (200, done)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["{up}SECRET", "a/{up}SECRET", "./SECRET", "", "x.lance\0", "\\x", "x" * 5000]
)
def test_no_data_file_is_looked_for_elsewhere(
    world: World, tables: tuple[str, str], path: str, tmp_path: Path
) -> None:
    """Whoever may write to a table could ask whether any file is there, and how long it is."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 4711)
    named = path.replace("{up}", "../" * 30).replace("SECRET", str(secret)[1:])
    made = LanceTransaction(read_version=1, uuid=str(uuid4()))
    fragment = made.append.fragments.add(physical_rows=5)
    fragment.files.add(
        path=named, fields=[0, 1], column_indices=[0, 1], file_major_version=2, file_size_bytes=100
    )
    message = base64.b64encode(made.SerializeToString()).decode()
    body = {"operations": [{"lance_commit": {"table": tables[0], "message": message}}]}
    status, answer = world.post(PATH, body)
    assert (status, answer["code"]) == (400, 13), answer
    assert "4711" not in answer["error"]


RECORDS = {
    PATH: {"operations": [{"append": {"table": "TABLE", "rows": [{"id": 5}]}}]},
    "/v1/log/properties": {"table": "TABLE", "values": {"mine": "yes"}},
    "/v1/log/restore": {"tables": ["TABLE"], "position": "2020-01-01T00:00:00Z"},
    "/v1/log/undrop": {"table": "TABLE"},
}


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commitlog.erasure", '{"reason": "none", "writes": [[0, 1]]}'),
        ("commitlog.principal", "somebody"),
        ("commitlog.rows.3", "many"),
        ("identity.method", "token"),
        ("context.ticket", "4711"),
        ("http.body_sha256", "00"),
    ],
)
def test_what_the_log_itself_says_of_a_record_no_request_says(
    world: World, tables: tuple[str, str], path: str, name: str, value: str
) -> None:
    """A writer could make a record look like an act of erasure, or like another caller's."""
    body = json.loads(json.dumps(RECORDS[path]).replace("TABLE", tables[0]))
    before = world.log.runtime().request(0, "status")["sequence"]
    status, answer = world.post(path, {**body, "properties": {"job": "nightly", name: value}})
    assert (status, answer["code"]) == (400, 13), answer
    assert f"'{name}'" in answer["error"]
    assert world.log.runtime().request(0, "status")["sequence"] == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "value", "is_kept"),
    [
        (pa.int64(), 1.5, False),
        (pa.int64(), 2.0, True),
        (pa.int64(), float("nan"), False),
        (pa.timestamp("us"), 1.5, False),
        (pa.float32(), True, False),
        (pa.float32(), 0.1, True),
        (pa.list_(pa.int32()), [1, 1.5], False),
        (pa.list_(pa.float32(), 2), [1, 1.5], True),
        (pa.struct([("a", pa.list_(pa.int8()))]), {"a": [1.5]}, False),
        (pa.struct([("a", pa.int8())]), {"a": 2}, True),
    ],
    ids=str,
)
def test_no_part_of_a_number_is_lost(
    world: World, kind: pa.DataType, value: Any, is_kept: bool
) -> None:
    table = f"{world.fresh_name()}$t"
    assert world.rows(f"/v1/table/{table}/create", pa.table({"v": pa.nulls(1, kind)}))[0] == 200
    body = {"operations": [{"append": {"table": table, "rows": [{"v": value}]}}]}
    status, answer = world.post(PATH, body)
    assert status == (200 if is_kept else 400), answer
    assert is_kept or "column 'v'" in answer["error"]
    assert count(world, table) == 1 + is_kept


def test_rows_are_changed_in_each_way(world: World, tables: tuple[str, str]) -> None:
    one, two = tables
    body = {
        "operations": [
            {"delete": {"table": one, "predicate": "id < 2"}},
            {
                "merge_insert": {
                    "table": two,
                    "rows": [{"id": 4, "x": 0.0}, {"id": 9}],
                    "on": ["id"],
                }
            },
        ]
    }
    status, done = world.post(PATH, body)
    assert status == 200, done
    assert (count(world, one), count(world, two)) == (3, 6)
    body = {"operations": [{"update": {"table": one, "updates": {"x": "-1"}}}]}
    assert world.post(PATH, body)[0] == 200
    assert set(world.open(one.split("$")).to_table()["x"].to_pylist()) == {-1.0}


def test_all_of_it_commits_or_nothing(world: World, tables: tuple[str, str]) -> None:
    one, two = tables
    mistakes: tuple[dict[str, Any], ...] = (
        {"append": {"table": two, "rows": [{"nope": 1}]}},
        {"append": {"table": two, "rows": [{"id": "text"}]}},
        {"append": {"table": two, "rows": []}},
        {"append": {"table": two, "arrow": "?"}},
        {"append": {"table": two}},
        {"delete": {"table": two, "predicate": "nope = 1"}},
        {"lance_commit": {"table": two, "message": "AAAA"}},
        {"append": {"table": f"{two}x", "rows": [{"id": 1}]}},
        {"nope": {}},
        {},
    )
    for wrong in mistakes:
        body = {"operations": [{"append": {"table": one, "rows": [{"id": 7}]}}, wrong]}
        status, answer = world.post(PATH, body)
        assert status in (400, 404), (wrong, answer)
        assert isinstance(answer["code"], int)
    assert (count(world, one), count(world, two)) == (5, 5)


def test_a_field_that_is_not_known_is_named(world: World) -> None:
    operations = [{"apend": {"table": "x"}}, {"delete": {"table": "x"}}]
    _, answer = world.post(PATH, {"operations": operations})
    said = "operations[0].apend: no such field; operations[1].delete.predicate: Field required"
    assert answer["error"] == said


def test_one_key_is_one_transaction(world: World, tables: tuple[str, str]) -> None:
    one, _ = tables
    body = {"operations": [{"append": {"table": one, "rows": [{"id": 7}]}}]}
    key = {"Idempotency-Key": f"load {one}"}
    first = world.post(PATH, body, headers=key)
    assert first[0] == 200
    assert world.post(PATH, body, headers=key) == first
    assert count(world, one) == 6
    assert world.send("GET", f"{PATH}/load%20{one}") == first, "its key finds it too"
    body["operations"].append({"append": {"table": one, "rows": [{"id": 8}]}})
    assert world.post(PATH, body, headers=key)[0] == 400


def test_a_key_that_was_left_empty_is_refused(world: World, tables: tuple[str, str]) -> None:
    one, _ = tables
    body = {"operations": [{"append": {"table": one, "rows": [{"id": 7}]}}]}
    status, answer = world.post(PATH, body, headers={"Idempotency-Key": ""})
    assert (status, "Idempotency-Key is empty" in answer["error"]) == (400, True), answer
    assert count(world, one) == 5


def test_an_unknown_transaction_is_404(world: World) -> None:
    status, answer = world.send("GET", f"{PATH}/01a1fe50-bb99-73b3-a126-5299a2e20443")
    assert (status, answer["code"]) == (404, 10)


def test_grants_hold_for_each_table(tmp_path: Path) -> None:
    key = {"x-api-key": "bob-0123456789abcdef"}
    digest = hashlib.sha256(key["x-api-key"].encode()).hexdigest()
    grant = '[[grants]]\nto = "bob"\non = "bobs"\ncan = "write"\n'
    (tmp_path / "access.toml").write_text(f'[keys]\nbob = "sha256:{digest}"\n{grant}')
    access = AccessFile(tmp_path / "access.toml")
    world = World(tmp_path, server=ServerSettings(security=Security(access)))
    try:
        assert world.rows("/v1/table/bobs$t/create", numbers(0, 2), headers=key)[0] == 200
        mine = {"append": {"table": "bobs$t", "rows": [{"id": 7}]}}
        other = {"append": {"table": "hr$t", "rows": [{"id": 7}]}}
        assert world.post(PATH, {"operations": [mine]})[0] == 401
        assert world.post(PATH, {"operations": [mine, other]}, headers=key)[0] == 403
        status, done = world.post(PATH, {"operations": [mine]}, headers=key)
        assert status == 200, done
        path = f"{PATH}/{done['transaction_id']}"
        assert world.send("GET", path, headers=key)[0] == 200
        assert world.send("GET", path)[0] == 401
        assert world.send("GET", "/v1/log/feed", headers=key)[0] in (403, 404)
    finally:
        world.close()


def test_the_feed_has_the_logs_own_path(world: World) -> None:
    assert {route.path for route in feed_routes(world.log)} == {"/v1/log/feed", "/v1/feed"}


@pytest.mark.slow
def test_the_document_describes_them(world: World) -> None:
    with urllib.request.urlopen(f"{world.uri}/openapi.json", timeout=60) as answer:
        paths = json.loads(answer.read())["paths"]
    submit = paths[PATH]["post"]
    schema = submit["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["operations"]
    assert "get" in paths[f"{PATH}/{{id}}"]


def test_arrow_types_are_the_tables(world: World) -> None:
    table = f"{world.fresh_name()}$t"
    rows = pa.table({"id": pa.array([1], pa.int32()), "tags": [["a"]], "n": [{"x": 1}]})
    assert world.rows(f"/v1/table/{table}/create", rows)[0] == 200
    more = [{"id": 2, "tags": ["b", "c"], "n": {"x": 2}}]
    status, done = world.post(PATH, {"operations": [{"append": {"table": table, "rows": more}}]})
    assert status == 200, done
    assert world.open(table.split("$")).to_table().to_pylist()[1] == more[0]
