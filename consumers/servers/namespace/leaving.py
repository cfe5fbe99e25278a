"""Ends work whose client has left: it would keep one of few places, and nobody hears its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect
from starlette.types import Receive

WATCHED_AFTER_SECONDS = 2.0
"""Work is ended once it took that long: to end less costs more, for its process is started anew."""


async def until_left(receive: Receive) -> None:
    """Return once the client is gone; what else it sends is its next request."""
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def while_awaited(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block, and raise ClientDisconnect, once its client is gone.

    The body of the request is received by then.
    """
    loop = asyncio.get_running_loop()
    watching: list[asyncio.Task[None]] = []

    async def watch() -> None:
        await until_left(receive)
        limit.reschedule(loop.time())

    timer = loop.call_later(
        WATCHED_AFTER_SECONDS, lambda: watching.append(loop.create_task(watch()))
    )
    try:
        async with asyncio.timeout(None) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise ClientDisconnect from None
    finally:
        timer.cancel()
        for task in watching:
            task.cancel()
