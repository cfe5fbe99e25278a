"""The leader's socket: read by the loop, by another thread while that is away, and slowly."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commitlog import wire
from commitlog.codecs.avro import seal_outcome
from commitlog.errors import InvalidSettings, NoSuchTable
from commitlog.model.records import Outcome, Status
from commitlog.wire import FrameBuffer, FrameKind
from consumers.partition.mailbox import Mailbox
from consumers.socket import connections
from consumers.socket.answers import Answers
from consumers.socket.connections import check_address
from tests.waiting import wait_until

WAIT_SECONDS = 120.0
LARGE = 16 * 1024 * 1024


def _missing() -> None:
    raise NoSuchTable("the log knows no table t")


AWAITED = list[Callable[[Any], None]]()
"""Who asked for what is to come, and waits."""


AT_HAND: dict[str, Callable[[], Any]] = {"known": lambda: {"at": 7}, "missing": _missing}


def _lookup(method: str, params: dict[str, Any], answer: Callable[[Any], None]) -> bool:
    if method == "awaited":
        AWAITED.append(answer)
    elif method in AT_HAND:
        answer(AT_HAND[method]())
    else:
        return False
    return True


@pytest.fixture
def answers() -> Iterator[Answers]:
    async def large(method: str, params: dict[str, Any]) -> str:
        return "x" * LARGE

    made = Answers(
        identity={"log": "commitlog", "log_id": "id", "partition": 0},
        handler=large,
        finder=lambda transaction_id, through: None,
        taker=lambda sent: None,
        lookup=_lookup,
    )
    made.start()
    made.begin_term(1, "here", 0, "")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("host", "token", "why"),
    [
        ("192.0.2.1", "", "set the same COMMITLOG_TOKEN"),
        ("committer-1", "", "set the same COMMITLOG_TOKEN"),
        ("0.0.0.0", "secret", "other machines cannot connect to"),
        ("192.0.2.1", "secret", ""),
        ("committer-1", "secret", ""),
        ("127.0.0.1", "", ""),
    ],
)
def test_beyond_loopback_the_leader_asks_for_a_token(host: str, token: str, why: str) -> None:
    if why:
        with pytest.raises(InvalidSettings, match=why):
            check_address(host, token)
    else:
        check_address(host, token)


class Writer:
    """Somebody at the other end, who sends and waits."""

    def __init__(self, answers: Answers, session: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", answers.port), WAIT_SECONDS)
        self._buffer, self._frames = FrameBuffer(), list[tuple[FrameKind, bytes]]()
        self.send(FrameKind.HELLO, {"protocol": wire.WIRE_VERSION, "session": session})

    def send(self, kind: FrameKind, body: dict[str, Any]) -> None:
        self.socket.sendall(wire.json_frame(kind, body))

    def next(self) -> tuple[FrameKind, bytes]:
        while not self._frames:
            data = self.socket.recv(1 << 16)
            assert data, "the connection was closed"
            self._frames += self._buffer.feed(data)
        return self._frames.pop(0)


def test_a_leader_that_is_busy_answers_a_ping(answers: Answers) -> None:
    answers.poll(0)  # the loop came by, and is away from now on
    writer = Writer(answers)
    assert writer.next()[0] is FrameKind.WELCOME
    writer.send(FrameKind.REQUEST, {"request": 7, "method": "ping"})
    kind, body = writer.next()
    assert (kind, wire.parse_json(body)["request"]) == (FrameKind.REPLY, 7)
    writer.socket.close()


@pytest.mark.parametrize(
    ("method", "reply"),
    [
        ("known", {"result": {"at": 7}}),
        ("missing", {"error": {"type": "NoSuchTable", "message": "the log knows no table t"}}),
    ],
)
def test_what_is_at_hand_is_answered_by_the_thread_that_read_the_request(
    answers: Answers, method: str, reply: dict[str, Any]
) -> None:
    writer = Writer(answers)
    assert writer.next()[0] is FrameKind.WELCOME
    writer.send(FrameKind.REQUEST, {"request": 1, "method": method, "params": {}})
    kind, body = writer.next()
    assert (kind, wire.parse_json(body)) == (FrameKind.REPLY, {"request": 1, **reply})
    writer.socket.close()


def test_what_is_to_come_is_answered_by_the_thread_that_hears_of_it(answers: Answers) -> None:
    writer, gone = Writer(answers), Writer(answers)
    for one in (writer, gone):
        assert one.next()[0] is FrameKind.WELCOME
        one.send(FrameKind.REQUEST, {"request": 3, "method": "awaited"})
    wait_until(lambda: len(AWAITED) == 2, "both requests")
    gone.socket.close()
    while AWAITED:
        AWAITED.pop()({"at": 8})
    kind, body = writer.next()
    assert (kind, wire.parse_json(body)) == (FrameKind.REPLY, {"request": 3, "result": {"at": 8}})
    writer.socket.close()


def test_who_has_not_said_hello_gets_no_memory_for_a_large_frame(answers: Answers) -> None:
    """No token is asked for until then: anybody could fill the leader's memory."""
    stranger = socket.create_connection(("127.0.0.1", answers.port), WAIT_SECONDS)
    stranger.sendall(wire.frame(FrameKind.HELLO, bytes(1 << 20))[: 1 << 10])
    said, buffer = list[tuple[FrameKind, bytes]](), FrameBuffer()
    while data := stranger.recv(1 << 16):
        said += buffer.feed(data)
    assert [kind for kind, _ in said] == [FrameKind.ERROR], "and the connection was closed"
    stranger.close()
    writer = Writer(answers)
    writer.send(
        FrameKind.REQUEST, {"request": 1, "method": "ping", "params": {"large": "x" * LARGE}}
    )
    assert [writer.next()[0] for _ in range(2)] == [FrameKind.WELCOME, FrameKind.REPLY]
    writer.socket.close()


