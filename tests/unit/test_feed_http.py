"""Server-sent events: no gap and no repetition over reconnects, heartbeats, limits, an end."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.servers import server
from consumers.servers.feed import FeedSettings, feed_routes
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings
from tests.feed_reading import HttpFollower, told
from tests.page_server import NoHealth, serving_routes
from tests.service import SCHEMA, Service, rows, service
from tests.waiting import wait_until

WAIT_SECONDS = 180.0
COMMITS = 12
ANOTHER_LOG = (
    base64.urlsafe_b64encode(b'{"v":1,"log":"other","at":[[1,1,1,""]]}').decode().rstrip("=")
)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("feed")) as running:
        running.client.create_table("t", SCHEMA)
        running.client.create_table("u", SCHEMA)
        for number in range(COMMITS):
            running.client.append("t", rows(number))
        yield running


@pytest.fixture(scope="module")
def uri(shop: Service) -> Iterator[str]:
    settings = FeedSettings(feeds_max=2, heartbeat_seconds=0.3, seconds_max=120)
    with serving_routes(feed_routes(shop.client, settings)) as running:
        yield running


class Feed:
    """One connection, read message by message."""

    def __init__(
        self, uri: str, last_id: str | None = None, *, key: str = "", **parameters: Any
    ) -> None:
        place = urllib.parse.urlsplit(uri)
        self._connection = http.client.HTTPConnection(place.netloc, timeout=WAIT_SECONDS)
        headers = {"Last-Event-ID": last_id} if last_id else {}
        headers |= {"x-api-key": key} if key else {}
        query = urllib.parse.urlencode(parameters, doseq=True)
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            self._connection.request("GET", f"/v1/feed?{query}", headers=headers)
            self.response = self._connection.getresponse()
            # A feed that was cut off frees its place a moment later.
            if self.response.status != 503 or time.monotonic() > deadline:
                break
            self.response.read()
            time.sleep(0.05)
        self.status = self.response.status

    def message(self) -> dict[str, str] | None:
        """Return the fields of the next message; None at the end."""
        fields: dict[str, str] = {}
        while line := self.response.readline().decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name or "comment"] = value
        return None

    def event(self) -> tuple[str, Any]:
        """Return the next event's id and content."""
        deadline = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < deadline:
            message = self.message()
            assert message is not None
            if "data" in message:
                return message["id"], json.loads(message["data"])
        raise AssertionError("no event came in time")

    def cut(self) -> None:
        """Hang up without a word."""
        self._connection.close()
        self.response.close()


@pytest.mark.slow
def test_a_client_that_is_cut_off_again_and_again_misses_nothing(uri: str, shop: Service) -> None:
    found: list[int] = []
    last_id = None
    due = len(told(shop.client, "t", "beginning")) + 3  # to come
    while len(found) < due:
        feed = Feed(uri, last_id, table=["t"], **{"from": "beginning"})
        assert feed.status == 200
        for _ in range(min(3, due - len(found))):
            if len(found) == COMMITS + 1:
                shop.client.append("u", rows(1))
                for number in range(3):
                    shop.client.append("t", rows(number))
            last_id, event = feed.event()
            found.append(event["data"]["sequence"])
        feed.cut()
    wanted = [event.sequence for event in told(shop.client, "t", "beginning")]
    assert found == wanted


