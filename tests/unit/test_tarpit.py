"""Clients that have the server refuse requests without end are answered slowly; others are not."""

from __future__ import annotations

import asyncio
import hashlib
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import UnauthenticatedError
from starlette.responses import Response

from consumers.servers.metrics import Metrics
from consumers.servers.namespace.remote import says_that_it_exists
from consumers.servers.observing import Observe
from consumers.servers.security import tarpit
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.security.limits import Limits, LimitSettings
from consumers.servers.security.tarpit import (
    BURST,
    HELD_SECONDS_MAX,
    REQUEST_BYTES,
    Tarpit,
)
from consumers.servers.server import ServerSettings
from tests.namespace_world import World, numbers
from tests.waiting import Clock

PER_SECOND = 50.0


async def nothing_more() -> Any:
    await asyncio.Event().wait()


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
    monkeypatch.setattr(tarpit, "HELD_SECONDS_MAX", 600.0)
    pit.held = 10
    began = time.monotonic()
    asyncio.run(pit.hold("greedy", 1_000 * REQUEST_BYTES, nothing_more))
    assert time.monotonic() - began < 300


@pytest.mark.slow
def test_refused_answers_alone_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd is refused; its ordinary answers, and those of others, come at once."""
    monkeypatch.setattr(tarpit, "BURST", 10.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await Response(status_code=int(scope["path"].rpartition("/")[2]))(scope, receive, send)

    limits = Limits(app, LimitSettings(refused_per_second=PER_SECOND))

    async def ask(path: str, address: str) -> float:
        statuses: list[int] = []
        bodies = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            return bodies.pop() if bodies else await nothing_more()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope: dict[str, Any] = {"type": "http", "path": path, "method": "GET", "headers": []}
        scope["client"] = address, 1
        await limits(scope, receive, send)
        assert statuses == [int(path.rpartition("/")[2])]
        return float(scope.get(tarpit.HELD_SECONDS, 0.0))

    async def run() -> None:
        began = asyncio.get_running_loop().time()
        crowd = [asyncio.create_task(ask("/v1/400", "10.0.0.1")) for _ in range(60)]
        while limits._tarpit.held < 50:
            await asyncio.sleep(0)
        for path in ("/v1/404", "/v1/409", "/v1/200"):
            assert await ask(path, "10.0.0.1") == 0.0
        assert await ask("/v1/400", "10.0.0.2") == 0.0
        assert not limits._running, "an answer that is held takes no slot"
        held = sorted(await asyncio.gather(*crowd))
        assert 0.5 < held[-1] < HELD_SECONDS_MAX
        assert asyncio.get_running_loop().time() - began > 0.5
        assert not limits._tarpit.held

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_client_that_leaves_is_no_longer_waited_for_and_the_rest_of_its_body_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who doesn't wait for answers fills the room for those that are held, and memory."""
    monkeypatch.setattr(tarpit, "BURST", 0.0)
    coming: list[Any] = [{"type": "http.request", "body": b"x" * 65536, "more_body": True}] * 3
    coming.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return coming.pop(0)

    pit = Tarpit(1 / HELD_SECONDS_MAX)
    assert asyncio.run(pit.hold("a", 0, receive)) < HELD_SECONDS_MAX / 2
    assert not coming
    assert not pit.held


def test_of_an_endless_body_little_is_received_while_its_answer_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else who sends gigabytes has the server read them, at a core's cost."""
    monkeypatch.setattr(tarpit, "BURST", 0.0)
    received = 0

    async def receive() -> Any:
        nonlocal received
        received += 65536
        await asyncio.sleep(0)
        return {"type": "http.request", "body": b"x" * 65536, "more_body": True}

    assert asyncio.run(Tarpit(5.0).hold("a", 0, receive)) >= 0.15
    assert received <= tarpit.DROPPED_BYTES_MAX