def test_who_says_no_hello_is_disconnected_after_a_while(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(answers)
    assert writer.next()[0] is FrameKind.WELCOME
    silent = socket.create_connection(("127.0.0.1", answers.port), WAIT_SECONDS)
    wait_until(lambda: len(answers._connections.all()) == 2, "both connections")
    monkeypatch.setattr(connections, "HELLO_SECONDS", 0.0)
    assert silent.recv(1) == b""
    writer.send(FrameKind.REQUEST, {"request": 7, "method": "ping"})
    assert writer.next()[0] is FrameKind.REPLY, "who said it stays"
    for one in (silent, writer.socket):
        one.close()


def test_a_loop_that_waits_for_sockets_wakes_for_events_too(answers: Answers) -> None:
    mailbox, waits, seen = Mailbox(), threading.Event(), list[Any]()
    mailbox.wake = answers.wake

    def wait(timeout_seconds: float) -> None:
        waits.set()
        answers.poll(timeout_seconds)

    def loop() -> None:
        while not seen:
            mailbox.rest(wait, 1e6)
            seen.extend(mailbox.take(0))

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    assert waits.wait(WAIT_SECONDS)
    mailbox.post("event")
    thread.join(WAIT_SECONDS)
    assert seen == ["event"]


def test_a_loop_that_waits_for_sockets_stops_waiting_when_it_is_over(answers: Answers) -> None:
    stop = threading.Event()
    answers.is_over = stop.is_set
    thread = threading.Thread(target=answers.poll, args=(1e6,), daemon=True)
    thread.start()
    stop.set()
    thread.join(WAIT_SECONDS)
    assert not thread.is_alive()


@pytest.mark.slow
def test_nothing_is_kept_of_writers_that_left_and_of_watches_that_were_answered(
    answers: Answers,
) -> None:
    for number in range(20):
        writer = Writer(answers, f"session {number}")
        assert writer.next()[0] is FrameKind.WELCOME
        for chosen in (f"told {number}", "never told"):
            writer.socket.sendall(wire.watch_frame(wire.Watch(chosen, 0, readable=number % 2 == 0)))
        writer.send(FrameKind.REQUEST, {"request": 1, "method": "ping"})
        assert writer.next()[0] is FrameKind.REPLY
        outcome = Outcome(number + 1, f"told {number}", 0, Status.COMMITTED)
        outcome, record = seal_outcome(outcome, previous_hash=bytes(32), epoch=1, node="here:1")
        answers.found(outcome, number, record, readable=True)
        assert writer.next()[0] is FrameKind.OUTCOME
        assert list(answers._watches._watchers) == ["never told"]
        assert len(answers._sessions) == 1
        writer.socket.close()
        wait_until(lambda: not answers._connections.all(), "the connection to end")
        wait_until(lambda: not answers._sessions, "its session to be forgotten")
        wait_until(lambda: not answers._watches._watchers, "its watches to be forgotten")
    wait_until(lambda: answers._watches.committed_wanted == 0, "what they wanted to be forgotten")


def test_who_reads_slowly_gets_everything_and_holds_up_nobody(answers: Answers) -> None:
    slow, other = Writer(answers), Writer(answers)
    assert (slow.next()[0], other.next()[0]) == (FrameKind.WELCOME, FrameKind.WELCOME)
    slow.send(FrameKind.REQUEST, {"request": 1, "method": "large"})
    assert slow.socket.recv(1, socket.MSG_PEEK), "its answer is on its way, and doesn't fit"
    other.send(FrameKind.REQUEST, {"request": 2, "method": "ping"})
    assert other.next()[0] is FrameKind.REPLY
    kind, body = slow.next()
    assert (kind, len(wire.parse_json(body)["result"])) == (FrameKind.REPLY, LARGE)
    for writer in (slow, other):
        writer.socket.close()


def test_what_nobody_expected_of_a_writer_ends_its_connection_alone(answers: Answers) -> None:
    strange, other = Writer(answers), Writer(answers)
    assert (strange.next()[0], other.next()[0]) == (FrameKind.WELCOME, FrameKind.WELCOME)
    strange.send(FrameKind.WATCH, {})
    other.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
    for writer in (strange, other):
        kind, body = writer.next()
        assert (kind, wire.parse_json(body)["type"]) == (FrameKind.ERROR, "CorruptLog")
        assert not writer.socket.recv(1)
        writer.socket.close()
    hello = {"protocol": wire.WIRE_VERSION, "knows": "no number"}
    third = socket.create_connection(("127.0.0.1", answers.port), WAIT_SECONDS)
    third.sendall(wire.json_frame(FrameKind.HELLO, hello))
    assert not third.recv(1), "its connection is closed"
    third.close()
    last = Writer(answers)
    assert last.next()[0] is FrameKind.WELCOME
    last.socket.close()


def test_without_room_for_another_connection_those_that_stand_go_on(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Writer(answers)
    assert first.next()[0] is FrameKind.WELCOME
    accept, refused = socket.socket.accept, threading.Event()

    def full(listening: socket.socket) -> Any:
        refused.set()
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(socket.socket, "accept", full)
    second = Writer(answers)
    assert refused.wait(WAIT_SECONDS)
    first.send(FrameKind.REQUEST, {"request": 1, "method": "ping"})
    assert first.next()[0] is FrameKind.REPLY
    monkeypatch.setattr(socket.socket, "accept", accept)
    assert second.next()[0] is FrameKind.WELCOME
    for writer in (first, second):
        writer.socket.close()


@pytest.mark.slow
def test_a_question_that_is_open_at_the_end_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    begun, given_up = threading.Event(), threading.Event()

    async def never(method: str, params: dict[str, Any]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    answers = Answers(
        identity={"log": "commitlog", "log_id": "id", "partition": 0},
        handler=never,
        finder=lambda transaction_id, through: None,
        taker=lambda sent: None,
    )
    answers.start()
    answers.begin_term(1, "here", 0, "")
    writer = Writer(answers)
    writer.send(FrameKind.REQUEST, {"request": 1, "method": "never"})
    assert begun.wait(WAIT_SECONDS)
    answers.close()
    assert given_up.is_set()
    writer.socket.close()
    del answers
    gc.collect()
    assert [one.getMessage() for one in caplog.records if one.name == "asyncio"] == []
