"""Hostile bodies: refused before they cost much, whatever they hold."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import resource
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError
from starlette.requests import Request
from starlette.responses import Response

from commitlog.core.iceberg.reading import has_more_values
from commitlog.model.limits import JSON_VALUES_MAX
from consumers.servers import server_heads
from consumers.servers.namespace import time_travel
from consumers.servers.namespace.routes import COMMIT_THREADS, SPOOL_BYTES, _spooled
from consumers.servers.namespace.row_work import HAS_PROC, path_of
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.answers import OverLimit
from consumers.servers.security.budgets import DEPTH_MAX, json_problem, text_problem
from consumers.servers.security.compression import PIECE_BYTES
from consumers.servers.security.grants import Principal
from consumers.servers.security.identity import Security
from consumers.servers.security.limits import Limits, LimitSettings
from consumers.servers.server import ServerSettings
from consumers.servers.server_heads import LimitedHeads
from tests.namespace_world import ARROW_STREAM, World, arrow_stream, numbers

MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = Settings(json_bytes_max=32 * MEGABYTE, arrow_bytes_max=32 * MEGABYTE)
    server = ServerSettings(limits=LimitSettings(refused_per_second=1e9))  # no answer is held
    made = World(tmp_path_factory.mktemp("budgets"), settings=settings, server=server)
    assert made.rows("/v1/table/b$t/create", numbers(0, 5))[0] == 200
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"operations": [' + b"{}," * 4_000_000 + b"{}]}", "values"),
        (b'{"operations": [' + b"[]," * 4_000_000 + b"[]]}", "values"),
        (b"{" + b'"a":1,' * 2_000_000 + b'"b":1}', "values"),
        (b"[" * 10_000_000, "nested"),
        (b"[" * 400_000, "nested"),
        (b'{"a":' * 400_000, "nested"),
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/table/batch-commit", "/v1/transactions/commit", "/v1/table/b$t/query"]
)
def test_a_body_of_many_values_is_refused_before_it_is_parsed(
    world: World, path: str, body: bytes, problem: str
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status, answer = world.post(path, body)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert status in (400, 413), answer
    assert problem in json.dumps(answer) or "more than" in json.dumps(answer)
    # The body itself is there a few times: sent, received, joined. Its models took gigabytes.
    assert (after - before) * 1024 < 6 * len(body) + 100 * MEGABYTE
    assert world.send("GET", "/v1/table")[0] == 200


@pytest.mark.slow
def test_texts_count_as_one_value_and_vectors_fit() -> None:
    long = json.dumps({"filter": "id IN (" + "1,[{" * JSON_VALUES_MAX + ")"}).encode()
    assert json_problem(long) == ""
    vectors = json.dumps({"vector": [[0.5] * 1536] * 100}).encode()
    assert json_problem(vectors) == ""
    assert json_problem(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX) == ""
    assert "nested" in json_problem(b"[" * (DEPTH_MAX + 1))
    assert "values" in json_problem(b"[" + b"1," * JSON_VALUES_MAX + b"1]")
    assert json_problem(b'{"a": "' + b'\\",[' * JSON_VALUES_MAX + b'"}') == ""
    for texts in range(6):  # wherever a step ends
        padded = json.dumps(["x" * texts, '\\"[\\' * 200_000, [[]]]).encode()
        assert json_problem(padded) == ""


def test_a_text_without_an_end_costs_no_more_than_another() -> None:
    """Each of its quotes might begin a text: who looks at the rest for each never ends."""
    open_ended = b'"' + b'\\",' * 600_000
    began = time.thread_time()
    assert json_problem(b"[" * 100 + open_ended) == ""
    assert "nested" in json_problem(b"[" * 101 + open_ended)
    assert has_more_values(open_ended, 500_000)
    assert not has_more_values(open_ended + b'"', 500_000)
    assert time.thread_time() - began < 5


def test_texts_are_left_out_of_a_count_also_where_json_is_broken() -> None:
    """The leader's refusals are recorded, so they don't change."""
    text = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
    chance, most = random.Random(24), 3
    for _ in range(20_000):
        data = bytes(chance.choices(b'"\\,{[a', k=chance.randrange(20)))
        values = sum(map(text.sub(b'""', data).count, (b",", b"{", b"[")))
        assert has_more_values(data, most) == (values > most), data


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_a_body_in_another_encoding_is_no_way_around_the_count(world: World, encoding: str) -> None:
    """A letter may have the byte of a quote in it, and all that follows looks like one text."""
    hidden = '{"filter": "\u2201", "operations": [' + "{}," * 600_000 + "{}]}"
    for path in ("/v1/table/batch-commit", "/v1/table/b$t/query", "/v1/transactions/commit"):
        status, answer = world.post(path, hidden.encode(encoding))
        assert status == 400, answer
        assert "UTF-8" in str(answer), answer


def test_a_body_may_begin_with_a_byte_order_mark(world: World) -> None:
    name = world.fresh_name()
    asked = json.dumps({"namespace": [name]}).encode("utf-8-sig")
    assert world.post("/v1/namespaces", asked)[0] == 200
    described = json.dumps({"id": [name]}).encode("utf-8-sig")
    assert world.post(f"/v1/namespace/{name}/describe", described)[0] == 200


def test_a_batch_of_too_many_operations_is_refused_before_it_is_read(world: World) -> None:
    body = {"operations": [{"deregister_table": {"id": ["a"]}}] * 1001}
    status, answer = world.post("/v1/table/batch-commit", body)
    assert status == 400
    assert "operations has 1001 items" in answer["error"]


NUL = "a\0b"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("add_columns", {"new_columns": [{"name": NUL, "expression": "id + 1"}]}),
        ("add_columns", {"new_columns": [{"name": "c", "expression": f"'{NUL}'"}]}),
        ("alter_columns", {"alterations": [{"path": "x", "rename": NUL}]}),
        ("drop_columns", {"columns": [NUL]}),
        ("update", {"updates": [[NUL, "1"]]}),
        ("update", {"updates": [["x", "1"]], "predicate": NUL}),
        ("delete", {"predicate": f"id = '{NUL}'"}),
        ("count_rows", {"predicate": NUL}),
        ("query", {"vector": {}, "k": 1, "columns": [NUL]}),
        ("query", {"vector": {}, "k": 1, "columns": {"column_aliases": {NUL: "id"}}}),
        ("query", {"vector": {}, "k": 1, "filter": NUL}),
        ("create_index", {"column": "id", "index_type": "BTREE", "name": NUL}),
        ("create_index", {"column": NUL, "index_type": "BTREE"}),
        ("tags/create", {"tag": NUL, "version": 1}),
        ("branches/create", {"name": NUL}),
        ("rename", {"new_table_name": NUL}),
        ("schema_metadata/update", {NUL: "v"}),
        ("schema_metadata/update", {"k": NUL}),
        ("update_field_metadata", {"updates": [{"path": "x", "metadata": {"k": NUL}}]}),
        ("describe", {"tag": NUL}),
        ("describe", {"context": {"a": NUL}}),
    ],
)
def test_a_nul_is_refused_wherever_it_stands(world: World, path: str, body: Any) -> None:
    status, answer = world.post(f"/v1/table/b$t/{path}", body)
    assert (status, answer["code"]) == (400, 13), answer
    assert "NUL" in answer["error"]
    assert world.open(["b", "t"]).version == 1


@pytest.mark.parametrize(
    "path",
    [
        "/v1/table/b$t%00/describe",
        "/v1/table/b$t/describe?delimiter=%00",
        "/v1/namespace/b%00/create",
        "/v1/table/b$t/index/a%00/stats",
    ],
)
def test_a_nul_in_a_path_is_refused(world: World, path: str) -> None:
    status, answer = world.post(path, {})
    assert (status, answer["code"]) == (400, 13), answer


@pytest.mark.parametrize(
    "path",
    [
        "/v1/table/b$t%ff/describe",
        "/v1/table/b$t%c3/describe",
        "/v1/table/b$t/describe?delimiter=%fe",
        "/v1/namespaces/b/tables/%ed%a0%80",
    ],
)
def test_a_path_that_is_no_utf_8_names_nothing(world: World, path: str) -> None:
    """A server that replaces what it can't read takes two such names for one."""
    status, answer = world.post(path, {})
    assert status == 400, answer
    assert "aren't UTF-8" in str(answer)