@pytest.mark.slow
def test_clients_without_credentials_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token that has run out is refused, and its client gets a new one once it hears that."""
    monkeypatch.setattr(tarpit, "BURST", 5.0)

    class Unknown(Security):
        is_on = True

        def identify(self, shown: Any) -> Any:
            raise UnauthenticatedError("the bearer token is not valid")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=401)(scope, receive, send)

    limits = Limits(app, LimitSettings(refused_per_second=PER_SECOND), Unknown())

    async def ask(address: str) -> float:
        async def send(message: Any) -> None:
            pass

        headers = [(b"authorization", b"Bearer old"), (b"content-length", b"2")]
        scope: dict[str, Any] = {"type": "http", "path": "/v1/config", "method": "GET"}
        scope |= {"headers": headers, "client": (address, 1)}
        await limits(scope, nothing_more, send)
        held: Any = scope.get(tarpit.HELD_SECONDS, 0.0)
        return float(held)

    async def run() -> None:
        crowd = [asyncio.create_task(ask(f"2001:db8::{number}")) for number in range(100)]
        while limits._tarpit.held < 90:
            await asyncio.sleep(0)
        assert await ask("2001:db8:0:1::1") == 0.0
        assert await ask("10.0.0.1") == 0.0
        await asyncio.gather(*crowd)

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1", "10.0.0.1/"),
        ("2001:db8::1:2", "2001:db8::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not:an:address", "not:an:address/"),
    ],
)
def test_addresses_of_one_client_count_as_one(address: str, found: str) -> None:
    assert tarpit.address_of({"client": (address, 1)}) == found


def test_metrics_and_log_tell_a_held_answers_time_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else one client's refusals look like a slow server."""
    monkeypatch.setattr(tarpit, "BURST", 0.0)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await Response(status_code=403)(scope, receive, send)

    metrics = Metrics()
    watched = Observe(Limits(app, LimitSettings(refused_per_second=5)), metrics)

    async def send(message: Any) -> None:
        pass

    scope = {"type": "http", "path": "/v1/config", "method": "GET", "headers": []}
    with caplog.at_level("INFO", "consumers.http"):
        asyncio.run(watched(scope, nothing_more, send))
    assert 'request_seconds_bucket{le="0.1",operation="iceberg"} 1.0' in metrics.text().decode()
    assert "held_milliseconds=2" in caplog.text


def test_a_server_that_ends_tells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks are cancelled, and each would leave a traceback in the log."""
    monkeypatch.setattr(tarpit, "BURST", 0.0)
    pit = Tarpit(1 / HELD_SECONDS_MAX)

    async def run() -> float:
        held = asyncio.create_task(pit.hold("a", 0, nothing_more))
        while not pit.held:
            await asyncio.sleep(0)
        held.cancel()
        return await held

    assert asyncio.run(run()) < HELD_SECONDS_MAX / 2
    assert not pit.held


@pytest.mark.parametrize("is_guarded", [False, True])
def test_that_a_table_exists_is_an_ordinary_answer_to_lancedb_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_guarded: bool
) -> None:
    """Its client takes 409 for something else, so it gets 400, and goes on with `exist_ok`."""
    monkeypatch.setattr(tarpit, "BURST", 0.0)
    headers, settings = {}, ServerSettings()
    if is_guarded:
        key = "alice-0123456789abcdef"
        shown = f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"
        (tmp_path / "access.toml").write_text(
            f'keys.alice = "{shown}"\n[[grants]]\nto = "alice"\non = "$"\ncan = "admin"\n'
        )
        headers = {"x-api-key": key}
        settings = ServerSettings(security=Security(AccessFile(tmp_path / "access.toml")))
    world = World(tmp_path, server=settings)
    create = partial(world.rows, rows=numbers(0, 3), headers=headers)
    try:
        assert create("/v1/table/t/create/")[0] == 200
        asked: list[int] = []

        def seconds(pit: Tarpit, client: str, received_bytes: int) -> float:
            asked.append(received_bytes)
            return 0.0

        monkeypatch.setattr(Tarpit, "seconds", seconds)
        assert create("/v1/table/t/create/")[0] == 400
        assert not asked
        assert create("/v1/table/t/create/?mode=none")[0] == 400
        assert len(asked) == 1
        assert not says_that_it_exists(b""), "the answer to a client that left"
    finally:
        world.close()
