"""Do answers leave in one piece, and not wait for ever for clients that don't take them?"""

import asyncio
import asyncio.constants
import contextlib
import errno
import http.client
import json
import logging
import os
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import uvicorn
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from uvicorn.server import ServerState

from consumers.servers import server_answers, server_heads
from consumers.servers.server_answers import PIECE_BYTES_MAX, Outgoing
from consumers.servers.server_heads import LimitedHeads
from tests.namespace_world import World
from tests.page_server import Server, serving_app
from tests.waiting import WAIT_SECONDS

REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
MIB = 1024 * 1024


class Sent(asyncio.Transport):
    """A connection that keeps what is sent on it, and whose client takes as much as it is told."""

    def __init__(self, takes: int = 2**60) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.is_closed = self.is_aborted = False
        self.takes = takes

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = self.is_aborted = True
        self.takes = 2**60

    def is_closing(self) -> bool:
        return self.is_closed

    def get_write_buffer_size(self) -> int:
        return max(0, sum(map(len, self.pieces)) - self.takes)


class Served:
    """Connections to a server that gives one answer to everything."""

    def __init__(self, response: Response) -> None:
        self._response = response
        self._state = ServerState()

    def ask(self, request: bytes = REQUEST, takes: int = 2**60) -> Sent:
        config = uvicorn.Config(self._response, lifespan="off", log_config=None)
        protocol, transport = LimitedHeads(config, self._state, {}), Sent(takes)
        protocol.connection_made(transport)
        protocol.data_received(request)
        return transport

    def end(self) -> None:
        for protocol in list(self._state.connections):
            protocol.connection_lost(None)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def sent(
    response: Response,
    request: bytes = REQUEST,
    until: Callable[[Sent], Awaitable[None]] | None = None,
) -> Sent:
    """Return what a server sends that gives this answer."""

    async def work() -> Sent:
        served = Served(response)
        transport = served.ask(request)
        if until is not None:
            await until(transport)
        await turns()
        served.end()
        return transport

    return asyncio.run(work())


def test_head_and_body_are_one_piece() -> None:
    (piece,) = sent(PlainTextResponse("body")).pieces
    head, body = piece.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body == b"body"


def test_a_connection_closes_once_all_of_it_is_sent() -> None:
    found = sent(PlainTextResponse("body", headers={"Connection": "close"}))
    assert found.is_closed
    assert found.pieces[0].endswith(b"body")
    found = sent(PlainTextResponse("body"), b"no request\r\n\r\n")
    assert found.is_closed
    assert found.pieces[0].startswith(b"HTTP/1.1 400")


def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    goes_on = asyncio.Event()

    async def events() -> Any:
        await goes_on.wait()
        yield b"later"

    async def until(transport: Sent) -> None:
        while not transport.pieces:
            await asyncio.sleep(0)
        goes_on.set()

    first, *_ = sent(StreamingResponse(events()), until=until).pieces
    assert first.startswith(b"HTTP/1.1 200 OK")
    assert b"later" not in first


@pytest.mark.parametrize("size", [1000, PIECE_BYTES_MAX])
def test_a_long_body_is_not_gathered(size: int) -> None:
    async def parts() -> Any:
        for _ in range(10):
            yield b"x" * size

    pieces = sent(StreamingResponse(parts())).pieces
    assert max(map(len, pieces)) < 2 * PIECE_BYTES_MAX + 1000
    assert b"".join(pieces).count(b"x") == 10 * size


@pytest.mark.parametrize(("takes", "is_cut"), [(0, True), (MIB, False)])
def test_who_takes_nothing_is_cut_off(
    takes: int, is_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = server_answers.Outgoing._look
    monkeypatch.setattr(server_answers, "LOOK_SECONDS", 0.01)

    async def work() -> bool:
        looks, enough = 0, asyncio.Event()

        def take_and_look(connection: Any) -> None:
            nonlocal looks
            looks += 1
            transport.takes += takes // 10
            look(connection)
            if transport.is_aborted or looks == 5:
                enough.set()

        monkeypatch.setattr(server_answers.Outgoing, "_look", take_and_look)
        served = Served(PlainTextResponse("x" * 4 * MIB))
        transport = served.ask(takes=0)
        await asyncio.wait_for(enough.wait(), WAIT_SECONDS)
        served.end()
        return transport.is_aborted

    assert asyncio.run(work()) is is_cut


def test_the_slowest_are_cut_off_if_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_answers, "UNSENT_BYTES_MAX", 10 * MIB)

    async def work() -> list[bool]:
        served = Served(PlainTextResponse("x" * 4 * MIB))
        clients = []
        for takes in (MIB, 0, 2 * MIB, MIB):
            clients.append(served.ask())
            clients[-1].takes = 0
            await turns()
            clients[-1].takes = takes
        await turns()
        served.end()
        return [client.is_aborted for client in clients]

    assert asyncio.run(work()) == [False, True, False, False]


