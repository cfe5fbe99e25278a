"""Do operations on rows answer as pylance does on the same rows, and merge_insert as specified?"""

import asyncio
import io
import json
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from pickle import PickleBuffer
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

from commitlog.client.commits import execution
from commitlog.client.leader.runtime import Runtime
from commitlog.model.operations import DeclareTable
from commitlog.model.records import Status
from consumers.servers.namespace import answer_files, call, row_work
from consumers.servers.namespace import rows as rows_module
from consumers.servers.namespace.remote import seconds
from consumers.servers.namespace.settings import Settings
from tests.namespace_world import World, arrow_stream, numbers
from tests.waiting import at_once, wait_until

MERGE = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.fixture
def table(world: World) -> str:
    name = world.fresh_name()
    status, body = world.rows(f"/v1/table/{name}$t/create", numbers(0, 10))
    assert (status, body["version"]) == (200, 1), body
    return f"/v1/table/{name}$t"


def count(world: World, table: str, **request: Any) -> int:
    status, found = world.post(f"{table}/count_rows", request)
    assert status == 200, found
    return int(found)


def query(world: World, table: str, **request: Any) -> pa.Table:
    status, body = world.post(f"{table}/query", {"k": 1000, "vector": [], **request})
    assert status == 200, body
    return pa.ipc.open_file(io.BytesIO(body)).read_all()


def merge(world: World, table: str, rows: pa.Table, options: str) -> tuple[int, Any]:
    return world.rows(f"{table}/merge_insert?{options}", rows)


def test_a_table_of_rows_is_made_by_one_record(world: World) -> None:
    before = world.log.runtime().request(0, "status")["sequence"]
    rows = numbers(0, 3)
    status, body = world.rows("/v1/table/made$t/create?properties=%7B%22a%22%3A%22b%22%7D", rows)
    assert status == 200, body
    assert (body["version"], body["properties"]) == (1, {"a": "b"})
    assert world.log.runtime().request(0, "status")["sequence"] == before + 1
    assert world.rows("/v1/table/made$t/create", rows)[1]["code"] == 5
    kept = world.rows("/v1/table/made$t/create?mode=exist_ok", numbers(5, 6))
    assert (kept[0], count(world, "/v1/table/made$t")) == (200, 3)
    replaced = world.rows("/v1/table/made$t/create?mode=Overwrite", numbers(5, 6))
    assert (replaced[1]["version"], count(world, "/v1/table/made$t")) == (2, 1)


def test_rows_are_added_once_under_a_key(world: World, table: str) -> None:
    key = {"Idempotency-Key": f"insert into {table}"}
    first = world.rows(f"{table}/insert", numbers(10, 20), headers=key)
    assert first[1]["num_inserted_rows"] == 10
    again = world.rows(f"{table}/insert", numbers(10, 20), headers=key)
    assert again[0] == 200, again
    assert again[1]["transaction_id"] == first[1]["transaction_id"]
    assert count(world, table) == 20
    replaced = world.rows(f"{table}/insert?mode=overwrite", numbers(0, 4))
    assert (replaced[0], count(world, table), count(world, table, version=1)) == (200, 4, 10)


def test_merge_insert_says_exactly_what_it_did(world: World, table: str) -> None:
    options = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true&timeout=30s"
    status, body = merge(world, table, numbers(8, 13, 0.5), options)
    assert status == 200, body
    assert body["transaction_id"]
    counts = [body[f"num_{what}_rows"] for what in ("updated", "inserted", "deleted")]
    assert (counts, body["version"]) == ([2, 3, 0], 2)
    assert sorted(query(world, table)["x"].to_pylist())[-5:] == [8.5, 9.5, 10.5, 11.5, 12.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ("when_matched_update_all=true", [2, 0, 0]),
        ("when_not_matched_insert_all=true", [0, 3, 0]),
        ("when_matched_update_all=true&when_matched_update_all_filt=target.x>8.1", [1, 0, 0]),
        ("when_not_matched_by_source_delete=true", [0, 0, 8]),
        (
            "when_not_matched_by_source_delete=true"
            "&when_not_matched_by_source_delete_filt=id<3&when_matched_update_all=true",
            [2, 0, 3],
        ),
        ("when_not_matched_insert_all=true&use_index=true&timeout=5m", [0, 3, 0]),
    ],
)
@pytest.mark.parametrize("names", [["id", "x"], ["id"]], ids=["all_columns", "key_only"])
def test_each_parameter_does_what_pylance_does(
    world: World, table: str, options: str, counts: list[int], names: list[str], tmp_path: Any
) -> None:
    source = numbers(8, 13, 0.5).select(names)
    status, body = merge(world, table, source, f"on=id&{options}")
    assert status == 200, body
    assert [body[f"num_{what}_rows"] for what in ("updated", "inserted", "deleted")] == counts
    given = dict(part.split("=", 1) for part in options.split("&"))
    alone = lance.write_dataset(numbers(0, 10), tmp_path / "alone.lance")
    builder = alone.merge_insert("id")
    if "when_matched_update_all" in given:
        builder.when_matched_update_all(given.get("when_matched_update_all_filt"))
    if "when_not_matched_insert_all" in given:
        builder.when_not_matched_insert_all()
    if "when_not_matched_by_source_delete" in given:
        builder.when_not_matched_by_source_delete(
            given.get("when_not_matched_by_source_delete_filt")
        )
    builder.execute(source)
    assert query(world, table).sort_by("id") == alone.to_table().sort_by("id")


