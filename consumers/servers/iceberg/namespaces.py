"""The Iceberg catalogue's namespaces: one tree for the tables of all formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import unquote

from starlette.responses import Response

from commitlog.client.commits.catalogue import checked_properties
from commitlog.core.iceberg.requests import read_namespace
from commitlog.model.operations import AlterProperties, CreateNamespace, DropNamespace
from commitlog.model.records import Code, Outcome
from commitlog.model.table import TableId
from consumers.servers.iceberg.catalog import IcebergCatalog
from consumers.servers.iceberg.replies import (
    Failure,
    already_exists,
    failure_of_refusal,
    json_reply,
    no_such_namespace,
    paginate,
)
from consumers.servers.iceberg.request_context import IcebergRequest
from consumers.servers.iceberg.service import CatalogView
from consumers.servers.security.budgets import ICEBERG_SEPARATOR


def create_namespace(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Make a namespace in one that exists."""
    node = asked.node
    namespace = read_namespace(node.member("namespace"))
    properties = p.strings() if (p := node.optional("properties")) else {}
    view = catalog.view()
    if not catalog.first(asked):
        if len(namespace) > 1 and namespace[:-1] not in view.namespaces:
            raise no_such_namespace(namespace[:-1])
        if namespace in view.namespaces and not asked.has_key:
            raise already_exists("Namespace", namespace)
    operation = CreateNamespace(namespace, checked_properties(namespace, properties))

    def failure(refused: Outcome) -> Failure:
        if refused.code is Code.TABLE_EXISTS:
            return already_exists("Namespace", namespace)
        return failure_of_refusal(refused)

    catalog.submit(asked, [operation], failure)
    return json_reply({"namespace": list(namespace), "properties": properties})


def list_namespaces(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """List the namespaces directly in `parent`, or the first level."""
    sent, viewer = asked.query.get("parent", ""), asked.viewer
    # pyiceberg encodes it twice.
    for text in dict.fromkeys((sent, unquote(sent))):
        parent = tuple(part for part in text.split(ICEBERG_SEPARATOR) if part)
        known = catalog.view().namespaces
        if not parent or (parent in known and viewer.sees(parent)):
            break
    else:
        viewer.need(parent)
        raise no_such_namespace(tuple(sent.split(ICEBERG_SEPARATOR)))
    page, token = paginate(
        asked.query, parent, viewer, lambda **part: catalog.view(parent, **part).namespaces
    )
    found = [[*parent, name] for name in page]
    return json_reply({"namespaces": found, "next-page-token": token})


def load_namespace(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Return a namespace's properties."""
    properties = dict(_known(catalog.view(), asked.namespace))
    return json_reply({"namespace": list(asked.namespace), "properties": properties})


def namespace_exists(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Return True if there is such a namespace."""
    _known(catalog.view(), asked.namespace)
    return Response(status_code=204)


def drop_namespace(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Remove a namespace that is empty."""
    namespace = asked.namespace
    view = catalog.view(namespace)
    if not asked.has_key:
        _known(view, namespace)
    if _holds_something(view, namespace) and not catalog.first(asked):
        raise _not_empty(namespace)

    def failure(refused: Outcome) -> Failure:
        if _holds_something(catalog.view(namespace), namespace):
            return _not_empty(namespace)
        if refused.code is Code.NO_SUCH_NAMESPACE:
            return no_such_namespace(namespace)
        return failure_of_refusal(refused)

    catalog.submit(asked, [DropNamespace(namespace)], failure)
    return Response(status_code=204)


def update_namespace(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Set and remove properties."""
    node, namespace = asked.node, asked.namespace
    updates = u.strings() if (u := node.optional("updates")) else {}
    wished = node.optional("removals")
    removals = [item.string() for item in wished.items()] if wished else []
    both = sorted(set(updates) & set(removals))
    if both:
        raise Failure(422, "UnprocessableEntityException", f"{both} would be both set and removed")
    before: Collection[str] | None = catalog.view().namespaces.get(namespace)
    # In this order: what the first request removes by now was there, or it is found.
    first = next(iter(catalog.first(asked)), None)
    if isinstance(first, AlterProperties):
        before = first.removals
    if before is None:
        raise no_such_namespace(namespace)
    if updates or removals:
        operation = AlterProperties(
            namespace,
            is_namespace=True,
            upserts=checked_properties(namespace, updates),
            # Those that are there, so that a repeated request can say which these were.
            removals=tuple(sorted(set(removals).intersection(before))),
        )
        catalog.submit(asked, [operation])
    wanted = dict.fromkeys(removals)
    return json_reply(
        {
            "updated": list(updates),
            "removed": [name for name in wanted if name in before],
            "missing": [name for name in wanted if name not in before],
        }
    )


def _known(view: CatalogView, namespace: TableId) -> Mapping[str, str]:
    properties = view.namespaces.get(namespace)
    if properties is None:
        raise no_such_namespace(namespace)
    return properties


def _holds_something(view: CatalogView, namespace: TableId) -> bool:
    level = len(namespace)
    names = (*view.tables, *view.others, *view.namespaces)
    return any(len(name) > level and name[:level] == namespace for name in names)


def _not_empty(namespace: TableId) -> Failure:
    message = f"Namespace is not empty: {'.'.join(namespace)}"
    return Failure(409, "NamespaceNotEmptyException", message)