@pytest.mark.slow
def test_a_stranger_who_reads_no_answer_loses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_answers, "LOOK_SECONDS", 0.1)
    look, dropped = Outgoing._look, threading.Event()

    def look_and_tell(outgoing: Outgoing) -> None:
        look(outgoing)
        if outgoing.is_closing():
            dropped.set()

    monkeypatch.setattr(Outgoing, "_look", look_and_tell)
    world = World(tmp_path)
    try:
        world.write(["n", "t"], pa.table({"id": range(2000), "s": ["x" * 16_384] * 2000}))
        body = json.dumps({"vector": {"single_vector": []}, "k": 2000, "columns": None}).encode()
        with socket.create_connection(("127.0.0.1", int(world.uri.rsplit(":", 1)[1]))) as stranger:
            head = f"POST /v1/table/n$t/query HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
            stranger.sendall(head.encode() + b"\r\n\r\n" + body)
            stranger.settimeout(60)
            answer = stranger.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            connection = http.client.HTTPConnection(world.uri.removeprefix("http://"), timeout=60)
            assert dropped.wait(WAIT_SECONDS)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
            read = len(answer)
            with contextlib.suppress(ConnectionError):
                while piece := stranger.recv(1 << 20):
                    read += len(piece)
        assert read < 20 * MIB, "the rest was dropped"
    finally:
        world.close()


@pytest.mark.slow
@pytest.mark.parametrize(("rest", "is_closed"), [(b"x", True), (b"x" * 90, False)])
def test_the_rest_of_a_body_that_nobody_reads_does_not_keep_a_connection(
    rest: bytes, is_closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer has gone, so no other limit holds for it; it may arrive, but not for ever."""
    monkeypatch.setattr(server_heads, "HEAD_SECONDS_MAX", 0.1)

    async def work() -> bool:
        served = Served(PlainTextResponse("refused"))
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"
        transport = served.ask(head + b"x" * 10)
        await turns()
        assert transport.pieces
        (protocol,) = served._state.connections
        protocol.data_received(rest)
        await asyncio.sleep(0.3)
        found = transport.is_closed
        if not found:
            protocol.data_received(REQUEST)
            await turns()
            assert len(transport.pieces) == 2
        served.end()
        return found

    assert asyncio.run(work()) is is_closed


def test_that_no_more_files_may_be_open_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio tries two thousand times a second, and would log as many tracebacks."""
    monkeypatch.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)
    accept, refused = socket.socket.accept, threading.Event()

    with serving_app(Response("here")) as port:

        def full(listening: socket.socket) -> Any:
            if listening.getsockname()[1] != port:  # of another test's server, which logs as well
                return accept(listening)
            refused.set()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(socket.socket, "accept", full)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)
        with contextlib.closing(client):
            client.request("GET", "/")
            assert refused.wait(WAIT_SECONDS)
            monkeypatch.setattr(socket.socket, "accept", accept)
            assert client.getresponse().read() == b"here"
    (told,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "allow this process more open files" in told.getMessage()


def test_a_try_to_accept_after_the_end_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio makes many after files ran out, and each of those that came late was a traceback."""
    server = Server(uvicorn.Config(Response("here"), log_config=None))
    late = {
        "message": "Exception in callback BaseSelectorEventLoop._start_serving()",
        "exception": ValueError("Invalid file descriptor: -1"),
    }
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        server._failed(loop, late)
        assert len(caplog.records) == 1
        server.end()
        server._failed(loop, late)
        assert len(caplog.records) == 1
        server._failed(loop, {"message": "another", "exception": ValueError("wrong")})
    assert len(caplog.records) == 2
