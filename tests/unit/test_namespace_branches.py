"""Do branches work as Lance's own, and do questions at a position see whole records?"""

import pickle
import re
import threading
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

from commitlog import InvalidRequest
from tests.namespace_world import World, arrow_stream, numbers

BATCH = "/v1/table/batch-commit"
POSITION = "x-commitlog-sequence"


@pytest.fixture
def table(world: World) -> list[str]:
    """A table of this test's own with versions 1 (5 rows) and 2 (6 rows)."""
    name = [world.fresh_name(), "t"]
    world.write(name, numbers(0, 5)).insert(numbers(5, 6))
    return name


def post(world: World, table: list[str], operation: str, body: Any = None) -> tuple[int, Any]:
    return world.post(f"/v1/table/{'$'.join(table)}/{operation}", body)


def test_a_branch_is_made_listed_and_deleted(world: World, table: list[str]) -> None:
    assert post(world, table, "branches/create", {"name": "dev", "from_version": 1})[0] == 200
    assert post(world, table, "branches/create", {"name": "dev"})[1]["code"] == 23
    made = {"name": "fix/one", "from_branch": "dev", "from_version": 1}
    assert post(world, table, "branches/create", made)[0] == 200
    assert (
        post(world, table, "branches/create", {"name": "x", "from_branch": "no"})[1]["code"] == 22
    )
    status, body = post(world, table, "branches/list")
    assert set(body["branches"]) == {"dev", "fix/one"}
    assert body["branches"]["dev"]["parentVersion"] == 1
    assert body["branches"]["fix/one"]["parentBranch"] == "dev"
    plain = lance.dataset(world.location(table))
    assert set(plain.branches.list()) == {"dev", "fix/one"}, "they are Lance's own"
    assert plain.checkout_version(("dev", None)).count_rows() == 5
    assert post(world, table, "branches/delete", {"name": "fix/one"})[0] == 200
    assert post(world, table, "branches/delete", {"name": "fix/one"})[1]["code"] == 22
    assert set(post(world, table, "branches/list")[1]["branches"]) == {"dev"}


def test_unmodified_pylance_branches_and_commits_there(world: World, table: list[str]) -> None:
    main = world.open(table)
    branch = main.create_branch("dev")
    branch.insert(numbers(100, 110))
    assert branch.count_rows() == 16
    assert world.open(table).count_rows() == 6, "the main line is as it was"
    world.open(table).insert(numbers(6, 7))
    listed = world.post(f"/v1/table/{'$'.join(table)}/version/list?branch=dev")[1]["versions"]
    assert len(listed) == 2
    described = post(world, table, "version/describe", {"branch": "dev"})[1]["version"]
    assert described == listed[-1]
    assert "/tree/dev/_versions/" in described["manifest_path"]
    again = lance.dataset(world.location(table)).checkout_version(("dev", None))
    assert again.count_rows() == 16
    assert world.log.table(table).version == 3


def test_a_branch_of_the_log_is_read_here_and_committed_to_by_its_table(
    world: World, table: list[str]
) -> None:
    name = f"{table[0]}$dev"
    clone = lance.LanceOperation.Clone(True, None, 2, world.location(table), "dev")
    world.log.submit(name, clone).result().raise_for_conflict()
    world.log.open(name).insert(numbers(6, 8))
    assert set(post(world, table, "branches/list")[1]["branches"]) == {"dev"}
    status, body = post(world, table, "version/describe", {"branch": "dev"})
    assert (status, body["version"]["version"]) == (200, 3)
    for operation, request in (
        ("branches/delete", {"name": "dev"}),
        ("version/create", {"version": 4, "manifest_path": "x", "branch": "dev"}),
    ):
        status, body = post(world, table, operation, request)
        assert (status, body["code"]) == (406, 0)
        assert f"is a table of the log, {name}" in body["error"]
    assert world.log.open(name).count_rows() == 8


