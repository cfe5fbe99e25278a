"""Does a standby take the place of a leader that is gone, and leave one alone that just won?"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from commitlog.errors import InvalidRequest
from commitlog.model.records import LeaderStarted
from commitlog.wire import hello
from consumers.socket import leader_watch
from consumers.socket.answers import Answers
from consumers.socket.hello import check_hello

LOG_ID = "an id"
OWN = "127.0.0.1:1"
WAIT_SECONDS = 180.0


class Standby:
    """A session that follows a log in which one leader started, and the thread that stands by."""

    def __init__(self, node: str, stop: threading.Event | None = None) -> None:
        """Stand by at once."""
        started = LeaderStarted(1, node, "x", 0, b"", b"")
        self.follower = SimpleNamespace(
            replica=SimpleNamespace(chain=SimpleNamespace(leader=started))
        )
        self.follows = threading.Event()
        self.looks_again = threading.Event()
        self.stands = threading.Event()
        self.stop = stop or threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def follow(self, timeout_seconds: float) -> None:
        self.follows.set()
        self.stop.wait(0.01)

    def catch_up(self) -> None:
        self.looks_again.set()

    def _run(self) -> None:
        session: Any = self
        leader_watch.stand_by(session, self.stop, node=OWN, log_id=LOG_ID, token="")
        self.stands.set()


@pytest.fixture
def token() -> str:
    return ""


@pytest.fixture
def answers(token: str) -> Iterator[Answers]:
    async def nobody(method: str, params: dict[str, Any]) -> None:
        return None

    made = Answers(
        identity={"log": "commitlog", "log_id": LOG_ID, "partition": 0},
        handler=nobody,
        finder=lambda transaction_id, through: None,
        taker=lambda sent: None,
        token=token,
    )
    yield made
    made.close()


def test_one_that_answers_and_does_not_lead_yet_has_time_to_begin(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    long = 12_345.0
    monkeypatch.setattr(leader_watch, "BEGINNING_SECONDS", (long, long))
    waits: list[float] = []
    node = answers.start()

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout == long:  # it waits for who won; now that one begins
                waits.append(timeout)
                answers.begin_term(1, node, 0, "")
                return super().wait(0.0)
            return super().wait(timeout)

    standby = Standby(node, Stop())
    assert standby.follows.wait(WAIT_SECONDS)
    assert waits == [long]
    assert not standby.stands.is_set()
    assert caplog.messages == [f"on standby: {node} leads in epoch 1"]
    answers.end_term()
    assert standby.stands.wait(WAIT_SECONDS), "whose term ends is followed by another one"
    assert waits == [long], "at once"


@pytest.mark.parametrize("node", ["127.0.0.1:2", OWN])
def test_nobody_waits_for_one_that_is_gone(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_watch, "BEGINNING_SECONDS", (1e6, 1e6))
    standby = Standby(node)
    assert standby.stands.wait(WAIT_SECONDS)
    assert not standby.follows.is_set()


def test_one_that_never_begins_is_waited_for_once(
    answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_watch, "BEGINNING_SECONDS", (0.0, 0.0))
    standby = Standby(answers.start())
    assert standby.stands.wait(WAIT_SECONDS)
    assert not standby.follows.is_set()


@pytest.mark.parametrize("token", ["of the leader alone"])
def test_a_leader_with_another_token_is_left_alone(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of the two ended the other's terms for as long as their tokens differed."""
    monkeypatch.setattr(leader_watch, "BEGINNING_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(leader_watch, "SILENCE_SECONDS", 0.05)
    node = answers.start()
    answers.begin_term(1, node, 0, "")
    greeted, leave = threading.Semaphore(0), leader_watch.LeaderWatch.__exit__

    def left(watch: leader_watch.LeaderWatch, *_: object) -> None:
        leave(watch)
        greeted.release()

    monkeypatch.setattr(leader_watch.LeaderWatch, "__exit__", left)
    standby = Standby(node)
    for _ in range(3):
        assert greeted.acquire(timeout=WAIT_SECONDS)
    assert standby.follows.is_set()
    assert not standby.stands.is_set()
    [told] = caplog.messages
    assert told.startswith(f"on standby, but unknown to {node}: the leader requires a token")
    answers.end_term()
    assert standby.stands.wait(WAIT_SECONDS), "whoever leads no longer is followed"


@pytest.mark.parametrize(
    ("theirs", "leaders", "is_taken"),
    [
        # From `old` to `new`: first the committers take both, then writers get the new one.
        ("old", "old,new", True),
        ("old,new", "old", True),
        ("new", "old,new", True),
        ("new", "new", True),
        ("old", "new", False),
        ("", "old,new", False),
        ("", "old,", False),
        ("", "", True),
        ("a,b", "a,b", True),
        ("new", "old, new", True),
        (" old , new", "old", True),
        ("", "old, ", False),
    ],
)
def test_a_leader_takes_each_of_several_tokens(theirs: str, leaders: str, is_taken: bool) -> None:
    with contextlib.nullcontext() if is_taken else pytest.raises(InvalidRequest, match="a token"):
        check_hello(hello(theirs), {}, leaders, leads=True)
    if theirs == leaders:  # a program of before shows all of it
        check_hello({**hello(""), "token": theirs}, {}, leaders, leads=True)
