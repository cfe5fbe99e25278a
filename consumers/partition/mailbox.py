"""How threads talk to the loop that owns a partition's state: they post events and get replies.

Nothing else is shared. A thread posts an event and continues; the loop takes the event, steps the
state by it, and answers through a `Reply`. A thread may stop waiting for its reply at any time: an
answer that comes later, or a second one, is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from commitlog.errors import Unavailable

EVENTS_MAX = 1_000
"""How many events the loop takes in one turn: it decides, and hears Kafka, once in each."""

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


class Displaced(BaseException):
    """This thread was stuck outside for so long that another one is the loop by now.

    It passes through everything up to the thread's end; what it brought is an event then.
    """

    def __init__(self, value: Any, error: Exception | None) -> None:
        super().__init__("another thread is the loop")
        self.value, self.error = value, error


class Outside:
    """The threads that are away from their work, in a call that may hang.

    Another thread may take the place of one that is away for long. Either the first one comes back,
    or it is replaced: whichever comes first removes its entry, and the other one sees that. No lock
    is needed.
    """

    def __init__(self) -> None:
        self._since: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since)

    def leave(self) -> None:
        """Note that this thread goes outside."""
        self._since[threading.get_ident()] = time.monotonic()

    def come_back(self) -> bool:
        """Return True if this thread still has its place."""
        return self._since.pop(threading.get_ident(), None) is not None

    def displace(self, after_seconds: float) -> bool:
        """Take the place of a thread that is away for longer than that; say if there was one."""
        late = time.monotonic() - after_seconds
        stuck = [thread for thread, since in self._since.copy().items() if since <= late]
        return any([self._since.pop(thread, None) is not None for thread in stuck])


class Mailbox:
    """The loop's events, in the order in which they were posted.

    One thread is the loop. Its calls to the outside must not take long. If one does all the same,
    another thread takes its place, and this one leaves once it comes back.
    """

    def __init__(self) -> None:
        """Start empty; the thread that takes first is the loop."""
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._owner = 0
        self._outside = Outside()
        self._is_closed = False
        self._is_resting = False
        self.wake: Callable[[], None] = lambda: None
        """Ends the wait of a loop that rests."""
        self.on_outside: Callable[[], None] = lambda: None
        """Called when the loop has just gone outside."""

    def begin(self) -> None:
        """Make this thread the loop, in place of the former one."""
        self._owner = threading.get_ident()

    def outside(self, work: Callable[[], T]) -> T:
        """Call something outside, on the loop; raise Displaced if it is no longer the loop."""
        self._outside.leave()
        self.on_outside()
        value, raised = None, None
        try:
            value = work()
        except Exception as error:
            raised = error
        if not self._outside.come_back():
            raise Displaced(value, raised)
        if raised is not None:
            raise raised
        return value  # type: ignore[return-value]

    @property
    def is_outside(self) -> bool:
        """Whether the loop is outside now."""
        return bool(self._outside)

    def displace(self, after_seconds: float) -> bool:
        """Take the loop's place away from a thread that is outside for longer than that."""
        if not self._outside.displace(after_seconds):
            return False
        self._owner = -1
        return True

    def post(self, event: Any) -> None:
        """Leave an event for the loop; from any thread."""
        self._events.put(event)
        # What the loop posts while it waits itself, it sees as soon as it stops waiting.
        if self._is_resting and self._owner != threading.get_ident():
            self._is_resting = False
            self.wake()
        if self._is_closed:
            self._refuse_all()

    def take(self, timeout_seconds: float) -> list[Any]:
        """Return the first posted events; wait at most this long for the first one."""
        self._owner = self._owner or threading.get_ident()
        assert self.is_loop()
        events = []
        with contextlib.suppress(queue.Empty):
            wait = timeout_seconds > 0
            events.append(self._events.get(wait, timeout_seconds if wait else None))
            while len(events) < EVENTS_MAX:
                events.append(self._events.get_nowait())
        return events

    def rest(self, wait: Callable[[float], None], timeout_seconds: float) -> None:
        """Let `wait` wait for something other than events; a posted event wakes it."""
        self._is_resting = True
        if self._events.empty():
            wait(timeout_seconds)
        self._is_resting = False

    def is_loop(self) -> bool:
        """Return True if this thread may touch what the loop owns."""
        return self._owner in (0, threading.get_ident())

    def runs_here(self) -> bool:
        """Return True if this thread is the loop, and no other can become it meanwhile."""
        return self._owner == threading.get_ident() and not self._outside

    def close(self) -> None:
        """Refuse all open requests, and all later ones."""
        self._is_closed = True
        self._refuse_all()

    def call(self, work: Callable[[], T]) -> LoopAnswer[T]:
        """Run `work` on the loop, and wait for its result on this thread."""
        answers: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        reply: Reply[T] = Reply(lambda value, error: answers.put((value, error)))
        self.post(LoopRequest(work, reply))
        return LoopAnswer(answers)

    async def ask(self, work: Callable[[], T], timeout_seconds: float) -> T:
        """Run `work` on the loop; await its result, TimeoutError if it doesn't come in time."""
        pending = PendingReply[T]()
        self.post(LoopRequest(work, pending.reply))
        return await pending.result(timeout_seconds)

    def _refuse_all(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                event = self._events.get_nowait()
                if isinstance(event, LoopRequest):
                    event.reply.refuse(Unavailable("this committer's term is over; ask again"))


class Loop:
    """The threads that are the loop, one after the other: a stuck one is replaced."""

    def __init__(self, mailbox: Mailbox) -> None:
        """Be the loop that takes from this mailbox."""
        self._mailbox = mailbox
        self._work: Callable[[], None] = lambda: None
        self._done = threading.Event()
        self._error: BaseException | None = None

    def run(self, work: Callable[[], None]) -> None:
        """Do the loop's work on threads of its own until it returns; raise what it raises."""
        self._work = work
        self.begin()
        self._done.wait()
        self._mailbox.begin()
        if self._error is not None:
            raise self._error

    def begin(self) -> None:
        """Make a new thread the loop."""
        threading.Thread(target=self._run, name="loop", daemon=True).start()

    def _run(self) -> None:
        self._mailbox.begin()
        try:
            self._work()
        except Displaced as displaced:
            self._mailbox.post(LoopRequest(displaced.value, Reply(lambda value, error: None)))
            return
        except BaseException as error:
            self._error = error
        self._done.set()


class LoopRequest(Generic[T]):
    """A request to the loop: what to run there, and where the answer goes."""

    __slots__ = ("reply", "work")

    def __init__(self, work: Callable[[], T], reply: Reply[T]) -> None:
        """Take what to run between two events."""
        self.work = work
        self.reply = reply

    def run(self) -> None:
        """Answer, on the loop."""
        self.reply.give_result(self.work)


class LoopAnswer(Generic[T]):
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
        # Nothing waits in an event loop that has ended.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._settle, value, error)

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        if self._future.done():
            return  # the waiting call was cancelled
        if error is not None:
            self._future.set_exception(error)
        else:
            self._future.set_result(value)  # type: ignore[arg-type]
