"""The Iceberg catalogue's views: each request is answered by the log, as for tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from starlette.responses import Response

from commitlog.client.commits.iceberg_text import (
    check_view_schema,
    check_view_updates,
    number_problem,
    with_type_names,
)
from commitlog.core.iceberg.naming import derived_uuid
from commitlog.core.iceberg.reading import Node, dump_json, load_json
from commitlog.core.iceberg.views import ASSERT_CREATE, ASSERT_UUID
from commitlog.model.operations import DeregisterTable, IcebergChange
from commitlog.model.records import Code, Outcome
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.iceberg.catalog import IcebergCatalog
from consumers.servers.iceberg.replies import (
    Failure,
    already_exists,
    failure_of_refusal,
    no_such_namespace,
    reading,
    table_reply,
)
from consumers.servers.iceberg.request_context import IcebergRequest


def create_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Make a view in a namespace that exists."""
    node = Node(with_type_names(asked.json), "")
    name = parse_table_id((*asked.namespace, node.member("name").text()))
    location = node.optional("location")
    properties = p.strings() if (p := node.optional("properties")) else {}
    uuid = derived_uuid(asked.transaction_id, "view", *name)
    place = location.text() if location else catalog.new_location(name, uuid, asked)
    version = {**node.member("view-version").object(), "schema-id": -1}
    updates = [
        {"action": "assign-uuid", "uuid": uuid},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "set-location", "location": place},
        {"action": "set-properties", "updates": properties},
        {"action": "add-schema", "schema": check_view_schema(node)},
        {"action": "add-view-version", "view-version": version},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]
    change = IcebergChange(name, dump_json([{"type": ASSERT_CREATE}]), dump_json(updates))
    return _answer(catalog, asked, change, is_create=True)


def register_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Make a view of the metadata file of one that was dropped, with its uuid and versions."""
    node = asked.node
    name = parse_table_id((*asked.namespace, node.member("name").text()))
    location = node.member("metadata-location").text()
    with reading(location):
        data = catalog.service.files.metadata(location)
    if problem := number_problem(data):
        raise Failure(400, "BadRequestException", f"{location}: {problem}")
    found = load_json(data, location)
    updates = _updates_of(Node(found, location))
    change = IcebergChange(name, dump_json([{"type": ASSERT_CREATE}]), dump_json(updates))
    return _answer(catalog, asked, change, is_create=True)


def commit_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Change a view."""
    name = asked.name
    change = view_change(name, with_type_names(asked.json))
    if change.requirements == "[]":
        for known in catalog.first(asked):
            if isinstance(known, IcebergChange) and known.updates == change.updates:
                return _answer(catalog, asked, known, is_create=False)
        found = catalog.view().views.get(name)
        if found is None:
            raise no_such_view(name)
        sent = dump_json([{"type": ASSERT_UUID, "uuid": found.uuid}])
        change = IcebergChange(name, sent, change.updates)
    return _answer(catalog, asked, change, is_create=False)


def load_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Return a view's metadata."""
    found = catalog.view().views.get(asked.name)
    if found is None:
        raise no_such_view(asked.name)
    return table_reply(found.to_bytes(), found.metadata_location)


def view_exists(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Return True if there is such a view."""
    if asked.name not in catalog.view().views:
        raise no_such_view(asked.name)
    return Response(status_code=204)


def drop_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Forget a view; its metadata files stay."""
    view, name = catalog.view(), asked.name
    found = view.views.get(name)
    # With a key it may be a repetition, unless a table has the name: that isn't ours to drop.
    is_table = found is None and (name in view.heads or name in view.others)
    is_wrong = is_table or (found is None and not asked.has_key)
    if is_wrong and not catalog.first(asked):
        raise no_such_view(name)
    incarnation = "" if asked.has_key or found is None else found.uuid
    catalog.submit(asked, [DeregisterTable(name, incarnation)], lambda one: _failure(one, name))
    return Response(status_code=204)


def rename_view(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """Give a view another name."""
    return catalog.rename_of(asked, lambda view: view.views, no_such_view, _failure)


def list_views(catalog: IcebergCatalog, asked: IcebergRequest) -> Response:
    """List a namespace's views."""
    return catalog.list_of(asked, lambda view: view.views)


def _answer(
    catalog: IcebergCatalog, asked: IcebergRequest, change: IcebergChange, *, is_create: bool
) -> Response:
    name = change.table

    def failure(refused: Outcome) -> Failure:
        if is_create and refused.failed_requirements:
            return _taken(catalog, name)
        if refused.code is Code.NO_SUCH_NAMESPACE:
            return no_such_namespace(name[:-1])
        return _failure(refused, name)

    return catalog.committed(catalog.submit(asked, [change], failure), name)


def view_change(name: TableId, body: Any) -> IcebergChange:
    """Read what a client asks of a view; most of its updates are checked where it is decided."""
    node = Node(body, "")
    node.object()
    requirements = node.optional("requirements")
    for item in requirements.items() if requirements else ():
        kind = item.member("type")
        if kind.string() != ASSERT_UUID:
            kind.fail("iceberg_one_of", value=kind.value, known=[ASSERT_UUID])
        item.member("uuid").text()
    check_view_updates(node.member("updates"))
    sent = requirements.value if requirements else []
    return IcebergChange(name, dump_json(sent), dump_json(node.value["updates"]))


def _updates_of(metadata: Node) -> list[dict[str, Any]]:
    """Return what makes a view of a metadata file: its schemas and versions are numbered again."""
    properties = p.strings() if (p := metadata.optional("properties")) else {}
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": metadata.member("view-uuid").text()},
        {"action": "upgrade-format-version", "format-version": 1},
        {"action": "set-location", "location": metadata.member("location").text()},
        {"action": "set-properties", "updates": properties},
    ]
    schemas, versions = {}, {}
    seen_schemas: list[dict[str, Any]] = []
    seen_versions: list[dict[str, Any]] = []
    for schema in metadata.member("schemas").items():
        number = _number(schema.object(), ("schema-id",), seen_schemas)
        schemas[schema.member("schema-id").int32()] = number
        updates.append({"action": "add-schema", "schema": schema.object()})
    for version in metadata.member("versions").items():
        known = schemas.get(version.member("schema-id").int32(), -1)
        sent = {**version.object(), "schema-id": known}
        number = _number(sent, ("version-id", "timestamp-ms"), seen_versions) + 1
        versions[version.member("version-id").int32()] = number
        updates.append({"action": "add-view-version", "view-version": sent})
    logged = [
        entry.member("version-id").int32() for entry in metadata.member("version-log").items()
    ]
    for version_id in (*logged, metadata.member("current-version-id").int32()):
        wanted = versions.get(version_id, version_id)
        updates.append({"action": "set-current-view-version", "view-version-id": wanted})
    return updates


def _number(item: Mapping[str, Any], unlike: Collection[str], seen: list[dict[str, Any]]) -> int:
    """Return the number that the log gives an item: one for all whose other members are equal."""
    content = {name: value for name, value in item.items() if name not in unlike}
    if content not in seen:
        seen.append(content)
    return seen.index(content)


def no_such_view(name: TableId) -> Failure:
    """Say that a view doesn't exist."""
    return Failure(404, "NoSuchViewException", f"View does not exist: {'.'.join(name)}")


def _taken(catalog: IcebergCatalog, name: TableId) -> Failure:
    if name in catalog.view().views:
        return already_exists("View", name)
    return already_exists("Table with same name", name)


def _failure(answer: Outcome, name: TableId) -> Failure:
    if answer.code is Code.NO_SUCH_TABLE:
        return no_such_view(name)
    return failure_of_refusal(answer)
