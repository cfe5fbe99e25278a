"""Callers who give up waiting for a ticket leave nothing behind, and disturb nobody."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

import lance
import pyarrow as pa
import pytest

from commitlog import CommitLog, OutcomeUnknown, Unavailable
from commitlog.adapters.memory import MemoryLog
from commitlog.client.leader import tickets
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.client.leader.tickets import Ticket
from tests.steered_leader import SCHEMA, SteeredLeader


@pytest.fixture
def ticket(log: MemoryLog, leader: SteeredLeader) -> Iterator[Ticket]:
    """A ticket without an answer, until the leader isn't paused any more."""
    with CommitLog(lambda: log) as client:
        client.create_table("a$t", SCHEMA)
        rows = pa.table({"id": [1], "v": ["a"]}, schema=SCHEMA)
        fragments = lance.fragment.write_fragments(rows, client.table("a$t").location)
        leader.paused.set()
        yield client.submit("a$t", lance.LanceOperation.Append(fragments))
        leader.paused.clear()


def test_waiting_again_and_again_keeps_nothing(ticket: Ticket, leader: SteeredLeader) -> None:
    for _ in range(50):
        with pytest.raises(OutcomeUnknown):
            ticket.result(0.0)

    async def poll() -> None:
        for _ in range(50):
            with pytest.raises(OutcomeUnknown):
                await ticket.result_async(0.0)

    asyncio.run(poll())
    assert ticket._waiting == []
    leader.paused.clear()
    assert ticket.result(30).version == 2


def test_who_heard_nothing_is_told_what_may_be_so(ticket: Ticket) -> None:
    """The leader answers once the files are there, and of its appends a client hears nothing."""
    ticket.offset = -1
    with pytest.raises(OutcomeUnknown, match="reached Kafka, or be committed and lack its files"):
        ticket.result(0.0)
    with pytest.raises(OutcomeUnknown, match="may not have reached Kafka\\. Ask again"):
        ticket.result(0.0, wait="committed")


def test_an_answer_after_the_event_loop_has_ended_disturbs_nobody(
    ticket: Ticket, leader: SteeredLeader, caplog: pytest.LogCaptureFixture
) -> None:
    async def give_up() -> None:
        with pytest.raises(OutcomeUnknown):
            await ticket.result_async(0.01)
        task = asyncio.create_task(ticket.result_async(30))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        asyncio.create_task(ticket.result_async(30))  # noqa: RUF006 -- the loop's end cancels it
        await asyncio.sleep(0)

    asyncio.run(give_up())
    assert ticket._waiting == []
    leader.paused.clear()
    assert ticket.result(30).version == 2
    assert [one for one in caplog.records if one.levelno >= logging.ERROR] == []


def test_one_of_many_tasks_is_cancelled_and_the_others_get_the_answer(
    ticket: Ticket, leader: SteeredLeader
) -> None:
    async def wait() -> list[int]:
        tasks = [asyncio.create_task(ticket.result_async(30)) for _ in range(20)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        leader.paused.clear()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(found[3], asyncio.CancelledError)
        return [one.version for one in found if not isinstance(one, BaseException)]

    assert asyncio.run(wait()) == [2] * 19


@pytest.mark.slow
def test_the_time_of_a_call_holds_for_what_it_asks_the_leader(
    log: MemoryLog, leader: SteeredLeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tickets, "WAIT_SECONDS_MIN", 0.01)
    settings = RuntimeSettings(request_timeout_seconds=120)
    with CommitLog(lambda: log, settings=settings) as client:
        client.create_table("a$t", SCHEMA, primary_key="id")
        rows = {"id": [1], "v": ["a"]}
        leader.muted.set()
        calls: list[Callable[[], object]] = [
            lambda: client.append("a$t", rows, timeout=0.1),
            lambda: client.append("a$t", pa.table(rows).to_reader(), timeout=0.1),
            lambda: client.merge_insert("a$t", rows, timeout=0.1),
            lambda: client.update("a$t", {"v": "'x'"}, timeout=0.1),
            lambda: client.delete("a$t", "id = 1", timeout=0.1),
            lambda: client.alter_columns("a$t", {"path": "v"}, {"path": "id"}, timeout=0.1),
            lambda: client.compact("a$t", timeout=0.1),
            lambda: client.drop_table("a$t", timeout=0.1),
            lambda: client.expire_versions("a$t", retain_versions=1, timeout=0.1),
            lambda: client.position(None, timeout=0.1),
        ]
        began = time.monotonic()
        for call in calls:
            with pytest.raises(Unavailable, match=r"`\w+` within 0.\d+ s"):
                call()
        with client.transact(timeout=0.1) as block:
            for call in (
                lambda: block.append("a$t", rows),
                lambda: block.delete("a$t", "id = 1"),
                lambda: block.update("a$t", {"v": "'x'"}),
                lambda: block.merge_insert("a$t", rows),
            ):
                with pytest.raises(Unavailable, match=r"`table` within 0.\d+ s"):
                    call()
        assert time.monotonic() - began < 60


@pytest.mark.slow
def test_an_outcome_takes_no_longer_than_the_call_that_waits_for_it(
    ticket: Ticket, leader: SteeredLeader
) -> None:
    began = time.monotonic()
    with tickets.until(began), pytest.raises(OutcomeUnknown):
        ticket.result(120)
    assert time.monotonic() - began < 60
    leader.paused.clear()
    assert ticket.result(30).version == 2