@pytest.mark.slow
@pytest.mark.parametrize("character", ["\x01", "\x1b", "\x1f", "\x7f", "\x85"])
def test_an_unprintable_character_is_refused_wherever_it_stands(
    world: World, character: str
) -> None:
    sent, text = quote(character), f"a{character}b"
    for path in (
        *(f"/v1/table/b$t{sent}/describe", f"/v1/table/b$t/index/a{sent}/stats"),
        *(f"/v1/table/b$t/describe?delimiter={sent}", f"/v1/namespace/b{sent}/create"),
        *(f"/v1/log/transactions/{sent}", f"/v1/nothing/{sent}"),
    ):
        status, answer = world.post(path, {})
        assert (status, answer["code"]) == (400, 13), (path, answer)
    for path, body in (
        ("/v1/table/b$t/schema_metadata/update", {"k": text}),
        ("/v1/table/b$t/schema_metadata/update", {text: "v"}),
        ("/v1/table/b$t/count_rows", {"predicate": text}),
        ("/v1/table/b$t/tags/create", {"tag": text, "version": 1}),
        ("/v1/namespace/b/create", {"properties": {"a": text}}),
        ("/v1/log/transactions", {"operations": [], "properties": {"a": text}}),
    ):
        # As JSON writes it, escaped, and as it comes if JSON lets it.
        for ascii_only in (True, False):
            data = json.dumps(body, ensure_ascii=ascii_only).encode()
            status, answer = world.post(path, data)
            assert (status, answer["code"]) == (400, 13), (path, answer)
            assert "unprintable" in answer["error"]
    for path in (f"/v1/namespaces/b/tables/{sent}", f"/v1/namespaces?pageToken={sent}"):
        status, answer = world.send("GET", path)
        assert (status, answer["error"]["type"]) == (400, "BadRequestException")
    status, answer = world.post("/v1/namespaces", {"namespace": ["n"], "properties": {"a": text}})
    assert (status, answer["error"]["type"]) == (400, "BadRequestException")
    assert world.open(["b", "t"]).version == 1


