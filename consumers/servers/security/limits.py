"""Limits of what a client may use: concurrent requests, headers, arriving bodies, and time.

A request takes a slot once it has arrived completely, so a client that sends slowly, or only half,
doesn't keep others out. The principal is identified before that, as far as the headers show it. The
APIs limit the size of a body themselves, by its kind.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, unquote
from weakref import WeakValueDictionary

from lance_namespace.errors import LanceNamespaceError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commitlog.errors import CommitLogError
from consumers.servers.observing import tell
from consumers.servers.security.answers import SAFE, OverLimit, at_the_end, is_under, refuse
from consumers.servers.security.budgets import target_problem
from consumers.servers.security.compression import Decompressed, UnknownEncoding
from consumers.servers.security.identity import PRINCIPAL, Security, credentials_of_headers
from consumers.servers.security.request_heads import is_foreign, meant_target
from consumers.servers.security.tarpit import HELD_SECONDS, ORDINARY, REFUSED, Tarpit, address_of

UNLIMITED = ("/healthz", "/readyz", "/metrics")
"""Paths that must always answer."""
IN_MEMORY_BYTES_MAX = 8 * 1024 * 1024
"""Rows beyond this size are kept in files."""
SMALL_BYTES = 64 * 1024
"""Bodies up to this size always have room in memory, since their number is bounded."""
SPARED_BYTES_MAX, SPARED_SHARE = 1024**3, 20
"""These bytes of the disk for those files stay free, or that part of it if it is less."""
_ROWS = "application/vnd.apache.arrow"
_OF_OTHERS = frozenset((b"sec-fetch-site", site) for site in (b"cross-site", b"same-site"))
"""Browsers say so of requests that a page sends to another origin, and send those that look like
a form's without asking the server first."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much a client may take."""

    hosts: frozenset[str] = frozenset()
    """More names by which a server without credentials is reached on its own machine."""
    requests_max: int = 256
    """How many requests may run at the same time; further clients are asked to retry."""
    header_bytes_max: int = 32 * 1024
    pause_seconds_max: float = 60.0
    """How long the next piece of a body may take to arrive."""
    body_seconds_max: float = 60.0
    """How long a whole body may take, plus a second for each `body_bytes_per_second`."""
    body_bytes_per_second: int = 64 * 1024
    arriving_max: int = 2048
    """How many bodies may be arriving at the same time."""
    arriving_bytes_max: int = 128 * 1024 * 1024
    """Their bytes in memory, together with those of running requests."""
    spooled_bytes_max: int = 16 * 1024**3
    """Bytes of rows in files, of all requests."""
    unidentified_bytes_max: int = 1024 * 1024
    """The largest body that may carry credentials, if the headers have none."""

    refused_per_second: float = 50.0
    """How many requests of a client may be refused in a second before it waits for the answers."""

    @property
    def client_requests_max(self) -> int:
        """How many slots one client may have: some are left for others."""
        return share_of(self.requests_max)


