"""Clients that have the server refuse requests without end are answered slowly; others are not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from starlette.responses import Response

from consumers.servers.security import tarpit
from consumers.servers.security.limits import Limits, LimitSettings
from consumers.servers.security.tarpit import (
    BURST,
    HELD_SECONDS_MAX,
    REQUEST_BYTES,
    Tarpit,
)

PER_SECOND = 50.0


class Clock:
    """A clock that is turned by hand."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_refusals_cost_nothing_until_they_come_by_the_hundred() -> None:
    clock = Clock()
    pit = Tarpit(PER_SECOND, clock)
    assert [pit.seconds("a", 0) for _ in range(int(BURST))] == [0.0] * int(BURST)
    assert pit.seconds("a", 0) == pytest.approx(1 / PER_SECOND)
    assert pit.seconds("a", 0) == pytest.approx(2 / PER_SECOND)
    assert pit.seconds("b", 0) == 0.0
    clock.now += 2 / PER_SECOND
    assert pit.seconds("a", 0) == pytest.approx(1 / PER_SECOND)
    clock.now += BURST / PER_SECOND + 1
    assert pit.seconds("a", 0) == 0.0


def test_large_bodies_count_as_many_requests_and_nobody_waits_for_minutes() -> None:
    pit = Tarpit(PER_SECOND, Clock())
    size = int(BURST + 49) * REQUEST_BYTES
    assert pit.seconds("a", size) == pytest.approx(50 / PER_SECOND)
    assert pit.seconds("a", 100 * size) == HELD_SECONDS_MAX
    assert pit.seconds("a", 0) == HELD_SECONDS_MAX


def test_what_is_kept_of_clients_and_answers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    pit = Tarpit(PER_SECOND, clock)
    for number in range(100_000):
        pit.seconds(f"client {number}", 0)
        clock.now += 0.01
    assert len(pit._free_at) <= tarpit._FORGET_ABOVE + 1
    monkeypatch.setattr(tarpit, "HELD_MAX", 10)
    pit.held = 10
    began = time.monotonic()
    asyncio.run(pit.hold("greedy", 1_000 * REQUEST_BYTES))
    assert time.monotonic() - began < HELD_SECONDS_MAX / 2


def test_refused_answers_alone_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd is refused; its ordinary answers, and those of others, come at once."""
    monkeypatch.setattr(tarpit, "BURST", 10.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await Response(status_code=int(scope["path"].rpartition("/")[2]))(scope, receive, send)

    limits = Limits(app, LimitSettings(refused_per_second=PER_SECOND))

    async def ask(path: str, address: str) -> float:
        statuses: list[int] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        began = asyncio.get_running_loop().time()
        scope = {"type": "http", "path": path, "method": "GET", "headers": []}
        await limits(scope | {"client": (address, 1)}, receive, send)
        assert statuses == [int(path.rpartition("/")[2])]
        return asyncio.get_running_loop().time() - began

    async def run() -> None:
        crowd = [asyncio.create_task(ask("/v1/400", "10.0.0.1")) for _ in range(60)]
        while limits._tarpit.held < 50:
            await asyncio.sleep(0)
        for path in ("/v1/404", "/v1/409", "/v1/200"):
            assert await ask(path, "10.0.0.1") < 0.2
        assert await ask("/v1/400", "10.0.0.2") < 0.2
        assert not limits._running, "an answer that is held takes no slot"
        took = sorted(await asyncio.gather(*crowd))
        assert 0.5 < took[-1] < HELD_SECONDS_MAX
        assert not limits._tarpit.held

    asyncio.run(asyncio.wait_for(run(), 60))
