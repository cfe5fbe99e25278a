"""Sets properties of tables and namespaces over HTTP, with the policy of maintenance among them."""

from __future__ import annotations

from typing import Annotated, Any

from lance_namespace import InvalidInputError
from pydantic import Field, StrictStr

from commitlog.model.table import parse_table_id
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.log_transactions import TableName
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.undoing import OneRecord, once
from consumers.servers.security.grants import Access


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
