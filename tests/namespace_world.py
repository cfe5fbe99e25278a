"""A namespace server over a log in memory: the leader, the files, HTTP, all in this process.

Clients talk to it over a real socket, as to any server. A fault may be put between them and it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
from lance_namespace import DeclareTableResponse, DescribeTableRequest
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from commitlog import CommitLog
from commitlog.adapters.lance_namespace import GivenNamespace
from commitlog.adapters.memory import MemoryLog
from commitlog.adapters.memory_cluster import MemoryCluster
from commitlog.client.leader.runtime import RuntimeSettings
from commitlog.codecs.avro import decode_log_record
from commitlog.model.records import Transaction
from commitlog.ports import Log
from consumers.runtime.config import load
from consumers.servers.feed import feed_routes
from consumers.servers.iceberg import rest as iceberg_rest
from consumers.servers.namespace.routes import routes
from consumers.servers.namespace.settings import Settings
from consumers.servers.security.identity import Security
from consumers.servers.server import ServerSettings, make_app
from consumers.servers.server_heads import LimitedHeads
from tests.iceberg_server import IcebergServer
from tests.page_server import serving_app
from tests.service import Running

LATE_SECONDS = 0.5
ARROW_STREAM = "application/vnd.apache.arrow.stream"


@dataclass
class Faults:
    """What goes wrong with the next answers to one path."""

    path: str = ""
    answers: list[str] = field(default_factory=list)
    """`lost`: carried out, and the connection ends halfway; `late`: carried out after a while;
    a status: carried out, then that."""
    count: int = 0
    asked: list[str] = field(default_factory=list)
    """The paths of all requests so far."""


class Flaky:
    """Carries requests out, and spoils their answers."""

    def __init__(self, app: ASGIApp, faults: Faults) -> None:
        self._app = app
        self._faults = faults

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        faults = self._faults
        faults.asked.append(scope.get("path", ""))
        is_hit = scope["type"] == "http" and faults.path and scope["path"].endswith(faults.path)
        if not is_hit or not faults.answers:
            return await self._app(scope, receive, send)
        answer = faults.answers.pop(0)
        faults.count += 1

        if answer == "late":
            await asyncio.sleep(LATE_SECONDS)
            return await self._app(scope, receive, send)

        async def swallow(message: Message) -> None:
            return

        await self._app(scope, receive, swallow)
        start: dict[str, Any] = {"type": "http.response.start", "status": 200, "headers": []}
        if answer == "lost":
            start["headers"] = [(b"content-length", b"1000")]
            await send(start)
            await send({"type": "http.response.body", "body": b"{", "more_body": True})
            raise ConnectionResetError("the answer is lost on purpose")
        await send({**start, "status": int(answer)})
        return await send({"type": "http.response.body", "body": b"<html>no</html>"})


class World:
    """A running server and its log."""

    def __init__(
        self,
        root: Path,
        open_log: Callable[[], Log] | None = None,
        settings: Settings | None = None,
        request_seconds: float = 30.0,
        server: ServerSettings | None = None,
        tables_root: str = "",
        domains: Mapping[str, int] | None = None,
    ) -> None:
        """Serve a new log; its tables lie below `root` unless another place is given.

        Each of `domains` has a partition, and each partition a leader.
        """
        cluster = MemoryCluster()
        opened = self._opened = open_log or (lambda: MemoryLog(cluster))
        self._names = 0
        self._allowed = settings.locations if settings is not None else ()
        self.root = root
        self.tables_root = root / "tables"
        self._log = opened()
        self._partitions = 1 + max((domains or {}).values(), default=0)
        self._log.create(
            partitions=self._partitions,
            domains=domains or {},
            tables_root=tables_root or str(self.tables_root),
        )
        self.start_leader()
        self.log = CommitLog(
            opened, settings=RuntimeSettings(request_timeout_seconds=request_seconds)
        )
        self.faults = Faults()
        server = server or ServerSettings()
        ours = routes(self.log, settings, server.security, server.metrics)
        iceberg = _iceberg(self.log, settings or Settings(), server.security)
        served = [*ours, *iceberg, *feed_routes(self.log)]
        app: Any = Flaky(make_app(None, served, server), self.faults)
        self._serving = ExitStack()
        serving = serving_app(app, log_level="critical", http=LimitedHeads)
        self.iceberg = IcebergServer(self._serving.enter_context(serving))
        self.uri = self.iceberg.uri
        self.namespace = lance_namespace.connect("rest", {"uri": self.uri})

    def close(self) -> None:
        self._serving.close()
        self.log.close()
        self.stop_leader()
        self._log.close()

    def client(self) -> CommitLog:
        """Return a client that the server doesn't know."""
        return CommitLog(self._opened)

    def fresh_name(self) -> str:
        """Return a namespace that nobody used."""
        self._names += 1
        return f"test_{self._names}"

    def start_leader(self) -> None:
        """Have somebody decide, who begins at the last one's checkpoint."""
        self._leaders = [
            Running(self._log, self.root, partition=one, allowed_locations=self._allowed)
            for one in range(self._partitions)
        ]
        for leader in self._leaders:
            leader.await_leading()

    def stop_leader(self, partition: int | None = None) -> None:
        """Leave the log, or a partition, without anybody who decides."""
        for leader in self._leaders if partition is None else [self._leaders[partition]]:
            leader.stop()

    def post(
        self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send JSON (or bytes) and return status and decoded body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body else b""
        given = {"Content-Type": "application/json", **(headers or {})}
        return self.send("POST", path, data, given)

    def send(
        self, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        request = urllib.request.Request(
            self.uri + path, data=data, method=method, headers=dict(headers or {})
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return response.status, _decoded(response)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error)

    def rows(
        self, path: str, rows: pa.Table, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send rows as an Arrow stream."""
        return self.rows_raw(path, arrow_stream(rows), headers=headers)

    def rows_raw(
        self, path: str, stream: bytes, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send bytes as an Arrow stream."""
        given = {"Content-Type": ARROW_STREAM, **(headers or {})}
        return self.send("POST", path, stream, given)

    def write(self, table: list[str], rows: pa.Table, mode: str = "create") -> lance.LanceDataset:
        """Write as an unmodified pylance does."""
        return lance.write_dataset(rows, namespace_client=self.namespace, table_id=table, mode=mode)

    def open(self, table: list[str], version: Any = None) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.namespace, table_id=table, version=version)

    def location(self, table: list[str]) -> str:
        return str(self.namespace.describe_table(DescribeTableRequest(id=table)).location)

    def record(self, transaction_id: str) -> Transaction:
        """Return a transaction as the log has it."""
        found = self.log.runtime().request(0, "transaction", transaction_id=transaction_id)
        key = f"{transaction_id}/0".encode()
        decoded = decode_log_record(key, base64.b64decode(found["transaction"]))
        assert isinstance(decoded, Transaction)
        return decoded

    def stage(
        self, table: list[str], work: Callable[[lance.LanceDataset], Any]
    ) -> list[dict[str, Any]]:
        """Have pylance stage versions of a table; return the requests that would commit them."""
        head = self.open(table).version
        capture = Capture(self.location(table), head)
        work(lance.dataset(namespace_client=capture, table_id=table))
        return capture.requests

    def stage_new(self, table: list[str], location: str, rows: pa.Table) -> list[dict[str, Any]]:
        """Have pylance stage the first version of a table that nobody declared."""
        capture = Capture(location, 0)
        lance.write_dataset(rows, namespace_client=capture, table_id=table, mode="create")
        return capture.requests


class Capture(GivenNamespace):
    """Keeps what pylance stages, and lets it build further versions on that."""

    def __init__(self, location: str, head: int) -> None:
        super().__init__(location, head)
        self.requests: list[dict[str, Any]] = []
        self._staged: dict[int, str] = {}

    def declare_table(self, request: Any) -> Any:
        return DeclareTableResponse(
            location=self.location, managed_versioning=True, storage_options={}
        )

    def list_table_versions(self, request: Any) -> Any:
        return {"versions": [self._entry(self.head)] if self.head else []}

    def describe_table_version(self, request: Any) -> Any:
        return {"version": self._entry(request["version"] or self.head)}

    def create_table_version(self, request: Any) -> Any:
        self.requests.append({k: v for k, v in dict(request).items() if v is not None})
        self.head = request["version"]
        self._staged[self.head] = request["manifest_path"]
        return {"version": self._entry(self.head)}

    def _entry(self, version: int) -> dict[str, Any]:
        if version in self._staged:
            return {"version": version, "manifest_path": self._staged[version]}
        return self.version_entry(version)


def _iceberg(log: CommitLog, settings: Settings, security: Security) -> list[Route]:
    return iceberg_rest.routes(log, load(environment={}), settings, security)


def arrow_stream(rows: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue()


def numbers(first: int, last: int, x: float = 0.0) -> pa.Table:
    """Rows with ids from `first` up to and without `last`."""
    ids = list(range(first, last))
    return pa.table({"id": pa.array(ids, pa.int64()), "x": [x + i for i in ids]})


def _decoded(response: Any) -> Any:
    body = response.read()
    if body and "json" in (response.headers.get("Content-Type") or ""):
        return json.loads(body)
    return body