def test_line_ends_are_fine_in_texts_and_iceberg_separates_levels(world: World) -> None:
    assert world.post("/v1/table/b$t/count_rows", {"predicate": "id >\n\t1\r\n"}) == (200, 3)
    assert world.post("/v1/namespaces", {"namespace": ["b", "inner"]})[0] == 200
    assert world.send("GET", "/v1/namespaces/b%1Finner")[0] == 200
    assert world.send("GET", "/v1/namespaces?parent=b%1Finner")[0] == 200
    loaded = "/v1/namespaces/b/tables/missing?referenced-by=b%1Finner%1Fv,b%1Fw"
    assert world.send("GET", loaded)[0] == 404
    assert world.send("GET", "/v1/namespaces/b%1Finner%1E")[0] == 400
    assert world.send("GET", "/v1/table/b%0At/describe")[0] == 400


def test_rows_hold_what_they_hold(world: World) -> None:
    name = world.fresh_name()
    rows = pa.table({"s": ["plain"]})
    assert world.rows(f"/v1/table/{name}$t/create", rows)[0] == 200
    operation = {"append": {"table": f"{name}$t", "rows": [{"s": "\x1b[31mred\x85"}]}}
    assert world.post("/v1/log/transactions", {"operations": [operation]})[0] == 200
    assert "\x1b[31mred\x85" in world.open([name, "t"]).to_table()["s"].to_pylist()


def test_rows_with_a_nul_in_a_name_are_refused(world: World) -> None:
    rows = arrow_stream(numbers(0, 2).rename_columns(["id", NUL]))
    for path in ("create?mode=overwrite", "insert", "insert?mode=overwrite", "merge_insert?on=id"):
        status, answer = world.rows_raw(f"/v1/table/b$t/{path}", rows)
        assert status == 400, (path, answer)
    assert world.open(["b", "t"]).version == 1