def test_what_concerns_one_table_has_no_others_told(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such request had all tables told: of ten thousand, half a second of two processes."""
    space, name = table[0], "$".join(table)
    made = world.post(f"/v1/table/{space}$gone/declare")[1]["transaction_id"]
    assert post(world, table, "branches/create", {"name": "dev"})[0] == 200
    past = {POSITION: str(world.log.position()[0])}
    world.post(f"/v1/table/{name}/rename", {"new_table_name": "moved"})
    world.post(f"/v1/table/{space}$gone/drop")
    runtime = world.log.runtime()
    asked = Mock(wraps=runtime.request)
    monkeypatch.setattr(runtime, "request", asked)

    for read in (name, f"{space}$gone"):
        assert world.post(f"/v1/table/{read}/describe", headers=past)[0] == 200
    assert world.post(f"/v1/table/{name}/count_rows", headers=past) == (200, 6)
    assert world.post(f"/v1/transaction/{made}/describe")[0] == 200
    assert world.rows(f"/v1/table/{space}$moved/insert?branch=dev", numbers(6, 7))[0] == 200
    assert world.post(f"/v1/table/{space}$moved/branches/delete", {"name": "dev"})[0] == 200
    told = [one for one in asked.mock_calls if one.args[1:] == ("tables",)]
    assert told
    assert all(one.kwargs.keys() & {"incarnation", "ending"} for one in told)


def test_a_handle_deletes_no_branch_that_is_a_table_of_the_log(
    world: World, table: list[str]
) -> None:
    name, place = f"{table[0]}$dev", world.location(table)
    clone = lance.LanceOperation.Clone(True, None, 2, place, "dev")
    world.log.submit(name, clone).result().raise_for_conflict()
    world.log.open(name).insert(numbers(6, 8))
    for handle in (world.log.open(table), world.log.open(name)):
        with pytest.raises(InvalidRequest, match=f"is a table of the log, {re.escape(name)}"):
            handle.branches.delete("dev")
    for read_only in (
        pickle.loads(pickle.dumps(world.log.open(table))),
        world.log.snapshot().open(table),
    ):
        with pytest.raises(InvalidRequest, match=r"read-only, and branches\.delete writes"):
            read_only.branches.delete("dev")
    rows = lance.dataset(place).checkout_version(("dev", None)).to_table()
    assert rows["id"].to_pylist() == list(range(8))
    lance.dataset(place).create_branch("theirs")  # outside the log
    opened = world.log.open(table)
    opened.branches.delete("theirs")
    assert set(opened.branches.list()) == {"dev"}


def test_an_upload_to_a_branch_is_written_as_it_comes(
    world: World, table: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was read whole first, of whatever size."""
    assert post(world, table, "branches/create", {"name": "dev"})[0] == 200
    given: list[object] = []
    insert = lance.LanceDataset.insert

    def noted(dataset: lance.LanceDataset, data: Any, **options: Any) -> Any:
        given.append(type(data))
        return insert(dataset, data, **options)

    monkeypatch.setattr(lance.LanceDataset, "insert", noted)
    path = f"/v1/table/{'$'.join(table)}/insert?branch=dev&mode="
    for mode in ("append", "overwrite"):
        status, body = world.rows(path + mode, numbers(50, 53))
        assert (status, body["num_inserted_rows"]) == (200, 3)
    stream = arrow_stream(numbers(60, 20_000))
    status, body = world.rows_raw(path + "append", stream[: len(stream) // 2])
    assert (status, body["code"]) == (400, 13)
    assert given == [pa.RecordBatchReader] * 3
    assert post(world, table, "count_rows", {"branch": "dev"}) == (200, 3)


def test_a_branch_takes_each_number_once(world: World, table: list[str]) -> None:
    status, body = post(world, table, "version/describe", {"branch": "no"})
    assert (status, body["code"]) == (404, 22)
    for wrong in ("../x", "a//b", "..", "a\0b", "x" * 300, "/".join("x" * 3000)):
        request = {"version": 3, "manifest_path": "x", "branch": wrong}
        assert post(world, table, "version/create", request)[0] == 400
        for operation in ("version/describe", "version/list"):
            assert post(world, table, operation, {"branch": wrong})[0] == 400
    branch = world.open(table).create_branch("dev")
    other = lance.dataset(namespace_client=world.namespace, table_id=table).checkout_version(
        ("dev", None)
    )
    branch.insert(numbers(100, 101))
    other.insert(numbers(200, 201))
    found = lance.dataset(world.location(table)).checkout_version(("dev", None))
    assert sorted(found.to_table()["id"].to_pylist()) == [*range(6), 100, 200]


def at(world: World, table: list[str], operation: str, position: int, body: Any = None) -> Any:
    path = f"/v1/table/{'$'.join(table)}/{operation}"
    return world.post(path, body, headers={POSITION: str(position)})


def test_a_question_at_a_position_sees_whole_records(world: World) -> None:
    space = world.fresh_name()
    tables = [[space, name] for name in ("p", "q")]
    for table in tables:
        world.write(table, numbers(0, 5))
    first = world.log.runtime().request(0, "status")["sequence"]
    staged = [
        request
        for table in tables
        for request in world.stage(table, lambda dataset: dataset.insert(numbers(5, 8)))
    ]
    request = {"operations": [{"create_table_version": one} for one in staged]}
    assert world.post(BATCH, request)[0] == 200
    second = world.log.runtime().request(0, "status")["sequence"]
    for position, version, count in ((first, 1, 5), (second, 2, 8)):
        for table in tables:
            assert at(world, table, "count_rows", position) == (200, count)
            described = at(world, table, "version/describe", position)[1]["version"]
            assert described["version"] == version
            listed = at(world, table, "version/list", position)[1]["versions"]
            assert [entry["version"] for entry in listed] == list(range(1, version + 1))
    assert at(world, tables[1], "version/describe", first - 1)[0] == 404, "it had no version yet"
    assert at(world, tables[0], "describe", first, {"version": 2})[0] == 404
    for wrong in ("-1", "x", "9" * 30):
        status, body = world.post(f"/v1/table/{space}$p/count_rows", headers={POSITION: wrong})
        assert (status, body["code"]) == (400, 13)


def test_a_question_ahead_of_the_log_waits_for_it(world: World) -> None:
    table = [world.fresh_name(), "t"]
    world.write(table, numbers(0, 5))
    position = world.log.runtime().request(0, "status")["sequence"] + 1
    answers: list[Any] = []
    asking = threading.Thread(
        target=lambda: answers.append(at(world, table, "count_rows", position))
    )
    asking.start()
    world.open(table).insert(numbers(5, 6))
    asking.join(120)
    assert answers == [(200, 6)]
