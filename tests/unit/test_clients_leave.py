"""Does work on rows end once its client has left, and only then?"""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pickle import PickleBuffer
from typing import Any, cast

import pytest
from starlette.types import Receive

from commitlog import CommitLog
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from consumers.servers import server_heads
from consumers.servers.namespace import leaving
from consumers.servers.namespace.routes import routes
from consumers.servers.namespace.row_work import Done, Work
from consumers.servers.row_processes import RowProcesses
from consumers.servers.server import ServerSettings, make_app
from consumers.servers.server_heads import LimitedHeads
from tests.page_server import serving_app
from tests.waiting import wait_until

QUERY, DELETE = "/v1/table/s$t/query", "/v1/table/s$t/delete"


class Processes:
    """Stands in for processes that work until they are told to answer."""

    count = 1

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.may_answer = False

    async def ask(self, work: Work, seconds: float) -> Done:
        self.begun.append(work.call["operation"])
        try:
            while not self.may_answer:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.ended.append(work.call["operation"])
            raise
        return Done(200, [], PickleBuffer(b'{"count": 7}'), "", None, [])


@pytest.fixture
def processes() -> Processes:
    return Processes()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[Receive]:
    """What the server no longer receives from."""
    found: list[Receive] = []
    plain = leaving.until_left

    async def until_left(receive: Receive) -> None:
        await plain(receive)
        found.append(receive)

    monkeypatch.setattr(leaving, "until_left", until_left)
    return found


@pytest.fixture
def port(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(leaving, "WATCHED_AFTER_SECONDS", 0.05)
    monkeypatch.setattr(server_heads, "PROBE_SECONDS", 0.05)
    made = MemoryLog(MemoryCluster())
    made.create(tables_root="/nowhere")
    log = CommitLog(lambda: made)
    served = routes(log, processes=cast(RowProcesses, processes))
    app = make_app(None, served, ServerSettings())
    with serving_app(app, log_level="critical", http=LimitedHeads) as uri:
        yield int(str(uri).rpartition(":")[2])
    log.close()


def asked(port: int, path: str) -> socket.socket:
    """Return the connection on which a request was sent, whose answer nobody has read yet."""
    body = json.dumps({"predicate": "id = 1", "filter": "id = 1", "k": 1, "vector": {}}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    opened = socket.create_connection(("127.0.0.1", port), 60)
    opened.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return opened


def answer_on(opened: socket.socket) -> tuple[int, Any]:
    with closing(opened), http.client.HTTPResponse(opened) as answer:
        answer.begin()
        return answer.status, json.loads(answer.read())


def test_a_question_ends_once_its_client_has_left(port: int, processes: Processes) -> None:
    with asked(port, QUERY):
        wait_until(lambda: len(processes.begun) == 1, "it is at work")
    wait_until(lambda: processes.ended == ["QueryTable"], "it has ended")
    processes.may_answer = True
    assert answer_on(asked(port, QUERY)) == (200, {"count": 7}), "its place is free"


def test_one_that_waits_for_its_place_goes_too(
    port: int, processes: Processes, left: list[Receive]
) -> None:
    first = asked(port, QUERY)
    wait_until(lambda: len(processes.begun) == 1, "it has the only place")
    with asked(port, QUERY):
        pass
    wait_until(lambda: len(left) == 1, "the second has left")
    third = asked(port, DELETE)
    processes.may_answer = True
    assert answer_on(first) == (200, {"count": 7})
    assert answer_on(third)[0] == 200
    assert processes.begun == ["QueryTable", "DeleteFromTable"]


def test_who_waits_gets_the_answer(port: int, processes: Processes) -> None:
    opened = asked(port, QUERY)
    wait_until(lambda: len(processes.begun) == 1, "it is at work")
    opened.settimeout(0.5)
    with pytest.raises(TimeoutError):
        opened.recv(1)
    opened.settimeout(60)
    processes.may_answer = True
    assert answer_on(opened) == (200, {"count": 7})
    assert not processes.ended


def test_who_sends_no_more_gets_the_answer(port: int, processes: Processes) -> None:
    opened = asked(port, QUERY)
    opened.shutdown(socket.SHUT_WR)
    assert opened.recv(1, socket.MSG_PEEK) == b"H", "it is asked whether it is there"
    processes.may_answer = True
    assert answer_on(opened) == (200, {"count": 7})
    assert not processes.ended


def test_a_change_is_carried_out_to_its_end(port: int, processes: Processes) -> None:
    with asked(port, DELETE):
        wait_until(lambda: len(processes.begun) == 1, "it is at work")
    second = asked(port, QUERY)
    second.settimeout(0.5)
    with pytest.raises(TimeoutError):
        second.recv(1)
    second.settimeout(60)
    assert processes.begun == ["DeleteFromTable"]
    processes.may_answer = True
    assert answer_on(second)[0] == 200
    assert not processes.ended