@pytest.mark.slow
def test_a_feed_goes_on_over_a_restart_of_its_server_and_a_change_of_leader(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table("t", SCHEMA)
        routes = feed_routes(log)
        with serving_routes(routes) as uri:
            feed = HttpFollower(int(uri.rpartition(":")[2]), "t")
            log.append("t", rows(1))
            wait_until(lambda: len(feed.sequences) == 2, "events of the first server")
        log.append("t", rows(2))
        standby = running.start(tmp_path / "standby")
        running.running[0].stop()
        standby.await_leading()
        log.append("t", rows(3))
        with serving_routes(routes, port=feed.port):
            log.append("t", rows(4))
            wanted = [event.sequence for event in told(log, "t", "beginning")]
            wait_until(lambda: len(feed.sequences) >= len(wanted), "events of the next server")
            feed.close()
        assert (feed.sequences, feed.refused) == (wanted, "")
        assert len(wanted) == 5


@pytest.mark.slow
def test_a_server_that_ends_ends_its_feeds(shop: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SHUTDOWN_SECONDS", 4 * WAIT_SECONDS)
    stop, ready = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    serving = threading.Thread(
        target=server.serve,
        args=(NoHealth(), listener),
        kwargs={
            "routes": feed_routes(shop.client),
            "stop": stop,
            "on_ready": lambda address: ready.set(),
        },
    )
    serving.start()
    assert ready.wait(WAIT_SECONDS)
    feed = Feed(f"http://127.0.0.1:{port}")
    assert feed.message() is not None
    stop.set()
    serving.join(60)
    has_ended = not serving.is_alive()
    feed.cut()
    serving.join(WAIT_SECONDS)
    assert has_ended


def test_heartbeats_move_the_id_along_past_what_is_left_out(uri: str, shop: Service) -> None:
    feed = Feed(uri, table="u")
    first = feed.message()
    assert first is not None
    assert first["retry"] == "1000"
    shop.client.append("t", rows(5))
    moved, deadline = first["id"], time.monotonic() + WAIT_SECONDS
    while moved == first["id"]:
        message = feed.message()
        assert message is not None
        assert message["comment"] == "heartbeat"
        assert "data" not in message
        moved = message["id"]
        assert time.monotonic() < deadline
    feed.cut()
    outcome = shop.client.append("u", rows(6))
    again = Feed(uri, moved, table="u")
    assert again.event()[1]["data"]["sequence"] == outcome.sequence
    again.cut()


@pytest.mark.slow
def test_a_feed_ends_when_its_time_is_over(uri: str) -> None:
    feed = Feed(uri, seconds="0.5", **{"from": "now"})
    messages = []
    while (message := feed.message()) is not None:
        messages.append(message)
    feed.cut()
    assert messages
    assert all("data" not in message for message in messages)


def test_a_feed_s_head_holds_neither_a_place_nor_the_connection(uri: str) -> None:
    # Less than the time after which a feed ends.
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(uri).netloc, timeout=100)
    for _ in range(4):  # more than there are places
        connection.request("HEAD", "/v1/feed")
        response = connection.getresponse()
        assert response.status in (200, 503)
        assert response.read() == b""
    connection.close()


@pytest.mark.parametrize(
    ("parameters", "error", "said"),
    [
        ({"from": "rubbish"}, (400, 13), "token"),
        ({"from": "٣"}, (400, 13), "token"),
        ({"from": "999999"}, (400, 13), "beyond the end"),
        ({"from": ANOTHER_LOG}, (400, 13), "the resume token is of log 'other'"),
        ({"table": "a/b"}, (400, 13), "table"),
        ({"table": "nobody"}, (404, 4), "the log has no table nobody"),
        ({"table": "nobody$*"}, (404, 1), "the log has no namespace 'nobody'"),
        ({"seconds": "0"}, (400, 13), "seconds"),
        ({"seconds": "nan"}, (400, 13), "seconds"),
        ({"seconds": "1e9"}, (400, 13), "seconds"),
    ],
)
def test_bad_input_says_what_is_wrong(
    uri: str, parameters: dict[str, str], error: tuple[int, int], said: str
) -> None:
    feed = Feed(uri, **parameters)
    body = json.loads(feed.response.read())
    feed.cut()
    assert (feed.status, body["code"]) == error, body
    assert said in body["error"]


def test_too_many_feeds_are_told_to_come_back_later(uri: str) -> None:
    held = [Feed(uri), Feed(uri)]
    place = urllib.parse.urlsplit(uri)
    connection = http.client.HTTPConnection(place.netloc, timeout=WAIT_SECONDS)
    connection.request("GET", "/v1/feed")
    response = connection.getresponse()
    assert response.status == 503
    assert response.headers["Retry-After"]
    response.read()
    connection.close()
    for one in held:
        one.cut()
    # The places come free: somebody who hung up holds nothing.
    again = Feed(uri)
    assert again.status == 200
    again.cut()


def test_one_client_leaves_feeds_to_the_others(shop: Service, tmp_path: Path) -> None:
    keys = "".join(
        f'{name} = "sha256:{hashlib.sha256(name.encode()).hexdigest()}"\n' for name in ("a", "b")
    )
    grant = '[[grants]]\nto = "*"\non = "$"\ncan = "read"\n'
    access = tmp_path / "access.toml"
    access.write_text(f"[keys]\n{keys}{grant}")
    security = ServerSettings(security=Security(AccessFile(access)))
    routes = feed_routes(shop.client, FeedSettings(feeds_max=4))
    with serving_routes(routes, security) as uri:
        held = [Feed(uri, key="a") for _ in range(3)]
        assert [feed.status for feed in held] == [200] * 3
        refused = Feed(uri, key="a")
        assert refused.status == 429
        assert refused.response.headers["Retry-After"]
        assert "3 of your feeds" in refused.response.read().decode()
        held.append(Feed(uri, key="b"))
        assert held[-1].status == 200
        for feed in (*held, refused):
            feed.cut()


def test_a_feed_ends_once_its_reader_has_no_grant_any_more(shop: Service, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"a").hexdigest()
    access = tmp_path / "access.toml"
    grant = '[[grants]]\nto = "a"\non = "$"\ncan = "read"\n'
    access.write_text(f'[keys]\na = "sha256:{digest}"\n{grant}')
    security = ServerSettings(security=Security(AccessFile(access)))
    with serving_routes(feed_routes(shop.client), security) as uri:
        feed = Feed(uri, key="a", seconds="60")
        assert feed.status == 200
        access.write_text(f'[keys]\na = "sha256:{digest}"\n{grant.replace("$", "other")}')
        begun, messages = time.monotonic(), []
        while (message := feed.message()) is not None:
            messages.append(message)
        feed.cut()
        assert time.monotonic() - begun < 30
    assert messages[-1]["event"] == "error"
    assert "a may not read the root namespace" in messages[-1]["data"]


def test_a_feed_that_cannot_begin_gives_its_place_back() -> None:
    class Broken:
        def subscribe(self, *arguments: Any, **options: Any) -> Any:
            raise OSError("too many open files")

    log: Any = Broken()
    with serving_routes(feed_routes(log, FeedSettings(feeds_max=1))) as uri:
        place = urllib.parse.urlsplit(uri).netloc
        for _ in range(3):
            connection = http.client.HTTPConnection(place, timeout=WAIT_SECONDS)
            connection.request("GET", "/v1/feed")
            assert connection.getresponse().status == 500
            connection.close()
