"""Does every request leave a count, a line and a trace, and no secret in any of them?"""

import asyncio
import errno
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message

from consumers.runtime.log_lines import JsonLines
from consumers.runtime.roots import listen
from consumers.servers import observing
from consumers.servers.metrics import Metrics
from consumers.servers.security.access_file import AccessFile
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings, _Server, make_app, serve
from tests.namespace_world import World, numbers
from tests.page_server import NoHealth
from tests.waiting import wait_until

SECRET = "a-key-that-nobody-may-see"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    running: list[World] = []
    statuses = Metrics(lambda: {0: running[0].log.runtime().request(0, "status")})
    root = tmp_path_factory.mktemp("observing")
    running.append(World(root, server=ServerSettings(metrics=statuses)))
    yield running[0]
    running[0].close()


def samples(world: World) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    status, text = world.send("GET", "/metrics")
    assert status == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: dict[Any, float], name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0.0)


def test_prometheus_reads_requests_commits_outcomes_and_leaders(world: World) -> None:
    before = samples(world)
    world.rows("/v1/table/m$t/create", numbers(0, 3))
    world.post("/v1/table/m$t/declare")
    world.send("BREW", "/v1/table/m$t/declare")
    after = samples(world)
    labels = {"operation": "CreateTable", "method": "POST", "status": "200"}
    assert value(after, "commitlog_http_requests_total", **labels) == 1
    labels = {"operation": "DeclareTable", "method": "POST", "status": "409"}
    assert value(after, "commitlog_http_requests_total", **labels) == 1
    assert value(after, "commitlog_http_request_seconds_count", operation="CreateTable") == 1
    committed = {"partition": "0", "status": "committed"}
    grown = [value(s, "commitlog_outcomes_total", **committed) for s in (before, after)]
    assert grown[1] == grown[0] + 1
    assert value(after, "commitlog_outcomes_total", partition="0", status="rejected") == 1
    assert value(after, "commitlog_commit_seconds_count", status="committed") >= 1
    assert value(after, "commitlog_leader_ready", partition="0") == 1
    assert value(after, "commitlog_log_sequence", partition="0") > 1
    names = {name for name, _ in after}
    assert {"commitlog_queue_transactions", "commitlog_materializer_lag_outcomes"} <= names


def lines(caplog: pytest.LogCaptureFixture, operation: str) -> list[dict[str, Any]]:
    """Return the lines of an operation; one is written just after its answer was sent."""

    def found() -> list[dict[str, Any]]:
        form = JsonLines("server")
        lines = [json.loads(form.format(record)) for record in caplog.records]
        return [line for line in lines if line.get("operation") == operation]

    return wait_until(found, f"a line about {operation}")


def test_a_line_says_what_an_operator_searches_by(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "consumers.http")
    path = "/v1/table/m$line/declare?delimiter=$"
    status, body = world.post(
        path, {"identity": {"api_key": SECRET}}, headers={"x-api-key": SECRET, "x-evil": "a\tb"}
    )
    assert status == 200
    (line,) = lines(caplog, "DeclareTable")
    assert line["transaction"] == body["transaction_id"]
    assert (line["status"], line["level"], line["part"]) == (200, "debug", "server")
    assert line["object"] == "m$line"
    assert line["position"] > 0
    assert line["milliseconds"] > 0
    assert SECRET not in "".join(map(JsonLines("server").format, caplog.records))


@pytest.mark.parametrize("path", ["/v1/namespaces/home/tables/t", "/api/tables", "/v1/sql"])
def test_a_line_says_who_was_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """Lines of all but Lance's operations left that out."""
    caplog.set_level(logging.INFO, "consumers.http")
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    (tmp_path / "access.toml").write_text(f'keys.stranger = "sha256:{digest}"\n')
    security = Security(AccessFile(tmp_path / "access.toml"))
    app = make_app(None, settings=ServerSettings(security=security))

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        pass

    for key, status in ((SECRET, 403), ("wrong", 401)):
        headers = [(b"x-api-key", key.encode())]
        scope = {"type": "http", "path": path, "method": "GET", "headers": headers}
        asyncio.run(app({**scope, "query_string": b""}, receive, send))
        line = caplog.messages[-1]
        assert f" {status} in " in line
        assert ("principal=stranger" in line) is (status == 403), line


def test_one_request_is_one_line(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "consumers.http")
    status, _ = world.post("/v1/table/m%0Aforged%20line/describe")
    assert status == 400
    # It is refused before it has an operation.
    wait_until(lambda: [one for one in caplog.records if "forged" in one.getMessage()], "its line")
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_a_trace_spans_a_request_and_goes_on_with_its_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(observing, "_tracer", lambda: provider.get_tracer("test"))
    world = World(tmp_path)
    trace = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace}-b7ad6b7169203331-01", "x-api-key": SECRET}
    try:
        _, body = world.post("/v1/table/m$t/declare", headers=headers)
    finally:
        world.close()
    (span,) = [span for span in exporter.get_finished_spans() if span.name == "DeclareTable"]
    assert f"{span.context.trace_id:032x}" == trace
    attributes = dict(span.attributes or {})
    assert attributes["commitlog.transaction"] == body["transaction_id"]
    assert attributes["http.response.status_code"] == 200
    assert SECRET not in span.to_json()


def test_without_an_endpoint_nothing_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert observing._tracer() is None


def test_a_server_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(self: _Server, sockets: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(_Server, "serve", refused)
    health: Any = NoHealth()
    with pytest.raises(OSError, match="Too many open files"):
        serve(health, listen("127.0.0.1", 0), stop=threading.Event(), on_ready=lambda address: None)
