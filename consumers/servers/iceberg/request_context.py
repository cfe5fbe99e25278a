"""A request to the Iceberg catalogue: who sends it, under which id, and which object it names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import uuid_utils
from starlette.requests import Request

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.plain_actions import UUID
from commitlog.core.iceberg.reading import Node, load_body
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.iceberg.replies import Failure
from consumers.servers.security.budgets import ICEBERG_SEPARATOR
from consumers.servers.security.grants import Principal, Viewer
from consumers.servers.security.identity import ANYBODY, PRINCIPAL, SEES

_KEY = "Idempotency-Key"
KEY_LIFETIME = "P7D"
"""How long it is remembered, as ISO 8601 writes it."""


class IcebergRequest:
    """What the catalogue's operations take; each part is read when it is asked for."""

    def __init__(self, request: Request, body: bytes) -> None:
        """Take a request and its whole body."""
        self._request = request
        self.body = body
        self.query: Mapping[str, str] = request.query_params
        self.headers: Mapping[str, str] = request.headers

    @property
    def what(self) -> str:
        """Its method and address."""
        return f"{self._request.method} {self._request.url.path}"

    @cached_property
    def json(self) -> Any:
        """The parsed body; Invalid if it isn't JSON."""
        return load_body(self.body)

    @property
    def node(self) -> Node:
        """The parsed body, to be looked through."""
        return Node(self.json, "")

    @cached_property
    def transaction_id(self) -> str:
        """Under which id it asks something of the log."""
        key = self.headers.get(_KEY)
        if key is None:
            return str(uuid_utils.uuid7())
        if not UUID.fullmatch(key):
            raise Invalid("header_not_a_uuid", header=_KEY, value=key)
        return key.lower()

    @property
    def has_key(self) -> bool:
        """Whether the id came with it, so that it may be a repetition."""
        return _KEY in self.headers

    @property
    def who(self) -> Principal:
        """Who asks, as the guard found out."""
        found = self._request.scope.get(PRINCIPAL, ANYBODY)
        assert isinstance(found, Principal)
        return found

    @property
    def viewer(self) -> Viewer:
        """Who asks for a list, as the guard found out; without a guard nobody sees anything."""
        return Viewer(self.who, self._request.scope.get(SEES, lambda what: False))

    def part(self, name: str) -> str:
        """Return what the path has in a place."""
        return str(self._request.path_params[name])

    @property
    def namespace(self) -> TableId:
        """The namespace of its path."""
        return parse_table_id(self.part("namespace").split(ICEBERG_SEPARATOR))

    @property
    def name(self) -> TableId:
        """The table, or the view, of its path."""
        kind = "table" if "table" in self._request.path_params else "view"
        return parse_table_id((*self.namespace, self.part(kind)))


def boolean_of(name: str, said: Mapping[str, str]) -> bool:
    """Return what a header or a query says; False if it says nothing."""
    value = said.get(name, "false")
    if value.lower() not in ("true", "false"):
        raise Failure(400, "BadRequestException", f"{name} must be true or false, not {value!r}")
    return value.lower() == "true"
