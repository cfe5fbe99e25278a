"""Small inserts and merges over HTTP: do they go by the log, with exact counts of their own?"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumers.tools.row_writer import RowWriter
from tests.namespace_world import World

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64())])
BASE = "/v1/table/ns$small"
UPSERT = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    running = World(tmp_path_factory.mktemp("small"))
    running.log.create_table("ns$small", SCHEMA, primary_key="id", properties={"rows": "log"})
    stop = threading.Event()
    thread = threading.Thread(target=RowWriter(running.log).run, args=(stop,), daemon=True)
    thread.start()
    yield running
    stop.set()
    thread.join(60)
    running.close()


def rows(*ids: int, a: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "a": [a] * len(ids)}, schema=SCHEMA)


def operations_of(world: World, answer: dict[str, Any]) -> list[str]:
    outcome = world.log.outcome(answer["transaction_id"], wait="accepted")
    return [result.operation for result in outcome.results]


def test_many_small_requests_share_commits_and_have_their_own_counts(world: World) -> None:
    status, first = world.rows(f"{BASE}/insert", rows(*range(10)))
    assert (status, first["num_inserted_rows"]) == (200, 10), first
    assert operations_of(world, first) == ["WriteRows"]

    def merge(number: int) -> dict[str, Any]:
        sent = rows(number, 100 + number, a=number)
        status, answer = world.rows(f"{BASE}/merge_insert?{UPSERT}", sent)
        assert status == 200, answer
        return dict(answer)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(merge, range(10)))
    assert {(a["num_updated_rows"], a["num_inserted_rows"]) for a in answers} == {(1, 1)}
    head = world.log.table("ns$small").version
    assert all(first["version"] < answer["version"] <= head for answer in answers)
    found = world.log.scan("ns$small").sort_by("id").to_pydict()
    assert found["id"] == [*range(10), *range(100, 110)]
    assert found["a"] == [*range(10), *range(10)]


def test_a_key_is_answered_with_the_first_writes_counts(world: World, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "the same small merge"}
    first = world.rows(f"{BASE}/merge_insert?{UPSERT}", rows(500, a=1), headers=key)
    again = world.rows(f"{BASE}/merge_insert?{UPSERT}", rows(500, a=1), headers=key)
    assert first == again
    assert first[1]["num_inserted_rows"] == 1


def test_what_no_write_of_rows_can_say_goes_the_other_way(world: World) -> None:
    deletes = "on=id&when_not_matched_by_source_delete=true"
    status, answer = world.rows(f"{BASE}/merge_insert?{deletes}", rows(1, 2))
    assert status == 200, answer
    assert operations_of(world, answer) == ["Update"]
    assert answer["num_deleted_rows"] > 0
    assert world.log.scan("ns$small").num_rows == 2
    wrong = world.rows(f"{BASE}/insert", pa.table({"id": ["x"]}))
    assert wrong[0] == 400, wrong
