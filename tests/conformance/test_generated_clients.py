"""Lance's generated clients for Rust and Java, unmodified, against the server.

Both carry out the same calls. What is compared has gone through the clients' own types.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumers.broker.errors import JarsUnavailable
from infra import namespace_clients
from tests.child import ended
from tests.namespace_world import World, arrow_stream, numbers
from tests.unit.test_namespace_reach import ADMIN, BOB, secured_world

RUN_SECONDS = 240
Call = dict[str, Any]
Calling = Callable[[World, dict[str, str], list[Call]], list[dict[str, Any]]]

WITHOUT_ID = ("update_table_schema_metadata", "batch_commit_tables")
NO_BRANCHES_IN_JAVA = "branches came after 0.7, the newest release of the Java client"
VECTORS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "vector": pa.array([[i, 1.0] for i in range(8)], pa.list_(pa.float32(), 2)),
        "s": [f"word w{i}" for i in range(8)],
    }
)
Expected = tuple[int, Any]
"""A status, and the code of an error or a part of the body."""

DONE: Expected = (200, {})
BAD: Expected = (400, 13)


def call(method: str, identity: str = "n$t", body: Any = None, **more: Any) -> Call:
    """Return a call; Java's requests name the table too, as an empty list otherwise."""
    request = dict(body or {})
    if method not in WITHOUT_ID:
        request = {"id": identity.split("$"), **request}
    return {"method": method, "id": identity, "body": request, **more}


def query(where: str, identity: str = "n$t", **more: Any) -> Call:
    return call("query_table", identity, {"k": 2, "vector": {}, **more}, into=where)