def test_several_columns_may_match(world: World, table: str) -> None:
    options = "on=id&on=x&when_not_matched_insert_all=true"
    status, body = merge(world, table, numbers(9, 11), options)
    assert (status, body["num_inserted_rows"]) == (200, 1)


def test_no_rows_change_nothing(world: World, table: str) -> None:
    options = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
    status, body = merge(world, table, numbers(0, 0), options)
    assert status == 200
    assert [body[f"num_{what}_rows"] for what in ("updated", "inserted", "deleted")] == [0, 0, 0]
    assert count(world, table) == 10


@pytest.mark.parametrize(
    "options",
    [
        "when_matched_update_all=true",
        "on=id",
        "on=nobody&when_matched_update_all=true",
        "on=id&when_matched_update_all=perhaps",
        "on=id&when_matched_update_all=true&timeout=soon",
        "on=id&when_matched_update_all=true&timeout=0s",
        "on=id&when_matched_update_all=true&when_matched_update_all_filt=nobody>1",
        "on=id&when_matched_update_all=true&when_matched_update_all=true",
    ],
)
def test_a_wrong_merge_appends_nothing(world: World, table: str, options: str) -> None:
    before = world.log.runtime().request(0, "status")["sequence"]
    status, body = merge(world, table, numbers(0, 3), options)
    assert (status, body["code"]) == (400, 13), body
    assert world.log.runtime().request(0, "status")["sequence"] == before


def test_keys_that_come_twice_are_refused(world: World, table: str) -> None:
    rows = pa.concat_tables([numbers(0, 2), numbers(1, 3)])
    status, body = merge(world, table, rows, "on=id&when_matched_update_all=true")
    assert (status, body["code"]) == (400, 13)


@pytest.mark.parametrize("operation", ["insert", "merge_insert"])
@pytest.mark.parametrize(
    "rows", [pa.table({"id": [1], "y": [1]}), pa.table({"id": [1], "x": ["one"]})]
)
def test_other_columns_are_a_mistake_of_the_schema(
    world: World, table: str, rows: pa.Table, operation: str
) -> None:
    options = "on=id&when_not_matched_insert_all=true" if operation == "merge_insert" else ""
    status, body = world.rows(f"{table}/{operation}?{options}", rows)
    assert (status, body["code"]) == (400, 20), body


def test_a_merge_gives_a_declared_table_its_first_version(world: World) -> None:
    table = f"/v1/table/{world.fresh_name()}$t"
    assert world.post(f"{table}/declare")[0] == 200
    status, body = merge(world, table, numbers(0, 3), "on=id&when_matched_update_all=true")
    assert (status, body["code"]) == (404, 11), body
    upsert = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
    twice = pa.concat_tables([numbers(0, 2), numbers(1, 3)])
    assert merge(world, table, twice, upsert)[1]["code"] == 13
    assert merge(world, table, numbers(0, 2), upsert.replace("id", "nobody"))[1]["code"] == 13
    key = {"Idempotency-Key": f"first merge into {table}"}
    first = world.rows(f"{table}/merge_insert?{upsert}", numbers(0, 3), headers=key)
    assert first[0] == 200, first
    counts = [first[1][f"num_{what}_rows"] for what in ("updated", "inserted", "deleted")]
    assert (counts, first[1]["version"]) == ([0, 3, 0], 1)
    assert world.rows(f"{table}/merge_insert?{upsert}", numbers(0, 3), headers=key) == first
    assert merge(world, table, numbers(2, 5), upsert)[1]["num_inserted_rows"] == 2
    assert count(world, table) == 5


