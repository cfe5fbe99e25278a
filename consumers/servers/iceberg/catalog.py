"""The Iceberg catalogue's operations: each takes a parsed request and blocks until it is answered.

Nothing is looked at before an append that the log decides anyway: with an Idempotency-Key a second
request must get the first one's answer, not what the first one's success would make of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import Response

from commitlog.adapters.places import is_moved, recorded
from commitlog.client.commits.iceberg_text import with_type_names
from commitlog.core.iceberg.creating import parse_create
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.naming import derived_uuid
from commitlog.core.iceberg.reading import load_json
from commitlog.core.iceberg.requests import (
    parse_change,
    parse_commit,
    parse_table_commit,
    read_identifier,
)
from commitlog.core.iceberg.shelf import Shelf
from commitlog.core.iceberg.updates import apply_updates
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import (
    DeregisterTable,
    DropTable,
    IcebergChange,
    Operation,
    RenameTable,
)
from commitlog.model.records import Code, Outcome, Status
from commitlog.model.table import TableId, parse_table_id
from consumers.servers.iceberg.access import HEADER, TableAccess, understood
from consumers.servers.iceberg.replies import (
    ALL,
    REFS,
    Failure,
    ShownFiles,
    already_exists,
    entity_tag,
    failure_of_refusal,
    failure_of_table_refusal,
    failure_of_transaction_refusal,
    identifier_json,
    is_lance,
    json_reply,
    landed,
    no_such_file,
    no_such_namespace,
    no_such_table,
    paginate,
    reading,
    rename_problem,
    table_reply,
)
from consumers.servers.iceberg.request_context import IcebergRequest, boolean_of
from consumers.servers.iceberg.service import CatalogView, IcebergSettings, locations_of
from consumers.servers.iceberg.time_travel import IcebergService
from consumers.servers.security.places import folder_name
from consumers.servers.vending.vendor import Subject

LOCATION = "location"
_READ_ONLY = "x-commitlog-read-only"
"""In a registration: the name is a second one of a table, and never committed to."""

Tell = Callable[[Subject], Mapping[str, Any]]
"""Says in an answer how the files of a table are reached."""
Known = Callable[[CatalogView], Mapping[TableId, Any]]
"""Returns of a catalogue its tables, or its views."""


class IcebergCatalog:
    """The catalogue over a service."""

    def __init__(
        self, service: IcebergService, settings: IcebergSettings, access: TableAccess | None = None
    ) -> None:
        """Answer from and write to `service`; by `access` tables' files are reached."""
        self.service = service
        self.settings = settings
        self.access = access
        self.positioned: Callable[[str], str] = lambda warehouse: ""
        """Says which position of the log a warehouse's name stands for; empty: none."""
        self.view: Callable[..., CatalogView] = service.view
        """Returns the catalogue as of the log's end; its lists, of one namespace if it is named.
        With a `limit`, lists of a namespace have at least so many names that follow `after`."""
        self._shown = ShownFiles()

    def first(self, asked: IcebergRequest) -> Sequence[Operation]:
        """Return what the first request under a key asked of the log; nothing: there was none.

        What has come since is no reason to refuse it, nor to answer otherwise.
        """
        return self.service.operations(asked.transaction_id) if asked.has_key else ()

    def submit(
        self,
        asked: IcebergRequest,
        operations: Sequence[Operation],
        failure: Callable[[Outcome], Failure] = failure_of_refusal,
    ) -> Outcome:
        """Append one transaction and wait for its outcome; raise the failure of a refusal."""
        outcome = self.service.submit(
            operations,
            transaction_id=asked.transaction_id,
            id_is_new=not asked.has_key,
            timeout_seconds=self.settings.timeout_seconds,
        )
        if outcome.status is not Status.COMMITTED:
            raise failure(outcome)
        return outcome

    def commit_transaction(self, asked: IcebergRequest) -> Response:
        """Commit changes of many tables, all or none."""
        settings = self.settings
        request = parse_commit(
            with_type_names(asked.json),
            tables_max=settings.tables_max,
            updates_max=settings.updates_max,
        )
        operations: list[Operation] = [change.sent for change in request.changes]
        if request.lance_operations:
            items = request.lance_operations
            operations += self.service.lance_operations(items, asked.transaction_id, asked.who)
        failure = partial(
            failure_of_transaction_refusal, operations=operations, changes=len(request.changes)
        )
        answer = self.submit(asked, operations, failure)
        locations = locations_of(answer)
        results = [
            {
                "identifier": identifier_json(change.table),
                "metadata-location": locations[change.table],
            }
            for change in request.changes
        ]
        return json_reply({"commit-id": f"txn-{answer.transaction_id}", "results": results})

    def commit_table(self, asked: IcebergRequest) -> Response:
        """Commit changes of one table."""
        table, most = asked.name, self.settings.updates_max
        change = parse_table_commit(with_type_names(asked.json), table, updates_max=most)

        def failure(refused: Outcome) -> Failure:
            if refused.code is Code.NO_SUCH_NAMESPACE:
                return no_such_namespace(table[:-1])
            if change.is_create and table in (view := self.view()).views:
                return self._taken(view, table)
            return failure_of_table_refusal(refused)

        return self.committed(self.submit(asked, [change.sent], failure), table)

    def create_table(self, asked: IcebergRequest) -> Response:
        """Make a table, or only say what it would be (stage-create)."""
        request, tell = parse_create(with_type_names(asked.json)), self.tell(asked)
        table = parse_table_id((*asked.namespace, request.name))
        uuid = derived_uuid(asked.transaction_id, "table", *table)
        location = request.location or self.new_location(table, uuid, asked)
        _check_not_moved(location)
        change = request.change(table, uuid=uuid, location=location)
        if request.is_staged:
            # What is where a client wants a table may be somebody's, until the log has it there.
            is_own = tell is not None and not request.location
            access = tell(Subject(table, uuid, location)) if tell and is_own else {}
            return self._staged(table, parse_change(change).updates, asked, access)
        return self._made(asked, change, tell)

    def register_table(self, asked: IcebergRequest) -> Response:
        """Take over a table by its metadata file, read only as a second name of a table."""
        node, tell = asked.node, self.tell(asked)
        read_only = boolean_of(_READ_ONLY, asked.headers)
        table = parse_table_id((*asked.namespace, node.member("name").text()))
        location = node.member("metadata-location").text()
        overwrite = node.optional("overwrite")
        replaces = ""
        if overwrite is not None and overwrite.boolean():
            old = self.view().tables.get(table)
            replaces = old.uuid if old is not None else ""
        if replaces and read_only:
            raise Failure(400, "BadRequestException", "use either overwrite or read-only, not both")
        repeats = asked.transaction_id if asked.has_key else ""
        with reading(location):
            change = self.service.registration(
                table, location, replaces, read_only=read_only, repeats=repeats
            )
        return self._made(asked, change, tell)

    def load_table(self, asked: IcebergRequest) -> Response:
        """Return a table's metadata; of its snapshots all, or those that refs name.

        304 if the client has that metadata, by the entity tags that it sends.
        """
        table, tell = asked.name, self.tell(asked)
        shown = asked.query.get("snapshots", ALL).lower()
        sent = asked.headers.get("If-None-Match", "").split(",")
        known = {tag.strip().removeprefix("W/") for tag in sent}  # a cache may have weakened it
        if shown not in {ALL, REFS}:
            raise Failure(400, "BadRequestException", "snapshots must be 'all' or 'refs'")
        view = self.view()
        if (location := view.heads.get(table)) is None:
            raise no_such_table(table, is_lance=is_lance(view, table))
        tag = entity_tag(location, shown)
        is_known = tag in known or "*" in known
        if not is_known or tell is not None:
            data, location, subject = self._loaded(table, location, shown)
            access = tell(subject) if tell is not None else {}
            if access or not is_known:
                return table_reply(data, location, shown, access)
        else:
            self._check_is_there(location)
        return Response(status_code=304, headers={"ETag": tag})

    def _loaded(self, table: TableId, location: str, shown: str) -> tuple[bytes, str, Subject]:
        """Return a table's metadata, and where that and the table are."""
        with suppress(OSError, ValueError, LookupError, TypeError):
            data = self.service.files.metadata(location)
            data, uuid, home = self._shown.show(location, data, shown)
            return data, location, Subject(table, uuid, home)
        self._check_is_there(location)
        found = self.table(table)
        if shown != ALL:
            named = dict.fromkeys(ref["snapshot-id"] for ref in found.refs.values())
            kept = [s for id_ in named if (s := found.snapshots.get(id_)) is not None]
            found = replace(found, snapshots=Shelf("snapshot-id", kept))
        subject = Subject(table, found.uuid, found.location)
        return found.to_bytes(), found.metadata_location, subject

    def _check_is_there(self, location: str) -> None:
        """Refuse a metadata file that is gone: others read by path what they are told."""
        with reading(location):
            if not self.service.files.exists(location):
                raise no_such_file(location)

    def table_exists(self, asked: IcebergRequest) -> Response:
        """Return True if there is such a table."""
        if asked.name not in self.view().heads:
            raise no_such_table(asked.name)
        return Response(status_code=204)

    def drop_table(self, asked: IcebergRequest) -> Response:
        """Forget a table; by the record of a purge maintenance removes its files."""
        view, table = self.view(), asked.name
        purge = boolean_of("purgeRequested", asked.query)
        found = view.tables.get(table)
        is_wrong = table in view.others or (found is None and not asked.has_key)
        if is_wrong and not self.first(asked):
            raise no_such_table(table)
        # A repeated request must say the same as the first, which cannot know the uuid any more.
        incarnation = "" if asked.has_key or found is None else found.uuid
        kind = DropTable if purge else DeregisterTable
        self.submit(asked, [kind(table, incarnation)])
        return Response(status_code=204)

    def rename_table(self, asked: IcebergRequest) -> Response:
        """Give a table another name."""
        return self.rename_of(
            asked,
            lambda view: view.heads,
            no_such_table,
            lambda answer, _: failure_of_refusal(answer),
        )

    def rename_of(
        self,
        asked: IcebergRequest,
        known: Known,
        missing: Callable[[TableId], Failure],
        failure: Callable[[Outcome, TableId], Failure],
    ) -> Response:
        """Give one of the known tables, or views, another name."""
        node = asked.node
        source = read_identifier(node.member("source"))
        destination = read_identifier(node.member("destination"))
        view = self.view()
        wrong = None if source in known(view) else missing(source)
        wrong = wrong or rename_problem(view, source, destination)
        if wrong is not None and not self.first(asked):
            raise wrong
        self.submit(asked, [RenameTable(source, destination)], lambda one: failure(one, source))
        return Response(status_code=204)

    def list_tables(self, asked: IcebergRequest) -> Response:
        """List a namespace's Iceberg tables."""
        return self.list_of(asked, lambda view: view.tables)

    def list_of(self, asked: IcebergRequest, known: Known) -> Response:
        """List those of a namespace's tables, or views, that who asks may see."""
        namespace, viewer = asked.namespace, asked.viewer
        viewer.need(namespace)
        if namespace not in self.view().namespaces:
            raise no_such_namespace(namespace)
        page, token = paginate(
            asked.query, namespace, viewer, lambda **part: known(self.view(namespace, **part))
        )
        identifiers = [identifier_json((*namespace, name)) for name in page]
        return json_reply({"identifiers": identifiers, "next-page-token": token})

    def tell(self, asked: IcebergRequest) -> Tell | None:
        """Return what tells who asks how files are reached; None if it asks for nothing of that."""
        ways, access = understood(asked.headers.get(HEADER, "")), self.access
        if access is None or not ways:
            return None
        return lambda subject: access.told(asked.who, subject, ways)

    def table(self, table: TableId) -> IcebergTable:
        """Return a table; 404 if there is none."""
        found = self.view().tables.get(table)
        if found is None:
            raise no_such_table(table)
        return found

    def new_location(self, table: TableId, uuid: str, asked: IcebergRequest | None = None) -> str:
        """Return the location of a new table or view whose request gives none."""
        for known in self.first(asked) if asked is not None else ():
            if isinstance(known, IcebergChange) and known.table == table:
                for update in load_json(known.updates, "updates"):
                    if update.get("action") == "set-location":
                        return str(update["location"])
        properties = self.view().namespaces.get(table[:-1])
        if properties is None:
            raise no_such_namespace(table[:-1])
        root = properties.get(LOCATION, "").rstrip("/")
        if not root:
            root = "/".join([self.settings.warehouse.rstrip("/"), *map(folder_name, table[:-1])])
        # The uuid is in the path: no location ever belongs to two tables.
        return f"{root}/{folder_name(table[-1])}-{uuid}"

    def _staged(
        self,
        table: TableId,
        updates: Sequence[Any],
        asked: IcebergRequest,
        access: Mapping[str, Any],
    ) -> Response:
        view = self.view()
        if table[:-1] not in view.namespaces:
            raise no_such_namespace(table[:-1])
        if table in view.heads or table in view.others:
            raise self._taken(view, table)
        staged = apply_updates(
            None, updates, time_ms=time.time_ns() // 1_000_000, transaction_id=asked.transaction_id
        )
        self.service.files.make_folders(staged.location)
        return table_reply(staged.to_bytes(), None, access=access)

    def _taken(self, view: CatalogView, table: TableId) -> Failure:
        what = "View with same name" if table in view.views else "Table"
        return already_exists(what, table, is_lance=is_lance(view, table))

    def _made(self, asked: IcebergRequest, change: IcebergChange, tell: Tell | None) -> Response:
        """Commit what makes a table."""
        table = change.table

        def failure(refused: Outcome) -> Failure:
            if refused.failed_requirements:
                return self._taken(self.view(), table)
            if refused.code is Code.NO_SUCH_NAMESPACE:
                return no_such_namespace(table[:-1])
            return failure_of_refusal(refused)

        return self.committed(self.submit(asked, [change], failure), table, tell)

    def committed(self, answer: Outcome, table: TableId, tell: Tell | None = None) -> Response:
        """Return a table, or view, as a transaction left it."""
        location = locations_of(answer)[table]
        with landed(answer.transaction_id):
            known = self.view().tables.get(table) if tell is not None else None
            access = tell(Subject(table, known.uuid, known.location)) if tell and known else {}
            return table_reply(self.service.files.metadata(location), location, access=access)


def _check_not_moved(location: str) -> None:
    """Refuse a place that is bound to another one: Iceberg's metadata names it, and is followed."""
    if is_moved(recorded(location)):
        raise InvalidTransaction(
            f"the tables below {recorded(location)} were moved, but Iceberg's metadata "
            "would name their former place",
            field="location",
            value=location,
            advice="Link the old place to the new one instead of binding it, or use another place",
        )
