"""Who sends a request to the Iceberg catalogue, and which object its path names."""

from __future__ import annotations

from collections.abc import Mapping

import uuid_utils
from starlette.requests import Request

from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.plain_actions import UUID
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.iceberg.catalog import Requester
from consumers.servers.iceberg.namespaces import SEPARATOR
from consumers.servers.iceberg.replies import Failure
from consumers.servers.security.grants import Principal, Viewer
from consumers.servers.security.identity import ANYBODY, PRINCIPAL, SEES

_KEY = "Idempotency-Key"
KEY_LIFETIME = "P7D"
"""How long it is remembered, as ISO 8601 writes it."""


def requester_of(request: Request) -> Requester:
    """Return who asks, under which transaction id."""
    key, who = request.headers.get(_KEY), principal_of(request)
    if key is None:
        return Requester(str(uuid_utils.uuid7()), has_key=False, who=who)
    if not UUID.fullmatch(key):
        raise Invalid("header_not_a_uuid", header=_KEY, value=key)
    return Requester(key.lower(), has_key=True, who=who)


def principal_of(request: Request) -> Principal:
    """Return who asks, as the guard found out."""
    found = request.scope.get(PRINCIPAL, ANYBODY)
    assert isinstance(found, Principal)
    return found


def viewer_of(request: Request) -> Viewer:
    """Return who asks for a list, as the guard found out; nobody sees anything without a guard."""
    return Viewer(principal_of(request), request.scope.get(SEES, lambda what: False))


def boolean_of(name: str, said: Mapping[str, str]) -> bool:
    """Return what a header or a query says; False if it says nothing."""
    value = said.get(name, "false")
    if value.lower() not in ("true", "false"):
        raise Failure(400, "BadRequestException", f"{name} must be true or false, not {value!r}")
    return value.lower() == "true"


def namespace_of(request: Request) -> TableId:
    """Return the namespace of a path."""
    return parse_table_id(request.path_params["namespace"].split(SEPARATOR))


def view_of(request: Request) -> TableId:
    """Return the view of a path."""
    return parse_table_id((*namespace_of(request), request.path_params["view"]))


def table_of(request: Request) -> TableId:
    """Return the table of a path."""
    return parse_table_id((*namespace_of(request), request.path_params["table"]))
