"""Are the two batch calls what their specifications say: many tables, all or none, in order?"""

from contextlib import closing
from pathlib import Path
from typing import Any

import lance
import pytest

from commitlog.core.partition.machine import Machine
from consumers.tools.verify import VerifyOptions, verify
from tests.namespace_world import Capture, World, numbers

BATCH = "/v1/table/batch-commit"
BATCH_CREATE = "/v1/table/version/batch-create"


@pytest.fixture
def tables(world: World) -> tuple[list[str], list[str]]:
    """Two tables of this test's own, at version 1 with 10 rows."""
    namespace = world.fresh_name()
    names = [namespace, "p"], [namespace, "q"]
    for name in names:
        world.write(name, numbers(0, 10))
    return names


def create(request: dict[str, Any]) -> dict[str, Any]:
    return {"create_table_version": request}


def append(world: World, table: list[str], count: int = 1) -> list[dict[str, Any]]:
    def work(dataset: Any) -> None:
        for number in range(count):
            dataset.insert(numbers(100 * (number + 1), 100 * (number + 1) + 5))

    return world.stage(table, work)


def heads(world: World, *tables: list[str]) -> list[tuple[int, int]]:
    opened = [world.open(table) for table in tables]
    return [(dataset.version, dataset.count_rows()) for dataset in opened]


