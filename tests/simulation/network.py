"""Sockets between simulated processes, and event loops that a scheduler steps.

Bytes come in order and late; a connection may be cut at any time, and ends with either process. The
product's own `Connections` runs on it unchanged: only the selector and the sockets are others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from consumers.socket.connections import Connections
from tests.simulation.scheduler import Killed, Process, Scheduler

LATE_SECONDS = 0.005
Address = tuple[str, int]


@dataclass(eq=False)
class Link:
    """One end of a connection."""

    network: Network
    process: Process
    number: int
    peer: Link | None = None
    inbox: deque[tuple[float, bytes]] = field(default_factory=deque)
    is_open: bool = True
    is_blocking: bool = True
    patience_seconds: float = 60.0

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will come."""
        return not self.is_open or self.peer is None or not self.peer.is_open

    def is_readable(self) -> bool:
        """Say whether `recv` has something to tell."""
        if self.inbox:
            return self.inbox[0][0] <= self.network.scheduler.now
        return self.is_ended

    def send(self, data: bytes) -> int:
        """Send some of it."""
        network, peer = self.network, self.peer
        if not self.is_open or peer is None or not peer.is_open:
            raise BrokenPipeError("simulated: the connection ended")
        if network.scheduler.chance(network.cuts):
            network.scheduler.counters["connection cut"] += 1
            self.cut()
            raise ConnectionResetError("simulated: the connection was cut")
        chance = network.scheduler.random
        taken = data
        if not self.is_blocking and len(data) > 1 and network.scheduler.chance(0.02):
            taken = data[: chance.randrange(1, len(data))]
        due = network.scheduler.now + chance.random() * LATE_SECONDS
        if peer.inbox:
            due = max(due, peer.inbox[-1][0])
        peer.inbox.append((due, bytes(taken)))
        peer.wake(due)
        return len(taken)

    def sendall(self, data: bytes) -> None:
        """Send all of it."""
        self.send(data)

    def recv(self, size: int) -> bytes:
        """Return what came; b"" at the end."""
        scheduler = self.network.scheduler
        deadline = scheduler.now + self.patience_seconds
        while not self.is_readable():
            if not self.is_blocking:
                raise BlockingIOError
            if scheduler.now >= deadline:
                raise TimeoutError("simulated: nothing came")
            scheduler.sleep(self.process, 0.01)
        if not self.inbox:
            return b""
        _, data = self.inbox.popleft()
        if len(data) > 1 and scheduler.chance(0.02):
            size = scheduler.random.randrange(1, len(data))
        if size < len(data):
            self.inbox.appendleft((scheduler.now, data[size:]))
        return data[:size]

    def wake(self, at: float = 0.0) -> None:
        """Have its process look at it."""
        for name in ("socket", "answers"):
            self.network.scheduler.wake(self.process, name, at)

    def cut(self) -> None:
        """Lose the connection with all that is on its way."""
        for end in (self, self.peer):
            if end is not None:
                end.inbox.clear()
                end.is_open = False
                end.wake()

    def settimeout(self, seconds: float | None) -> None:
        """Wait so long."""
        self.patience_seconds = float("inf") if seconds is None else seconds

    def setblocking(self, flag: bool) -> None:
        """Wait or don't."""
        self.is_blocking = flag

    def setsockopt(self, *options: object) -> None:
        """Do nothing."""

    def shutdown(self, how: int) -> None:
        """End it; what is on its way arrives."""
        self.close()

    def close(self) -> None:
        """End it; what is on its way arrives."""
        self.is_open = False
        if self.peer is not None:
            self.peer.wake()

    def fileno(self) -> int:
        """Return the number by which a selector knows it."""
        return self.number


@dataclass(eq=False)
class Listening:
    """What accepts connections."""

    network: Network
    process: Process
    number: int
    waiting: deque[Link] = field(default_factory=deque)

    def accept(self) -> tuple[Link, None]:
        """Return the next connection."""
        if not self.waiting:
            raise BlockingIOError
        return self.waiting.popleft(), None

    def is_readable(self) -> bool:
        """Say whether somebody wants to connect."""
        return bool(self.waiting)

    def fileno(self) -> int:
        """Return the number by which a selector knows it."""
        return self.number

    def close(self) -> None:
        """Accept nobody any more."""
        for address, listening in list(self.network.listening.items()):
            if listening is self:
                del self.network.listening[address]


