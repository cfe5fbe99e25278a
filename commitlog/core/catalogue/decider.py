"""Decides what makes, ends and names tables and namespaces.

An operation is decided on a draft here and applied from its result in `catalogue_state`, so a
replay gives the same catalogue. What a table was made of is in its operation; what was found
in storage is in the result's recording.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from commitlog.core.catalogue.catalogue_state import TableMaker, change_of, make_table
from commitlog.core.catalogue.expired_rows import check_expired
from commitlog.core.catalogue.iceberg_commits import decide_catalogue as decide_iceberg_catalogue
from commitlog.core.catalogue.iceberg_commits import decide_change, end_iceberg
from commitlog.core.catalogue.named_roots import check_roots
from commitlog.core.catalogue.namespaces import altered, parents
from commitlog.core.catalogue.version_deletion import decide_delete_versions
from commitlog.core.decisions import ChangeKind, rejected
from commitlog.core.draft import Draft, View
from commitlog.core.lance.bases import check_bases
from commitlog.core.lance.named_manifests import named_manifest
from commitlog.core.lance.new_version import check_header
from commitlog.core.lance.staged import manifest_version
from commitlog.core.lance.versions import count_made, record_delta
from commitlog.core.manifest.manifest_state import TIME_NANOS_END, ManifestDelta, diff
from commitlog.core.operations.clone import home_of
from commitlog.core.tables.creation import check_primary_key, empty_state
from commitlog.core.tables.lance_tables import Place, Table, location_parts, normalize_location
from commitlog.model.limits import (
    INCARNATION_OF_ONE_SINCE,
    LAST_VERSIONS_SINCE,
    LOG_TAGS_SINCE,
    NAMED_ROOTS_SINCE,
    NAMES_CHECKED_SINCE,
)
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    Operation,
    RegisterTable,
    RenameTable,
    operation_name,
)
from commitlog.model.reasons import Aside
from commitlog.model.records import Code, OperationResult
from commitlog.model.table import TableId, format_table_id


def _result(table: Table, operation: Operation, **more: Any) -> OperationResult:
    return OperationResult(
        table=table.table_id,
        incarnation=table.incarnation,
        operation=operation_name(operation),
        location=table.location,
        **more,
    )


def make_decider(tables_root: str, *, is_alone: bool) -> Callable[[Draft, Operation], None]:
    """Return what decides catalogue operations of a log with this tables root.

    `is_alone` says that the log has one partition, which knows all its tables.
    """
    root = normalize_location(tables_root) if tables_root else ""

    def decide(draft: Draft, operation: Operation) -> None:
        if isinstance(operation, IcebergChange):
            decide_change(draft, operation, root)
        elif decide_iceberg_catalogue(draft, operation):
            pass
        elif isinstance(operation, CreateTable | DeclareTable | RegisterTable):
            _decide_make(draft, operation, root)
        elif isinstance(operation, DropTable | DeregisterTable):
            _decide_end(draft, operation)
        elif isinstance(operation, RenameTable):
            _decide_rename(draft, operation)
        elif isinstance(operation, AlterProperties):
            _decide_properties(draft, operation, root, is_alone=is_alone)
        elif isinstance(operation, DeleteTableVersions):
            decide_delete_versions(draft, operation)
        elif isinstance(operation, CreateNamespace):
            _decide_create_namespace(draft, operation)
        elif isinstance(operation, DropNamespace):
            _decide_drop_namespace(draft, operation)
        else:
            raise rejected(
                Code.UNSUPPORTED_OPERATION,
                "operation_unsupported",
                operation=operation_name(operation),
            )

    return decide


def _decide_make(draft: Draft, operation: TableMaker, root: str) -> None:
    name = format_table_id(operation.table)
    location = normalize_location(operation.location)
    check_expired(draft, operation.table, operation.properties, applied=draft.sequence - 1)
    standing = draft.find(operation.table)
    iceberg = draft.iceberg(operation.table)
    if iceberg is not None:
        raise rejected(Code.TABLE_EXISTS, "iceberg_table_exists", table=name)
    if standing is not None and not _fills(standing, operation, location):
        if isinstance(operation, CreateTable) and operation.exist_ok and standing.state is not None:
            draft.results.append(_result(standing.table, operation, version=standing.version))
            return
        raise rejected(
            Code.TABLE_EXISTS, "table_exists_at", table=name, location=standing.table.location
        )
    if not operation.incarnation:
        raise rejected(Code.INVALID_OPERATION, "incarnation_missing", table=name)
    _check_location(draft, operation, location, root)
    result = OperationResult(
        operation.table, operation.incarnation, operation_name(operation), location=location
    )
    registered = None
    if isinstance(operation, RegisterTable):
        registered = _register(draft, operation, location)
        recording = record_delta(draft, registered)
        count_made(draft, operation.table, recording.size)
        result = replace(result, delta=recording)
    table, change = make_table(
        operation,
        draft.transaction.transaction_id,
        draft.time_ms,
        location,
        registered,
        draft.rules.lance_release,
    )
    result = replace(result, version=table.version)
    draft.views[operation.table] = View(table)
    draft.take(location, Place(operation.table, operation.incarnation, True))
    draft.dropped.pop(operation.incarnation, None)
    for namespace in parents(operation.table):
        if draft.namespace(namespace) is None:
            draft.namespaces[namespace] = ()
    draft.results.append(result)
    draft.changes.append(change)


def _fills(standing: View, operation: TableMaker, location: str) -> bool:
    """Return True if CreateTable gives a declared table its first version."""
    return (
        isinstance(operation, CreateTable)
        and standing.state is None
        and standing.table.incarnation == operation.incarnation
        and standing.table.location == location
    )


def _check_location(draft: Draft, operation: TableMaker, location: str, root: str) -> None:
    if root:
        parts, root_parts = location_parts(location), location_parts(root)
        if root_parts[: len(parts)] == parts or parts[: len(root_parts) + 1] == (
            *root_parts,
            "_commitlog",
        ):
            raise rejected(
                Code.LOCATION_NOT_ALLOWED, "location_of_log", location=location, root=root
            )
    known = draft.place_of(operation.incarnation)
    is_checked = draft.rules.protocol >= INCARNATION_OF_ONE_SINCE
    if is_checked and known is not None and known[0] != location_parts(location):
        raise rejected(
            Code.INVALID_OPERATION,
            "incarnation_taken",
            table=format_table_id(operation.table),
            incarnation=operation.incarnation,
            owner=format_table_id(known[1].table_id),
        )
    place = draft.clash(location, home_of(draft, operation.table, location))
    if place is None:
        return
    # What was dropped has its manifests there under their names: it can be registered again, but
    # not made from version 1 again.
    is_gone = not place.is_live or place.incarnation in draft.dropped
    is_own = place.incarnation == operation.incarnation and (
        isinstance(operation, RegisterTable) if is_gone else place.table_id == operation.table
    )
    if not is_own:
        raise rejected(
            Code.LOCATION_TAKEN,
            "location_taken" if place.is_live else "location_was_taken",
            location=location,
            owner=format_table_id(place.table_id),
            incarnation=place.incarnation,
        )


def _register(draft: Draft, operation: RegisterTable, location: str) -> ManifestDelta:
    path, name = operation.manifest_path, format_table_id(operation.table)
    if manifest_version(path, is_staged=False) != operation.version:
        raise rejected(
            Code.LOCATION_NOT_ALLOWED, "not_a_manifest_path", path=path, version=operation.version
        )
    _check_version(draft, operation)
    found = named_manifest(draft, operation.table, location, path)
    if found.observation.size < 0:
        raise rejected(
            Code.MISSING_FILE, "manifest_missing", path=path, location=location, table=name
        )
    state, where = found.state, {"path": path, "location": location}
    if state is None or state.version != operation.version:
        reason = "manifest_unusable" if found.error else "manifest_of_another_version"
        raise rejected(Code.INVALID_OPERATION, reason, error=Aside.of(found.error), **where)
    if not state.version or not 0 <= state.timestamp_nanos < TIME_NANOS_END:
        numbers = {"version": state.version, "nanos": state.timestamp_nanos}
        raise rejected(Code.INVALID_OPERATION, "manifest_out_of_range", **numbers, **where)
    message = state.header.message
    if message.HasField("branch"):
        raise rejected(
            Code.UNSUPPORTED_OPERATION,
            "manifest_in_location_of_branch",
            path=path,
            location=location,
        )
    check_primary_key(operation.primary_key, list(message.fields))
    empty = empty_state()
    protocol = draft.rules.protocol
    if protocol >= NAMES_CHECKED_SINCE:
        check_header(empty.header, state.header, name, renumbers_fields=False, protocol=protocol)
    delta = diff(empty, state)
    check_bases(draft, operation.table, location, None, delta.header)
    return delta


def _check_version(draft: Draft, operation: RegisterTable) -> None:
    """Refuse a table that comes back from an older version than the log committed."""
    if draft.rules.protocol < LAST_VERSIONS_SINCE:
        return
    newest = draft.dropped.get(operation.incarnation)
    if newest is None:
        known = draft.place_of(operation.incarnation)
        newest = known[1].version if known is not None else 0
    if operation.version < newest:
        raise rejected(
            Code.INVALID_OPERATION,
            "version_below_newest",
            table=format_table_id(operation.table),
            version=operation.version,
            newest=newest,
        )


def _decide_end(draft: Draft, operation: DropTable | DeregisterTable) -> None:
    view = draft.view(operation.table, operation.incarnation)
    draft.results.append(_end(draft, view, operation))


def _end(draft: Draft, view: View, operation: Operation) -> OperationResult:
    """Forget a table in the draft; return the result of the operation that ends it."""
    is_drop = not isinstance(operation, DeregisterTable)
    kind = ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED
    draft.changes.append(replace(change_of(view.table, kind), version=view.version))
    draft.views[view.table.table_id] = None
    draft.dropped[view.table.incarnation] = view.version
    return _result(view.table, operation)


def _decide_rename(draft: Draft, operation: RenameTable) -> None:
    view = draft.view(operation.table)
    if draft.is_taken(operation.new_table):
        raise rejected(
            Code.TABLE_EXISTS, "table_exists", table=format_table_id(operation.new_table)
        )
    if not draft.is_single:
        raise rejected(Code.SPLIT_TRANSACTION, "rename_not_alone")
    draft.results.append(replace(_result(view.table, operation), table=operation.new_table))
    change = change_of(view.table, ChangeKind.RENAMED)
    draft.changes.append(replace(change, table=operation.new_table))


def _decide_properties(
    draft: Draft, operation: AlterProperties, root: str, *, is_alone: bool
) -> None:
    if operation.is_namespace:
        known = draft.namespace(operation.target)
        if known is None and not operation.target and draft.rules.protocol >= LOG_TAGS_SINCE:
            known = ()
        if known is None:
            raise _no_such_namespace(operation.target)
        if not operation.target and draft.rules.protocol >= NAMED_ROOTS_SINCE:
            check_roots(draft, known, operation, root if is_alone else None)
        draft.namespaces[operation.target] = altered(known, operation)
        draft.results.append(OperationResult(operation.target, "", "AlterProperties"))
        return
    view = draft.view(operation.target)
    check_expired(
        draft,
        operation.target,
        operation.upserts,
        operation.removals,
        said=view.table.properties,
        applied=view.table.rows.applied if view.table.rows is not None else 0,
    )
    draft.results.append(_result(view.table, operation))
    change = change_of(view.table, ChangeKind.PROPERTIES)
    draft.changes.append(replace(change, version=view.version))


def _no_such_namespace(namespace: TableId) -> Exception:
    return rejected(
        Code.NO_SUCH_NAMESPACE, "no_such_namespace", namespace=format_table_id(namespace)
    )


def _decide_create_namespace(draft: Draft, operation: CreateNamespace) -> None:
    if draft.namespace(operation.namespace) is not None:
        if not operation.exist_ok:
            raise rejected(
                Code.TABLE_EXISTS,
                "namespace_exists",
                namespace=format_table_id(operation.namespace),
            )
    else:
        for namespace in parents(operation.namespace):
            if draft.namespace(namespace) is None:
                draft.namespaces[namespace] = ()
        draft.namespaces[operation.namespace] = tuple(sorted(operation.properties))
    draft.results.append(OperationResult(operation.namespace, "", "CreateNamespace"))


def _decide_drop_namespace(draft: Draft, operation: DropNamespace) -> None:
    is_log = not operation.namespace and draft.rules.protocol >= LOG_TAGS_SINCE
    if is_log or draft.namespace(operation.namespace) is None:
        raise _no_such_namespace(operation.namespace)
    inside = draft.tables_below(operation.namespace)
    iceberg = draft.iceberg_below(operation.namespace)
    below_it = draft.namespaces_within(operation.namespace)
    if not operation.cascade and (inside or iceberg or len(below_it) > 1):
        names = [format_table_id(t) for t in [*inside, *iceberg, *below_it[1:]][:5]]
        raise rejected(
            Code.INVALID_OPERATION,
            "namespace_not_empty",
            namespace=format_table_id(operation.namespace),
            names=names,
        )
    draft.results.append(OperationResult(operation.namespace, "", "DropNamespace"))
    for table_id in inside:
        _end(draft, draft.view(table_id), operation)
    for table_id in iceberg:
        end_iceberg(draft, table_id, operation)
    for namespace in below_it:
        draft.namespaces[namespace] = None