def share_of(most: int) -> int:
    """Return how much one client may use; the rest is left for others."""
    return max(1, most * 3 // 4)


def count(taken: Counter[Key], client: Key, more: int) -> None:
    """Add to a client's use; a client that uses nothing isn't kept."""
    taken[client] += more
    if not taken[client]:
        del taken[client]


def is_disk_full(more: int) -> bool:
    """Return True if too little of the temporary files' disk would be free after more bytes."""
    disk = os.statvfs(tempfile.gettempdir())
    spared = min(SPARED_BYTES_MAX, disk.f_blocks * disk.f_frsize // SPARED_SHARE)
    return disk.f_bavail * disk.f_frsize - more < spared


class Limits:
    """Refuses requests that exceed the limits."""

    def __init__(
        self,
        app: ASGIApp,
        settings: LimitSettings | None = None,
        security: Security | None = None,
        base_path: str = "",
    ) -> None:
        """Guard an application that is served below `base_path`."""
        self._app = app
        self._base_path = base_path
        self.settings = settings or LimitSettings()
        self._security = security or Security()
        self._running: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()
        self._held_bytes: Counter[str] = Counter()
        self._spooled_bytes: Counter[str] = Counter()
        self.decompressing = asyncio.Lock()
        """Whose turn it is among bodies of which more than a piece comes."""
        self._of_keys: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tarpit = Tarpit(self.settings.refused_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http" or is_under(scope["path"], UNLIMITED):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        target, agent = scope.get("raw_path") or b"", headers.get("user-agent", "")
        if (meant := meant_target(target, agent, self._base_path)) != target:
            scope["raw_path"], scope["path"] = meant, unquote(meant.decode("latin-1"))
        has_begun = False
        held: list[Message] = []

        async def noting(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            if held or (message.get("status") in REFUSED and ORDINARY not in scope):
                held.append(message)
            else:
                await send(message)

        request = _Request(self, headers, receive)
        try:
            self._check_head(scope, headers)
            await request.begin(scope)
            await self._app(scope, request.receive, noting)
        except (OverLimit, asyncio.CancelledError) as ended:
            if has_begun:
                raise
            # The server ends, and nothing else cancels: what runs can't be waited for.
            refused = ended if isinstance(ended, OverLimit) else at_the_end(scope, request.is_whole)
            await refuse(refused, self._base_path, scope, receive, noting)
        finally:
            request.end()
        if held:  # by now the request counts no longer, and its body isn't in memory
            # Nobody waits for what others sent who showed nothing either.
            client = request.client or address_of(scope)
            seconds = await self._tarpit.hold(client, request.received_bytes, receive)
            scope[HELD_SECONDS] = seconds
        for message in held:
            await send(message)

    def _check_head(self, scope: Scope, headers: Headers) -> None:
        # Where credentials are required, a page has only those that somebody gave it.
        is_open = not self._security.is_on and scope["method"] not in SAFE
        if is_open and not _OF_OTHERS.isdisjoint(scope["headers"]):
            raise OverLimit(403, "a page of another site may not send this; nothing was done")
        host = headers.get("host", "")
        if not self._security.is_on and is_foreign(scope.get("server"), host, self.settings.hosts):
            raise OverLimit(
                403,
                f"this server isn't known as {host!r}; if it is, start it with --http-hosts and "
                "that name; nothing was done",
            )
        most = self.settings.header_bytes_max
        if sum(len(name) + len(value) for name, value in scope["headers"]) > most:
            raise OverLimit(431, f"the headers have more than {most} bytes; send fewer")
        coding = headers.get("transfer-encoding", "chunked")
        if coding.strip().lower() != "chunked":
            raise OverLimit(501, f"the transfer coding {coding!r} is not served, only chunked")
        target = scope.get("raw_path") or quote(scope["path"]).encode()
        if problem := target_problem(target, scope.get("query_string", b"")):
            raise OverLimit(400, problem)

    async def client(self, scope: Scope, headers: Headers) -> str:
        """Return who asks as the headers prove it, "" if they don't where they would have to."""
        if not self._security.is_on:
            return address_of(scope)
        shown = credentials_of_headers(headers)
        if not shown:
            return ""
        try:
            known = await self._security.identified(shown)
        except (LanceNamespaceError, CommitLogError):
            return ""  # the next check refuses it
        scope[PRINCIPAL] = known
        tell(scope, principal=known.name)  # also of a request that nobody carries out
        return known.name

    async def turn(self, key: str) -> asyncio.Lock:
        """Wait until no other request under an Idempotency-Key runs; the caller releases it.

        Such a request looks in all partitions for what its key committed before it commits itself.
        """
        lock = self._of_keys.setdefault(key, asyncio.Lock())
        try:
            async with asyncio.timeout(self.settings.pause_seconds_max):
                await lock.acquire()
        except TimeoutError:
            raise OverLimit(
                503,
                "a request under this Idempotency-Key is running; nothing was done for this "
                "one; try again in a while",
            ) from None
        return lock

    def take(self, client: str) -> None:
        """Begin a request, if there is room."""
        settings = self.settings
        total = self._running.total()
        if total >= settings.requests_max:
            raise OverLimit(
                503,
                f"{settings.requests_max} requests are running; nothing was done for this "
                "one; try again in a while",
            )
        if self._security.is_on and self._running[client] >= settings.client_requests_max:
            raise OverLimit(
                429,
                f"{settings.client_requests_max} requests of this client are running; "
                "nothing was done for this one; try again in a while",
            )
        count(self._running, client, 1)

    def give_back(self, client: str) -> None:
        """End a request."""
        count(self._running, client, -1)

    def arrive(self, client: str, more: int) -> None:
        """Note that a body of a client is on its way, or no longer."""
        most = self.settings.arriving_max
        if more > 0:
            self._check(self._arriving, client, more, most, f"{most} bodies are being received")
        count(self._arriving, client, more)

    def hold(self, client: str, more: int, *, is_small: bool = False) -> None:
        """Keep a client's bytes in memory, or no longer; for a small body there is always room."""
        if more > 0 and not is_small:
            most = self.settings.arriving_bytes_max
            self._check(self._held_bytes, client, more, most, "too many large requests at once")
        count(self._held_bytes, client, more)

    def spool(self, client: str, more: int) -> None:
        """Keep a client's bytes in files, or no longer."""
        if more > 0:
            most, what = self.settings.spooled_bytes_max, "too many rows at once"
            self._check(self._spooled_bytes, client, more, most, what)
            if is_disk_full(more):
                raise OverLimit(
                    503,
                    "the disk where the server keeps arriving rows is nearly full; nothing was "
                    "done, send fewer rows or try again in a while",
                )
        count(self._spooled_bytes, client, more)

    def _check(self, taken: Counter[str], client: str, more: int, most: int, what: str) -> None:
        """Refuse more than all clients, or one identified client, may use."""
        if taken.total() + more > most:
            raise OverLimit(503, f"{what}; nothing was done, try again in a while")
        if self._security.is_on and taken[client] + more > share_of(most):
            who = "yours" if client else "clients without credentials in their headers"
            raise OverLimit(429, f"{what}, most of them from {who}; try again in a while")


class _Request:
    """The resources of one request, given back at its end."""

    def __init__(self, limits: Limits, headers: Headers, receive: Receive) -> None:
        self._limits = limits
        self._headers = headers
        self._receive = receive
        self.client = ""
        self._has_slot = self._is_arriving = self.is_whole = False
        self._in_memory_max = sys.maxsize
        if headers.get("content-type", "").startswith(_ROWS):
            self._in_memory_max = IN_MEMORY_BYTES_MAX
        self.received_bytes = self._held = self._spooled = 0
        self._began = time.monotonic()
        self._turn: asyncio.Lock | None = None

    async def begin(self, scope: Scope) -> None:
        """Find out who asks; take a slot already if no body is to come."""
        limits, headers = self._limits, self._headers
        self.client = await limits.client(scope, headers)
        has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        if has_body:
            limits.arrive(self.client, 1)
            self._is_arriving = True
            try:
                encoding = headers.get("content-encoding", "")
                if encoding.strip().lower() not in ("", "identity"):
                    self._receive = Decompressed(
                        self._receive, encoding, limits.decompressing
                    ).receive
            except UnknownEncoding as error:
                raise OverLimit(415, str(error)) from error
        elif self.client:
            self._take_slot()

    async def receive(self) -> Message:
        """Give the next piece of the body; take a slot once it is whole."""
        if self.is_whole:  # the client may go away, or not
            return await self._receive()
        message = await self._next()
        size = len(message.get("body", b""))
        self.received_bytes += size
        held = min(self.received_bytes, self._in_memory_max) - self._held
        is_small = self._held + held <= SMALL_BYTES
        self._limits.hold(self.client, held, is_small=is_small)
        self._held += held
        spooled = self.received_bytes - self._held - self._spooled
        if spooled:
            self._limits.spool(self.client, spooled)
            self._spooled += spooled
        most = self._limits.settings.unidentified_bytes_max
        if not self.client and self.received_bytes > most:
            raise OverLimit(
                401,
                f"a body of more than {most} bytes needs credentials in the headers: "
                "x-api-key, or Authorization: Bearer",
            )
        if message["type"] == "http.request" and not message.get("more_body", False):
            self.is_whole = True
            if key := self._headers.get("idempotency-key", "").lower():
                self._turn = await self._limits.turn(key)
            self._no_longer_arriving()
            if not self._has_slot:
                self._take_slot()
        return message

    async def _next(self) -> Message:
        settings = self._limits.settings
        allowed = settings.body_seconds_max + self.received_bytes / settings.body_bytes_per_second
        left = self._began + allowed - time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, min(left, settings.pause_seconds_max))):
                return await self._receive()
        except ValueError as error:
            raise OverLimit(400, str(error)) from error
        except TimeoutError as error:
            what = f"no byte of the body came for {settings.pause_seconds_max:g} s"
            if left < settings.pause_seconds_max:
                what = f"the body came too slowly, {self.received_bytes} bytes in {allowed:g} s"
            raise OverLimit(408, f"{what}; nothing was done, try again") from error

    def _take_slot(self) -> None:
        self._limits.take(self.client)
        self._has_slot = True

    def _no_longer_arriving(self) -> None:
        if self._is_arriving:
            self._limits.arrive(self.client, -1)
            self._is_arriving = False

    def end(self) -> None:
        """Give back what it took."""
        if self._turn is not None:
            self._turn.release()
        self._no_longer_arriving()
        self._limits.hold(self.client, -self._held)
        self._limits.spool(self.client, -self._spooled)
        if self._has_slot:
            self._limits.give_back(self.client)
