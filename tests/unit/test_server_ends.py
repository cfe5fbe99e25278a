"""What requests are told that the server can't wait for when it ends."""

from __future__ import annotations

import asyncio
import http.client
import json
import sys
import threading
from typing import Any

import pytest

from consumers.servers.security.limits import Limits
from consumers.servers.server import drain, make_app
from consumers.servers.server_heads import LimitedHeads
from consumers.views.health import Check, Level
from tests.child import ended
from tests.page_server import NoHealth, serving_app

Told = tuple[int, Any, dict[Any, Any]]


async def _cancelled(path: str, method: str, pieces: list[bytes]) -> Told:
    """Cancel a request that has sent these pieces and nothing more; return what it is told."""
    waiting, left = asyncio.Event(), list(pieces)
    sent: list[Any] = []

    async def receive() -> Any:
        if not left:
            waiting.set()
            await asyncio.Event().wait()
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": not body.endswith(b"}")}

    async def send(message: Any) -> None:
        sent.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        await receive()  # as what carries it out, this ends only by being cancelled

    headers = [(b"content-length", b"100")]
    scope = {"type": "http", "path": path, "method": method, "headers": headers}
    request = asyncio.create_task(Limits(app)({**scope, "raw_path": path.encode()}, receive, send))
    await waiting.wait()
    request.cancel()
    await request
    start, body = sent
    return start["status"], json.loads(body["body"]), dict(start["headers"])


@pytest.mark.parametrize(
    ("path", "method", "pieces", "status", "kind"),
    [
        ("/v1/table/a$t/insert", "POST", [b"{"], 503, 17),
        ("/v1/table/a$t/insert", "POST", [b"{", b"}"], 500, 18),
        ("/v1/table/a$t/insert/", "POST", [b"{", b"}"], 520, 18),
        ("/v1/table/a$t/exists", "GET", [b"{}"], 503, 17),
        ("/v1/transactions/commit", "POST", [b"{"], 503, "ServiceUnavailableException"),
        ("/v1/transactions/commit", "POST", [b"{}"], 500, "CommitStateUnknownException"),
    ],
)
def test_nobody_hears_that_nothing_was_done_of_what_may_have_been(
    path: str, method: str, pieces: list[bytes], status: int, kind: int | str
) -> None:
    """It was 'Internal Server Error' as plain text, and a traceback in the server's log."""
    told = asyncio.run(asyncio.wait_for(_cancelled(path, method, pieces), 60))
    assert told[0] == status
    assert (told[1]["code"] if isinstance(kind, int) else told[1]["error"]["type"]) == kind
    assert (b"retry-after" in told[2]) == (status == 503)
    assert "the server end" in str(told[1])


def test_while_it_drains_balancers_and_clients_are_told_to_go_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both were green until the listener closed, so a balancer's requests failed."""
    monkeypatch.setattr(LimitedHeads, "is_draining", False)

    class Well(NoHealth):
        async def fresh(self) -> Any:
            return (Check("leader", Level.OK, "it leads"),)

    app = make_app(Well())  # type: ignore[arg-type]
    with serving_app(app, http=LimitedHeads) as port:
        known = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

        def ask(connection: http.client.HTTPConnection, path: str) -> tuple[int, str, Any]:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.headers.get("connection", ""), json.loads(answer.read())

        def is_serving() -> bool:
            """Look as others do while it drains; once is enough."""
            asked.append("")
            for connection in (known, http.client.HTTPConnection("127.0.0.1", port)):
                assert ask(connection, "/healthz") == (503, "close", {"status": "ending"})
            status, _, body = ask(known, "/readyz")
            assert (status, body["status"]) == (503, "not ready")
            assert body["checks"][-1]["message"] == "it was told to end"
            return False

        asked: list[str] = []
        assert ask(known, "/readyz")[:2] == (200, "")
        drain(0, is_serving, threading.Event())
        assert not asked, "nobody waits unless the operator said so"
        drain(5, is_serving, threading.Event())
        assert asked
        known.close()


DRAINS = """
import os, signal, sys, threading, time
from consumers.runtime import process
from consumers.servers.server import drain
stop = threading.Event()
process.stop_on_signals(stop)
os.kill(os.getpid(), signal.SIGTERM)
assert stop.wait(60)
os.kill(os.getpid(), signal.SIGTERM)  # a wrapper passes on what its child got, too
assert not process.hurried.wait(0.1)
time.sleep(process.AGAIN_SECONDS)
began = time.monotonic()
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
drain(300, lambda: True, process.hurried)
print(time.monotonic() - began)
"""


@pytest.mark.slow
def test_a_second_signal_ends_a_drain() -> None:
    """It had no effect: who had set an hour waited for an hour, or killed the server."""
    done = ended([sys.executable, "-c", DRAINS], check=True, timeout=60)
    assert float(done.stdout) < 30
