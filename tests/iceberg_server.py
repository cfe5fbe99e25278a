"""Serves an Iceberg catalogue on a free port of this machine, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from consumers.servers.iceberg.catalog import IcebergCatalog
from consumers.servers.iceberg.rest import iceberg_routes
from consumers.servers.iceberg.service import IcebergSettings
from consumers.servers.iceberg.time_travel import IcebergService
from consumers.servers.server import make_app
from tests.page_server import serving_app


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def error(self) -> Any:
        return self.json["error"]


@dataclass(frozen=True)
class IcebergServer:
    port: int

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(
                method, path, data, {"Content-Type": "application/json", **(headers or {})}
            )
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


@contextlib.contextmanager
def serving(service: IcebergService, settings: IcebergSettings) -> Iterator[IcebergServer]:
    with serving_app(make_app(None, iceberg_routes(IcebergCatalog(service, settings)))) as port:
        yield IcebergServer(port)
