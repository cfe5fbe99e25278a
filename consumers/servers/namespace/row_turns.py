"""Shares the places for work on rows fairly between clients.

There are few places, and one operation may take minutes. So no client gets all of them, and the
client with the fewest is next. A client that sends many operations waits for its own, and delays
others little. Clients whose work takes long don't get the last place, so short work only waits for
short work. A client whose work ended its process gets one place at a time, and pauses after each
such end, since starting another process takes CPU from everybody.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

from commitlog.errors import Unavailable
from commitlog.newest import Newest
from consumers.servers.row_processes import WorkLost
from consumers.servers.security.budgets import LARGE_BYTES
from consumers.servers.security.limits import count

WAIT_SECONDS = 30.0
"""How long a piece of work waits for a place."""
LONG_SECONDS, LONG_SHARE = 0.5, 20
"""Work that takes longer than this counts as long, if it also takes that part of the others' time:
on a busy machine everything takes longer."""
LONG_REMEMBERED_SECONDS = 60.0
"""How long a client's long work is remembered, even if it had short work since."""
LOST_PAUSE_SECONDS, LOST_REMEMBERED_SECONDS = 5.0, 60.0
"""After its work ended a process, how long a client has no place, and then only one."""
_REMEMBERED_MAX = 10_000

T = TypeVar("T")
_Waiting = tuple[str, asyncio.Future[None]]


class RowTurns:
    """Gives places to clients, in one event loop."""

    def __init__(
        self,
        places: int,
        *,
        tells_clients_apart: bool,
        wait_seconds: float = WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        problem: Callable[[], str] = lambda: "",
    ) -> None:
        """Take the number of places; if clients are distinguished, no client gets the last one.

        `problem` says what of the service fails just now: whoever has a place waits for that.
        """
        self._places = places
        self._tells_apart = tells_clients_apart
        self._client_max = max(1, places - 1) if tells_clients_apart else places
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._problem = problem
        self._running: Counter[str] = Counter()
        self._waiting: list[_Waiting] = []
        self._known: Newest[str, tuple[float, float]] = Newest(_REMEMBERED_MAX)
        """How long the last long piece of each client's work took, and when it ended."""
        self._lost: Newest[str, float] = Newest(_REMEMBERED_MAX)
        """When each client's work last ended its process."""

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncIterator[None]:
        """Wait for a place and have it until the block ends; Unavailable if none comes in time.

        A block that raises WorkLost counts against its client.
        """
        await self._begin(client)
        began = self._clock()
        try:
            yield
        except WorkLost:
            self._note_lost(client)
            raise
        finally:
            self._note(client, self._clock() - began)
            self._end(client)

    async def _begin(self, client: str) -> None:
        if self._has_room(client):
            self._running[client] += 1
            return
        came: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((client, came))
        try:
            async with asyncio.timeout(self._wait_seconds):
                await came
        except BaseException as error:
            if came.done() and not came.cancelled():
                self._end(client)  # it came just now
            else:
                self._waiting.remove((client, came))
            if not isinstance(error, TimeoutError):
                raise
            busy, problem = "the server is busy with other work on rows", self._problem()
            why = f"{busy}, which waits ({problem})" if problem else busy
            raise Unavailable(f"{why}; try again in a while") from error

    def _end(self, client: str) -> None:
        count(self._running, client, -1)
        self._go_on()

    def _go_on(self) -> None:
        while ready := [one for one in self._waiting if self._is_ready(one)]:
            chosen = min(ready, key=lambda one: self._running[one[0]])
            self._waiting.remove(chosen)
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)

    def _note(self, client: str, seconds: float) -> None:
        before = self._known.get(client, (0.0, 0.0))
        now = (seconds, self._clock())
        self._known[client] = now if seconds > LONG_SECONDS else before

    def _note_lost(self, client: str) -> None:
        self._lost[client] = self._clock()
        asyncio.get_running_loop().call_later(LOST_PAUSE_SECONDS, self._go_on)

    def _is_ready(self, waiting: _Waiting) -> bool:
        return not waiting[1].done() and self._has_room(waiting[0])

    def _has_room(self, client: str) -> bool:
        # A waiting request has no room yet, so a later one can't overtake it.
        left = self._places - self._running.total()
        if left <= 0 or self._running[client] >= self._most(client):
            return False
        return (
            left > 1
            or self._places == 1
            or not self._is_long(client)
            # On a busy machine all work is long: clients without a place precede the others.
            or (self._tells_apart and not self._running[client] and max(self._running.values()) > 1)
        )

    def _most(self, client: str) -> int:
        since = self._clock() - self._lost.get(client, -LOST_REMEMBERED_SECONDS)
        if since >= LOST_REMEMBERED_SECONDS:
            return self._client_max
        return 1 if since >= LOST_PAUSE_SECONDS else 0

    def _is_long(self, client: str) -> bool:
        if client not in self._known:  # a name that anybody can make up is no reason to trust in it
            return not self._tells_apart
        longest = max(map(self._took, self._running), default=0.0)
        return self._took(client) * LONG_SHARE > longest and self._took(client) > 0

    def _took(self, client: str) -> float:
        """Return how long a client's work took if it was long lately, else 0."""
        seconds, ended = self._known.get(client, (0.0, 0.0))
        return seconds if self._clock() - ended < LONG_REMEMBERED_SECONDS else 0.0


class LargeBodies:
    """Parses large bodies one after another, across the APIs."""

    def __init__(self, *, tells_clients_apart: bool) -> None:
        """Take whether clients are distinguished."""
        self._turns = RowTurns(1, tells_clients_apart=tells_clients_apart)

    def turn(self, body: bytes, client: str) -> AbstractAsyncContextManager[None]:
        """Wait, if the body is large, until those before it are parsed; Unavailable."""
        return self._turns.turn(client) if len(body) > LARGE_BYTES else nullcontext()
