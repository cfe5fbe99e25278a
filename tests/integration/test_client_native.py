"""The writer's program against a real broker and a real leader."""

import gc
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import Code, CommitLog, InvalidTransaction, Status
from commitlog.adapters.kafka import KafkaLog
from commitlog.adapters.memory import MemoryLog
from commitlog.ports import Log
from tests.service import Running
from tests.waiting import WAIT_SECONDS

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
ROWS = {"id": list(range(10)), "v": list("abcdefghij")}


@dataclass
class World:
    """A log with a leader, which can be ended and begun again."""

    open_log: Any
    root: Path

    def lead(self) -> None:
        """Start a committer and wait until it leads."""
        self.log = self.open_log()
        self._running = Running(self.log, self.root).await_leading()

    def depose(self) -> None:
        """End the committer."""
        self._running.stop()
        self.log.close()


def _kafka(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    servers = request.getfixturevalue("broker").bootstrap_servers
    name = f"log-{uuid.uuid4().hex[:8]}"
    with closing(KafkaLog.connect(servers, log=name)) as log:
        log.create(tables_root=str(tmp_path / "tables"))
    return lambda: KafkaLog.connect(servers, log=name)


def _memory(tmp_path: Path) -> Any:
    log = MemoryLog()
    log.create(tables_root=str(tmp_path / "tables"))
    return lambda: log


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    is_kafka = request.param == "kafka"
    open_log = _kafka(request, tmp_path) if is_kafka else _memory(tmp_path)
    world = World(open_log, tmp_path / "root")
    world.lead()
    yield world
    world.depose()


@pytest.fixture
def client(world: World) -> Iterator[CommitLog]:
    def open_log() -> Log:
        opened: Log = world.open_log()
        return opened

    with CommitLog(open_log) as client:
        yield client


@pytest.mark.parametrize("policy", ["every", "latest"])
@pytest.mark.parametrize("stable", [False, True], ids=["plain", "stable"])
def test_rows_and_native_writes_on_one_table(client: CommitLog, policy: str, stable: bool) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id", policy=policy, stable_row_ids=stable)
    client.append("a$t", ROWS).raise_for_conflict()
    client.update("a$t", {"v": "'z'"}, "id = 2").raise_for_conflict()
    client.delete("a$t", "id = 1").raise_for_conflict()
    client.merge_insert("a$t", {"id": [3, 70], "v": ["m", "n"]}, "id").raise_for_conflict()
    dataset = client.open("a$t")
    assert dataset.version == 5
    dataset.delete("id = 4")
    dataset.update({"v": "'native'"}, where="id = 5")
    dataset.insert(pa.table({"id": [80], "v": ["i"]}))
    dataset.create_scalar_index("id", "BTREE")
    assert dataset.version == client.table("a$t").version == 9
    rows = {row["id"]: row["v"] for row in client.open("a$t").to_table().to_pylist()}
    kept = {0: "a", 2: "z", 3: "m", 5: "native", 6: "g", 7: "h", 8: "i", 9: "j"}
    assert rows == kept | {70: "n", 80: "i"}
    assert client.open("a$t", 2).count_rows() == 10


def test_racing_native_writes_are_rebased(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", ROWS)
    handles = [client.open("a$t") for _ in range(5)]
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda i: handles[i].delete(f"id = {i}"), range(5)))
    assert client.table("a$t").version == 7
    assert sorted(client.open("a$t").to_table()["id"].to_pylist()) == [5, 6, 7, 8, 9]


def test_racing_deletes_of_one_fragment_are_rebased_by_the_leader(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    client.append("a$t", ROWS)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda i: client.delete("a$t", f"id = {i}"), range(8)))
    assert {o.status for o in outcomes} == {Status.COMMITTED}
    assert sorted(o.version for o in outcomes) == list(range(3, 11))
    assert sorted(client.open("a$t").to_table()["id"].to_pylist()) == [8, 9]


def test_racing_upserts_of_new_keys_leave_one_row_each(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA, primary_key="id")

    def upsert(i: int) -> Any:
        rows = {"id": [100, 200 + i], "v": [str(i)] * 2}
        return client.merge_insert("a$t", rows, "id").raise_for_conflict()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(upsert, range(12)))
    ids = sorted(client.open("a$t").to_table()["id"].to_pylist())
    assert ids == [100, *range(200, 212)]


def test_a_leader_that_ends_leaves_no_ticket_unanswered(world: World, client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    fragments = lance.fragment.write_fragments(
        pa.table({"id": [1], "v": ["a"]}), client.table("a$t").location
    )
    append = lance.LanceOperation.Append(fragments)
    tickets = [client.submit("a$t", append) for _ in range(50)]
    world.depose()
    tickets += [client.submit("a$t", append) for _ in range(50)]
    world.lead()
    tickets += [client.submit("a$t", append) for _ in range(50)]
    outcomes = [ticket.result(60) for ticket in tickets]
    assert sorted(o.version for o in outcomes) == list(range(2, 152))
    again = [client.outcome(ticket.transaction_id) for ticket in tickets]
    assert [o.version for o in again] == [o.version for o in outcomes]
    assert client.open("a$t").count_rows() == 150


def test_an_id_stands_for_one_content(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    location = client.table("a$t").location
    one, other = (
        lance.LanceOperation.Append(
            lance.fragment.write_fragments(pa.table({"id": [i], "v": ["a"]}), location)
        )
        for i in (1, 2)
    )
    first = lance.Transaction(1, one)
    committed = client.submit("a$t", first).result()
    assert client.submit("a$t", first).result().version == committed.version == 2
    reused = client.submit("a$t", lance.Transaction(1, other, uuid=first.uuid)).result()
    assert (reused.status, reused.code) == (Status.REJECTED, Code.ID_REUSED)
    assert client.outcome(first.uuid).version == 2
    assert client.append("a$t", {"id": [3]}, transaction_id="mine").version == 3
    assert client.append("a$t", {"id": [3]}, transaction_id="mine").version == 3
    assert client.open("a$t").count_rows() == 2


def test_a_block_that_is_repeated_under_its_id_is_answered_by_the_first(client: CommitLog) -> None:
    client.create_table("a$t", SCHEMA)
    client.create_table("a$u", SCHEMA)
    for _ in range(2):
        with client.transact(transaction_id="mine") as both:
            both.append("a$t", {"id": [1]})
            both.append("a$u", {"id": [1]})
        assert both.outcome is not None
        assert both.outcome.versions() == {"a$t": 2, "a$u": 2}
    assert client.open("a$t").count_rows() == client.open("a$u").count_rows() == 1
    client.create_table("a$v", SCHEMA)
    with (
        pytest.raises(InvalidTransaction, match=r"committed before, and didn't change a\$v"),
        client.transact(transaction_id="mine") as other,
    ):
        other.append("a$v", {"id": [1]})
    assert client.table("a$v").version == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forked_child_submits_by_itself(world: World, client: CommitLog) -> None:
    if isinstance(world.log, MemoryLog):
        pytest.skip("a log in memory stays in its process")
    client.create_table("a$t", SCHEMA)
    fragments = lance.fragment.write_fragments(
        pa.table({"id": [1], "v": ["a"]}), client.table("a$t").location
    )
    append = lance.LanceOperation.Append(fragments)
    client.submit("a$t", append).result()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gc.collect()
            code = 0 if client.submit("a$t", append).result(120).version == 3 else 2
        finally:
            os._exit(code)
    deadline = time.monotonic() + WAIT_SECONDS
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 0
    assert client.submit("a$t", append).result().version == 4
