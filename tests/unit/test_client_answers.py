"""Tickets and connections, against a leader over a log in memory."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pytest
from lance.fragment import write_fragments

from commitlog import CommitLog, LogClosed, NoSuchTable, OutcomeUnknown, Status, Unavailable
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import Fate
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.client.leader.tickets import Ticket, Wait
from commitlog.client.rows.opening import are_readable
from commitlog.codecs.avro import encode_leader_started
from commitlog.core.log.chain import BEGINNING, ChainPlace, chain_at
from commitlog.model.records import Code, Genesis, LeaderStarted, OperationResult, Submitted
from commitlog.wire import FrameKind
from tests.steered_leader import SCHEMA, SteeredLeader, blank
from tests.waiting import WAIT_SECONDS, wait_until

QUICK = RuntimeSettings(fallback_after_seconds=0.3, request_timeout_seconds=60)


@pytest.fixture
def client(log: MemoryLog, leader: SteeredLeader) -> Iterator[CommitLog]:
    with CommitLog(lambda: log, settings=QUICK) as client:
        client.create_table("a$t", SCHEMA)
        yield client


def _append(client: CommitLog, *ids: int) -> lance.LanceOperation.Append:
    info = client.table("a$t")
    rows = SCHEMA.empty_table().from_pylist([{"id": i, "v": "x"} for i in ids], schema=SCHEMA)
    return lance.LanceOperation.Append(write_fragments(rows, info.location))


def test_a_ticket_is_answered(client: CommitLog) -> None:
    ticket = client.submit("a$t", _append(client, 1))
    outcome = ticket.result(120)
    assert (outcome.status, outcome.version) == (Status.COMMITTED, 2)
    assert outcome.raise_for_conflict() is outcome
    assert ticket.done()
    assert ticket.result(WAIT_SECONDS, wait="committed") is outcome
    assert client.outcome(ticket.transaction_id) == outcome


def test_running_out_of_time_is_unknown_and_can_be_asked_again(
    client: CommitLog, leader: SteeredLeader
) -> None:
    operation = _append(client, 1)
    leader.paused.set()
    ticket = client.submit("a$t", operation)
    with pytest.raises(OutcomeUnknown) as unknown:
        ticket.result(0.2)
    assert unknown.value.transaction_id == ticket.transaction_id
    assert "log.outcome" in str(unknown.value)
    with pytest.raises(OutcomeUnknown):
        client.outcome(ticket.transaction_id, timeout=0.1)
    leader.paused.clear()
    assert client.outcome(ticket.transaction_id, timeout=120).version == 2
    assert ticket.result(120).version == 2


def test_an_id_that_nobody_submitted_is_unknown(client: CommitLog) -> None:
    with pytest.raises(OutcomeUnknown):
        client.outcome("00000000-0000-4000-8000-000000000000", timeout=0.1)
    assert not client.runtime().connection(0).outstanding()


def test_a_broken_socket_is_connected_again_and_open_watches_are_repeated(
    client: CommitLog, leader: SteeredLeader
) -> None:
    operation = _append(client, 1)
    leader.paused.set()
    ticket = client.submit("a$t", operation)
    leader.stop_socket()
    leader.start_socket()
    leader.paused.clear()
    assert ticket.result(120).version == 2
    assert client.table("a$t").version == 2


@pytest.mark.slow
def test_the_outcomes_topic_answers_while_the_socket_is_down(
    client: CommitLog, leader: SteeredLeader
) -> None:
    operation = _append(client, 1)
    leader.stop_socket()
    ticket = client.submit("a$t", operation)
    assert ticket.result(WAIT_SECONDS, wait="committed").version == 2
    assert ticket.result(WAIT_SECONDS, wait="readable").version == 2, "the manifest is there"
    assert client.outcome(ticket.transaction_id, timeout=120).version == 2
    with pytest.raises(Unavailable):
        client.runtime().connection(0).request("table", {"table": ["a", "t"]}, 0.2)
    leader.start_socket()
    assert client.table("a$t").version == 2


def test_an_iceberg_commit_in_the_topic_is_readable(client: CommitLog) -> None:
    """Its metadata file was written before the outcome, so the fallback has none to look for."""
    result = OperationResult(("a", "ice"), "x", "Iceberg", metadata_location="file:/00001.json")
    outcome = replace(blank(Status.COMMITTED), results=(result,))
    assert are_readable(client._tables, outcome)
    unknown = replace(result, metadata_location="")
    assert not are_readable(client._tables, replace(outcome, results=(unknown,)))


@pytest.mark.slow
def test_the_fallback_heeds_no_record_of_a_deposed_leader(
    client: CommitLog, log: MemoryLog, leader: SteeredLeader
) -> None:
    operation = _append(client, 1)
    leader.paused.set()
    leader.stop_socket()
    ticket = client.submit("a$t", operation)
    from commitlog.codecs.avro import seal_outcome

    forged = replace(blank(Status.REJECTED), sequence=2, transaction_id=ticket.transaction_id)
    _, record = seal_outcome(forged, previous_hash=bytes(32), epoch=1, node=leader.node)
    leader.append("1/forged", record)
    with pytest.raises(OutcomeUnknown):
        ticket.result(1)
    leader.paused.clear()
    assert ticket.result(WAIT_SECONDS, wait="committed").status is Status.COMMITTED


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 100])
def test_void_records_at_the_end_hide_no_leader(
    client: CommitLog, log: MemoryLog, leader: SteeredLeader, count: int
) -> None:
    """Campaigns that were lost name somebody who doesn't lead; nothing else may follow them."""
    for number in range(count):
        lost = LeaderStarted(1, "127.0.0.1:1", str(number), 0, bytes(32), bytes(32))
        leader.append(f"leader/1/{number}", encode_leader_started(lost))
    with CommitLog(lambda: log, settings=QUICK) as other:
        assert other.table("a$t").version == 1
        assert (
            other.submit("a$t", _append(client, 1)).result(WAIT_SECONDS, wait="committed").version
            == 2
        )


