"""Requests to a service's HTTP address, one after another on one connection, with no library."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

REQUEST_SECONDS = 120.0


class HttpService:
    """One connection; close it."""

    def __init__(self, uri: str) -> None:
        """Connect at the first request."""
        address = urlsplit(uri)
        self._connection = http.client.HTTPConnection(
            address.hostname or "", address.port, timeout=REQUEST_SECONDS
        )

    def get(self, path: str) -> bytes:
        """Return the body of an answer; RuntimeError if the service refuses."""
        return self._ask("GET", path)

    def post(self, path: str, body: Any) -> bytes:
        """Send JSON and return the body of the answer; RuntimeError if the service refuses."""
        return self._ask("POST", path, json.dumps(body), {"Content-Type": "application/json"})

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _ask(self, *request: Any) -> bytes:
        self._connection.request(*request)
        response = self._connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise RuntimeError(f"{request[1]}: {response.status} {answer[:300]!r}")
        return answer
