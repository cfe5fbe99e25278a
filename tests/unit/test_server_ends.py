"""What requests are told that the server can't wait for when it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from consumers.servers.security.limits import Limits

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
