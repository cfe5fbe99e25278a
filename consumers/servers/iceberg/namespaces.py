"""The Iceberg catalogue's namespaces: one tree for the tables of all formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NoReturn
from urllib.parse import unquote

from starlette.responses import Response

from commitlog.client.commits.catalogue import checked_properties
from commitlog.core.iceberg.reading import Node, load_body
from commitlog.core.iceberg.requests import read_namespace
from commitlog.model.operations import AlterProperties, CreateNamespace, DropNamespace
from commitlog.model.records import Code
from commitlog.model.table import TableId
from consumers.servers.iceberg.catalog import IcebergCatalog, Requester
from consumers.servers.iceberg.replies import (
    Failure,
    already_exists,
    failure_of_refusal,
    json_reply,
    no_such_namespace,
    paginate,
)
from consumers.servers.iceberg.service import CatalogView, RefusedChanges
from consumers.servers.security.grants import Viewer

SEPARATOR = "\x1f"
"""Between the levels of a namespace in an address."""


class IcebergNamespaces:
    """Namespaces over a catalogue."""

    def __init__(self, catalog: IcebergCatalog) -> None:
        self._catalog = catalog

    def create(self, asked: Requester, body: bytes) -> Response:
        """Make a namespace in one that exists."""
        node = Node(load_body(body), "")
        namespace = read_namespace(node.member("namespace"))
        properties = p.strings() if (p := node.optional("properties")) else {}
        view = self._catalog.view()
        if not self._catalog.first(asked):
            if len(namespace) > 1 and namespace[:-1] not in view.namespaces:
                raise no_such_namespace(namespace[:-1])
            if namespace in view.namespaces and not asked.has_key:
                raise already_exists("Namespace", namespace)
        operation = CreateNamespace(namespace, checked_properties(namespace, properties))
        answer = self._catalog.submit(asked, [operation])
        if isinstance(answer, RefusedChanges):
            if answer.code is Code.TABLE_EXISTS:
                raise already_exists("Namespace", namespace)
            raise failure_of_refusal(answer)
        return json_reply({"namespace": list(namespace), "properties": properties})

    def children(self, query: Mapping[str, str], viewer: Viewer) -> Response:
        """List the namespaces directly in `parent`, or the first level."""
        sent = query.get("parent", "")
        # pyiceberg encodes it twice.
        for text in dict.fromkeys((sent, unquote(sent))):
            parent = tuple(part for part in text.split(SEPARATOR) if part)
            known = self._catalog.view().namespaces
            if not parent or (parent in known and viewer.sees(parent)):
                break
        else:
            viewer.need(parent)
            raise no_such_namespace(tuple(sent.split(SEPARATOR)))
        page, token = paginate(
            query, parent, viewer, lambda **part: self._catalog.view(parent, **part).namespaces
        )
        found = [[*parent, name] for name in page]
        return json_reply({"namespaces": found, "next-page-token": token})

    def load(self, namespace: TableId) -> Response:
        """Return a namespace's properties."""
        properties = dict(_known(self._catalog.view(), namespace))
        return json_reply({"namespace": list(namespace), "properties": properties})

    def exists(self, namespace: TableId) -> Response:
        """Return True if there is such a namespace."""
        _known(self._catalog.view(), namespace)
        return Response(status_code=204)

    def drop(self, asked: Requester, namespace: TableId) -> Response:
        """Remove a namespace that is empty."""
        view = self._catalog.view(namespace)
        if not asked.has_key:
            _known(view, namespace)
        if _holds_something(view, namespace) and not self._catalog.first(asked):
            _not_empty(namespace)
        answer = self._catalog.submit(asked, [DropNamespace(namespace)])
        if isinstance(answer, RefusedChanges):
            if _holds_something(self._catalog.view(namespace), namespace):
                _not_empty(namespace)
            if answer.code is Code.NO_SUCH_NAMESPACE:
                raise no_such_namespace(namespace)
            raise failure_of_refusal(answer)
        return Response(status_code=204)

    def update(self, asked: Requester, namespace: TableId, body: bytes) -> Response:
        """Set and remove properties."""
        node = Node(load_body(body), "")
        updates = u.strings() if (u := node.optional("updates")) else {}
        wished = node.optional("removals")
        removals = [item.string() for item in wished.items()] if wished else []
        both = sorted(set(updates) & set(removals))
        if both:
            raise Failure(
                422, "UnprocessableEntityException", f"{both} would be both set and removed"
            )
        before: Collection[str] | None = self._catalog.view().namespaces.get(namespace)
        # In this order: what the first request removes by now was there, or it is found.
        first = next(iter(self._catalog.first(asked)), None)
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
            answer = self._catalog.submit(asked, [operation])
            if isinstance(answer, RefusedChanges):
                raise failure_of_refusal(answer)
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


def _not_empty(namespace: TableId) -> NoReturn:
    message = f"Namespace is not empty: {'.'.join(namespace)}"
    raise Failure(409, "NamespaceNotEmptyException", message)
