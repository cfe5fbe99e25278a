"""What requests to the Iceberg catalogue may name: no place that who asks may not read.

A client names places in the location, properties, snapshots and statistics of a table, and in
metadata that it registers. The server reads some of them with its own rights, and hands out access
to a table's location.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.responses import Response

from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import Node, load_json
from commitlog.core.iceberg.requests import read_identifier
from commitlog.core.iceberg.views import read_any
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.iceberg.catalog import LOCATION, IcebergCatalog
from consumers.servers.iceberg.request_context import IcebergRequest
from consumers.servers.security.grants import Principal
from consumers.servers.security.places import TablePlaces, of_properties, of_update, texts

Handler = Callable[[IcebergRequest], Response]
_CREATION = ("/v1/namespaces/{namespace}/tables", "/v1/namespaces/{namespace}/views")


class IcebergReach:
    """Decides for all requests of a catalogue. Thread-safe."""

    def __init__(self, places: TablePlaces, catalog: IcebergCatalog) -> None:
        """Ask whose places they are, and where the catalogue has its tables."""
        self._places = places
        self._catalog = catalog
        self._checks: dict[str, Callable[[IcebergRequest, dict[str, Any]], None]] = {
            "/v1/namespaces": self._namespace,
            "/v1/namespaces/{namespace}/properties": self._namespace,
            **dict.fromkeys(_CREATION, self._creation),
            "/v1/namespaces/{namespace}/register": self._registration,
            "/v1/namespaces/{namespace}/register-view": self._registration,
            "/v1/namespaces/{namespace}/tables/{table}": self._commit,
            "/v1/namespaces/{namespace}/views/{view}": self._commit,
            "/v1/transactions/commit": self._transaction,
        }

    def before(self, method: str, path: str, handler: Handler) -> Handler:
        """Return a handler that refuses places of others' first."""
        check = self._checks.get(path) if method == "POST" else None
        if check is None:
            return handler

        def checked(asked: IcebergRequest) -> Response:
            if isinstance(asked.json, dict):
                check(asked, asked.json)
            return handler(asked)

        return checked

    def _namespace(self, asked: IcebergRequest, body: dict[str, Any]) -> None:
        for member in ("properties", "updates"):
            properties = body.get(member)
            if isinstance(properties, dict):
                self._check(asked.who, (), texts(properties.get(LOCATION)))

    def _creation(self, asked: IcebergRequest, body: dict[str, Any]) -> None:
        if not isinstance(body.get("name"), str):
            return
        name = parse_table_id((*asked.namespace, body["name"]))
        location = texts(body.get(LOCATION))
        self._check(asked.who, name, location)
        self._check(asked.who, name, of_properties(body.get("properties")), own=location)

    def _registration(self, asked: IcebergRequest, body: dict[str, Any]) -> None:
        file = texts(body.get("metadata-location"))
        if not file or not isinstance(body.get("name"), str):
            return
        name = (*asked.namespace, body["name"])
        self._check(asked.who, name, file)
        try:
            data = self._catalog.service.files.metadata(file[0])
        except OSError:
            return  # the operation that reads it next refuses it
        found = read_any(load_json(data, file[0]), file[0])
        self._check(asked.who, name, [found.location])
        self._check(asked.who, name, _of_table(found), own=[found.location])

    def _commit(self, asked: IcebergRequest, body: dict[str, Any]) -> None:
        self._updates(asked, asked.name, body)

    def _transaction(self, asked: IcebergRequest, body: dict[str, Any]) -> None:
        changes = body.get("table-changes")
        for change in changes if isinstance(changes, list) else ():
            if isinstance(change, dict) and "identifier" in change:
                name = read_identifier(Node(change, "").member("identifier"))
                self._updates(asked, name, change)

    def _updates(self, asked: IcebergRequest, name: TableId, change: Mapping[str, Any]) -> None:
        updates = change.get("updates")
        listed = updates if isinstance(updates, list) else []
        given = [one for one in listed if isinstance(one, dict)]
        named = [place for update in given for place in of_update(update)]
        if named:
            self._check(asked.who, name, named, own=self._own(name, given))

    def _own(self, name: TableId, updates: list[dict[str, Any]]) -> list[str]:
        """Return where a table's files are, or where the log wants one that was staged."""
        view = self._catalog.view()
        known = view.tables.get(name) or view.views.get(name)
        if known is not None:
            # The client that put them into its properties was allowed to.
            return [known.location, *of_properties(known.properties)]
        uuids = [uuid for one in updates for uuid in texts(one.get("uuid"))]
        return [self._catalog.new_location(name, uuids[0])] if uuids else []

    def _check(
        self, principal: Principal, name: TableId, places: list[str], *, own: Sequence[str] = ()
    ) -> None:
        for place in places:
            self._places.check(principal, name, place, own=own)


def _of_table(table: IcebergTable) -> list[str]:
    named = [one.get("manifest-list") for one in table.snapshots]
    for shelf in (table.statistics, table.partition_statistics):
        named += [one.get("statistics-path") for one in shelf]
    return [*texts(*named), *of_properties(table.properties)]