@pytest.mark.slow
def test_a_hundred_are_in_flight_at_once(client: CommitLog) -> None:
    operations = [_append(client, i) for i in range(100)]
    tickets = [client.submit("a$t", operation) for operation in operations]
    versions = [ticket.result(120).version for ticket in tickets]
    assert sorted(versions) == list(range(2, 102))
    assert not client.runtime().connection(0).outstanding()


def test_threads_share_a_client(client: CommitLog) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda i: client.append("a$t", {"id": [i]}), range(24)))
    assert sorted(o.version for o in outcomes) == list(range(2, 26))
    assert client.open("a$t").count_rows() == 24


def test_who_waits_reads_again_after_somebody_else_did(client: CommitLog) -> None:
    """Two changes of threads per commit would stay for good once one caller came second."""
    connection = client.runtime().connection(0)
    readers: list[threading.Thread] = []
    taken = connection.on_frame

    def on_frame(kind: FrameKind, body: bytes) -> None:
        readers.append(threading.current_thread())
        taken(kind, body)

    connection.on_frame = on_frame  # type: ignore[method-assign]
    with connection.attended(lambda: False):
        # On a busy machine the client's own thread is late to take over.
        for number in range(100):
            client.append("a$t", [{"id": number, "v": "x"}])
            if threading.current_thread() not in readers[-1:]:
                break
        readers.clear()
        client.append("a$t", [{"id": 99, "v": "x"}])
        assert readers
    assert threading.main_thread() not in readers
    client.append("a$t", [{"id": 100, "v": "x"}])
    readers.clear()
    for number in range(101, 106):
        client.append("a$t", [{"id": number, "v": "x"}])
    assert set(readers) == {threading.main_thread()}


def test_a_ticket_can_be_awaited_without_blocking_the_loop_and_a_task_cancelled(
    client: CommitLog, leader: SteeredLeader
) -> None:
    operation = _append(client, 1)
    leader.paused.set()

    async def main() -> int:
        ticket = client.submit("a$t", operation)
        waiting = asyncio.ensure_future(ticket.result_async())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        cancelled = asyncio.ensure_future(ticket.result_async())
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(OutcomeUnknown):
            await ticket.result_async(timeout=0.01)
        leader.paused.clear()
        assert (await waiting) == (await ticket)
        return (await ticket).version

    assert asyncio.run(main()) == 2


