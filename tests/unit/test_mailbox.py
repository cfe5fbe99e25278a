"""Is there one owner? Replies that find nobody, requests from anywhere, a loop that gets stuck."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import Unavailable
from consumers.partition.files.offset_index import EVERY, OffsetIndex
from consumers.partition.lanes import Job, Lanes
from consumers.partition.mailbox import (
    EVENTS_MAX,
    Displaced,
    Loop,
    LoopRequest,
    Mailbox,
    PendingReply,
    Reply,
)
from tests.simulation.disk import MemoryFolder
from tests.simulation.scheduler import Process, Scheduler
from tests.waiting import wait_until

WAIT_SECONDS = 20.0


def test_an_answer_that_comes_after_a_timeout_finds_nobody() -> None:
    async def ask() -> None:
        pending = PendingReply[int]()
        with pytest.raises(TimeoutError):
            await pending.result(0.01)
        pending.reply.give(1)
        pending.reply.refuse(ValueError("late"))
        await asyncio.sleep(0.05)

    asyncio.run(ask())


def test_only_the_first_answer_counts() -> None:
    came: list[int | None] = []
    reply: Reply[int] = Reply(lambda value, error: came.append(value))
    reply.give(1)
    reply.give(2)
    reply.refuse(ValueError())
    assert came == [1]


def test_a_turn_of_the_loop_takes_no_more_than_it_can_handle_soon() -> None:
    mailbox = Mailbox()
    for number in range(EVENTS_MAX + 1):
        mailbox.post(number)
    assert mailbox.take(0) == list(range(EVENTS_MAX))
    waited: list[float] = []
    mailbox.rest(waited.append, WAIT_SECONDS)
    assert not waited, "there is more to do"
    assert mailbox.take(0) == [EVENTS_MAX]
    mailbox.rest(waited.append, 0.0)
    assert waited


def test_only_the_loop_takes_and_a_closed_mailbox_refuses() -> None:
    mailbox = Mailbox()
    assert mailbox.take(0) == []
    failed: list[BaseException] = []

    def other() -> None:
        try:
            mailbox.take(0)
        except AssertionError as error:
            failed.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(WAIT_SECONDS)
    assert failed, "another thread took"
    asked = mailbox.call(lambda: 1)
    mailbox.close()
    for late in (asked, mailbox.call(lambda: 2)):
        with pytest.raises(Unavailable, match="term is over"):
            late.result(WAIT_SECONDS)


def test_another_thread_is_the_loop_when_one_is_stuck_and_what_it_brings_is_an_event() -> None:
    mailbox, go_on, ended = Mailbox(), threading.Event(), threading.Event()
    loops: list[int] = []
    brought: list[object] = []

    def stuck() -> None:
        try:
            mailbox.outside(lambda: go_on.wait(WAIT_SECONDS))
        except Displaced as displaced:
            displaced.value = lambda value=displaced.value: brought.append(value)
            raise

    def work() -> None:
        loops.append(threading.get_ident())
        if len(loops) == 1:
            stuck()
        while not brought:
            for event in mailbox.take(0.05):
                assert isinstance(event, LoopRequest)
                event.run()
        ended.set()

    loop = Loop(mailbox)
    running = threading.Thread(target=lambda: loop.run(work))
    running.start()
    wait_until(lambda: mailbox.displace(0.02), "a thread to displace")
    loop.begin()
    go_on.set()
    running.join(WAIT_SECONDS)
    assert ended.is_set()
    assert len(set(loops)) == 2
    assert brought == [True]


def test_only_the_loop_that_is_not_outside_answers_from_what_it_owns() -> None:
    mailbox, elsewhere, outside = Mailbox(), list[bool](), list[bool]()
    assert not mailbox.runs_here(), "nobody is the loop yet"
    mailbox.begin()
    assert mailbox.runs_here()
    thread = threading.Thread(target=lambda: elsewhere.append(mailbox.runs_here()))
    thread.start()
    thread.join()
    mailbox.outside(lambda: outside.append(mailbox.runs_here()))
    assert (elsewhere, outside) == ([False], [False])


@pytest.mark.slow
def test_a_lane_does_one_job_at_a_time_and_a_late_one_holds_up_no_other() -> None:
    mailbox, go_on = Mailbox(), threading.Event()
    lanes = Lanes("test", mailbox.post, workers=1)
    done: list[str] = []

    def reply(name: str) -> Reply[object]:
        def heard(value: object, error: BaseException | None) -> None:
            done.append(name if error is None else f"{name}: {type(error).__name__}")

        return Reply(heard)

    lanes.submit(
        "bad", lambda: go_on.wait(WAIT_SECONDS), reply("stuck"), seconds=0.2, what="a look"
    )
    lanes.submit("bad", lambda: None, reply("behind"), seconds=WAIT_SECONDS, what="a look")
    lanes.submit("good", lambda: None, reply("good"), seconds=WAIT_SECONDS, what="a look")

    def until(wanted: list[str]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while done != wanted:
            assert time.monotonic() < deadline, done
            for event in mailbox.take(min(lanes.due_at, deadline) - time.monotonic()):
                assert isinstance(event, Job)
                lanes.done(event)
            lanes.tick()

    until(["stuck: OSError", "good"])
    go_on.set()
    until(["stuck: OSError", "good", "behind"])
    assert not lanes._lanes
    lanes.close()


def test_the_past_is_kept_and_forgets_what_a_checkpoint_does_not_have() -> None:
    folder = MemoryFolder(Scheduler(0), Process("p", is_spared=True), {})
    past = OffsetIndex(folder, "a-log", 0)
    places = [ChainPlace(EVERY * n, EVERY * n + 7, 1, b"%032d" % n) for n in range(1, 5)]
    past.note_all([*reversed(places), ChainPlace(EVERY + 1, 9, 1, b"")])
    assert past.before(EVERY) == BEGINNING
    assert past.before(EVERY + 1) == places[0]
    assert past.before(EVERY * 9) == places[3]
    past.prepare()()
    assert OffsetIndex(folder, "a-log", EVERY * 2).before(EVERY * 9) == places[1]
    assert OffsetIndex(folder, "another", EVERY * 9).before(EVERY * 9) == BEGINNING


def test_the_past_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("consumers.partition.files.offset_index.PLACES_MAX", 50)
    monkeypatch.setattr("consumers.partition.files.offset_index.PLACES_PER_FILE", 4)
    files: dict[str, bytes] = {}
    folder = MemoryFolder(Scheduler(0), Process("p", is_spared=True), files)
    past, end = OffsetIndex(folder, "a-log", 0), EVERY * 1_000
    for n in range(1, 1_001):
        past.note(ChainPlace(EVERY * n, EVERY * n + 7, 1, b"%032d" % n))
        past.prepare()()
    for again in (past, OffsetIndex(folder, "a-log", end)):
        found = {again.before(sequence).sequence for sequence in range(EVERY, end + 1, EVERY)}
        assert len(found) <= 51  # and the beginning
        # At most as far back as places are from each other.
        assert max(s - again.before(s).sequence for s in range(EVERY, end, EVERY)) <= 32 * EVERY
    assert len(files) <= 51
