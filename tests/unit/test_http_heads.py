"""What a request's head says, and what it may not: upgrades, trailers, repeated fields, pages."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse

import pytest

from consumers.servers.security.request_heads import is_foreign
from consumers.servers.server_heads import LimitedHeads
from tests.namespace_world import World

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
KEYS = tuple(f"0190a0a0-0000-7000-8000-00000000be0{number}" for number in (1, 2, 3))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("heads"))
    yield made
    made.close()


@pytest.fixture
def connection(world: World) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", world.iceberg.port), timeout=60) as made:
        yield made


def create(
    connection: socket.socket, name: str, fields: str, trailers: str = ""
) -> tuple[int, bytes]:
    """Create a namespace by a chunked body; return status and body of the answer."""
    body = f'{{"properties": {{"name": "{name}"}}}}'
    connection.sendall(
        f"POST /v1/namespace/{name}/create HTTP/1.1\r\nHost: x\r\n{fields}"
        "Transfer-Encoding: chunked\r\n\r\n"
        f"{len(body):x}\r\n{body}\r\n0\r\n{trailers}\r\n".encode()
    )
    response = HTTPResponse(connection)
    response.begin()
    return response.status, response.read()


def test_an_upgrade_that_is_not_served_is_passed_over(
    world: World, connection: socket.socket
) -> None:
    """Java's own client asks for HTTP/2 like this, with each request until it is answered."""
    for field in (H2C, H2C.lower(), ""):
        name = world.fresh_name()
        status, answer = create(connection, name, field)
        assert status == 200, answer
        assert json.loads(answer)["properties"] == {"name": name}


