"""Answers of refused requests, held back from a client that sends such requests without end.

To read and refuse a request takes the server time that others wait for. A client that waits for an
answer sends nothing meanwhile, so holding the answer back costs nothing and slows exactly those who
send what is refused: all other answers go out at once, those of the same client too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from ipaddress import ip_network

from starlette.types import Receive, Scope

REFUSED = frozenset((400, 401, 403, 413, 415, 422, 431))
"""Statuses of requests that should not have been sent like this. Others are ordinary answers: that
something doesn't exist, or that another commit won."""
REQUEST_BYTES = 128 * 1024
"""To receive so much costs about as much as to refuse a small request."""
BURST = 200.0
"""How many refused requests may come together."""
HELD_SECONDS_MAX = 5.0
HELD_MAX = 1_000
"""So many answers are held at the same time; others go out at once, since each takes memory."""
DROPPED_BYTES_MAX = 1024 * 1024
"""So much of a refused request's body is received to notice that its client leaves."""
ORDINARY = "commitlog.ordinary"
"""In a request's scope: its answer is an ordinary one, whatever its status."""
HELD_SECONDS = "commitlog.held"
"""In a request's scope: for how long its answer was held."""
_FORGET_ABOVE = 1_000
_ONE_CLIENTS_BITS = 64
_ADDRESS_CHARACTERS_MAX = 64
"""What a proxy says may be of any length."""


def address_of(scope: Scope) -> str:
    """Return where a request comes from; who has one address in IPv6 has 2**64 of them."""
    address = str((scope.get("client") or ("?",))[0])[:_ADDRESS_CHARACTERS_MAX]
    if ":" in address:
        with contextlib.suppress(ValueError):
            return str(ip_network((address, _ONE_CLIENTS_BITS), strict=False))
    return f"{address}/"


class Tarpit:
    """Says how long each client waits to hear that a request was refused."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Answer so many refused requests of each client a second at once."""
        self._each, self._clock = 1 / per_second, clock
        self._free_at: dict[str, float] = {}
        """When each client has waited for all of its that was refused."""
        self.held = 0
        """How many answers are held now."""

    def seconds(self, client: str, received_bytes: int) -> float:
        """Note that a client's request was refused; return for how long its answer is held."""
        now = self._clock()
        if len(self._free_at) > _FORGET_ABOVE:
            full_at = now - BURST * self._each
            self._free_at = {one: at for one, at in self._free_at.items() if at > full_at}
        began = max(self._free_at.get(client, 0.0), now - BURST * self._each)
        free_at = began + (1 + received_bytes / REQUEST_BYTES) * self._each
        # Nobody waits longer than that for what others behind the same address sent.
        self._free_at[client] = min(free_at, now + HELD_SECONDS_MAX)
        return max(0.0, self._free_at[client] - now)

    async def hold(self, client: str, received_bytes: int, receive: Receive) -> float:
        """Wait until a client may hear that its request was refused, or has left.

        What is there of the body is thrown away: it would fill memory meanwhile. Return for how
        many seconds it waited.
        """
        seconds = self.seconds(client, received_bytes)
        if not seconds or self.held >= HELD_MAX:
            return 0.0
        self.held += 1
        began = self._clock()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await _leaving(receive)
        except asyncio.CancelledError:
            pass  # the server ends, so the client hears it now
        finally:
            self.held -= 1
        return self._clock() - began


async def _leaving(receive: Receive) -> None:
    """Return when a client leaves; of a long body, never: to receive it is what costs."""
    left = DROPPED_BYTES_MAX
    while left > 0:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        left -= len(message.get("body", b""))
    await asyncio.Event().wait()
