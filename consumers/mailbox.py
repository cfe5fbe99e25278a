"""How threads talk to the loop that owns a partition's state: by events, and by replies to them.

Nothing else is shared. A thread posts an event and goes on with its work; the loop takes what was
posted, steps the state by it, and answers through a `Reply`. Whoever waits for a reply may leave at
any time: an answer that comes later, or a second one, finds nobody and changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from commitlog.errors import Unavailable

T = TypeVar("T")


class Reply(Generic[T]):
    """The place for one answer: a value or an error. The first one counts."""

    __slots__ = ("_deliver", "_is_given")

    def __init__(self, deliver: Callable[[T | None, BaseException | None], None]) -> None:
        """Hand the answer to `deliver`, on the thread that gives it."""
        self._deliver = deliver
        self._is_given = False

    @property
    def is_given(self) -> bool:
        """Whether an answer was given."""
        return self._is_given

    def give(self, value: T) -> None:
        """Answer with a value."""
        self._settle(value, None)

    def refuse(self, error: BaseException) -> None:
        """Answer with an error."""
        self._settle(None, error)

    def give_result(self, work: Callable[[], T]) -> None:
        """Answer with what `work` returns or raises."""
        try:
            value = work()
        except Exception as error:
            self.refuse(error)
        else:
            self.give(value)

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        if not self._is_given:
            self._is_given = True
            self._deliver(value, error)


class Mailbox:
    """The loop's events, in the order in which they were posted."""

    def __init__(self) -> None:
        """Start empty; the thread that takes first is the loop."""
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._owner = 0
        self._is_closed = False

    def post(self, event: Any) -> None:
        """Leave an event for the loop; from any thread."""
        self._events.put(event)
        if self._is_closed:
            self._refuse_all()

    def take(self, timeout_seconds: float) -> list[Any]:
        """Return what was posted, waiting for the first event at most so long."""
        self._owner = self._owner or threading.get_ident()
        assert self.is_loop()
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout_seconds > 0, timeout_seconds or None))
            while True:
                events.append(self._events.get_nowait())
        return events

    def is_loop(self) -> bool:
        """Return True if this thread may touch what the loop owns."""
        return self._owner in (0, threading.get_ident())

    def close(self) -> None:
        """Refuse what was asked and not answered, and what will be asked."""
        self._is_closed = True
        self._refuse_all()

    def call(self, work: Callable[[], T]) -> Asked[T]:
        """Have the loop run `work`, and wait for its result on this thread."""
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        reply: Reply[T] = Reply(lambda value, error: answers.put((value, error)))
        self.post(Ask(work, reply))
        return Asked(answers)

    async def ask(self, work: Callable[[], T], timeout_seconds: float) -> T:
        """Have the loop run `work`; await its result, TimeoutError if it doesn't come in time."""
        pending = PendingReply[T]()
        self.post(Ask(work, pending.reply))
        return await pending.result(timeout_seconds)

    def _refuse_all(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, Ask):
                    event.reply.refuse(Unavailable("this committer's term is over; ask again"))


class Ask(Generic[T]):
    """A request to the loop: what to run there, and where the answer goes."""

    __slots__ = ("reply", "work")

    def __init__(self, work: Callable[[], T], reply: Reply[T]) -> None:
        """Take what to run between two events."""
        self.work = work
        self.reply = reply

    def run(self) -> None:
        """Answer, on the loop."""
        self.reply.give_result(self.work)


class Asked(Generic[T]):
    """A thread's side of a request."""

    def __init__(self, answers: queue.SimpleQueue[tuple[T | None, BaseException | None]]) -> None:
        """Take where the answer arrives."""
        self._answers = answers

    def result(self, timeout_seconds: float) -> T:
        """Return the answer or raise it; Unavailable if none comes in time."""
        try:
            value, error = self._answers.get(timeout=timeout_seconds)
        except queue.Empty:
            raise Unavailable(f"the leader was busy for {timeout_seconds:g} s; ask again") from None
        if error is not None:
            raise error
        return value  # type: ignore[return-value]


class PendingReply(Generic[T]):
    """A coroutine's side of a request: its future is touched by its own event loop alone."""

    def __init__(self) -> None:
        """Make it on the event loop that will await it."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()
        self.reply: Reply[T] = Reply(self._arrive)

    async def result(self, timeout_seconds: float) -> T:
        """Await the answer; TimeoutError if none comes in time."""
        return await asyncio.wait_for(self._future, timeout_seconds)

    def _arrive(self, value: T | None, error: BaseException | None) -> None:
        # An event loop that has ended has nobody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        if self._future.done():
            return  # whoever waited has left
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)  # type: ignore[arg-type]
