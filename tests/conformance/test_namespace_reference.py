"""Does the server answer as pylance's own reference server does, request by request?

Both get the same requests in the same order. What the reference says, ours says too, apart from
where things lie and when they were made; ours may say more.
"""

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance.namespace import RestAdapter

from consumers.servers.namespace.operations import OPERATIONS
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers

Step = tuple[str, str, Any]
UPSERT = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
INDEX = {"column": "id", "index_type": "BTREE", "name": "i"}
FIELD = {"updates": [{"path": "x", "metadata": {"a": "b"}}]}
STAGED = {"version": 99, "manifest_path": "n/t/_versions/99.manifest-1", "naming_scheme": "V1"}
VECTORS = pa.table(
    {
        "id": pa.array(range(8), pa.int64()),
        "v": pa.array([[i, 1.0] for i in range(8)], pa.list_(pa.float32(), 2)),
    }
)
STEPS: tuple[Step, ...] = (
    ("POST", "namespace/n/create", {"properties": {"a": "b"}}),
    ("POST", "namespace/n/create", {}),
    *(("POST", f"namespace/{n}/{what}", {}) for n in "nx" for what in ("describe", "exists")),
    ("GET", "namespace/$/list", None),
    ("POST", "table/n$t/create", numbers(0, 10)),
    ("POST", "table/n$t/create", numbers(0, 10)),
    *(("POST", f"table/n${t}/{what}", {}) for t in "tx" for what in ("describe", "exists")),
    ("GET", "namespace/n/table/list", None),
    ("POST", "table/n$t/count_rows", {}),
    ("POST", "table/n$t/count_rows", {"predicate": "id > 4"}),
    ("POST", "table/n$t/insert", numbers(10, 12)),
    ("POST", "table/n$t/insert?mode=overwrite", numbers(0, 3)),
    ("POST", f"table/n$t/{UPSERT}", numbers(2, 6)),
    ("POST", "table/n$t/update", {"updates": [["x", "x + 1"]], "predicate": "id = 1"}),
    ("POST", "table/n$t/delete", {"predicate": "id = 0"}),
    ("POST", "table/n$t/version/list", {}),
    ("POST", "table/n$t/version/list?limit=1&descending=true", {}),
    ("POST", "table/n$t/version/describe", {"version": 2}),
    ("POST", "table/n$t/version/describe", {"version": 99}),
    ("POST", "table/n$t/tags/create", {"tag": "one", "version": 1}),
    ("POST", "table/n$t/tags/create", {"tag": "one", "version": 1}),
    ("POST", "table/n$t/tags/create", {"tag": "two", "version": 99}),
    ("POST", "table/n$t/describe", {"tag": "one"}),
    ("POST", "table/n$t/tags/list", {}),
    ("POST", "table/n$t/tags/version", {"tag": "one"}),
    ("POST", "table/n$t/tags/version", {"tag": "no"}),
    ("POST", "table/n$t/tags/update", {"tag": "one", "version": 2}),
    ("POST", "table/n$t/tags/version", {"tag": "one"}),
    ("POST", "table/n$t/tags/delete", {"tag": "one"}),
    ("POST", "table/n$t/tags/delete", {"tag": "one"}),
    ("POST", "table/n$t/stats", {}),
    ("POST", "table/n$t/create_scalar_index", INDEX),
    ("POST", "table/n$t/create_scalar_index", INDEX),
    ("POST", "table/n$t/create_scalar_index", {"column": "x", "index_type": "BTREE"}),
    ("POST", "table/n$t/create_scalar_index", {"column": "x", "index_type": "BTREE"}),
    ("POST", "table/n$t/index/x_idx/drop", {}),
    ("POST", "table/n$t/index/list", {}),
    ("POST", "table/n$t/index/i/stats", {}),
    ("POST", "table/n$t/index/nope/stats", {}),
    ("POST", "table/n$t/index/i/drop", {}),
    ("POST", "table/n$t/index/i/drop", {}),
    ("POST", "table/n$t/add_columns", {"new_columns": [{"name": "y", "expression": "id * 2"}]}),
    ("POST", "table/n$t/drop_columns", {"columns": ["y"]}),
    ("POST", "table/n$t/alter_columns", {"alterations": [{"path": "x", "rename": "z"}]}),
    ("POST", "table/n$t/alter_columns", {"alterations": [{"path": "z", "rename": "x"}]}),
    ("POST", "table/n$t/query", {"k": 3, "vector": {}, "filter": "id > 2"}),
    ("POST", "table/n$t/query?wrong", {"k": 3, "vector": {}, "filter": "no such"}),
    ("POST", "table/n$t/explain_plan", {"query": {"k": 3, "vector": {}}}),
    ("POST", "table/n$t/analyze_plan", {"k": 3, "vector": {}}),
    ("POST", "table/n$f/create", numbers(0, 2)),
    ("POST", "table/n$f/update_field_metadata", FIELD),
    ("POST", "table/n$t/schema_metadata/update", {"c": "d"}),
    ("POST", "table/n$f/drop", {}),
    ("POST", "table/n$t/backfill_column", {"column": "x"}),
    ("POST", "table/n$t/version/create?absent", STAGED),
    ("POST", "table/version/batch-create", {"entries": [{"id": ["n", "t"], **STAGED}]}),
    ("POST", "table/batch-commit", {"operations": []}),
    ("POST", "transaction/no-such/describe", {}),
    ("POST", "transaction/no-such/alter", {"actions": []}),
    ("POST", "materialized_view/n$m/create", {}),
    ("POST", "materialized_view/n$m/refresh", {}),
    ("GET", "table", None),
    ("POST", "table/n$t/restore", {"version": 1}),
    ("POST", "table/n$t/describe", {"load_detailed_metadata": True}),
    ("POST", "table/n$t/count_rows", {}),
    ("POST", "table/n$v/create", VECTORS),
    ("POST", "table/n$v/create_index", {"column": "v", "index_type": "IVF_FLAT"}),
    ("POST", "table/n$v/index/list", {}),
    ("POST", "table/n$v/query", {"k": 2, "vector": {"single_vector": [1.0, 0.0]}}),
    ("POST", "table/n$v/rename", {"new_table_name": "w"}),
    ("POST", "table/n$v/exists", {}),
    ("POST", "table/n$w/drop", {}),
    ("POST", "table/n$r/register", {"location": "/elsewhere/r.lance"}),
    ("POST", "table/n$t/branches/list", {}),
    ("POST", "table/n$t/branches/create", {"name": "dev"}),
    ("POST", "table/n$t/branches/list", {}),
    ("POST", "table/n$t/branches/delete", {"name": "dev"}),
    ("POST", "table/n$t/branches/delete", {"name": "dev"}),
    ("POST", "table/n$t/version/delete", {"ranges": [{"start_version": 1, "end_version": 3}]}),
    ("POST", "table/n$t/version/delete", {"ranges": [{"start_version": 0, "end_version": 2}]}),
    ("POST", "table/n$t/version/list", {}),
    ("POST", "table/n$d/declare", {}),
    ("POST", "table/n$d/declare", {}),
    ("POST", "table/n$d/describe", {}),
    ("POST", "table/n$d/version/list", {}),
    ("POST", "table/n$x/version/list", {}),
    ("POST", "table/n$d2/declare", {}),
    ("POST", "table/n$d2/insert", numbers(0, 3)),
    ("POST", "table/n$d2/count_rows", {}),
    ("POST", "table/n$d3/declare", {}),
    ("POST", "table/n$d3/create?mode=overwrite", numbers(0, 4)),
    ("POST", "table/n$d3/count_rows", {}),
    ("POST", "table/n$d3/merge_insert?on=id&when_matched_update_all_filt=id+%3E+1", numbers(0, 6)),
    ("POST", "table/n$d3/count_rows", {}),
    ("POST", "table/n$d2/drop", {}),
    ("POST", "table/n$d3/drop", {}),
    ("POST", "namespace/missing$child/create", {}),
    ("POST", "table/missing$t/create", numbers(0, 1)),
    ("POST", "namespace/n/drop", {}),
    ("POST", "table/n$d/deregister", {}),
    ("POST", "table/n$t/drop", {}),
    ("POST", "table/n$t/drop", {}),
    ("POST", "namespace/n/drop", {}),
    ("POST", "namespace/n/drop", {}),
)
ELSEWHERE = {
    *("location", "table_uri", "manifest_path", "manifest_size", "manifestSize", "e_tag"),
    *(
        "timestamp_millis",
        "createAt",
        "created_at",
        "index_uuid",
        "transaction_id",
        "error",
        "page_token",
    ),
    # The reference knows no namespace's or table's own.
    *("properties", "storage_options"),
}
OURS = {
    "namespace/n/drop": "the reference drops a namespace that holds tables or is gone",
    "table/n$t/query?wrong": "a filter that can't be read is a mistake, for the reference its own",
    "table/n$t/explain_plan": "it names where the files are",
    "table/n$t/analyze_plan": "it names where the files are, and how long all took",
    "table/n$f/update_field_metadata": "the reference hasn't got it",
    "table/n$t/backfill_column": "neither has got it: ours says so by 406",
    "table/n$t/version/create?absent": "of two mistakes, the missing file comes first here",
    "table/version/batch-create": "the reference hasn't got it",
    "table/batch-commit": "the reference hasn't got it",
    "transaction/no-such/describe": "a transaction that isn't there is 404",
    "materialized_view/n$m/create": "neither has got it: ours says so by 406",
    "materialized_view/n$m/refresh": "neither has got it: ours says so by 406",
    "table": "the reference lists the tables of no namespace alone",
    "table/n$v/index/list": "the same settings of the index in another order",
    "table/n$v/query": "the reference looks for vectors in a column named vector only",
    "table/n$v/rename": "the reference hasn't got it",
    "table/n$v/exists": "so that its table has the old name",
    "table/n$w/drop": "and not the new one",
}


