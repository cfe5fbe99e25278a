"""The thread that stands in for a loop that is stuck: it rests while nobody is outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from consumers.partition.feeding import Feeding
from tests.waiting import wait_until


class Place:
    """A mailbox, or a materializer, as far as who stands in knows it."""

    def __init__(self) -> None:
        self.is_outside, self.is_stuck, self.looks = False, False, 0
        self.on_outside: Callable[[], None] = lambda: None

    def displace(self, after_seconds: float) -> bool:
        """Count a look."""
        self.looks += 1
        return self.is_stuck

    def go_outside(self) -> None:
        """Do as its thread does before it leaves."""
        self.is_outside = True
        self.on_outside()


class Silence:
    """A reader who gets nothing."""

    def __init__(self) -> None:
        self.polls = 0

    def poll(self, **_: Any) -> list[Any]:
        """Wait in vain."""
        self.polls += 1
        threading.Event().wait(0.01)
        return []

    def position(self) -> int:
        """Return where it waits."""
        return 0


def session_of(mailbox: Place, materializer: Place, reader: Silence) -> Any:
    follower = SimpleNamespace(transactions=reader, end_offset=lambda: 0)
    mailbox.post = lambda event: None  # type: ignore[attr-defined]
    return SimpleNamespace(mailbox=mailbox, materializer=materializer, follower=follower)


class EndsWhileCleared(threading.Event):
    """An event that is set once more, by the end, right before it is cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cleared, self.is_over = threading.Event(), threading.Event()

    def set(self) -> None:
        """Set it; the second time, the end has come."""
        if self.is_cleared.is_set():
            self.is_over.set()
        super().set()

    def clear(self) -> None:
        """Let the end come first."""
        self.is_cleared.set()
        assert self.is_over.wait(30)
        super().clear()


def test_a_term_ends_at_once_although_somebody_was_outside_just_before() -> None:
    mailbox, materializer = Place(), Place()
    feeding = Feeding(session_of(mailbox, materializer, Silence()), lambda: None)
    feeding._went_outside = outside = EndsWhileCleared()
    with feeding:
        mailbox.on_outside()
        assert outside.is_cleared.wait(30)
    assert not any(thread.is_alive() for thread in feeding._threads)


def test_who_stands_in_looks_while_somebody_is_outside_and_rests_else() -> None:
    mailbox, materializer, reader = Place(), Place(), Silence()
    session = session_of(mailbox, materializer, reader)
    begun: list[bool] = []

    def begin_loop() -> None:
        begun.append(True)
        mailbox.is_outside = False

    with Feeding(session, begin_loop):
        wait_until(lambda: reader.polls > 20, "a while in which nothing happens")
        assert mailbox.looks == materializer.looks == 0
        mailbox.go_outside()
        wait_until(lambda: mailbox.looks > 1, "looks at somebody who is outside for long")
        mailbox.is_stuck = True
        wait_until(lambda: begun, "another loop in place of the one that is stuck")
        seen = materializer.looks
        materializer.go_outside()
        wait_until(lambda: materializer.looks > seen + 1, "looks at the materializer")
        materializer.is_outside = False
