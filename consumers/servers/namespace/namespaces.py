"""Namespaces: one tree of names for the tables of all formats."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from lance_namespace import (
    CreateNamespaceRequest,
    DescribeNamespaceRequest,
    DropNamespaceRequest,
    InvalidInputError,
    ListNamespacesRequest,
    ListTablesRequest,
    NamespaceAlreadyExistsError,
    NamespaceExistsRequest,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
)
from starlette.responses import Response

from commitlog.client.commits import catalogue
from commitlog.errors import CommitConflict
from commitlog.model.operations import CreateNamespace, DropNamespace, Operation
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id
from consumers.servers.name_pages import names_in
from consumers.servers.namespace.call import Call, one_of, page
from consumers.servers.namespace.service import Service
from consumers.servers.namespace.transactions import noted_ended, noting_ended, visible
from consumers.servers.security.grants import Access


def create_namespace(service: Service, call: Call) -> dict[str, Any]:
    """Make a namespace in one that exists."""
    request = call.read(CreateNamespaceRequest, {"mode", "properties"})
    namespace = _named(call)
    service.need_namespace(namespace[:-1])
    mode = one_of("mode", request.mode, "create", "exist_ok", "overwrite")
    properties = catalogue.checked_properties(namespace, request.properties)
    operations: list[Operation] = []
    if mode == "overwrite" and namespace in service.namespaces(namespace, alone=True):
        operations.append(DropNamespace(namespace))
    operations.append(CreateNamespace(namespace, properties, exist_ok=mode == "exist_ok"))
    outcome, _ = _change(service, call, namespace, *operations)
    kept = service.namespaces(namespace, alone=True).get(namespace, dict(properties))
    return {"transaction_id": outcome.transaction_id, "properties": kept}


def describe_namespace(service: Service, call: Call) -> dict[str, Any]:
    """Return a namespace's properties."""
    call.read(DescribeNamespaceRequest)
    return {"properties": visible(service.need_namespace(call.parts))}


def namespace_exists(service: Service, call: Call) -> Response:
    """Say whether a namespace exists, by the status."""
    call.read(NamespaceExistsRequest)
    service.need_namespace(call.parts)
    return Response()


def drop_namespace(service: Service, call: Call) -> dict[str, Any]:
    """Remove a namespace, with what is in it if asked to."""
    request = call.read(DropNamespaceRequest, {"mode", "behavior"})
    namespace = _named(call)
    may_be_missing = one_of("mode", request.mode, "fail", "skip") == "skip"
    cascades = one_of("behavior", request.behavior, "restrict", "cascade") == "cascade"
    name = format_table_id(namespace)
    if (first := service.first_answer(call)) is not None:
        properties = noted_ended(first[1]).get(name, {})
        return {"properties": properties, "transaction_id": [first[0].transaction_id]}
    try:
        properties = service.need_namespace(namespace)
        said = noting_ended(call, {name: properties})
        dropped = DropNamespace(namespace, cascades)
        outcome, _ = _change(service, call, namespace, dropped, properties=said)
    except NamespaceNotFoundError:
        if may_be_missing:
            return {}
        raise
    return {"properties": properties, "transaction_id": [outcome.transaction_id]}


def list_namespaces(service: Service, call: Call) -> dict[str, Any]:
    """List the namespaces directly in one."""
    request = call.read(ListNamespacesRequest, {"page_token", "limit"})
    parent = _seen(service, call)
    ask = partial(service.namespaces, parent)
    after, limit = request.page_token or "", request.limit
    names = names_in(parent, after, limit, ask, lambda name, _: call.sees(name))
    found, more = page(names, request)
    return {"namespaces": found, **more}


def list_tables(service: Service, call: Call) -> dict[str, Any]:
    """List the tables directly in a namespace."""
    request = call.read(ListTablesRequest, {"page_token", "limit", "include_declared"})
    parent = _seen(service, call)

    def is_shown(table: TableId, versions: Mapping[TableId, int]) -> bool:
        return bool(request.include_declared or versions[table]) and call.sees(table)

    ask = partial(service.heads, parent)
    names = names_in(parent, request.page_token or "", request.limit, ask, is_shown)
    found, more = page(names, request)
    return {"tables": found, **more}


def list_all_tables(service: Service, call: Call) -> dict[str, Any]:
    """List all tables by their full names; for LanceDB's client, those of the root namespace."""
    if call.is_remote:
        return list_tables(service, call)
    request = call.read(ListTablesRequest, {"page_token", "limit", "include_declared"})
    names = sorted(
        call.delimiter.join(table)
        for table, version in service.heads().items()
        if (request.include_declared or version) and call.sees(table)
    )
    found, more = page(names, request)
    return {"tables": found, **more}


def _seen(service: Service, call: Call) -> TableId:
    """Return the namespace to be listed, if the principal may see something in it."""
    parent = call.parts
    if parent and not call.sees(parent):
        call.need(Access.READ, parent)
    service.need_namespace(parent)
    return parent


def _named(call: Call) -> TableId:
    if not call.parts:
        raise InvalidInputError("the root namespace always exists; name another one")
    return call.parts


def _change(
    service: Service, call: Call, namespace: TableId, *operations: Operation, **more: Any
) -> Any:
    """Commit, and call refusals after namespaces rather than tables."""
    name = format_table_id(namespace)
    try:
        return service.change(call, *operations, **more)
    except CommitConflict as error:
        code = error.outcome.code
        if code is Code.TABLE_EXISTS:
            raise NamespaceAlreadyExistsError(f"namespace {name} exists") from error
        if code in (Code.NO_SUCH_TABLE, Code.NO_SUCH_NAMESPACE):
            raise NamespaceNotFoundError(f"namespace {name} does not exist") from error
        if code is Code.INVALID_OPERATION and isinstance(operations[0], DropNamespace):
            raise NamespaceNotEmptyError(error.outcome.message) from error
        raise