@pytest.fixture
def reference(tmp_path: Path) -> Iterator[str]:
    properties = {"root": str(tmp_path / "reference"), "table_version_tracking_enabled": "true"}
    adapter = RestAdapter("dir", properties, host="127.0.0.1", port=0)
    adapter.start()  # type: ignore[no-untyped-call]
    yield f"http://127.0.0.1:{adapter.port}"
    adapter.stop()  # type: ignore[no-untyped-call]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    running = World(tmp_path / "ours")
    yield running
    running.close()


def ask(uri: str, step: Step) -> tuple[int, Any]:
    method, path, body = step
    headers, data = {"Content-Type": "application/json"}, None
    if isinstance(body, dict):
        data = json.dumps(body).encode()
    elif body is not None:
        headers, data = {"Content-Type": ARROW_STREAM}, arrow_stream(body)
    request = urllib.request.Request(f"{uri}/v1/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            status, answer = response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            status, answer = error.code, error.read()
    return status, _decoded(answer)


def _decoded(answer: bytes) -> Any:
    """Return JSON as it is, and rows as a list."""
    if answer.startswith(b"ARROW1"):
        return pa.ipc.open_file(answer).read_all().to_pylist()
    try:
        return json.loads(answer) if answer else None
    except ValueError:
        return answer.decode()


def differences(theirs: Any, ours: Any, where: str = "") -> list[str]:
    """Return what the reference says and ours doesn't."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        return [
            found
            for name, value in theirs.items()
            if name not in ELSEWHERE and value is not None
            for found in differences(value, ours.get(name), f"{where}.{name}")
        ]
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        return [
            found
            for index, (one, other) in enumerate(zip(theirs, ours, strict=True))
            for found in differences(one, other, f"{where}[{index}]")
        ]
    return [] if theirs == ours else [f"{where}: {theirs!r}, ours {ours!r}"]


def test_every_operation_is_among_the_steps() -> None:
    asked = {(method, path.partition("?")[0]) for method, path, _ in STEPS}
    missing = [
        entry.name
        for entry in OPERATIONS
        if not any(
            method == entry.method and re.fullmatch(_pattern(entry.path), f"/v1/{path}")
            for method, path in asked
        )
    ]
    assert not missing


def _pattern(path: str) -> str:
    return re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path))


def test_the_same_requests_get_the_same_answers(world: World, reference: str) -> None:
    wrong, differ = [], set[str]()
    for number, step in enumerate(STEPS):
        theirs, ours = ask(reference, step), ask(world.uri, step)
        found = differences(list(theirs), list(ours))
        if step[1] in OURS:
            differ |= {step[1]} if found else set()
            continue
        wrong += [f"{number} {step[0]} {step[1]} {one}" for one in found]
    assert not wrong, "\n".join(wrong)
    assert differ == set(OURS), "what is the same isn't listed as a difference"