@pytest.mark.slow
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "anew"}], ids=["", "with a key"])
@pytest.mark.parametrize("operation", ["insert", "merge_insert"])
def test_a_table_that_another_client_declared_anew_gets_its_first_rows(
    world: World, table: str, operation: str, key: dict[str, str]
) -> None:
    path = f"{table}/{operation}?on=id&when_not_matched_insert_all=true"
    assert world.rows(path, numbers(10, 11))[0] == 200
    name = tuple(table.removeprefix("/v1/table/").split("$"))
    with world.client() as other:
        other.drop_table("$".join(name))
        location = str(world.tables_root / name[0] / "anew.lance")
        made = other.transaction((DeclareTable(name, str(uuid4()), location),))
        assert other.runtime().submit(made, id_is_new=True).result().status is Status.COMMITTED
    key = {name: f"{table} {value}" for name, value in key.items()}
    status, body = world.rows(path, numbers(0, 3), headers=key)
    assert status == 200, body
    assert (body["version"], body["num_inserted_rows"]) == (1, 3)
    assert count(world, table) == 3


@pytest.mark.parametrize("operation", ["insert", "merge_insert"])
def test_a_table_that_another_client_dropped_takes_no_rows(
    world: World, table: str, operation: str
) -> None:
    path = f"{table}/{operation}?on=id&when_not_matched_insert_all=true"
    assert world.rows(path, numbers(10, 11))[0] == 200
    files = set(world.tables_root.rglob("*.lance"))
    with world.client() as other:
        other.drop_table(table.removeprefix("/v1/table/"))
    for _ in range(2):
        status, body = world.rows(path, numbers(0, 3))
        assert (status, body["code"]) == (404, 4)
        assert "has no table" in body["error"]
    assert set(world.tables_root.rglob("*.lance")) <= files


