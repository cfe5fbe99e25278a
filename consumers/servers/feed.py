"""The change feed over HTTP: `GET /v1/feed`, server-sent events that carry CloudEvents.

A client that was cut off comes back with `Last-Event-ID`, as browsers do by themselves, and
continues behind the last event that it got: nothing is missed and nothing comes twice. While
nothing happens, heartbeats keep the connection open and move the id along, so that coming back
stays cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from lance_namespace import LanceNamespaceError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from commitlog import CommitLog
from commitlog.client.history.feed import Subscription
from commitlog.client.history.feed_events import FeedEvent
from commitlog.errors import CommitLogError
from commitlog.model.digits import SEQUENCE_DIGITS_MAX, whole_number
from consumers.servers.security.budgets import once_each
from consumers.servers.security.identity import CHECK_AGAIN, PRINCIPAL
from consumers.servers.security.limits import count, share_of

POLL_SECONDS = 1.0
RETRY_MS = 1000
"""How long a client waits before it comes back."""

logger = logging.getLogger(__name__)

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Limits of the feed."""

    feeds_max: int = 32
    """Open at once; each reads the log for itself."""
    heartbeat_seconds: float = 15.0
    seconds_max: float = 3600.0
    """After so long a feed ends, and its client comes back."""


def feed_routes(log: CommitLog, settings: FeedSettings | None = None) -> list[Route]:
    """Return the route of a log's feed.

    Its parameters are `table` (repeatable; `ns$*` is a namespace), `refused=1`, `from` (a position,
    a resume token, `beginning` or `now`) and `seconds`, after which it ends.
    """
    endpoint = _Feeds(log, settings or FeedSettings()).endpoint
    return [Route(path, endpoint, methods=["GET"]) for path in ("/v1/log/feed", "/v1/feed")]


class _Feeds:
    def __init__(self, log: CommitLog, settings: FeedSettings) -> None:
        self._log = log
        self._settings = settings
        self._threads = ThreadPoolExecutor(settings.feeds_max, thread_name_prefix="feed")
        self._lock = threading.Lock()
        self._open: Counter[str] = Counter()
        """Feeds by principal, "" where nobody has to show one."""

    async def endpoint(self, request: Request) -> Response:
        tables = request.query_params.getlist("table")
        given = once_each(one for one in request.query_params.multi_items() if one[0] != "table")
        seconds = _seconds(given.get("seconds"), self._settings.seconds_max)
        if request.method == "HEAD":
            # Its asker gets no event, and could wait for the next answer on the connection.
            seconds = 0.0
        subscribe = functools.partial(
            self._log.subscribe,
            tables or None,
            _from(request.headers.get("last-event-id") or given.get("from", "now")),
            refused=given.get("refused") == "1",
        )
        known = request.scope.get(PRINCIPAL)
        client = known.name if known is not None else ""
        self._take(client)
        opening = self._threads.submit(subscribe)
        try:
            subscription = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            # The client has hung up, and the subscription may be made all the same.
            self._threads.submit(self._end, opening, client)
            raise
        except Exception:
            self._give_back(client)
            raise
        return _Stream(
            self._stream(subscription, time.monotonic() + seconds, request),
            # Not awaited: this may be cancelled, and a poll may still be at work.
            on_end=lambda: self._threads.submit(self._end, opening, client),
        )

    async def _stream(
        self, subscription: Subscription, ends: float, request: Request
    ) -> AsyncIterator[str]:
        server, check_again = request.app.state, request.scope.get(CHECK_AGAIN)
        try:
            yield f"retry: {RETRY_MS}\n{_mark(subscription.token)}"
            heard = time.monotonic()
            while (now := time.monotonic()) < ends and not getattr(server, "is_ending", False):
                if check_again is not None:
                    await check_again()
                due = heard + self._settings.heartbeat_seconds
                wait = max(0.0, min(POLL_SECONDS, ends - now, due - now))
                events = await self._on_thread(functools.partial(subscription.poll, wait))
                if events:
                    yield "".join(map(_message, events))
                elif time.monotonic() < due:
                    continue
                else:
                    yield f": heartbeat\n{_mark(subscription.token)}"
                heard = time.monotonic()
        except (CommitLogError, LanceNamespaceError) as error:
            # The answer has begun: all that can be told is in the stream.
            logger.warning("a feed ends: %s", error)
            yield f"event: error\ndata: {json.dumps({'error': str(error)})}\n\n"

    def _end(self, opening: Future[Subscription], client: str) -> None:
        try:
            with contextlib.suppress(CommitLogError):
                opening.result().close()
        finally:
            self._give_back(client)

    def _take(self, client: str) -> None:
        """Begin a feed, if there is room and its client leaves some to others."""
        most = self._settings.feeds_max
        share = share_of(most) if client else most
        with self._lock:
            if self._open.total() >= most:
                status, what = 503, f"{most} feeds are open"
            elif self._open[client] >= share:
                status, what = 429, f"{share} of your feeds are open"
            else:
                return count(self._open, client, 1)
        raise HTTPException(status, f"{what} already; try again later", {"Retry-After": "5"})

    def _give_back(self, client: str) -> None:
        with self._lock:
            count(self._open, client, -1)

    async def _on_thread(self, work: Callable[[], Made]) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class _Stream(StreamingResponse):
    """Tells of its end, also if the client hung up before it began."""

    def __init__(self, content: AsyncIterator[str], on_end: Callable[[], object]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


def _mark(token: str) -> str:
    """Move the client's last id along without an event."""
    return f"id: {token}\n\n"


def _message(event: FeedEvent) -> str:
    text = json.dumps(event.to_cloud_event(), ensure_ascii=False, separators=(",", ":"))
    return f"id: {event.token}\ndata: {text}\n\n"


def _from(text: str) -> int | str:
    number = whole_number(text, SEQUENCE_DIGITS_MAX)
    return text if number is None else number


def _seconds(text: str | None, most: float) -> float:
    if text is None:
        return most
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= most:
        raise HTTPException(400, f"seconds={text[:40]!r} is not within 0 and {most:g}")
    return seconds