def test_lone_surrogates_are_named() -> None:
    assert "lone surrogate" in text_problem({"a": [{"b": "\ud800"}]}, "")
    assert text_problem({"a": [{"b": "\ud800"}]}, "").startswith("a[0].b:")
    assert text_problem({"a": ["é", 1, None, {"b": "c"}]}, "") == ""


def test_bodies_may_be_compressed(world: World) -> None:
    body = json.dumps({"predicate": "id > 1"}).encode()
    for name, data in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        headers = {"Content-Encoding": name}
        assert world.post("/v1/table/b$t/count_rows", data, headers=headers) == (200, 3), name
    headers = {"Content-Encoding": "gzip", "Content-Type": ARROW_STREAM}
    data = gzip.compress(arrow_stream(numbers(0, 3)))
    status, answer = world.send("POST", "/v1/table/b$z/create", data, headers)
    assert status == 200, answer
    assert world.post("/v1/table/b$z/count_rows", {}) == (200, 3)


@pytest.mark.slow
def test_compressed_bodies_are_no_larger_than_others(world: World) -> None:
    headers = {"Content-Encoding": "gzip"}
    bomb = gzip.compress(b" " * (200 * MEGABYTE))
    assert world.post("/v1/table/b$t/count_rows", bomb, headers=headers)[0] == 413
    rows = {**headers, "Content-Type": ARROW_STREAM}
    assert world.send("POST", "/v1/table/b$t/insert", bomb, rows)[0] == 413
    assert world.post("/v1/table/b$t/count_rows", b"{}", headers=headers)[0] == 400
    half = gzip.compress(b"{}" + b" " * 10_000)[:-9]
    assert world.post("/v1/table/b$t/count_rows", half, headers=headers)[0] == 400
    unknown = {"Content-Encoding": "br"}
    assert world.post("/v1/table/b$t/count_rows", b"{}", headers=unknown)[0] == 415


class _Known(Security):
    """Knows everybody by the key that they show."""

    @property
    def is_on(self) -> bool:
        return True

    def identify(self, shown: Any) -> Principal:
        return Principal(shown.api_key, "api-key")


def test_one_client_leaves_slots_for_the_others() -> None:
    go = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await go.wait()
        await Response("done")(scope, receive, send)

    limits = Limits(app, LimitSettings(requests_max=4), _Known())

    async def ask(key: str) -> int:
        statuses: list[int] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        headers = [(b"x-api-key", key.encode())]
        scope = {"type": "http", "path": "/v1/table", "method": "GET", "headers": headers}
        await limits(scope, receive, send)
        return statuses[0]

    async def run() -> tuple[list[int], int]:
        greedy = [asyncio.create_task(ask("greedy")) for _ in range(6)]
        while sum(task.done() for task in greedy) < 3:
            await asyncio.sleep(0.01)
        polite = asyncio.create_task(ask("polite"))
        await asyncio.sleep(0.2)
        go.set()
        return sorted(await asyncio.gather(*greedy)), await polite

    assert asyncio.run(asyncio.wait_for(run(), 120)) == ([200] * 3 + [429] * 3, 200)


def test_one_client_leaves_room_for_the_bodies_of_others() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no body is whole")

    settings = LimitSettings(arriving_max=4, arriving_bytes_max=4 * MEGABYTE)
    limits = Limits(app, settings, _Known())
    limits.arrive("greedy", 3)
    limits.hold("greedy", 3 * MEGABYTE)
    for more in (limits.arrive, limits.hold):
        with pytest.raises(OverLimit) as refused:
            more("greedy", 1)
        assert refused.value.status == 429
    limits.arrive("polite", 1)
    limits.hold("polite", MEGABYTE)
    with pytest.raises(OverLimit) as refused:
        limits.arrive("third", 1)
    assert refused.value.status == 503
    limits.hold("third", 1000, is_small=True)
    limits.hold("third", -1000)
    limits.arrive("greedy", -3)
    limits.hold("greedy", -3 * MEGABYTE)
    limits.arrive("", 3)  # who shows nothing in the headers
    with pytest.raises(OverLimit, match="without credentials"):
        Limits(app, settings, _Known()).hold("", 4 * MEGABYTE)


