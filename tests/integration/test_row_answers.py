"""Is a leader asked once for what came of a transaction's writes, however many it has?"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from commitlog.client.accepted.row_tail import Tail
from commitlog.client.leader import row_tickets
from commitlog.client.leader.leader_socket import LeaderSocket
from commitlog.client.leader.row_tickets import RowsOutcome, RowsWait
from commitlog.client.leader.runtime import Runtime
from commitlog.errors import OutcomeUnknown
from commitlog.model.records import Code, Status
from consumers.socket import row_answers
from consumers.socket.answers import Answers
from consumers.socket.requests import Requests
from tests.integration.test_row_writer import SCHEMA, T, writing
from tests.service import Service
from tests.waiting import WAIT_SECONDS, wait_until

OTHER, COUNT = "ns$u", 20


@pytest.fixture
def running(running: Service) -> Service:
    for table in (T, OTHER):
        running.client.create_table(table, SCHEMA, primary_key="id", properties={"rows": "log"})
    return running


def written(running: Service) -> RowsOutcome:
    """Write rows to two tables by one transaction, after which a row writer starts."""
    client = running.client
    builder = client.transact()
    for number in range(COUNT):
        row = {"id": number // 4, "a": number, "b": "x"}
        builder.write_rows(OTHER if number % 2 else T, [row], mode="upsert")
    with writing(running):
        builder.__exit__(None, None, None)
    assert isinstance(builder.outcome, RowsOutcome)
    return builder.outcome


@pytest.mark.parametrize("knows_each", [True, False], ids=["once", "older_leader"])
def test_what_came_of_many_writes_is_asked_once(
    running: Service, monkeypatch: pytest.MonkeyPatch, knows_each: bool
) -> None:
    asked: list[dict[str, Any]] = []
    request = Runtime.request

    def counting(self: Runtime, partition: int, method: str, **params: Any) -> Any:
        if method == "rows_applied":
            asked.append(params)
            if not knows_each:
                params.pop("each", None)
        return request(self, partition, method, **params)

    monkeypatch.setattr(Runtime, "request", counting)
    outcome = written(running)
    assert [write.operation for write in outcome.writes] == list(range(COUNT))
    came = [(write.inserted, write.updated) for write in outcome.writes]
    assert came == [(1, 0), (1, 0), (0, 1), (0, 1)] * (COUNT // 4)
    assert {write.version for write in outcome.writes} == {2}
    assert len(asked) == (1 if knows_each else COUNT)
    # Later the same is told of what was applied.
    asked.clear()
    again = running.client.outcome(outcome.transaction_id)
    assert isinstance(again, RowsOutcome)
    assert again.writes == outcome.writes
    assert len(asked) == (1 if knows_each else COUNT)


def test_nothing_is_kept_of_those_who_waited_in_vain(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_tickets, "REQUEST_SECONDS", 0.01)
    answers = running.running[0].committer._requests.rows
    ticket = running.client.write_rows(T, [{"id": 1, "a": 1, "b": "x"}], mode="upsert")
    with pytest.raises(OutcomeUnknown, match="row writer is running"):
        ticket.result(timeout=0.3)
    wait_until(lambda: not answers._waiting, "the end of all waits")
    # One who waits when its table goes is told so.
    monkeypatch.setattr(row_tickets, "REQUEST_SECONDS", WAIT_SECONDS)
    told = list[RowsOutcome]()
    waits = threading.Thread(target=lambda: told.append(ticket.result()))
    waits.start()
    wait_until(lambda: answers._waiting, "one who waits")
    running.client.drop_table(T)
    waits.join()
    assert [one.code for one in told] == [Code.NO_SUCH_TABLE]
    assert not answers._waiting


def test_a_row_writer_that_knows_how_many_may_write_again_hears_of_them_together(
    running: Service,
) -> None:
    client, answers = running.client, running.running[0].committer._requests.rows

    def write(number: int) -> int:
        rows = [{"id": number, "a": 1, "b": "x"}]
        return client.write_rows(T, rows, mode="upsert").result(wait="accepted").sequence

    def heard(more: int, come: int, quiet: float, age: float = WAIT_SECONDS) -> list[int]:
        bodies, how = list[Any](), {"more": more, "age": age, "quiet": quiet}

        def ask() -> None:
            bodies.extend(client.runtime().request(0, "rows_pending", **how))

        asking = threading.Thread(target=ask)
        asking.start()
        if come:
            wait_until(lambda: answers._wanted == answers._count + more, "the row writer's wait")
        positions.extend(write(len(positions)) for _ in range(come))
        asking.join()
        return [sequence for sequence, _, _ in bodies[0]["pending"]]

    positions = [write(0)]
    assert heard(more=2, come=2, quiet=WAIT_SECONDS) == positions
    # Who stays away is waited for as long as others come, and if nobody does, for a while.
    assert heard(more=9, come=1, quiet=0.01) == positions
    assert heard(more=9, come=0, quiet=0.001, age=0.01) == positions


@pytest.mark.parametrize(
    ("wait", "holds", "sent"),
    [("accepted", True, 1), ("readable", True, 1), ("readable", False, 2), ("committed", True, 2)],
)
def test_a_write_is_told_of_without_being_asked_for(
    running: Service, monkeypatch: pytest.MonkeyPatch, wait: RowsWait, holds: bool, sent: int
) -> None:
    if not holds:  # as an older leader
        monkeypatch.setattr(Answers, "_hold", lambda *about: False)
    rows = [{"id": 1, "a": 1, "b": "x"}]
    with writing(running):
        running.client.write_rows(T, rows, mode="upsert").result(wait=wait)
        frames, send = list[bytes](), LeaderSocket.send

        def counting(self: LeaderSocket, frame: bytes) -> bool:
            if threading.current_thread() is threading.main_thread():
                frames.append(frame)
            return send(self, frame)

        monkeypatch.setattr(LeaderSocket, "send", counting)
        outcome = running.client.write_rows(T, rows, mode="upsert").result(wait=wait)
        assert len(frames) == sent
        assert outcome.counts["updated"] == (wait != "accepted")


def test_an_outcome_that_is_held_back_is_told_to_who_asks_and_after_a_while(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, answers = running.client, running.running[0].committer._requests.rows
    rows = [{"id": 1, "a": 1, "b": "x"}]
    # Nothing applies these rows, and the client was last asked until they can be read.
    monkeypatch.setattr(row_answers, "HOLD_SECONDS", WAIT_SECONDS * 10)
    client.runtime().rows_hint = True
    ticket = client.write_rows(T, rows, mode="upsert")
    wait_until(lambda: answers._waiting, "an outcome that is held back")
    assert not ticket.done()
    assert ticket.result(wait="accepted").status is Status.COMMITTED
    client.runtime().rows_hint = True
    monkeypatch.setattr(row_answers, "HOLD_SECONDS", 0.01)
    ticket = client.write_rows(T, rows, mode="upsert")
    with client.runtime().connection(0).attended(ticket.done):
        wait_until(ticket.done, "the outcome")
    # Who waits for it hears of the end of its table.
    monkeypatch.setattr(row_answers, "HOLD_SECONDS", WAIT_SECONDS * 10)
    told = list[RowsOutcome]()
    waits = threading.Thread(target=lambda: told.append(ticket.result()))
    client.runtime().rows_hint = True
    ticket = client.write_rows(T, rows, mode="upsert")
    waits.start()
    wait_until(lambda: answers._waiting, "one who waits")
    client.drop_table(T)
    waits.join()
    assert [one.code for one in told] == [Code.NO_SUCH_TABLE]


def test_rows_are_handed_over_to_row_writers(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, read = running.running[0].committer._requests.rows, list[set[int]]()
    look = Tail._read

    def reading(self: Tail, wanted: set[int]) -> None:
        read.append(wanted)
        look(self, wanted)

    monkeypatch.setattr(Tail, "_read", reading)

    def write(number: int) -> None:
        rows = [{"id": number, "a": 1, "b": "x"}]
        running.client.write_rows(T, rows, mode="upsert").result()

    with writing(running):
        write(1)
        assert not read
        assert not answers._records
        assert not answers._records_bytes
        # What has no place there is read from the log.
        monkeypatch.setattr(row_answers, "HANDED_BYTES_MAX", 0)
        write(2)
        assert len(read) == 1


def test_a_head_that_can_be_read_is_described_by_the_loop(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, carried = running.client, list[str]()
    before = client.describe(("ns", "t"), fresh=True, readable=True)
    handle = Requests.handle

    async def counting(self: Requests, method: str, params: dict[str, Any]) -> Any:
        carried.append(method)
        return await handle(self, method, params)

    monkeypatch.setattr(Requests, "handle", counting)

    def is_told_by_the_loop() -> bool:
        carried.clear()
        assert client.describe(("ns", "t"), fresh=True, readable=True) == before
        return not carried

    # Another thread attends to the sockets while the loop is busy.
    wait_until(is_told_by_the_loop, "the loop's own answer")