UPSERT: Any = {"on": "id", "update": True, "insert": True}
INDEX = {"column": "id", "index_type": "BTREE", "name": "i"}
MATCH = {"match": {"terms": "w3", "column": "s"}}
DECLARED = [{"declare_table": {"id": ["n", name]}} for name in ("b1", "b2")]
STEPS: list[tuple[Call, Expected]] = [
    (call("create_namespace", "n", {"properties": {"a": "b"}}), DONE),
    (call("create_namespace", "n"), (409, 2)),
    (call("create_namespace", "n$m"), DONE),
    (call("create_namespace", "n$l"), DONE),
    (call("describe_namespace", "n"), (200, {"properties": {"a": "b"}})),
    (call("describe_namespace", "x"), (404, 1)),
    (call("namespace_exists", "n"), DONE),
    (call("namespace_exists", "x"), (404, 1)),
    (call("list_namespaces", "$"), (200, {"namespaces": ["n"]})),
    (call("list_namespaces", "n", limit=1), (200, {"namespaces": ["l"], "page_token": "l"})),
    (call("list_namespaces", "n", page_token="l"), (200, {"namespaces": ["m"]})),
    (call("create_table", rows="ten"), (200, {"version": 1})),
    (call("create_table", rows="ten"), (409, 5)),
    (call("create_table", rows="ten", mode="exist_ok"), (200, {"version": 1})),
    (call("create_table", rows="ten", mode="overwrite"), (200, {"version": 2})),
    (call("create_table", rows="ten", mode="strange"), BAD),
    (call("create_table", "n$x", rows="no-rows"), BAD),
    (call("describe_table", detailed=True), (200, {"namespace": ["n"], "version": 2})),
    (call("describe_table", "n$x"), (404, 4)),
    (call("table_exists"), DONE),
    (call("table_exists", "n$x"), (404, 4)),
    (call("declare_table", "n$d"), (200, {"managed_versioning": True})),
    (call("declare_table", "n$d"), (409, 5)),
    (call("list_tables", "n", limit=1), (200, {"tables": ["d"], "page_token": "d"})),
    (call("list_tables", "n", page_token="d"), (200, {"tables": ["t"]})),
    (call("list_all_tables"), (200, {"tables": ["n$d", "n$t"]})),
    (call("deregister_table", "n$d"), (200, {"id": ["n", "d"]})),
    (call("register_table", "n$r", {"location": "/elsewhere/r.lance"}), BAD),
    (call("insert_into_table", rows="two"), DONE),
    (call("insert_into_table", "n$x", rows="two"), (404, 4)),
    (
        call("merge_insert_into_table", rows="six", **UPSERT),
        (200, {"num_updated_rows": 4, "num_inserted_rows": 2, "version": 4}),
    ),
    (call("merge_insert_into_table", rows="six", **{**UPSERT, "on": "x.y"}), BAD),
    (
        call("update_table", body={"predicate": "id = 1", "updates": [["x", "x + 1"]]}),
        (200, {"updated_rows": 1, "version": 5}),
    ),
    (call("delete_from_table", body={"predicate": "id = 0"}), (200, {"version": 6})),
    (call("delete_from_table", body={"predicate": "no such"}), BAD),
    (call("count_table_rows"), (200, 13)),
    (call("count_table_rows", body={"predicate": "id > 4"}), (200, 9)),
    (call("count_table_rows", body={"version": 1}), (200, 10)),
    (query("found-0", filter="id > 4"), DONE),
    (query("found-0", filter="no such"), BAD),
    (call("explain_table_query_plan", body={"query": {"k": 1, "vector": {}}}), DONE),
    (call("analyze_table_query_plan", body={"k": 1, "vector": {}}), DONE),
    (call("create_table", "n$v", rows="vectors"), DONE),
    (
        query(
            "found-1",
            "n$v",
            vector={"single_vector": [1.0, 0.0]},
            columns={"column_names": ["id"]},
        ),
        DONE,
    ),
    (query("found-2", "n$v", vector={"multi_vector": [[1.0, 0.0], [4.0, 0.0]]}), DONE),
    (call("create_table_index", "n$v", {"column": "vector", "index_type": "IVF_FLAT"}), DONE),
    (call("create_table_index", "n$v", {"column": "s", "index_type": "FTS"}), DONE),
    (call("create_table_scalar_index", "n$v", INDEX), DONE),
    (call("create_table_scalar_index", "n$v", INDEX), (409, 7)),
    (query("found-3", "n$v", full_text_query={"string_query": {"query": "w3"}}), DONE),
    (query("found-4", "n$v", full_text_query={"structured_query": {"query": MATCH}}), DONE),
    (call("list_table_indices", "n$v"), DONE),
    (
        call("describe_table_index_stats", "n$v", index="i"),
        (200, {"num_indexed_rows": 8, "num_unindexed_rows": 0}),
    ),
    (call("describe_table_index_stats", "n$v", index="x"), (404, 6)),
    (call("drop_table_index", "n$v", index="i"), DONE),
    (call("create_table_tag", body={"tag": "one", "version": 1}), DONE),
    (call("create_table_tag", body={"tag": "one", "version": 1}), (409, 9)),
    (call("get_table_tag_version", body={"tag": "one"}), (200, {"version": 1})),
    (call("get_table_tag_version", body={"tag": "x"}), (404, 8)),
    (call("update_table_tag", body={"tag": "one", "version": 2}), DONE),
    (call("list_table_tags"), DONE),
    (call("delete_table_tag", body={"tag": "one"}), DONE),
    (call("list_table_versions", limit=2, descending=True), DONE),
    (call("describe_table_version", body={"version": 2}), DONE),
    (call("describe_table_version", body={"version": 99}), (404, 11)),
    (
        call(
            "alter_table_add_columns",
            body={"new_columns": [{"name": "y", "expression": "id * 2"}]},
        ),
        (200, {"version": 7}),
    ),
    (
        call("alter_table_alter_columns", body={"alterations": [{"path": "y", "rename": "z"}]}),
        (200, {"version": 8}),
    ),
    (call("alter_table_drop_columns", body={"columns": ["z"]}), (200, {"version": 9})),
    (call("alter_table_drop_columns", body={"columns": ["z"]}), (404, 12)),
    (call("update_table_schema_metadata", body={"c": "d"}), (200, {"c": "d"})),
    (call("get_table_stats"), (200, {"num_rows": 13, "num_indices": 0})),
    (call("restore_table", body={"version": 1}), DONE),
    (call("restore_table", body={"version": 99}), (404, 11)),
    (call("count_table_rows"), (200, 10)),
    (call("batch_commit_tables", body={"operations": DECLARED}), DONE),
    (call("batch_commit_tables", body={"operations": []}), BAD),
    (
        call(
            "batch_delete_table_versions",
            body={"ranges": [{"start_version": 1, "end_version": 2}]},
        ),
        (200, {"deleted_count": 1}),
    ),
    (call("describe_transaction", "no-such"), (404, 10)),
    (call("rename_table", "n$v", {"new_table_name": "w"}), DONE),
    (call("drop_table", "n$w"), (200, {"id": ["n", "w"]})),
    (call("drop_table", "n$w"), (404, 4)),
    (call("drop_namespace", "n"), (409, 3)),
]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = secured_world(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["rust", "java"])
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return where the programs find rows, and leave what queries find."""
    made = tmp_path / "rows"
    made.mkdir()
    spans = {"ten": (0, 10), "two": (10, 12), "six": (8, 14)}
    tables = {name: numbers(*span) for name, span in spans.items()} | {"vectors": VECTORS}
    for name, table in tables.items():
        (made / name).write_bytes(arrow_stream(table))
    (made / "no-rows").write_bytes(b"no rows")
    return made


@pytest.fixture
def calling(language: str, folder: Path) -> Calling:
    """Return what carries calls out; the test is skipped, and says so, where it isn't there."""
    if language == "rust":
        program = namespace_clients.built_rust_program()
        if program is None:
            pytest.skip(namespace_clients.NO_RUST_PROGRAM)
        command = [str(program)]
    else:
        try:
            command = namespace_clients.java_program()
        except (JarsUnavailable, namespace_clients.NoCompiler) as error:
            pytest.skip(f"Lance's Java client is not tested: {error}")

    def called(world: World, who: dict[str, str], calls: list[Call]) -> list[dict[str, Any]]:
        ran = ended(
            [*command, world.uri, who["x-api-key"]],
            cwd=folder,
            input="".join(f"{json.dumps(call)}\n" for call in calls),
            timeout=RUN_SECONDS,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return [json.loads(line) for line in ran.stdout.splitlines()]

    return called


def test_the_whole_namespace_by_its_types(world: World, calling: Calling, folder: Path) -> None:
    answers = calling(world, ADMIN, [step for step, _ in STEPS])
    _check(STEPS, answers)
    of_method: dict[str, Any] = {
        step["method"]: answer.get("body")
        for (step, _), answer in zip(STEPS, answers, strict=True)
        if answer["status"] == 200
    }
    indices = of_method["list_table_indices"]["indexes"]
    assert sorted(one["index_name"] for one in indices) == ["i", "s_idx", "vector_idx"]
    assert of_method["list_table_tags"]["tags"]["one"]["version"] == 2
    assert [one["version"] for one in of_method["list_table_versions"]["versions"]] == [6, 5]
    assert len(of_method["batch_commit_tables"]["results"]) == 2
    assert [_ids(folder / f"found-{n}") for n in range(5)] == [
        [5, 6],
        [1, 0],
        [1, 0, 4, 3],
        [3],
        [3],
    ]

    done = of_method["insert_into_table"]["transaction_id"]
    last = [
        (call("describe_transaction", done), (200, {"status": "Succeeded"})),
        (call("drop_namespace", "n", {"behavior": "Cascade"}), DONE),
        (call("list_namespaces", "$"), (200, {"namespaces": []})),
    ]
    _check(last, calling(world, ADMIN, [step for step, _ in last]))


def test_branches(world: World, calling: Calling, language: str) -> None:
    if language == "java":
        pytest.skip(NO_BRANCHES_IN_JAVA)
    world.rows("/v1/table/n$t/create", numbers(0, 10), headers=ADMIN)
    steps: list[tuple[Call, Expected]] = [
        (call("create_table_branch", body={"name": "dev"}), DONE),
        (call("create_table_branch", body={"name": "dev"}), (409, 23)),
        (call("list_table_branches"), DONE),
        (
            call("insert_into_table", rows="two", branch="dev"),
            (200, {"version": 2}),
        ),
        (call("count_table_rows", body={"branch": "dev"}), (200, 12)),
        (call("count_table_rows"), (200, 10)),
        (call("list_table_versions", branch="dev"), DONE),
        (call("delete_table_branch", body={"name": "dev"}), DONE),
        (call("delete_table_branch", body={"name": "dev"}), (404, 22)),
    ]
    answers = calling(world, ADMIN, [step for step, _ in steps])
    _check(steps, answers)
    assert list(answers[2]["body"]["branches"]) == ["dev"]


def test_keys_and_grants(world: World, calling: Calling) -> None:
    world.rows("/v1/table/n$t/create", numbers(0, 10), headers=ADMIN)
    counted = call("count_table_rows")
    for who, expected in ((BOB, (403, 15)), ({"x-api-key": "unknown"}, (401, 16))):
        _check([(counted, expected)], calling(world, who, [counted]))


def _check(steps: list[tuple[Call, Expected]], answers: list[dict[str, Any]]) -> None:
    """Compare each answer's status, and its code as the client's own type has it or its body."""
    wrong = []
    for (step, (status, expected)), answer in zip(steps, answers, strict=True):
        if status == 200:
            body = answer.get("body")
            is_right = answer["status"] == 200 and (
                body == expected
                or expected == {}
                or (isinstance(body, dict) and expected.items() <= body.items())
            )
        else:
            is_right = (answer["status"], answer.get("code")) == (status, expected)
            is_right = is_right and answer["typed"]
        wrong += [] if is_right else [f"{step}: {status} {expected}, not {answer}"]
    assert not wrong, "\n".join(wrong)


def _ids(answer: Path) -> list[int]:
    return list(pa.ipc.open_file(answer.read_bytes()).read_all()["id"].to_pylist())
