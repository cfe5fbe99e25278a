"""A client that reads the outcomes topic by itself, since no leader answers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from commitlog.client.leader import fallback
from commitlog.client.leader.awaited import Awaited
from commitlog.client.leader.connection import LeaderConnection
from commitlog.client.leader.fallback import Fallback
from commitlog.client.leader.valid_outcomes import Valid
from commitlog.core.log.chain import ChainPlace
from commitlog.errors import CorruptLog
from commitlog.model.records import Outcome, Status
from commitlog.wire import Watch


def test_why_the_topic_cannot_be_followed_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried every second, for as long as an answer is awaited."""
    reasons = ["gone", "gone", "gone", "cut", "cut"]

    def genesis(partition: int) -> Any:
        raise CorruptLog(reasons.pop(0))

    log = SimpleNamespace(genesis=genesis)
    awaited = Awaited(Watch("an-id", 1, readable=True), deliver=print, fail=print, known=None)
    connection = SimpleNamespace(
        partition=0, is_connected=False, disconnected_since=0.0, outstanding=lambda: [awaited]
    )
    monkeypatch.setattr(Fallback, "_begin", lambda self: None)
    failing = Fallback(
        cast(Any, log), cast(Any, connection), is_readable=lambda outcome: True, after_seconds=0.0
    )
    while reasons:
        assert failing._step() == 1.0
    assert [message.rpartition(" ")[2] for message in caplog.messages] == ["gone", "cut"]


class Topic:
    """An outcomes topic and a connection whose socket is down; readers read all that there is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outcomes: list[Valid] = []
        self.readers = 0
        self.meanwhile: Callable[[], object] = lambda: None
        """What happens while a reader reads, once."""
        self.log = LeaderConnection(MagicMock(), name="l", log_id="i", partition=0, token="")
        self.log._socket.start = self.log._socket.send = MagicMock()  # type: ignore[method-assign]
        monkeypatch.setattr(Fallback, "_begin", lambda self: None)
        monkeypatch.setattr("commitlog.client.leader.fallback.ValidOutcomes", self._reader)
        self.fallback = Fallback(
            MagicMock(), self.log, is_readable=lambda outcome: True, after_seconds=0.0
        )

    def _reader(self, log: object, partition: int, place: ChainPlace) -> Any:
        self.readers += 1
        at = place.outcomes_offset

        def poll(seconds: float) -> list[Valid]:
            nonlocal at
            meanwhile, self.meanwhile = self.meanwhile, lambda: None
            meanwhile()
            found, at = self.outcomes[at:], len(self.outcomes)
            return found

        return SimpleNamespace(poll=poll, close=lambda: None)

    def decide(self, *ids: str) -> None:
        for name in ids:
            number = len(self.outcomes)
            outcome = Outcome(number, name, number, Status.REJECTED, attempt=1, hash=b"h")
            self.outcomes.append(Valid(outcome, ChainPlace(number, number + 1, 1, b"h"), b""))

    def submit(self, name: str, *, is_new: bool = True) -> list[str]:
        """Await an outcome; return what gets its id once it is known."""
        told: list[str] = []
        watch = Watch(name, 1, readable=False)
        self.log.watch(watch, lambda outcome, _: told.append(name), print, is_new=is_new)
        return told

    def step(self, times: int = 4) -> None:
        for _ in range(times):
            self.fallback._step()


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    return Topic(monkeypatch)


def test_an_outcome_that_comes_while_its_transaction_is_sent_is_heard(topic: Topic) -> None:
    """It was passed in the read that had begun before, and nobody came back to it."""
    topic.decide("first")
    topic.submit("first")
    topic.submit("never decided")
    told: list[list[str]] = []

    def send() -> None:
        told.append(topic.submit("second"))
        topic.decide("second")

    topic.step(1)
    topic.meanwhile = send
    topic.step()
    assert told == [["second"]]
    assert topic.readers == 1, "nothing is read again"


def test_who_asks_again_as_the_answer_comes_hears_it_too(topic: Topic) -> None:
    """Its outcome was behind the reader, which began at the beginning: nothing was before that."""
    topic.decide("other", "asked")
    again: list[list[str]] = []
    watch = Watch("asked", 1, readable=False)
    topic.log.watch(
        watch,
        lambda *_: again.append(topic.submit("asked", is_new=False)),
        print,
        is_new=False,
    )
    topic.step()
    assert again == [["asked"]]


def test_what_was_passed_long_ago_is_read_again(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "PASSED_KEPT", 2)
    topic.submit("never decided")
    topic.decide("asked", "b", "c", "d")
    topic.step(1)
    told = topic.submit("asked", is_new=False)
    topic.step()
    assert (told, topic.readers) == (["asked"], 2)