class Network:
    """All connections of a run."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Begin with none."""
        self.scheduler = scheduler
        self.listening: dict[Address, Listening] = {}
        self.cuts = 0.0
        """How often a connection is cut, per send."""
        self.is_down = False
        """Whether nobody can connect."""
        self._links: list[Link] = []
        self._numbers = itertools.count(1)

    def listen(self, process: Process, address: Address) -> Listening:
        """Accept connections at an address."""
        listening = Listening(self, process, next(self._numbers))
        self.listening[address] = listening
        return listening

    def connect(self, process: Process, address: Address) -> Link:
        """Connect; raise OSError if nobody is there."""
        self.scheduler.point(process, "connect")
        listening = self.listening.get(address)
        if self.is_down or listening is None or not listening.process.is_alive:
            raise ConnectionRefusedError(f"simulated: nobody is at {address}")
        ends = [Link(self, each, next(self._numbers)) for each in (process, listening.process)]
        ends[0].peer, ends[1].peer = ends[1], ends[0]
        self._links = [link for link in self._links if link.is_open]
        self._links += ends
        listening.waiting.append(ends[1])
        ends[1].wake()
        return ends[0]

    def go_down(self) -> None:
        """Cut all connections, and let nobody connect."""
        self.is_down = True
        for link in self._links:
            link.cut()

    def drop(self, process: Process) -> None:
        """End what a dead process had; some of what it had sent arrives."""
        for address, listening in list(self.listening.items()):
            if listening.process is process:
                del self.listening[address]
        for link in self._links:
            if link.process is process and link.is_open:
                if self.scheduler.chance(0.5):
                    link.cut()
                else:
                    link.close()


class Selector:
    """Stands in for `selectors.DefaultSelector`."""

    def __init__(self) -> None:
        """Watch nothing."""
        self._watched: dict[int, tuple[Any, int]] = {}

    def register(self, end: Any, events: int) -> None:
        """Watch an end."""
        self._watched[end.fileno()] = (end, events)

    modify = register

    def unregister(self, end: Any) -> None:
        """Watch it no more."""
        del self._watched[end.fileno()]

    def select(self, timeout: float | None = None) -> list[tuple[Any, int]]:
        """Return what is ready now."""
        ready = []
        for number, (end, events) in list(self._watched.items()):
            found = events & selectors.EVENT_WRITE
            if events & selectors.EVENT_READ and end.is_readable():
                found |= selectors.EVENT_READ
            if found:
                ready.append((SimpleNamespace(fd=number), found))
        return ready

    def close(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()


class SimulatedConnections(Connections):
    """The leader's connections, on a simulated network."""

    def __init__(self, network: Network, process: Process, **hears: Callable[..., None]) -> None:
        """Begin with none."""
        super().__init__(**hears)
        self._selector.close()
        self._selector: Any = Selector()
        self._network, self._process = network, process

    def listen(self, host: str, port: int) -> int:
        """Listen under the process's name."""
        self._listening: Any = self._network.listen(self._process, (host, port))
        self._selector.register(self._listening, selectors.EVENT_READ)
        return port


class SimulatedEventLoop:
    """An event loop that is stepped; what takes long is done a while later.

    It has those of an asyncio loop's methods that the program needs.
    """

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        """Begin with nothing to do."""
        self._scheduler, self._process = scheduler, process
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._jobs: list[tuple[float, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._this: Any = self

    def step(self) -> bool:
        """Run what is due; return whether anything was."""
        now = self._scheduler.now
        while self._timers and self._timers[0][0] <= now:
            self._ready.append(heapq.heappop(self._timers)[2])
        due, self._ready = self._ready, deque()
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._this)
        try:
            for handle in due:
                if not handle.cancelled():
                    handle._run()
        finally:
            asyncio._set_running_loop(before)
        return bool(due)

    def work(self) -> bool:
        """Do a job that is due, as a worker's thread does; return whether there was one."""
        for entry in [entry for entry in self._jobs if entry[0] <= self._scheduler.now][:1]:
            self._jobs.remove(entry)
            entry[1]()
            return True
        return False

    def submit(self, work: Callable[..., object], *given: Any) -> None:
        """Have something done a while later, as an executor does."""
        due = self._scheduler.now + self._scheduler.random.random() * 0.02
        self._jobs.append((due, partial(work, *given)))
        self._scheduler.wake(self._process, "finding", due)

    def run_in_executor(self, executor: object, work: Callable[..., Any], *given: Any) -> Any:
        """Have something done a while later; await its result."""
        future = self.create_future()

        def settle(set_it: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                set_it(value)

        def job() -> None:
            try:
                value = work(*given)
            except Exception as error:
                self.call_soon(settle, future.set_exception, error)
            else:
                self.call_soon(settle, future.set_result, value)

        self.submit(job)
        return future

    def call_soon(self, callback: Any, *given: Any, context: Any = None) -> asyncio.Handle:
        """Run a callback at the next step."""
        handle = asyncio.Handle(callback, given, self._this, context)
        self._ready.append(handle)
        self._scheduler.wake(self._process, "answers")
        return handle

    call_soon_threadsafe = call_soon

    def call_at(
        self, when: float, callback: Any, *given: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time."""
        handle = asyncio.TimerHandle(when, callback, given, self._this, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_later(
        self, delay: float, callback: Any, *given: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Run a callback after a while."""
        return self.call_at(self.time() + delay, callback, *given, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: it is passed over."""

    def time(self) -> float:
        """Return the present time."""
        return self._scheduler.now

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self._this)

    def create_task(self, coro: Any, **named: Any) -> asyncio.Task[Any]:
        """Run a coroutine."""
        self._scheduler.coroutines.append(coro)
        return asyncio.Task(coro, loop=self._this, **named)

    def get_debug(self) -> bool:
        """Say no."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let a kill through, which no callback may stop."""
        if isinstance(context.get("exception"), Killed) and "handle" in context:
            raise context["exception"]