def test_an_upgrade_is_passed_over_however_it_arrives(
    world: World, connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = LimitedHeads.data_received

    def by_bytes(self: LimitedHeads, data: bytes) -> None:
        for byte in data:
            whole(self, bytes([byte]))

    monkeypatch.setattr(LimitedHeads, "data_received", by_bytes)
    for field in (H2C, H2C.lower(), ""):
        name = world.fresh_name()
        status, answer = create(connection, name, field)
        assert status == 200, answer
        assert json.loads(answer)["properties"] == {"name": name}


@pytest.mark.parametrize("coding", ["gzip, chunked", "identity, chunked"])
def test_a_transfer_coding_that_is_not_undone_is_refused(
    world: World, connection: socket.socket, coding: str
) -> None:
    """What came would be taken for the body, compressed as it is."""
    name = world.fresh_name()
    connection.sendall(
        f"POST /v1/namespace/{name}/create HTTP/1.1\r\nHost: x\r\n"
        f"Transfer-Encoding: {coding}\r\n\r\n0\r\n\r\n".encode()
    )
    response = HTTPResponse(connection)
    response.begin()
    answer = response.read()
    assert (response.status, coding.encode() in answer) == (501, True), answer
    assert world.send("GET", f"/v1/namespaces/{name}")[0] == 404


def test_spaces_around_a_field_are_no_part_of_it(world: World, connection: socket.socket) -> None:
    """A proxy may add them; the parser leaves those behind it."""
    fields = f"Idempotency-Key: \t {KEYS[2]} \t\r\nx-lance-ctx-by:  me \t \r\n"
    status, answer = create(connection, world.fresh_name(), fields)
    assert (status, json.loads(answer).get("transaction_id")) == (200, KEYS[2]), answer
    assert dict(world.record(KEYS[2]).properties)["context.by"] == "me"


def send_creation(connection: socket.socket, name: str, rest: str = "") -> None:
    """Ask for a namespace, and send what doesn't belong to the request."""
    body = f'{{"namespace": ["{name}"]}}'
    head = f"POST /v1/namespaces HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(f"{head}{body}{rest}".encode())


def expect_creation(connection: socket.socket, name: str) -> None:
    """See that it was made, and that the connection ends with the answer."""
    response = HTTPResponse(connection)
    response.begin()
    assert (response.status, json.loads(response.read())["namespace"]) == (200, [name])
    assert connection.recv(1) == b""


def test_a_client_that_sends_no_more_gets_its_answer(
    world: World, connection: socket.socket
) -> None:
    name = world.fresh_name()
    send_creation(connection, name)
    connection.shutdown(socket.SHUT_WR)
    expect_creation(connection, name)


def test_a_reader_that_leaves_its_feed_is_gone_at_once(
    world: World, connection: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the feeds that a page left would take requests from others until a heartbeat fails."""
    gone, lost = threading.Event(), LimitedHeads.connection_lost

    def told(self: LimitedHeads, exc: Exception | None) -> None:
        lost(self, exc)
        gone.set()

    monkeypatch.setattr(LimitedHeads, "connection_lost", told)
    connection.sendall(b"GET /v1/log/feed HTTP/1.1\r\nHost: x\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 200"
    connection.shutdown(socket.SHUT_WR)
    assert gone.wait(10)


def test_trailers_are_no_headers(world: World, connection: socket.socket) -> None:
    """A proxy in front removes or sets headers, but passes trailers on."""
    trailers = f"Idempotency-Key: {KEYS[0]}\r\nx-lance-ctx-by: trailer\r\n"
    status, answer = create(connection, world.fresh_name(), "x-lance-ctx-of: header\r\n", trailers)
    assert status == 200, answer
    made = json.loads(answer)["transaction_id"]
    assert made != KEYS[0]
    assert dict(world.record(made).properties) == {"context.of": "header"}


def test_of_a_field_that_is_there_twice_the_first_counts(
    world: World, connection: socket.socket
) -> None:
    twice = "".join(f"Idempotency-Key: {key}\r\n" for key in KEYS[:2])
    status, answer = create(connection, world.fresh_name(), twice)
    assert (status, json.loads(answer)["transaction_id"]) == (200, KEYS[0])
    asked = json.dumps({"namespace": [world.fresh_name()]})
    connection.sendall(
        f"POST /v1/namespaces HTTP/1.1\r\nHost: x\r\nIdempotency-Key: {KEYS[1]}\r\n"
        f"Idempotency-Key: {KEYS[0]}\r\nContent-Length: {len(asked)}\r\n\r\n{asked}".encode()
    )
    response = HTTPResponse(connection)
    response.begin()
    assert response.status == 200, response.read()
    assert world.record(KEYS[1]).operations


def test_who_sends_all_of_a_body_gets_the_answer_that_came_before_it(
    connection: socket.socket,
) -> None:
    """Python's urllib sends all before it reads, and asks for the connection to be closed."""
    body = b"x" * (8 << 20)
    connection.sendall(
        b"POST /v1/table/nobody/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Content-Length: %d\r\n\r\n" % len(body)
    )
    assert connection.recv(1, socket.MSG_PEEK), "it is answered at once"
    connection.sendall(body)
    response = HTTPResponse(connection)
    response.begin()
    assert response.status == 404, response.read()
    assert json.loads(response.read())["code"] == 0
    assert connection.recv(1) == b""


@pytest.mark.parametrize("step", [4096, 1 << 20])
@pytest.mark.parametrize(
    ("begins", "more", "status", "kind"),
    [
        ("GET /v1/namespaces/", "n" * 70_000, 414, "URITooLongException"),
        ("GET /v1/table/x?q=", "n" * 70_000, 414, 13),
        ("GET /v1/namespaces HTTP/1.1\r\nHost: x\r\nx: ", "n" * 70_000, 431, "RequestHeaderFields"),
        ("GET /v1/table/x HTTP/1.1\r\nHost: x\r\n", "x: y\r\n" * 600, 431, 13),
        ("no such thing\r\n", "\r\n", 400, 13),
        ("\r\n", "\r\n" * 40_000, 431, 13),
    ],
)
def test_a_head_that_is_no_request_is_refused_in_its_routes_shape(
    connection: socket.socket, step: int, begins: str, more: str, status: int, kind: str | int
) -> None:
    sent = f"{begins}{more}\r\n\r\n".encode()
    with contextlib.suppress(ConnectionError):
        for at in range(0, len(sent), step):
            connection.sendall(sent[at : at + step])
            if step < len(sent):
                time.sleep(0.002)
    response = HTTPResponse(connection)
    response.begin()
    told = json.loads(response.read())
    assert response.status == status
    if isinstance(kind, int):
        assert told["code"] == kind
    else:
        assert told["error"]["type"].startswith(kind)
    assert len(told.get("instance", "")) <= 200
    with contextlib.suppress(ConnectionResetError):  # it ended while more was on its way
        assert connection.recv(1) == b""


def test_what_makes_no_sense_after_a_request_does_not_take_its_answer(
    world: World, connection: socket.socket
) -> None:
    """A client that counts its body wrongly would hear 400 for what was carried out."""
    name = world.fresh_name()
    send_creation(connection, name, "}}more\r\n\r\n")
    expect_creation(connection, name)


def test_who_is_answered_before_its_body_was_asked_for_sends_no_more_here(
    connection: socket.socket,
) -> None:
    """It may leave the body out, and the next request would be taken for it."""
    expects = b"Host: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    connection.sendall(b"POST /v1/namespace/$/describe HTTP/1.1\r\n" + expects)
    assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(b"{}")
    response = HTTPResponse(connection)
    response.begin()
    assert (response.status, response.getheader("Connection")) == (200, None), response.read()
    response.read()
    connection.sendall(b"POST /v1/nothing HTTP/1.1\r\n" + expects)
    response = HTTPResponse(connection)
    response.begin()
    assert (response.status, response.getheader("Connection")) == (404, "close"), response.read()
    response.read()
    connection.sendall(b"{}")
    assert connection.recv(1) == b""


def test_a_connection_whose_body_makes_no_sense_ends_at_once(connection: socket.socket) -> None:
    connection.sendall(
        b"POST /v1/table/nobody/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    assert connection.recv(1, socket.MSG_PEEK), "it is answered at once"
    connection.sendall(b"no chunk\r\n")
    while connection.recv(4096):
        pass


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_changes_nothing(world: World, site: str) -> None:
    """Browsers send such requests unasked, with a body of text; they only hide the answer."""
    name = world.fresh_name()
    sent = {"Sec-Fetch-Site": site, "Content-Type": "text/plain"}
    asked = json.dumps({"namespace": [name]}).encode()
    for path, body in (("/v1/namespaces", asked), (f"/v1/namespace/{name}/create", b"")):
        assert world.send("POST", path, body, sent)[0] == 403
        assert world.send("GET", f"/v1/namespaces/{name}")[0] == 404
    assert world.send("GET", "/v1/namespaces", b"", sent)[0] == 200
    sent["Sec-Fetch-Site"] = "same-origin"
    assert world.send("POST", "/v1/namespaces", asked, sent)[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example.com:2333", "localhost.evil.com", "127.0.0.1.nip.io"]
)
def test_a_page_whose_name_leads_to_this_machine_gets_nothing(world: World, host: str) -> None:
    """Its browser takes the server for the page's own site, so nothing else tells it apart."""
    asked = json.dumps({"namespace": [world.fresh_name()]}).encode()
    for method, body in (("GET", b""), ("POST", asked)):
        status, said = world.send(method, "/v1/namespaces", body, {"Host": host})
        assert (status, "--http-hosts" in said["error"]["message"]) == (403, True), said


@pytest.mark.parametrize(
    "host",
    [
        *("", "127.0.0.1", "127.0.0.2:80", "[::1]:2333", "10.1.2.3:2333", "LOCALHOST:2333"),
        *("a.localhost", "localhost.", "commitlog:2333", "host.docker.internal:2333"),
        *("commitlog.lake.svc.cluster.local", "log.example.com:80", socket.gethostname()),
    ],
)
def test_the_names_that_clients_use_are_served(host: str) -> None:
    assert not is_foreign(("127.0.0.1", 2333), host, frozenset({"log.example.com"}))


def test_names_count_only_where_a_browser_of_this_machine_may_ask() -> None:
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert is_foreign((address, 2333), "evil.com", frozenset())
        assert not is_foreign((address, 2333), "evil.com", frozenset({"*"}))
    for server in (("10.1.2.3", 2333), ("/run/socket", None), None):
        assert not is_foreign(server, "evil.com", frozenset())


def exchange(connection: socket.socket, sent: bytes) -> bytes:
    """Send a request; return all that comes until the server ends the connection.

    To end our half of it would be a race: the server sends no answer to whoever has gone.
    """
    connection.sendall(sent)
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_client_of_http_1_0_gets_no_chunks(connection: socket.socket) -> None:
    """It would take their lengths for what it asked for."""
    answer = exchange(connection, b"GET /v1/log/feed?seconds=0.01 HTTP/1.0\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"chunked" not in head.lower()
    assert body.startswith(b"retry: ")
    assert body.endswith(b"\n\n")


def test_a_client_of_http_1_0_is_not_told_to_continue(connection: socket.socket) -> None:
    asked = b"POST /v1/namespace/$/describe HTTP/1.0\r\nExpect: 100-continue\r\n"
    answer = exchange(connection, asked + b"Content-Length: 2\r\n\r\n{}")
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("head", "status", "says"),
    [
        (b"GET /v1/config HTTP/1.1\r\n", 400, b"0 Host headers"),
        (b"GET /v1/config HTTP/1.1\r\nHost: a\r\nhost: a\r\n", 400, b"2 Host headers"),
        (b"GET /v1/config HTTP/1.0\r\nHost: a\r\nHost: b\r\n", 400, b"2 Host headers"),
        (b"GET /v1/config HTTP/1.1\r\nHost: a, b\r\n", 400, b"names no host"),
        (b"GET /v1/config HTTP/1.1\r\nHost: user@a\r\n", 400, b"names no host"),
        (b"GET /v1/config HTTP/1.1\r\nHost: a/b\r\n", 400, b"names no host"),
        (b"GET /v1/config HTTP/2.0\r\nHost: a\r\n", 505, b"use HTTP/1.1"),
        (b"GET /v1/config\r\n", 505, b"use HTTP/1.1"),
        *(
            (b"GET /v1/config HTTP/1.1\r\nHost: " + host + b"\r\n", 200, b"endpoints")
            for host in (b"", b"a_b:80 ", b"[::1]:80", b"[fe80::1%eth0]", b"127.0.0.1:", b"x")
        ),
    ],
)
def test_a_request_names_one_host_and_a_version_that_is_served(
    connection: socket.socket, head: bytes, status: int, says: bytes
) -> None:
    """Else what stands in front of the server may take it for another one's."""
    answer = exchange(connection, head + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert says in answer
    assert b"\r\ndate: " in answer


def test_an_upgrade_behind_another_request_does_not_take_its_body_away(
    world: World, connection: socket.socket
) -> None:
    """Its body was dropped, and what came after it was taken for the next request."""
    name = world.fresh_name()
    asked = (
        b"GET /v1/config HTTP/1.1\r\nHost: x\r\n\r\n"
        b"POST /v1/namespace/%s/create HTTP/1.1\r\nHost: x\r\n" % name.encode()
    )
    answer = exchange(connection, asked + H2C.encode() + b"Content-Length: 2\r\n\r\n{}")
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == 1
    assert world.send("GET", f"/v1/namespaces/{name}")[0] == 404
