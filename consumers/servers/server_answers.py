"""Answers on their way out of a connection: in one piece, and for as long as the client takes them.

What is written waits in memory until it is sent, so a client that asks for much and reads nothing
would fill it.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from collections.abc import Callable, Iterable

PIECE_BYTES_MAX = 64 * 1024
"""More than this isn't gathered: the connection has to tell when it can take no more."""
LOOK_SECONDS = 30.0
"""How often it is looked whether a client takes what waits for it."""
BYTES_PER_SECOND = 64 * 1024
"""A client that takes less is cut off."""
FIRST_SECOND_BYTES = 1024 * 1024
REST_SECONDS = 60.0
"""How long a body may take to come that was answered before."""
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""What may wait on all connections; beyond it, the slowest are cut off."""


class Outgoing:
    """What a connection sends, in the place of its transport.

    What is written in one turn of the loop goes out at once: a head with the body that it
    announces. Lance's client takes another connection if the body comes after the head, for it
    sends its next request before it has noticed that its own is free again.
    """

    def __init__(
        self,
        transport: Transport,
        loop: AbstractEventLoop,
        others: Callable[[], Iterable[Outgoing]],
    ) -> None:
        """Send on a connection; `others` returns all of them."""
        self._transport = transport
        self._loop = loop
        self._others = others
        self._pieces: list[bytes] = []
        self._written = 0
        self._timer: TimerHandle | None = None
        self._since = 0.0
        """When something began to wait, and what had been taken by then."""
        self._taken_before = 0
        self.is_closing = transport.is_closing
        self.lingers = False
        """Whether a body is still to come on a connection that ends with its answer: closed before
        that, it would lose the answer for a client that sends all before it reads."""
        self._is_answered = False

    @property
    def unsent(self) -> int:
        """How many bytes wait to be sent."""
        return self._transport.get_write_buffer_size()

    @property
    def speed(self) -> float:
        """How many bytes a second the client takes; who just began is given a second's."""
        taken = self._written - self.unsent - self._taken_before
        return (taken + FIRST_SECOND_BYTES) / (self._loop.time() - self._since + 1)

    def write(self, data: bytes) -> None:
        """Send this, with what else is written in this turn."""
        if not self._pieces:
            self._loop.call_soon(self._send)
        self._pieces.append(data)
        if sum(map(len, self._pieces)) >= PIECE_BYTES_MAX:
            self._send()

    def close(self) -> None:
        """Close once all is sent; asked for the first time, once the body has come, too."""
        self._send()
        if self.lingers and not self._is_answered:
            self._is_answered = True
            self._loop.call_later(REST_SECONDS, self._transport.close)
            return
        self._transport.close()

    def body_came(self) -> None:
        """Close if that waited for the body."""
        self.lingers = False
        if self._is_answered:
            self.close()

    def _send(self) -> None:
        if not self._pieces:
            return
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._written += len(data)
        self._transport.write(data)
        if self.unsent:
            if self._timer is None:
                self._watch()
            self._make_room()

    def _watch(self) -> None:
        self._since, self._taken_before = self._loop.time(), self._written - self.unsent
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.unsent:
            return
        taken = self._written - self.unsent - self._taken_before
        if taken < BYTES_PER_SECOND * LOOK_SECONDS:
            self._transport.abort()
        else:
            self._watch()

    def _make_room(self) -> None:
        waiting = [one for one in self._others() if one.unsent]
        waiting.sort(key=lambda one: one.speed, reverse=True)
        while len(waiting) > 1 and sum(one.unsent for one in waiting) > UNSENT_BYTES_MAX:
            waiting.pop()._transport.abort()
