"""How records leave a client: through the leader's socket, or by a producer where it ends."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any, cast

import lance
import pytest

from commitlog import CommitLog, wire
from commitlog.adapters.log_records import encode_to_append
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import AppendCall, Fate
from commitlog.client.leader import connection, sending
from commitlog.client.leader.awaited import SentRecord
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.errors import CommitLogError, Overloaded
from commitlog.model.limits import RECORD_BYTES_MAX
from commitlog.ports import DeliveryFailed
from commitlog.protocol import transactions_topic
from consumers.partition import appending
from tests.contract.worlds import transaction
from tests.service import SCHEMA, Service, rows
from tests.waiting import WAIT_SECONDS, at_once, wait_until

TABLE = "shop$orders"


@pytest.fixture
def running(running: Service) -> Service:
    running.client.create_table(TABLE, SCHEMA)
    return running


def append(client: CommitLog) -> Any:
    """Submit an append of one row."""
    info = client.table(TABLE)
    fragments = lance.fragment.write_fragments(
        rows(1), info.location, data_storage_version=info.data_storage_version
    )
    return client.submit(TABLE, lance.LanceOperation.Append(list(fragments)))


def commit(client: CommitLog) -> None:
    append(client).result(WAIT_SECONDS).raise_for_conflict()


def producer(client: CommitLog) -> Any:
    """Return what a client appends with by itself, None if it opened nothing."""
    return client.runtime()._sending._writer


def ids(running: Service) -> list[str]:
    """Return the ids of the records in the log, in order."""
    records = running.cluster.topics[transactions_topic("commitlog")].partitions[0].records
    return [(one.key or b"").partition(b"/")[0].decode() for one in records]


def directly(running: Service) -> CommitLog:
    """Return a client that appends by itself."""
    settings = RuntimeSettings(by_leader=False)
    return CommitLog(lambda: MemoryLog(running.cluster), settings=settings)


def test_a_client_whose_leader_takes_records_opens_no_producer(running: Service) -> None:
    for _ in range(3):
        commit(running.client)
    running.client.runtime().flush(1)
    assert producer(running.client) is None
    assert running.client.table(TABLE).version == 4


def test_records_by_both_ways_are_all_decided(running: Service) -> None:
    direct = directly(running)
    clients = [running.client, direct, running.client, direct]

    def write(client: CommitLog) -> None:
        for _ in range(10):
            commit(client)

    at_once(write, clients)
    assert producer(direct) is not None
    assert producer(running.client) is None
    assert running.client.table(TABLE).version == 1 + 40
    direct.close()


def test_one_id_by_both_ways_is_one_commit(running: Service) -> None:
    ticket = append(running.client)
    outcome = ticket.result(WAIT_SECONDS)
    direct = directly(running)
    again = direct.runtime().submit(ticket.transaction, id_is_new=False)
    assert again.result(WAIT_SECONDS).results == outcome.results
    assert ids(running).count(ticket.transaction_id) == 2
    assert running.client.table(TABLE).version == 2
    direct.close()


@pytest.mark.slow
@pytest.mark.parametrize("fate", [Fate.LOSE, Fate.APPEND_UNTOLD, Fate.REFUSE])
def test_what_the_leader_cannot_append_the_client_appends(running: Service, fate: Fate) -> None:
    fates = [fate]

    def on_append(call: AppendCall) -> Fate:
        is_record = call.topic == transactions_topic("commitlog")
        return fates.pop() if is_record and fates else Fate.DELIVER

    running.client.table(TABLE)
    running.cluster.on_append = on_append
    commit(running.client)
    commit(running.client)
    assert producer(running.client) is not None
    assert running.client.table(TABLE).version == 3


@pytest.mark.slow
def test_a_leader_that_could_not_append_is_sent_records_again(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its term may last for months."""
    monkeypatch.setattr(appending, "REST_SECONDS", 0.0)
    monkeypatch.setattr(connection, "REFUSED_SECONDS", 0.0)
    fates = [Fate.REFUSE]
    running.client.table(TABLE)

    def on_append(call: AppendCall) -> Fate:
        is_record = call.topic == transactions_topic("commitlog")
        return fates.pop() if is_record and fates else Fate.DELIVER

    running.cluster.on_append = on_append
    commit(running.client)
    assert producer(running.client) is None
    assert not fates