@pytest.mark.slow
def test_rows_that_arrive_fill_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows over 8 MiB are kept in files, and little may unfold to gigabytes of them."""
    settings = LimitSettings(spooled_bytes_max=20 * MEGABYTE)
    sent = gzip.compress(bytes(40 * MEGABYTE))
    with_limits = Limits(_reading, settings)
    assert asyncio.run(_upload(with_limits, sent)) == (503, b"too many rows at once")
    assert asyncio.run(_upload(with_limits, gzip.compress(bytes(20 * MEGABYTE))))[0] == 200
    free = os.statvfs("/")
    nearly_full = SimpleNamespace(f_frsize=4096, f_blocks=free.f_blocks, f_bavail=1000)
    monkeypatch.setattr(os, "statvfs", lambda path: nearly_full)
    assert asyncio.run(_upload(Limits(_reading), sent)) == (503, b"nearly full")
    assert asyncio.run(_upload(Limits(_reading), gzip.compress(bytes(7 * MEGABYTE))))[0] == 200


@pytest.mark.skipif(not HAS_PROC, reason="files without names can't be opened by others")
def test_rows_that_arrive_leave_no_file_if_the_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that has no name is gone with its processes; those for work on rows can read it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    body = os.urandom(SPOOL_BYTES + 1)

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    with asyncio.run(_spooled(Request({"type": "http", "headers": []}, receive), 2**30)) as rows:
        assert list(tmp_path.iterdir()) == []
        read = subprocess.run(["cat", path_of(rows)], capture_output=True, check=True, timeout=60)
        assert read.stdout == body


def test_rows_that_cannot_be_kept_until_they_are_whole_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing has begun by then, so a client needn't ask what became of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))

    async def receive() -> Any:
        return {"type": "http.request", "body": bytes(SPOOL_BYTES + 1), "more_body": False}

    with pytest.raises(ServiceUnavailableError, match=f"{tmp_path}/gone.*nothing was done"):
        asyncio.run(_spooled(Request({"type": "http", "headers": []}, receive), 2**30))


@pytest.mark.slow
@pytest.mark.parametrize("bodies", [1, 16])
def test_others_have_their_turn_after_each_piece_of_bodies_that_unfold(bodies: int) -> None:
    limits, sent = Limits(_reading), gzip.compress(bytes(64 * MEGABYTE // bodies))

    async def run() -> int:
        uploads = [asyncio.create_task(_upload(limits, sent)) for _ in range(bodies)]
        turns = 0
        while not all(upload.done() for upload in uploads):
            await asyncio.sleep(0)
            turns += 1
        assert {upload.result()[0] for upload in uploads} == {200}
        return turns

    assert asyncio.run(run()) > 64 * MEGABYTE // PIECE_BYTES - 2 * bodies


def raw(world: World, sent: bytes) -> bytes:
    """Send bytes on a connection of their own; return all that is answered until it ends."""
    host, _, port = world.uri.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        found = b""
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                found += piece
    return found


def test_requests_in_a_row_are_few(world: World) -> None:
    """Each is twenty bytes, and kilobytes once it is parsed; they wait for the first one."""
    first = b"POST /v1/table/b$t/count_rows HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    ends = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert (
        raw(world, first + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 20 + ends).count(
            b" 200 OK"
        )
        == 22
    )
    flood = raw(world, first + b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10_000)
    assert flood.count(b"HTTP/1.1") < 100
    assert b"connection: close" in flood


@pytest.mark.slow
def test_idle_connections_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a file of the server's, which needs files for itself."""
    monkeypatch.setattr(LimitedHeads, "connections_max", 20)
    monkeypatch.setattr(server_heads, "CROWDED_SECONDS", 0.5)
    host, _, port = world.uri.removeprefix("http://").partition(":")
    with ExitStack() as open_ones:
        crowd = [
            open_ones.enter_context(socket.create_connection((host, int(port)), timeout=60))
            for _ in range(40)
        ]
        for one in crowd[10:]:  # those beyond the limit at once, the others soon
            assert one.recv(1) == b""
        served = raw(world, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in served


def test_headers_and_parameters_are_few(world: World) -> None:
    assert b" 431 " in raw(
        world, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 10_000 + b"\r\n"
    )
    line = (
        b"POST /v1/table/b$t/describe?"
        + b"a&" * 20_000
        + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    )
    answer = raw(world, line + b"Content-Length: 2\r\n\r\n{}")
    assert b" 400 " in answer
    assert b"parameters" in answer


def test_headers_that_follow_a_body_are_bounded(world: World) -> None:
    """The parser keeps such a header until it ends."""
    head = (
        b"POST /v1/table/b$t/count_rows HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    sent = head + b"2\r\n{}\r\n0\r\nX-After: " + b"a" * 1_000_000
    assert b" 431 " in raw(world, sent)
    fine = head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    answer = raw(world, fine + b"2\r\n{}\r\n0\r\nX-After: a\r\n\r\n")
    assert answer.endswith(b"\r\n5")


@pytest.mark.slow
def test_a_body_of_small_pieces_arrives(world: World) -> None:
    body = json.dumps({"predicate": "id > 2" + " " * 300_000}).encode()
    head = b"POST /v1/table/b$t/count_rows HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    pieces = b"".join(b"1\r\n%c\r\n" % one for one in body)
    sent = head + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n"
    assert raw(world, sent).endswith(b"\r\n2")


def test_questions_about_the_past_hold_up_none_about_now(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there then may take minutes to be read from a long log."""
    go, asked = threading.Event(), threading.Semaphore(0)

    def slow(*arguments: Any) -> Any:
        asked.release()
        assert go.wait(120)
        return time_travel.as_of(*arguments)

    monkeypatch.setattr("consumers.servers.namespace.respond.as_of", slow)
    then = {"x-commitlog-sequence": "2"}
    with ThreadPoolExecutor(COMMIT_THREADS + 10) as crowd:
        waiting = [
            crowd.submit(world.post, "/v1/table/b$t/describe", {}, headers=then)
            for _ in range(COMMIT_THREADS + 10)
        ]
        assert asked.acquire(timeout=60)
        assert world.post("/v1/table/b$t/describe", {})[0] == 200
        go.set()
        assert {one.result(120)[0] for one in waiting} <= {200, 404}


def test_many_large_bodies_keep_no_small_one_out() -> None:
    limits = Limits(_reading, LimitSettings(arriving_bytes_max=4 * MEGABYTE))
    limits.hold("greedy", 4 * MEGABYTE)
    assert asyncio.run(_upload(limits, gzip.compress(bytes(1000))))[0] == 200
    assert asyncio.run(_upload(limits, gzip.compress(bytes(MEGABYTE))))[0] == 503


async def _reading(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await Response(b"read")(scope, receive, send)


async def _upload(limits: Limits, body: bytes) -> tuple[int, bytes]:
    """Send compressed rows; return the status and what of the limits' own words was in it."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", ARROW_STREAM.encode()), (b"content-encoding", b"gzip")]
    headers.append((b"content-length", str(len(body)).encode()))
    path = "/v1/table/t/insert"
    scope = {"type": "http", "path": path, "method": "POST", "headers": headers}
    await limits(scope, receive, send)
    words = (b"too many rows at once", b"nearly full")
    text = b"".join(one.get("body", b"") for one in sent)
    return sent[0]["status"], next((one for one in words if one in text), b"")


@pytest.mark.parametrize("path", ["insert", "create?mode=overwrite", "merge_insert?on=id"])
def test_rows_whose_offsets_lead_outside_are_refused(world: World, path: str) -> None:
    name = world.fresh_name()
    rows = pa.table({"id": [1, 2, 3], "b": [b"a", b"bc", b"d"]})
    assert world.rows(f"/v1/table/{name}$t/create", rows)[0] == 200
    good, bad = (array("i", [0, 1, 3, last]).tobytes() for last in (4, 1_000_000))
    sent = arrow_stream(rows)
    assert sent.count(good) == 1
    sent = sent.replace(good, bad)
    status, answer = world.rows_raw(f"/v1/table/{name}$t/{path}", sent)
    assert status == 400, answer
    assert world.open([name, "t"]).version == 1