def test_versions_of_many_tables_commit_as_one_record(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    staged = [*append(world, p, 2), *append(world, q)]
    records = world.log.runtime().request(0, "status")["sequence"]
    status, body = world.post(BATCH, {"operations": [create(one) for one in staged]})
    assert status == 200, body
    made = [result["create_table_version"]["version"]["version"] for result in body["results"]]
    assert made == [2, 3, 2]
    assert all(set(result) == {"create_table_version"} for result in body["results"])
    assert world.log.runtime().request(0, "status")["sequence"] == records + 1
    assert heads(world, p, q) == [(3, 20), (2, 15)]
    assert world.open(p, 2).count_rows() == 15


@pytest.mark.slow
def test_what_a_batch_needs_of_many_tables_is_looked_at_in_one_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [[world.fresh_name(), "t"] for _ in range(8)]
    staged = []
    for name in names:
        world.write(name, numbers(0, 10))
        staged += world.stage(name, lambda dataset: dataset.delete("id = 3"))
    decided: list[int] = []
    decide = Machine._decide_operation

    def counted(machine: Machine, draft: Any, index: int, operation: Any) -> None:
        decided.append(index)
        decide(machine, draft, index, operation)

    monkeypatch.setattr(Machine, "_decide_operation", counted)
    status, body = world.post(BATCH_CREATE, {"entries": staged})
    assert status == 200, body
    assert len(decided) <= 3 * len(names)
    assert heads(world, *names) == [(2, 9)] * len(names)


def test_one_conflict_refuses_all_and_names_the_operation(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    staged = [*append(world, p), *append(world, q)]
    world.open(q).insert(numbers(50, 51))
    status, body = world.post(BATCH, {"operations": [create(one) for one in staged]})
    assert (status, body["code"]) == (409, 14)
    assert "operations[1]" in body["error"]
    assert heads(world, p, q) == [(1, 10), (2, 11)]
    described = world.post(f"/v1/table/{'$'.join(q)}/version/describe", {"version": 2})
    assert described[0] == 200, "the winner can be described once 409 is answered"


@pytest.mark.slow
@pytest.mark.parametrize("gone", [True, False], ids=["staged no more", "staged as another version"])
def test_a_version_that_exists_is_a_conflict_whatever_is_staged(
    world: World, tables: tuple[list[str], list[str]], gone: bool
) -> None:
    p, q = tables
    (taken,) = append(world, p)
    if gone:
        assert world.post(BATCH_CREATE, {"entries": [taken]})[0] == 200
    else:
        taken = {**taken, "version": 1}
    before = heads(world, p, q)
    entries = [*append(world, q), taken]
    status, body = world.post(BATCH_CREATE, {"entries": entries})
    assert (status, body["code"]) == (409, 14), body
    assert f"entries[1]: version {taken['version']} of " in body["error"]
    status, body = world.post(BATCH, {"operations": [create(one) for one in entries]})
    assert (status, body["code"]) == (409, 14), body
    other = {**taken, "manifest_path": taken["manifest_path"] + "-other"}
    if gone:
        status, body = world.post(f"/v1/table/{'$'.join(p)}/version/create", other)
        assert (status, body["code"]) == (409, 14), body
    assert heads(world, p, q) == before


def test_a_refusal_names_entries_as_the_request_does(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    staged = append(world, tables[0])
    status, body = world.post(BATCH_CREATE, {"entries": staged * 2})
    assert (status, body["code"]) == (409, 14)
    assert "entries[1]: version 2 of " in body["error"]
    assert body["detail"].endswith("version_taken at version 2")
    assert heads(world, tables[0]) == [(1, 10)]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["file://", "file-object-store://", ""])
def test_a_manifest_may_be_named_by_its_whole_path(
    world: World, tables: tuple[list[str], list[str]], scheme: str
) -> None:
    p, q = tables
    (entry,) = append(world, p)
    name = entry["manifest_path"].rpartition("/")[2]
    elsewhere = f"{scheme}{world.location(q)}/_versions/{name}"
    status, body = world.post(BATCH_CREATE, {"entries": [{**entry, "manifest_path": elsewhere}]})
    assert (status, body["code"]) == (400, 13), body
    entry["manifest_path"] = f"{scheme}{world.location(p)}/_versions/{name}"
    status, body = world.post(BATCH_CREATE, {"entries": [entry]})
    assert status == 200, body
    assert heads(world, p) == [(2, 15)]


def test_a_name_declared_again_is_another_table_to_the_rest_of_the_batch(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    append_q = append(world, q)
    ranges = [{"start_version": 0, "end_version": -1}]
    operations = [
        {"deregister_table": {"id": p}},
        {"declare_table": {"id": p, "properties": {"owner": "me"}}},
        {"delete_table_versions": {"id": p, "ranges": ranges}},
        {"deregister_table": {"id": p}},
        create(append_q[0]),
    ]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    _, declared, gone, ended, _ = body["results"]
    assert gone["delete_table_versions"]["deleted_count"] == 0
    assert ended["deregister_table"]["properties"] == {"owner": "me"}
    assert ended["deregister_table"]["location"] == declared["declare_table"]["location"]
    assert heads(world, q) == [(2, 15)]


def test_a_table_can_be_declared_and_filled_in_one_batch(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    namespace = tables[0][0]
    location = str(world.tables_root / namespace / "new.lance")
    staged = world.stage_new([namespace, "new"], location, numbers(0, 7))
    declared = {"id": [namespace, "new"], "location": location, "properties": {"owner": "me"}}
    operations = [
        {"declare_table": declared},
        create(staged[0]),
        {"deregister_table": {"id": tables[0]}},
    ]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    kinds = [next(iter(result)) for result in body["results"]]
    assert kinds == ["declare_table", "create_table_version", "deregister_table"]
    assert body["results"][0]["declare_table"]["properties"] == {"owner": "me"}
    assert body["results"][0]["declare_table"]["managed_versioning"] is True
    assert world.open([namespace, "new"]).count_rows() == 7
    assert world.post(f"/v1/table/{'$'.join(tables[0])}/describe")[0] == 404


def test_the_same_batch_again_gets_the_first_answer(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    request = {"operations": [create(one) for one in (*append(world, p), *append(world, q))]}
    first = world.post(BATCH, request)
    assert world.post(BATCH, request) == first
    assert heads(world, p, q) == [(2, 15), (2, 15)]


def test_an_idempotency_key_is_one_request(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    namespace = tables[0][0]
    key = {"Idempotency-Key": f"key of {namespace}"}
    request = {"operations": [{"declare_table": {"id": [namespace, "d"]}}]}
    first = world.post(BATCH, request, headers=key)
    assert first[0] == 200
    assert world.post(BATCH, request, headers=key) == first
    other = {"operations": [{"declare_table": {"id": [namespace, "e"]}}]}
    status, body = world.post(BATCH, other, headers=key)
    assert (status, body["code"]) == (400, 13)


def test_a_batch_whose_table_is_gone_by_now_gets_the_first_answer(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    (entry,) = append(world, tables[0])
    entry["metadata"] = {"by": "test"}
    key = {"Idempotency-Key": f"gone {tables[0]}"}
    request = {"operations": [create(entry)]}
    first = world.post(BATCH, request, headers=key)
    assert world.post(f"/v1/table/{'$'.join(tables[0])}/deregister")[0] == 200
    again = world.post(BATCH, request, headers=key)
    (made,), (found,) = (
        [one["create_table_version"]["version"] for one in body["results"]]
        for _, body in (first, again)
    )
    # The file's own tag and size aren't in the record.
    assert {**found, "e_tag": made["e_tag"], "manifest_size": made["manifest_size"]} == made
    assert "manifest_size" not in found


def test_batch_create_answers_versions_in_order(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    entries = [*append(world, q), *append(world, p)]
    entries[0]["metadata"] = {"by": "test"}
    status, body = world.post(BATCH_CREATE, {"entries": entries})
    assert status == 200, body
    assert body["transaction_id"]
    assert [version["version"] for version in body["versions"]] == [2, 2]
    assert body["versions"][0]["metadata"] == {"by": "test"}
    for version, table in zip(body["versions"], (q, p), strict=True):
        assert f"{table[1]}-" in version["manifest_path"]
        assert version["manifest_path"].endswith(".manifest")
        assert version["manifest_size"] > 0
        assert version["timestamp_millis"] > 0


def test_batch_create_commits_nothing_if_one_entry_is_wrong(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    p, q = tables
    entries = [*append(world, p), *append(world, q)]
    entries[1]["manifest_path"] += "-gone"
    status, body = world.post(BATCH_CREATE, {"entries": entries})
    assert (status, body["code"]) == (400, 13)
    assert "entries[1]" in body["error"]
    assert heads(world, p, q) == [(1, 10), (1, 10)]


def test_a_version_that_its_batch_deletes_has_the_name_that_its_manifest_had(
    world: World, tables: tuple[list[str], list[str]]
) -> None:
    table = [tables[0][0], "v1"]
    operations: list[Any] = [{"declare_table": {"id": table}}]
    location = world.post(BATCH, {"operations": operations})[1]["results"][0]["declare_table"][
        "location"
    ]
    capture = Capture(location, 0)
    for mode in ("create", "append"):
        lance.write_dataset(
            numbers(0, 1),
            namespace_client=capture,
            table_id=table,
            mode=mode,
            enable_v2_manifest_paths=False,
        )
    entries = [{k: v for k, v in one.items() if k != "naming_scheme"} for one in capture.requests]
    ranges = [{"start_version": 1, "end_version": 2}]
    operations = [*map(create, entries), {"delete_table_versions": {"id": table, "ranges": ranges}}]
    status, body = world.post(BATCH, {"operations": operations})
    assert status == 200, body
    made = [one["create_table_version"]["version"] for one in body["results"][:2]]
    names = [one["manifest_path"].rpartition("/")[2] for one in made]
    assert names == ["1.manifest", "2.manifest"]


@pytest.mark.parametrize("declared", ["before", "in the batch"])
def test_the_first_versions_of_a_table_in_one_batch_are_proven(
    tmp_path: Path, declared: str
) -> None:
    with closing(World(tmp_path)) as world:
        name = ["n", "new"]
        location = str(world.tables_root / "n" / "new.lance")
        capture = Capture(location, 0)
        for number, mode in enumerate(["create", "append", "append"]):
            rows = numbers(number, number + 1)
            lance.write_dataset(rows, namespace_client=capture, table_id=name, mode=mode)
        declare = [{"declare_table": {"id": name, "location": location}}]
        batches = [*map(create, capture.requests)]
        for batch in [declare, batches] if declared == "before" else [declare + batches]:
            status, body = world.post(BATCH, {"operations": batch})
            assert status == 200, body
        assert heads(world, name) == [(3, 3)]
        verdict = verify(world.log.runtime().log, 0, VerifyOptions(tmp_path))
        assert verdict.problems == []
        assert verdict.not_decided_again == 0


@pytest.mark.parametrize(
    ("operation", "status", "code"),
    [
        ({}, 400, 13),
        ({"declare_table": {"id": ["n", "a"]}, "deregister_table": {"id": ["n", "b"]}}, 400, 13),
        ({"declare_table": {"id": ["n", "a"]}, "drop_table": {"id": ["n", "b"]}}, 400, 13),
        ({"deregister_table": {}}, 400, 13),
        ({"deregister_table": {"id": ["n", "nobody"]}}, 404, 4),
        ({"declare_table": {"id": ["n", ".."]}}, 400, 13),
        ({"declare_table": {"id": ["n", "a\nb"]}}, 400, 13),
        ({"declare_table": {"id": ["n", "a"], "properties": {"k" * 5_000: ""}}}, 400, 13),
        ({"declare_table": {"id": ["n", "a"], "location": "/elsewhere/a.lance"}}, 400, 13),
        ({"create_table_version": {"id": ["n", "a"]}}, 400, 13),
        (
            {"create_table_version": {"id": ["n", "a"], "version": "1", "manifest_path": "x"}},
            400,
            13,
        ),
        ({"delete_table_versions": {"id": ["n", "a"], "ranges": []}}, 404, 4),
        ({"delete_table_versions": {"id": ["n", "a"]}}, 400, 13),
    ],
)
def test_a_wrong_operation_is_named(
    world: World, operation: dict[str, Any], status: int, code: int
) -> None:
    answered, body = world.post(BATCH, {"operations": [operation]})
    assert (answered, body["code"]) == (status, code), body
    assert body["error"].startswith("operations[0]")


@pytest.mark.parametrize("body", [{"operations": []}, {}, {"operations": None}, b"[]", b"{"])
def test_a_batch_without_operations_is_refused(world: World, body: Any) -> None:
    status, answer = world.post(BATCH, body)
    assert (status, answer["code"]) == (400, 13), answer


def test_a_batch_has_a_limit(world: World) -> None:
    operations = [{"deregister_table": {"id": ["n", "a"]}}] * 1001
    status, body = world.post(BATCH, {"operations": operations})
    assert (status, body["code"]) == (400, 13)
    assert "1000" in body["error"]