def test_an_interrupt_while_an_answer_is_read_loses_no_answer(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, interrupts = LeaderConnection.on_frame, iter([KeyboardInterrupt])
    tickets: list[Ticket] = []

    def interrupted(connection: LeaderConnection, kind: FrameKind, body: bytes) -> None:
        is_waiting = tickets and threading.current_thread() is threading.main_thread()
        if is_waiting and kind is FrameKind.OUTCOME:
            for interrupt in interrupts:
                raise interrupt
        take(connection, kind, body)

    monkeypatch.setattr(LeaderConnection, "on_frame", interrupted)

    def wait() -> None:
        while True:  # the client's own thread may be the first to read one
            tickets.append(client.submit("a$t", _append(client, 1)))
            tickets[-1].result(30)

    with pytest.raises(KeyboardInterrupt):
        wait()
    assert tickets[-1].result(30).status is Status.COMMITTED


def test_an_interrupt_while_a_frame_is_sent_ends_the_socket(
    client: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = client.runtime().connection(0)._socket
    client.table("a$t")
    opened = Mock(wraps=leader.opened)
    opened.sendall.side_effect = KeyboardInterrupt
    monkeypatch.setattr(leader, "opened", opened)
    with pytest.raises(KeyboardInterrupt):
        leader.send(b"a frame, of which a half may be sent")
    opened.shutdown.assert_called_once()
    monkeypatch.undo()
    assert client.table("a$t").version == 1


def test_the_same_transaction_twice_is_one(client: CommitLog) -> None:
    transaction = lance.Transaction(1, _append(client, 1))
    first = client.submit("a$t", transaction)
    second = client.submit("a$t", transaction)
    assert first.transaction_id == second.transaction_id == transaction.uuid
    assert first.result(120).version == second.result(120).version == 2
    assert client.open("a$t").count_rows() == 1


@pytest.mark.slow
def test_a_delivery_that_fails_is_repeated_under_the_same_id(
    client: CommitLog, log: MemoryLog
) -> None:
    operation = _append(client, 1)
    fates = iter([Fate.LOSE, Fate.REFUSE, Fate.APPEND_UNTOLD])
    log.cluster.on_append = lambda append: (
        next(fates, Fate.DELIVER) if "transactions" in append.topic else Fate.DELIVER
    )
    ticket = client.submit("a$t", operation)
    assert ticket.result(120).version == 2
    assert client.table("a$t").version == 2
    assert next(fates, None) is None


@pytest.mark.slow
def test_a_client_without_a_leader_says_so(log: MemoryLog) -> None:
    with CommitLog(lambda: log, settings=RuntimeSettings(request_timeout_seconds=0.3)) as client:
        with pytest.raises(Unavailable, match="leader"):
            client.table("a$t")
        with pytest.raises(Unavailable, match="leader"):
            client.tables()


def test_a_closed_client_refuses_everything(client: CommitLog, log: MemoryLog) -> None:
    ticket = client.submit("a$t", _append(client, 1))
    assert ticket.result(WAIT_SECONDS).version == 2
    append = _append(client, 2)
    feed = client.subscribe(from_position="beginning")
    client.close()
    client.close()
    end = log.read_transactions(0).end_offset()
    files = set(Path(log.genesis(0).tables_root).rglob("*"))
    calls: list[Callable[[], object]] = [
        lambda: client.append("a$t", {"id": [1]}),
        lambda: client.delete("a$t", "id = 1"),
        lambda: client.submit("a$t", append),
        lambda: client.write_rows("a$t", {"id": [1]}),
        lambda: client.open("a$t"),
        lambda: client.scan("a$t"),
        lambda: client.sql("SELECT 1"),
        lambda: client.tables(),
        lambda: client.subscribe(),
        lambda: client.outcome("any"),
        lambda: feed.poll(0.1),
        lambda: next(iter(feed)),
    ]
    for call in calls:
        with pytest.raises(LogClosed, match="the log is closed"):
            call()
    feed.close()
    assert ticket.result(1).version == 2
    assert log.read_transactions(0).end_offset() == end
    assert set(Path(log.genesis(0).tables_root).rglob("*")) == files
    assert repr(client) == "CommitLog(closed)"


def test_who_asks_while_another_thread_closes_the_client_hears_of_it(
    client: CommitLog, leader: SteeredLeader
) -> None:
    feed = client.subscribe(from_position="beginning")
    feed.poll(WAIT_SECONDS)
    leader.muted.set()
    with ThreadPoolExecutor() as pool:
        waiting: list[Future[Any]] = [
            pool.submit(client.tables),
            pool.submit(feed.poll, WAIT_SECONDS),
        ]
        wait_until(lambda: "tables" in leader.requests, "the question is on its way")
        client.close(timeout=0.5)
        for one in waiting:
            with pytest.raises(LogClosed):
                one.result(5)
    feed.close()


@pytest.mark.parametrize("wait", ["committed", "readable"])
def test_who_waits_while_another_thread_closes_the_client_hears_of_it(
    client: CommitLog, leader: SteeredLeader, wait: Wait
) -> None:
    append = _append(client, 1)
    leader.muted.set()
    with ThreadPoolExecutor() as pool:
        ticket = client.submit("a$t", append)
        waiting = pool.submit(ticket.result, WAIT_SECONDS, wait)
        time.sleep(0.2)
        client.close(timeout=0.5)
        with pytest.raises(OutcomeUnknown, match=r"closed before .* log\.outcome\(id\)"):
            waiting.result(5)


def test_a_wrong_name_is_answered_with_the_near_ones(client: CommitLog) -> None:
    with pytest.raises(NoSuchTable, match=r"a\$t"):
        client.table("a$tt")
    with pytest.raises(NoSuchTable):
        client.submit("a$tt", lance.LanceOperation.Restore(1))


def test_a_muted_leader_does_not_hold_a_caller_beyond_its_deadline(
    log: MemoryLog, leader: SteeredLeader
) -> None:
    leader.muted.set()
    settings = RuntimeSettings(request_timeout_seconds=0.3)
    started = time.monotonic()
    with CommitLog(lambda: log, settings=settings) as client:
        with pytest.raises(Unavailable, match="did not answer.*`commitlog committer` is running"):
            client.table("a$t")
        with pytest.raises(Unavailable, match="did not answer.*store may be slow or away"):
            client.describe(("a", "t"), fresh=True, readable=True)
    assert time.monotonic() - started < 20  # the default is 30


def test_a_refusal_is_a_value_until_it_is_raised(log: MemoryLog, tmp_path: Path) -> None:
    def refuse(submitted: Submitted) -> object:
        return blank(Status.REJECTED, Code.UNSUPPORTED_OPERATION)

    leader = SteeredLeader(log, decide=refuse)  # type: ignore[arg-type]
    from commitlog import TransactionRejected
    from commitlog.model.operations import DeregisterTable

    with CommitLog(lambda: log) as client:
        outcome = client.submit(None, DeregisterTable(("a", "t"))).result(120)
        assert outcome.status is Status.REJECTED
        with pytest.raises(TransactionRejected, match="UNSUPPORTED_OPERATION"):
            outcome.raise_for_conflict()
    leader.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_forked_child_connects_anew(client: CommitLog) -> None:
    assert client.append("a$t", {"id": [1]}).version == 2
    held = client._lock
    held.acquire()  # another thread may hold it at the moment of the fork
    child = os.fork()
    if child == 0:
        code = 1
        try:
            # The leader's threads live in the parent: only the client's own state is looked at.
            runtime = client.runtime()
            fresh = runtime is not None and client._pid == os.getpid()
            code = 0 if fresh and not runtime._connections and client._lock is not held else 2
        finally:
            os._exit(code)
    held.release()
    deadline = threading.Timer(10, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    assert os.waitstatus_to_exitcode(status) == 0
    assert client.append("a$t", {"id": [2]}).version == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("wait", ["readable", "committed"])
def test_a_forked_child_leaves_answers_to_its_parent(
    client: CommitLog, leader: SteeredLeader, wait: Wait
) -> None:
    """What the child reads of the socket that both have, the parent waits for in vain."""
    operation = _append(client, 1)
    leader.paused.set()
    ticket = client.submit("a$t", operation)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            ticket.result(60, wait)
        except OutcomeUnknown as unknown:
            code = 0 if "log.outcome(id)" in str(unknown) else 2
        finally:
            os._exit(code)
    deadline = threading.Timer(20, os.kill, (child, 9))
    deadline.start()
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    leader.paused.clear()
    assert os.waitstatus_to_exitcode(status) == 0
    assert ticket.result(WAIT_SECONDS, wait).status is Status.COMMITTED


def test_a_client_that_reads_the_topic_follows_the_next_leader() -> None:
    genesis = Genesis(log="commitlog", log_id="a-log", cluster_id="a-cluster", partition=0)
    anchor = ChainPlace(sequence=5, outcomes_offset=8, epoch=1, hash=b"a hash")
    next_leader = LeaderStarted(2, "127.0.0.1:1", "another", 5, b"a hash", b"")
    assert chain_at(anchor, genesis).admit(next_leader) == ""
    without = chain_at(anchor, genesis)
    without.genesis = None
    assert "no genesis" in without.admit(next_leader)
    assert chain_at(BEGINNING, genesis).genesis is None, "it is read from the topic's beginning"
