"""The HTTP protocol of a connection, with limits on what comes before a body.

`Limits` refuses headers that are too large once it sees them; a head that never ends would not get
there, and its parser keeps what came.
"""

from __future__ import annotations

import re
from asyncio import TimerHandle, Transport
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from consumers.servers.security.answers import refusal
from consumers.servers.server_answers import Outgoing

HEAD_BYTES_MAX = 64 * 1024
HEAD_SECONDS_MAX = 60.0
"""How long a request line and its headers may take to arrive, or the rest of a body that was
answered before it was whole."""
CROWDED_SECONDS = 5.0
"""How long it may take, and how long a connection may be idle, while half of all are taken."""
HEADERS_MAX = 512
PIPELINED_MAX = 64
"""Requests that wait on a connection for the one before them; a few bytes each become kilobytes."""
PROBE_SECONDS = 1.0
"""After so long, then twice that and so on, a client that sends no more is asked if it is there."""
_PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
"""Any number of these may come before an answer (RFC 9110, 15.2)."""
_UPGRADE = re.compile(rb"(\r\n)(?=upgrade:)", re.IGNORECASE)
"""In a head, before what asks for another protocol: the parser would take what follows for that,
and drop the body. Java's own client asks for HTTP/2 with each request. No protocol is served."""
_UNSURE = re.compile(rb"(\r\n)?\r(\n(u(p(g(r(a(d(e)?)?)?)?)?)?)?)?\Z", re.IGNORECASE)
"""At the end of a packet: what follows may make this such a line, or the end of a head."""
_UNSURE_BYTES_MAX = len("\r\n\r\nupgrade")
_VERSIONS = ("1.0", "1.1")
_HOST = re.compile(rb"(?:\[[\w.:%~-]+\]|[\w.~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_TOO_LONG = 414, "the address of the request is too long; nothing was done"
_CLOSES = {"Connection": "close"}
_SHOWN_CHARACTERS = 200
CONNECTION = "commitlog.connection"
"""In a request's scope: what is kept about its connection, as long as that is open."""
REQUESTS = "requests"
"""What is kept: how many requests came."""


class _Refused(Exception):
    """The parser stops, and the connection ends with what `_problem` says."""


class LimitedHeads(HttpToolsProtocol):
    """Ends a connection whose request line and headers are too long."""

    connections_max = 10_000
    """More are closed at once: each is a file, and the server needs some for itself."""
    base_path = ""
    """Below which all APIs are served."""
    is_draining = False
    """Whether each connection ends with its next answer: the server ends soon."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take what uvicorn gives to each connection."""
        super().__init__(*arguments, **options)
        self._is_in_head = True
        self._began_now = False
        self._head_bytes = 0
        self._timer: TimerHandle | None = None
        self._kept: dict[str, Any] = {REQUESTS: 0}
        self._idle_seconds = self.timeout_keep_alive
        self._body: list[bytes] = []
        """What came of a body and wasn't passed on yet."""
        self._unsure = b""
        """What came of a head and waits for the next packet."""
        self.url = b""
        self._problem = (400, "this is no HTTP request; nothing was done")
        """Status and text for what can't be parsed."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head."""
        super().connection_made(transport)
        self._outgoing = Outgoing(transport, self.loop, self._all_outgoing)
        self.transport = cast(Transport, self._outgoing)
        if len(self.connections) > self.connections_max:
            self.transport.close()
            return
        self._timer = self.loop.call_later(self._if_crowded(HEAD_SECONDS_MAX), self._give_up)

    def _if_crowded(self, seconds: float) -> float:
        """Return less than these seconds if there are many connections."""
        is_crowded = len(self.connections) > self.connections_max // 2
        return min(seconds, CROWDED_SECONDS) if is_crowded else seconds

    def on_response_complete(self) -> None:
        """Note how long the connection may be idle, and what nobody reads may take, from now on."""
        self.timeout_keep_alive = int(self._if_crowded(self._idle_seconds))
        super().on_response_complete()
        if not self._is_in_head and self._timer is None:
            # The rest of a body: no limit of an API holds for it any more.
            self._timer = self.loop.call_later(self._if_crowded(HEAD_SECONDS_MAX), self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_timer()
        super().connection_lost(exc)

    def _all_outgoing(self) -> Iterator[Outgoing]:
        return (one._outgoing for one in self.connections if isinstance(one, LimitedHeads))

    def _give_up(self) -> None:
        is_over = self._is_in_head or self.cycle.response_complete
        if is_over and not self.transport.is_closing():
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless a head, or what follows a body, has become too long by it."""
        self._began_now = False
        if self._is_in_head:
            head, end, rest = (self._unsure + data).partition(b"\r\n\r\n")
            self._unsure = b""
            if not end and (found := _UNSURE.search(head[-_UNSURE_BYTES_MAX:])):
                self._unsure = found.group()
                head = head.removesuffix(self._unsure)
            data = _UPGRADE.sub(rb"\1x-", head) + end + rest
        super().data_received(data)
        if self._pass_body() or self._began_now:  # what came is a body's, nearly all of it
            self._head_bytes = 0
            return
        if self._is_in_head and self._timer is None:
            seconds = self._if_crowded(HEAD_SECONDS_MAX)
            self._timer = self.loop.call_later(seconds, self._give_up)
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX:
            is_address = len(self.url) > HEAD_BYTES_MAX // 2
            headers = 431, f"the headers have more than {HEAD_BYTES_MAX} bytes; send fewer"
            self._problem = _TOO_LONG if is_address else headers
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """End a connection on which nothing more can be understood.

        A request that came whole before that is carried out, so the last answer is its own.
        """
        self._outgoing.lingers = False
        if self.cycle is not None and not (self.cycle.response_complete or self.cycle.more_body):
            self.cycle.keep_alive = False
            return
        if self.transport.is_closing():
            return
        status, message = self._problem
        path = unquote(self.url.partition(b"?")[0].decode("latin-1"))
        answer = refusal(path[:_SHOWN_CHARACTERS], "GET", status, message, _CLOSES, self.base_path)
        headers = (*self.server_state.default_headers, *answer.raw_headers)
        lines = [STATUS_LINE[status], *(b"%s: %s\r\n" % one for one in headers), b"\r\n"]
        self.transport.write(b"".join((*lines, bytes(answer.body))))
        self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that sends no more, or has left; then the connection ends.

        If its answer has begun, it has left: it may be a feed, which goes on for an hour.
        """
        is_answered = self.cycle is None or self.cycle.response_started
        if self.scheme == "https" or not self._is_in_head or is_answered:
            return False
        self.cycle.keep_alive = False
        if self.cycle.scope["http_version"] == "1.1":
            self.loop.call_later(PROBE_SECONDS, self._probe, self.cycle, PROBE_SECONDS)
        return True

    def _probe(self, cycle: RequestResponseCycle, seconds: float) -> None:
        """Write to a client that sends no more: if it has left, a second time fails.

        Nothing else tells the two apart, since both end their half of the connection.
        """
        if not (cycle.response_started or cycle.disconnected or self.transport.is_closing()):
            self.transport.write(_PROBE)
            self.loop.call_later(2 * seconds, self._probe, cycle, 2 * seconds)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, unless there are too many; a trailer is none."""
        if not self._is_in_head:
            return  # checks of headers are over, those of a proxy in front of us too
        if len(self.headers) >= HEADERS_MAX:
            self._problem = 431, f"there are more than {HEADERS_MAX} headers; send fewer"
            raise _Refused
        super().on_header(name, value.strip(b" \t"))

    def on_headers_complete(self) -> None:
        """Note that the body comes next."""
        if len(self.pipeline) >= PIPELINED_MAX:
            raise _Refused
        if len(self.url) >= HEAD_BYTES_MAX:
            self._problem = _TOO_LONG
            raise _Refused
        version = self.parser.get_http_version()
        if problem := self._problem_of(version):
            self._problem = problem
            raise _Refused
        is_old = version == "1.0"
        self.expect_100_continue = self.expect_100_continue and not is_old
        self._is_in_head, self._head_bytes = False, 0
        self._stop_timer()
        self._kept[REQUESTS] += 1
        self.scope[CONNECTION] = self._kept  # type: ignore[literal-required]
        self._outgoing.lingers = not self.parser.should_keep_alive()
        super().on_headers_complete()
        if self.is_draining:
            self.cycle.keep_alive, self._outgoing.lingers = False, True
        if self.expect_100_continue:
            self._close_if_not_asked(self.cycle)
        if is_old:
            _end_with_connection(self.cycle)

    def _problem_of(self, version: str) -> tuple[int, str] | None:
        if version not in _VERSIONS:
            return 505, f"HTTP/{version} is not served here; use HTTP/1.1"
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            return 400, f"there are {len(hosts)} Host headers; send one"
        if hosts and not _HOST.fullmatch(hosts[0]):
            return 400, "the Host header names no host; send a name or an address, and its port"
        # An upgrade is taken out of a connection's first head, but found only here in a later one.
        if self.parser.should_upgrade():
            return 400, "it asks for another protocol behind another request; nothing was done"
        return None

    def _close_if_not_asked(self, cycle: RequestResponseCycle) -> None:
        """Close after an answer that comes before the body was asked for: it may never come."""
        plain = cycle.send

        async def send(message: Any) -> None:
            if cycle.waiting_for_100_continue:
                cycle.keep_alive, self._outgoing.lingers = False, cycle.more_body
            await plain(message)

        cycle.send = send  # type: ignore[method-assign]

    def on_body(self, body: bytes) -> None:
        """Keep a piece: what was passed on is copied for each that follows, however small."""
        self._body.append(body)

    def _pass_body(self) -> bool:
        body = b"".join(self._body)
        if body:
            self._body.clear()
            super().on_body(body)
        return bool(body)

    def on_message_complete(self) -> None:
        """Note that the next request may come."""
        self._pass_body()
        self._stop_timer()
        super().on_message_complete()
        self._is_in_head = self._began_now = True
        self._outgoing.body_came()


def _end_with_connection(cycle: RequestResponseCycle) -> None:
    """Have an answer of unknown length end with its connection: HTTP/1.0 has no chunks."""
    plain = cycle.send
    is_open_ended = False

    async def send(message: Any) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message.get("headers", ())}
            is_open_ended = b"content-length" not in names
            cycle.chunked_encoding = False if is_open_ended else None
        elif is_open_ended:
            cycle.expected_content_length = len(message.get("body", b""))
        await plain(message)

    cycle.send = send  # type: ignore[method-assign]
