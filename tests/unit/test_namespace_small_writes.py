"""Small inserts and merges over HTTP: do they go by the log, with exact counts of their own?"""

import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.namespace_world import ARROW_STREAM, World, arrow_stream
from tests.service import applying
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64())])
BASE = "/v1/table/ns$small"
UPSERT = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.fixture(scope="module")
def world(world: World) -> Iterator[World]:
    world.log.create_table("ns$small", SCHEMA, primary_key="id", properties={"rows": "log"})
    with applying(world.log):
        yield world


def rows(*ids: int, a: int = 0) -> pa.Table:
    return pa.table({"id": list(ids), "a": [a] * len(ids)}, schema=SCHEMA)


def operations_of(world: World, answer: dict[str, Any]) -> list[str]:
    outcome = world.log.outcome(answer["transaction_id"], wait="accepted")
    return [result.operation for result in outcome.results]


@pytest.mark.slow
def test_many_small_requests_share_commits_and_have_their_own_counts(world: World) -> None:
    world.log.delete("ns$small", "true")
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


def test_an_empty_condition_is_refused_as_in_a_table_without_small_writes(world: World) -> None:
    assert world.rows(f"{BASE}/insert", rows(700))[0] == 200
    for condition in ("", "+"):
        path = f"{BASE}/merge_insert?{UPSERT}&when_matched_update_all_filt={condition}"
        status, answer = world.rows(path, rows(700, a=1))
        assert (status, answer["code"]) == (400, 13), answer
    found = world.log.scan("ns$small", filter="id = 700")
    assert found["a"].to_pylist() == [0]


def test_a_key_is_answered_with_the_first_writes_counts(world: World, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "the same small merge"}
    first = world.rows(f"{BASE}/merge_insert?{UPSERT}", rows(500, a=1), headers=key)
    again = world.rows(f"{BASE}/merge_insert?{UPSERT}", rows(500, a=1), headers=key)
    assert first == again
    assert first[1]["num_inserted_rows"] == 1


def test_what_no_write_of_rows_can_say_goes_the_other_way(world: World) -> None:
    deletes = "on=id&when_not_matched_by_source_delete=true"
    world.log.merge_insert("ns$small", rows(1, 2, 7), "id")
    status, answer = world.rows(f"{BASE}/merge_insert?{deletes}", rows(1, 2))
    assert status == 200, answer
    assert operations_of(world, answer) == ["Update"]
    assert answer["num_deleted_rows"] > 0
    assert world.log.scan("ns$small").num_rows == 2
    wrong = world.rows(f"{BASE}/insert", pa.table({"id": ["x"]}))
    assert wrong[0] == 400, wrong


CLIENTS, REQUESTS, HOT = 8, 6, 3


class Sent(NamedTuple):
    """A request of a client that repeats it under one key until it is answered."""

    path: str
    ids: tuple[int, ...]
    body: bytes
    key: dict[str, str]

    def cut_off(self, world: World, sent: float) -> None:
        """Send a part of the request, or all, and hang up before an answer comes."""
        address = urlsplit(world.uri)
        headers = {"Content-Type": ARROW_STREAM, "Content-Length": len(self.body), **self.key}
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {address.netloc}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, "", ""]).encode()
        with socket.create_connection((address.hostname, address.port), 60) as made:
            made.sendall(head + self.body[: int(len(self.body) * sent)])

    def answer(self, world: World) -> dict[str, Any]:
        """Send it until it is carried out."""
        found: list[Any] = []

        def is_answered() -> bool:
            status, body = world.rows_raw(self.path, self.body, headers=self.key)
            assert status in (200, 503), body
            found.append(body)
            return status == 200

        wait_until(is_answered, "an answer")
        return dict(found[-1])


def requests_of(client: int) -> list[Sent]:
    """Return what a client sends: inserts of rows of its own, and merges of those and hot ones."""
    chance, found = random.Random(client), []
    for number in range(REQUESTS):
        own = 1000 + 100 * client + number
        merges = number % 2 == 0
        ids = (chance.randrange(HOT), own) if merges else (own,)
        path = f"/v1/table/ns$raced/{f'merge_insert?{UPSERT}' if merges else 'insert'}"
        body = arrow_stream(rows(*ids, a=own))
        found.append(Sent(path, ids, body, {"Idempotency-Key": str(uuid4())}))
    return found


@pytest.mark.slow
def test_requests_that_are_cut_off_and_sent_again_at_once_count_once(world: World) -> None:
    world.log.create_table("ns$raced", SCHEMA, primary_key="id", properties={"rows": "log"})
    both, sent = ThreadPoolExecutor(2 * CLIENTS), [requests_of(n) for n in range(CLIENTS)]

    def run(own: list[Sent]) -> list[dict[str, Any]]:
        answers = []
        for number, one in enumerate(own):
            one.cut_off(world, (0.0, 0.5, 1.0)[number % 3])
            first, second = both.map(lambda _, one=one: one.answer(world), range(2))
            assert first == second
            answers.append(first)
        return answers

    with both, ThreadPoolExecutor(CLIENTS) as pool:
        running = pool.map(run, sent)
        world.stop_leader()
        world.start_leader()
        answers = [answer for found in running for answer in found]
    last: dict[int, tuple[int, int]] = {}
    """By id: the accepted position of its last write, and what that wrote."""
    for one, answer in zip([one for own in sent for one in own], answers, strict=True):
        assert operations_of(world, answer) == ["WriteRows"]
        at = world.log.outcome(answer["transaction_id"], wait="accepted").sequence
        for id in one.ids:
            last[id] = max(last.get(id, (0, 0)), (at, one.ids[-1]))
    counts = [(a["num_inserted_rows"], a.get("num_updated_rows", 0)) for a in answers]
    merges = CLIENTS * REQUESTS // 2
    assert sum(inserted for inserted, _ in counts) == CLIENTS * REQUESTS + HOT
    assert sum(updated for _, updated in counts) == merges - HOT
    found = world.log.scan("ns$raced").to_pylist()
    assert sorted((row["id"], row["a"]) for row in found) == sorted(
        (id, a) for id, (_, a) in last.items()
    )
