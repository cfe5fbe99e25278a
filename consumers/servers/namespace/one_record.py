"""Takes back over HTTP what was done: a drop, and changes of tables since a position."""

from __future__ import annotations

from typing import Annotated, Any

from lance_namespace import InvalidInputError
from pydantic import Field, StrictInt, StrictStr

from commitlog.model.table import parse_table_id
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.log_transactions import OneRecord, TableName, once
from consumers.servers.namespace.service import Service
from consumers.servers.security.grants import Access


class UndropRequest(OneRecord):
    """A table that was dropped, to be brought back."""

    table: TableName
    name: TableName | None = None
    """Its name from now on; without one, the one that it had."""
    incarnation: StrictStr = ""
    """Which of several; without one, what was dropped last."""


class RestoreRequest(OneRecord):
    """Tables of either format, to be as they were."""

    tables: Annotated[list[TableName], Field(min_length=1)]
    position: StrictInt | StrictStr
    """A sequence, a time, a tag of the log or an event's token."""


def undrop(service: Service, call: Call) -> dict[str, Any]:
    """Restore a dropped table of either format."""
    request = UndropRequest.model_validate(call.fields)
    for name in (request.table, request.name or request.table):
        call.need(Access.ADMIN, parse_table_id(name))
    return once(
        service,
        call,
        request,
        lambda **more: service.log.undrop(
            request.table,
            name=request.name,
            incarnation=request.incarnation,
            index=service.settings.index,
            **more,
        ),
    )


def restore(service: Service, call: Call) -> dict[str, Any]:
    """Roll tables of either format back to a position, in one record."""
    request = RestoreRequest.model_validate(call.fields)
    for name in request.tables:
        call.need(Access.WRITE, parse_table_id(name))
    tables = [parse_table_id(name) for name in request.tables]
    index = service.settings.index
    return once(
        service,
        call,
        request,
        lambda **more: service.log.restore(tables, request.position, index=index, **more),
    )


class PropertiesRequest(OneRecord):
    """Properties of a Lance table or of a namespace; null removes one."""

    table: TableName | None = None
    namespace: TableName | None = None
    """Of all tables in it; the empty list is the root, whose properties are the log's."""
    values: Annotated[dict[StrictStr, StrictStr | None], Field(min_length=1)]


def set_properties(service: Service, call: Call) -> dict[str, Any]:
    """Set properties of a Lance table or of a namespace."""
    request = PropertiesRequest.model_validate(call.fields)
    if (request.table is None) is (request.namespace is None):
        raise InvalidInputError("give either a table or a namespace")
    is_namespace = request.table is None
    name = request.namespace if request.table is None else request.table
    call.need(Access.ADMIN, parse_table_id(name) if name else ())
    return once(
        service,
        call,
        request,
        lambda **more: service.log.set_properties(
            name or [], request.values, is_namespace=is_namespace, **more
        ),
    )