@pytest.mark.slow
def test_what_a_leader_had_on_its_way_goes_to_the_next_one(
    running: Service, tmp_path: Path
) -> None:
    held = threading.Event()

    def on_append(call: AppendCall) -> Fate:
        if call.topic == transactions_topic("commitlog") and not held.is_set():
            held.set()
            return Fate.HOLD
        return Fate.DELIVER

    running.client.table(TABLE)
    running.cluster.on_append = on_append
    ticket = append(running.client)
    assert held.wait(WAIT_SECONDS)
    running.running[0].stop()
    running.start(tmp_path / "next")
    ticket.result(WAIT_SECONDS).raise_for_conflict()
    running.cluster.release()
    commit(running.client)
    assert ids(running).count(ticket.transaction_id) == 2
    assert running.client.table(TABLE).version == 3


@pytest.mark.slow
def test_a_leader_with_too_much_to_decide_is_asked_again(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.client.table(TABLE)
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 0)
    ticket = append(running.client)
    wait_until(lambda: "undecided" in ticket.delivery_error, "a refusal")
    monkeypatch.setattr(appending, "UNDECIDED_MAX", 100)
    ticket.result(WAIT_SECONDS).raise_for_conflict()
    assert producer(running.client) is None


def test_a_refusal_of_an_id_that_was_sent_twice_leaves_both_unknown() -> None:
    """It doesn't say which of them was refused; the other one may be in the log."""
    log = MemoryLog()
    log.create()
    connection = LeaderConnection(log, name="n", log_id="i", partition=0, token="")
    told: list[CommitLogError] = []
    error = Overloaded("too much is on its way", 0.1)
    for count in (1, 2):
        connection._sent["id"] = [SentRecord(cast(Any, None), told.append)] * count
        for kind, body in wire.FrameBuffer().feed(wire.refused_frame("id", error, False)):
            connection.on_frame(kind, body)
    assert isinstance(told[0], Overloaded)
    assert [isinstance(one, DeliveryFailed) and one.appended for one in told[1:]] == [None, None]


def test_a_flush_appends_what_the_leader_says_nothing_of(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "SETTLE_SECONDS", 0.1)
    held: list[bytes] = []

    def on_append(call: AppendCall) -> Fate:
        if call.topic == transactions_topic("commitlog") and not held:
            held.append(call.key)
            return Fate.HOLD
        return Fate.DELIVER

    running.client.table(TABLE)
    running.cluster.on_append = on_append
    ticket = append(running.client)
    running.client.runtime().flush(WAIT_SECONDS)
    assert ids(running).count(ticket.transaction_id) == 1
    ticket.result(WAIT_SECONDS).raise_for_conflict()
    running.cluster.release()


def test_a_writer_that_leaves_has_its_record_decided(running: Service) -> None:
    leaving = CommitLog(lambda: MemoryLog(running.cluster))
    ticket = append(leaving)
    leaving.close()
    outcome = running.client.outcome(ticket.transaction_id, timeout=WAIT_SECONDS)
    assert outcome.version == 2


def test_a_record_over_the_limit_is_refused_before_it_is_read(running: Service) -> None:
    host, _, port = running.running[0].committer.node.rpartition(":")
    asked = transaction()
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as opened:
        buffer, frames = wire.FrameBuffer(), list[tuple[wire.FrameKind, bytes]]()

        def say(data: bytes) -> tuple[wire.FrameKind, dict[str, Any]]:
            opened.sendall(data)
            while not frames:
                frames.extend(buffer.feed(opened.recv(65536)))
            kind, body = frames.pop(0)
            return kind, wire.parse_json(body)

        hello = {"protocol": wire.WIRE_VERSION}
        kind, welcome = say(wire.json_frame(wire.FrameKind.HELLO, hello))
        assert kind is wire.FrameKind.WELCOME
        assert welcome["appends"] is True
        large = bytes(RECORD_BYTES_MAX + 1)
        _, reply = say(wire.append_frame(wire.AppendFrame("large", False, large)))
        assert reply["transaction_id"] == "large"
        assert reply["appended"] is False
        assert reply["error"]["type"] == "RecordTooLarge"
        frame = wire.AppendFrame(asked.transaction_id, False, encode_to_append(asked))
        opened.sendall(wire.append_frame(frame))
        wait_until(lambda: asked.transaction_id in ids(running), "a record in the log")
    assert "large" not in ids(running)