def test_rows_are_inserted_without_a_question_before(
    world: World, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asked = Runtime.ask, list[str]()

    def noting(self: Runtime, partition: int, method: str, **params: Any) -> Any:
        asked.append(method)
        return ask(self, partition, method, **params)

    assert world.rows(f"{table}/insert", numbers(10, 11))[0] == 200
    monkeypatch.setattr(Runtime, "ask", noting)
    assert world.rows(f"{table}/insert", numbers(11, 12))[1]["version"] == 3
    assert asked == []


def test_a_merge_that_only_deletes_takes_a_key_twice(world: World, table: str) -> None:
    rows = pa.concat_tables([numbers(0, 2), numbers(1, 3)])
    status, body = merge(world, table, rows, "on=id&when_not_matched_by_source_delete=true")
    assert (status, body["num_deleted_rows"], count(world, table)) == (200, 7, 3), body


def test_a_merge_without_time_did_nothing_and_says_so(world: World, table: str) -> None:
    options = "on=id&when_matched_update_all=true&timeout=0.001ms"
    status, body = merge(world, table, numbers(0, 3, 0.5), options)
    assert (status, body["code"]) == (503, 17), body
    assert world.post(f"{table}/version/list")[1]["versions"][-1]["version"] == 1


@pytest.mark.parametrize("verb", ["insert", MERGE])
def test_rows_that_are_written_for_long_are_committed_all_the_same(
    world: World, table: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a gigabyte took a slow disk longer than the log may take to answer."""
    monkeypatch.setattr(rows_module, "TIMEOUT_SECONDS", 0.3)
    name = "prepare_append" if verb == "insert" else "direct"
    slow = Mock(wraps=getattr(execution, name))
    work = slow if verb == "insert" else slow.merge

    def waits(*given: Any, **more: Any) -> Any:
        time.sleep(0.31)
        return work._mock_wraps(*given, **more)

    work.side_effect = waits
    monkeypatch.setattr(execution, name, slow)
    status, body = world.rows(f"{table}/{verb}", numbers(20, 23))
    assert (status, body.get("num_inserted_rows")) == (200, 3), body
    assert slow.mock_calls


def test_a_body_is_an_arrow_stream(world: World, table: str) -> None:
    status, body = world.post(f"{table}/insert", b"{}")
    assert (status, body["code"]) == (415, 13)
    stream = {"Content-Type": "application/vnd.apache.arrow.stream"}
    for data in (b"", b"no stream at all", b"\xff\xff\xff\xff\x10"):
        status, body = world.post(f"{table}/insert", data, headers=stream)
        assert (status, body["code"]) == (400, 13), body


@pytest.mark.parametrize("verb", ["insert", "insert?mode=overwrite", "create", MERGE])
@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda stream: stream[:-9], "is not an Arrow IPC stream: "),
        (lambda stream: stream[: len(stream) // 2], "is not an Arrow IPC stream: "),
        (lambda stream: stream + stream, "bytes follow the end of the Arrow IPC stream"),
        (lambda stream: stream + b"x", "bytes follow the end of the Arrow IPC stream"),
    ],
)
def test_a_stream_that_is_cut_or_goes_on_commits_nothing(
    world: World,
    table: str,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    wrong: Callable[[bytes], bytes],
    told: str,
    is_long: bool,
) -> None:
    """Rows of a second stream were left out, and the answer was 200."""
    if is_long:  # too many rows for a record: native code reads them as they come
        monkeypatch.setattr(call, "ROWS_INLINE_BYTES_MAX", 10)
    before = count(world, table)
    path = f"/v1/table/{world.fresh_name()}/create" if verb == "create" else f"{table}/{verb}"
    status, body = world.rows_raw(path, wrong(arrow_stream(numbers(100, 3000))))
    assert (status, body["code"]) == (400, 13), body
    assert told in body["error"]
    assert "Traceback" not in body["error"]
    assert count(world, table) == before
    if verb == "create":
        assert world.post(path.replace("create", "describe"))[0] == 404


def test_a_file_of_arrow_is_called_so(world: World, table: str) -> None:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, numbers(0, 3).schema) as writer:
        writer.write_table(numbers(0, 3))
    status, body = world.rows_raw(f"{table}/insert", sink.getvalue())
    assert (status, "it is Arrow's file format" in body["error"]) == (400, True), body


def test_rows_need_no_content_type(world: World, table: str) -> None:
    # Lance's generated Rust client sends none with rows.
    stream = arrow_stream(numbers(100, 103))
    connection = HTTPConnection(world.uri.removeprefix("http://"), timeout=60)
    connection.request("POST", f"{table}/insert", stream)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["num_inserted_rows"]) == (200, 3)
    connection.close()


def test_rows_are_updated_and_deleted_by_predicate(world: World, table: str) -> None:
    request = {"updates": [["x", "x + 100"]], "predicate": "id >= 7"}
    status, body = world.post(f"{table}/update", request)
    assert (status, body["updated_rows"], body["version"]) == (200, 3, 2)
    status, body = world.post(f"{table}/delete", {"predicate": "x >= 100"})
    assert (status, body["version"], count(world, table)) == (200, 3, 7)
    assert count(world, table, predicate="id < 3") == 3
    for path, wrong in (
        ("delete", {"predicate": "nobody = 1"}),
        ("delete", {"predicate": " "}),
        ("delete", {}),
        ("update", {"updates": [["nobody", "1"]]}),
        ("update", {"updates": [["x"]]}),
        ("count_rows", {"predicate": "nobody = 1"}),
    ):
        status, body = world.post(f"{table}/{path}", wrong)
        assert (status, body["code"]) == (400, 13), (path, wrong, body)


def test_a_query_reads_as_pylance_does(world: World, table: str) -> None:
    found = query(world, table, filter="id > 4", offset=1, k=2, columns=["id"])
    assert found.to_pydict() == {"id": [6, 7]}
    aliased = query(world, table, columns={"column_aliases": {"n": "id"}}, k=1)
    assert aliased.to_pydict() == {"n": [0]}
    assert query(world, table, with_row_id=True, k=1).column_names == ["id", "x", "_rowid"]
    world.post(f"{table}/delete", {"predicate": "id < 9"})
    assert query(world, table)["id"].to_pylist() == [9]
    assert query(world, table, version=1).num_rows == 10
    status, body = world.post(f"{table}/query", {"k": 1, "vector": [], "version": 9})
    assert (status, body["code"]) == (404, 11)
    request = {"query": {"k": 1, "vector": [], "filter": "id > 4"}}
    status, plan = world.post(f"{table}/explain_plan", request)
    assert (status, "LanceRead" in plan) == (200, True), plan


@pytest.mark.slow
def test_a_large_answer_is_sent_from_a_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = world.fresh_name()
    rows = pa.table({"id": range(20), "b": [bytes([n]) * 2**20 for n in range(20)]})
    assert world.rows(f"/v1/table/{name}$t/create", rows)[0] == 200
    asked = {"vector": {}, "k": 100}
    opened: list[Any] = []
    made = answer_files.AnswerInFile

    def noted(file: Any) -> Any:
        opened.append(file)
        return made(file)

    monkeypatch.setattr(answer_files, "AnswerInFile", noted)
    status, found = world.post(f"/v1/table/{name}$t/query", asked)
    assert (status, pa.ipc.open_file(found).read_all()) == (200, rows)
    wait_until(lambda: [file.closed for file in opened] == [True], "the file closed")
    status, found = world.post(f"/v1/table/{name}$t/query", {**asked, "columns": ["id"]})
    assert (status, pa.ipc.open_file(found).num_record_batches) == (200, 1)
    assert len(opened) == 1
    monkeypatch.setattr(answer_files, "is_disk_full", lambda more: True)
    status, said = world.post(f"/v1/table/{name}$t/query", asked)
    assert (status, said["code"]) == (503, 17), said


def test_a_large_answer_is_read_no_further_once_its_client_is_gone() -> None:
    is_gone, sent = asyncio.Event(), list[int]()

    async def receive() -> Any:
        await is_gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(len(message.get("body", b"")))
        if len(sent) == 3:  # the head and two pieces
            is_gone.set()
        await asyncio.sleep(0)

    with TemporaryFile() as file:
        file.write(bytes(100 * answer_files._PIECE_BYTES))
        file.seek(0)
        asyncio.run(answer_files.AnswerInFile(file)({"type": "http"}, receive, send))
        assert file.closed
    assert sum(sent) < 10 * answer_files._PIECE_BYTES


def test_where_an_open_file_has_no_path_a_large_answer_is_passed_on_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryFile() as file:
        file.write(b"rows")
        file.seek(0)
        made = answer_files.AnswerInFile(file)
        done = row_work.Done(200, made.raw_headers, PickleBuffer(b""), "", None, [])
        monkeypatch.setattr(row_work, "_carry_out", lambda *given: (made, done))
        monkeypatch.setattr(answer_files.AnswerInFile, "path", "/nowhere")
        given: Any = (None, None)
        answer = row_work.handler(*given)(given)
        assert (answer.body_file, bytes(answer.body)) == ("", b"rows")


def test_a_column_that_is_not_there_is_no_mistake_of_the_request(world: World, table: str) -> None:
    status, body = world.post(f"{table}/drop_columns", {"columns": ["nobody"]})
    assert (status, body["code"]) == (404, 12)


@pytest.mark.parametrize("tag", ["\u00e9", "a b", "a/b", "", ".."])
def test_a_tag_that_lance_cannot_list_is_refused(world: World, table: str, tag: str) -> None:
    """Lance takes letters of any alphabet, and then finds no tag of the table any more."""
    code, answer = world.post(f"{table}/tags/create", {"tag": tag, "version": 1})
    assert (code, answer["code"]) == (400, 13)
    assert "Use A to Z" in answer["error"]
    assert world.post(f"{table}/tags/create", {"tag": "next", "version": 1})[0] == 200
    assert set(world.post(f"{table}/tags/list")[1]["tags"]) == {"next"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30s", 30), ("5m", 300), ("250ms", 0.25), ("1h", 3600), ("1m30s", 90), ("1m 30s", 90)],
)
def test_durations_are_read(text: str, expected: float) -> None:
    assert seconds(text) == expected


def test_without_a_duration_a_merge_has_a_minute() -> None:
    assert seconds(None) is None


@pytest.mark.slow
def test_merges_at_the_same_time_are_carried_out_one_after_another(
    world: World, table: str
) -> None:
    """Each is redone until it lands, and their counts together say what came about."""
    answers: list[tuple[int, Any]] = []

    def work(first: int) -> None:
        for number in range(4):
            rows = numbers(first + 3 * number, first + 3 * number + 6, 0.5)
            options = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
            answers.append(merge(world, table, rows, f"{options}&timeout=2m"))

    at_once(work, (0, 5, 10))
    assert [status for status, _ in answers] == [200] * 12, answers
    starts = [first + 3 * number for first in (0, 5, 10) for number in range(4)]
    touched = {start + offset for start in starts for offset in range(6)}
    assert count(world, table) == len(touched | set(range(10)))
    inserted = sum(body["num_inserted_rows"] for _, body in answers)
    updated = sum(body["num_updated_rows"] for _, body in answers)
    assert inserted == len(touched - set(range(10)))
    assert inserted + updated == 12 * 6
    assert len({body["version"] for _, body in answers}) == 12


def test_a_body_over_the_limit_appends_nothing(tmp_path: Path) -> None:
    small = World(tmp_path, settings=Settings(arrow_bytes_max=2000))
    try:
        assert small.rows("/v1/table/s$t/create", numbers(0, 3))[0] == 200
        status, body = merge(
            small, "/v1/table/s$t", numbers(0, 1000), "on=id&when_matched_update_all=true"
        )
        assert (status, body["code"]) == (413, 13)
        assert small.log.table("s$t").version == 1
    finally:
        small.close()


def test_an_index_may_find_the_matches(world: World, table: str) -> None:
    world.post(f"{table}/create_scalar_index", {"column": "id", "index_type": "BTREE"})
    for use in ("true", "false"):
        options = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
        status, body = merge(world, table, numbers(8, 12), f"{options}&use_index={use}")
        assert status == 200, body
    assert (body["num_updated_rows"], body["num_inserted_rows"]) == (4, 0)


def test_a_parameter_that_is_there_twice_is_refused(world: World, table: str) -> None:
    """Which of two delimiters a proxy or a reader takes decides which table is meant."""
    for path in ("describe?delimiter=.&delimiter=%24", "query?as=preview&as=arrow"):
        status, body = world.post(f"{table}/{path}", {"vector": {}, "k": 1})
        assert (status, body["code"]) == (400, 13)
        assert "is given twice. Give it once." in body["error"]


@pytest.mark.parametrize("predicate", ["x" * 9000 + " = 2", f"id = '{'x' * 9000}'"])
@pytest.mark.parametrize("operation", ["delete", "update", "count_rows"])
def test_a_refusal_shows_the_ends_of_a_long_predicate(
    world: World, table: str, predicate: str, operation: str
) -> None:
    """It was there whole, and again in each form that Lance gives it."""
    sent: dict[str, Any] = {"predicate": predicate}
    if operation == "update":
        sent["updates"] = [["x", "1"]]
    status, body = world.post(f"{table}/{operation}", sent)
    assert status == 400
    assert len(body["error"]) < 2600
    assert " characters …] " in body["error"]


def test_another_delimiter_joins_the_names(world: World, table: str) -> None:
    path = table.replace("$", "::")
    options = "on=id&when_not_matched_insert_all=true&delimiter=::"
    status, body = merge(world, path, numbers(10, 11), options)
    assert (status, body["num_inserted_rows"]) == (200, 1), body


MERGE = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"
ONCE: dict[str, Any] = {
    "insert": pa.table,
    MERGE: pa.table,
    "insert?mode=overwrite": pa.table,
    "update": {"updates": [["x", "x + 1"]]},
    "delete": {"predicate": "id < 3"},
    "add_columns": {"new_columns": [{"name": "y", "expression": "x * 2"}]},
    "alter_columns": {"alterations": [{"path": "x", "rename": "z"}]},
    "drop_columns": {"columns": ["x"]},
    "schema_metadata/update": {"a": "b"},
    "update_field_metadata": {"updates": [{"path": "x", "metadata": {"a": "b"}}]},
    "create_index": {"column": "id", "index_type": "BTREE", "name": "by_id"},
    "restore": {"version": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("operation", ONCE)
def test_a_key_has_an_operation_carried_out_once(world: World, table: str, operation: str) -> None:
    key = {"Idempotency-Key": f"{operation} of {table}"}
    body = ONCE[operation]

    def ask(again: bool) -> tuple[int, Any]:
        if body is pa.table:
            rows = numbers(8, 12 if not again else 13)
            return world.rows(f"{table}/{operation}", rows, headers=key)
        sent = body | {"other": "1"} if again else body
        return world.post(f"{table}/{operation}", sent, headers=key)

    first = ask(again=False)
    assert first[0] == 200, first
    assert world.rows(f"{table}/insert", numbers(100, 101))[0] in (200, 400)
    stands = world.post(f"{table}/version/list")[1]["versions"]
    assert ask(again=False) == first
    status, refused = ask(again=True)
    assert (status, refused["code"]) == (400, 13)
    assert world.post(f"{table}/version/list")[1]["versions"] == stands


def test_an_index_is_dropped_once_under_a_key(world: World, table: str) -> None:
    made = {"column": "id", "index_type": "BTREE", "name": "by_id"}
    assert world.post(f"{table}/create_index", made)[0] == 200
    key = {"Idempotency-Key": f"drop of {table}"}
    first = world.post(f"{table}/index/by_id/drop", {}, headers=key)
    assert first[0] == 200, first
    assert world.post(f"{table}/index/by_id/drop", {}, headers=key) == first
