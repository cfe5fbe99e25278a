"""The tables and namespaces that exist, and how a committed catalogue operation changes them."""

from __future__ import annotations

from collections.abc import Callable

from commitlog.core.catalogue.namespaces import Namespaces, altered
from commitlog.core.catalogue.version_deletion import deletion, extended
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.manifest.manifest_state import ManifestDelta, diff
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.creation import empty_state, first_version, state_of
from commitlog.core.tables.iceberg_tables import IcebergTables
from commitlog.core.tables.lance_tables import Locations, Place, Table, is_in
from commitlog.model.limits import LAST_VERSIONS_SINCE, Rules
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    DeclareTable,
    DeleteTableVersions,
    DeregisterTable,
    DropNamespace,
    DropTable,
    Operation,
    RegisterTable,
    RenameTable,
    operation_name,
)
from commitlog.model.records import OperationResult, Outcome
from commitlog.model.table import TableId

TableMaker = CreateTable | DeclareTable | RegisterTable
DeltaOf = Callable[[OperationResult], ManifestDelta]


def make_table(
    operation: TableMaker,
    transaction_id: str,
    time_ms: int,
    location: str,
    registered: ManifestDelta | None,
    release: str,
) -> tuple[Table, Change]:
    """Return the table that a committed operation made, and its first change.

    `registered` is the version that a RegisterTable found; other operations have none.
    """
    delta, message, kind = registered, b"", ChangeKind.DECLARED
    if isinstance(operation, CreateTable):
        state, message = first_version(operation, transaction_id, time_ms, release)
        delta, kind = diff(empty_state(), state), ChangeKind.CREATED
    elif isinstance(operation, RegisterTable):
        kind = ChangeKind.REGISTERED
    table = Table(
        operation.table,
        operation.incarnation,
        location,
        operation.policy,
        state_of(delta) if delta is not None else None,
        primary_key=() if isinstance(operation, DeclareTable) else operation.primary_key,
        properties=tuple(sorted(dict(operation.properties).items())),
    )
    return table, change_of(table, kind, delta, message)


def change_of(
    table: Table, kind: ChangeKind, delta: ManifestDelta | None = None, message: bytes = b""
) -> Change:
    """Return a change of a table as it stands."""
    return Change(
        table=table.table_id,
        incarnation=table.incarnation,
        kind=kind,
        location=table.location,
        policy=table.policy,
        version=delta.version if delta is not None else table.version,
        delta=delta,
        message=message,
    )


class Catalogue:
    """Tables and namespaces that exist, and the only thing that changes which do."""

    def __init__(self, tables: ByName[Table], locations: Locations, iceberg: IcebergTables) -> None:
        self.tables = tables
        self.locations = locations
        self.iceberg = iceberg
        self.namespaces = Namespaces()
        self.ended_rows: dict[str, int] = {}
        """Of tables that ended with writes of rows pending, through which one they are applied.

        Kept for ever: no record says which writes a drop left undone, and whoever asks for one of
        them would hear that it was applied.
        """

    def apply(
        self,
        operation: Operation,
        result: OperationResult,
        outcome: Outcome,
        delta_of: DeltaOf,
        rules: Rules,
    ) -> list[Change]:
        """Carry out a committed catalogue operation."""
        if isinstance(operation, CreateTable | DeclareTable | RegisterTable):
            return self._make(operation, result, outcome, delta_of, rules.lance_release)
        if isinstance(operation, DropTable | DeregisterTable):
            is_drop = isinstance(operation, DropTable)
            if operation.table in self.iceberg.tables:
                return [self.iceberg.end(operation.table, is_drop=is_drop)]
            return [self._end(operation.table, rules, is_drop=is_drop)]
        if isinstance(operation, DropNamespace):
            return self._drop_namespace(operation, rules)
        if isinstance(operation, RenameTable):
            return self._rename(operation, outcome.sequence)
        if isinstance(operation, AlterProperties):
            return self._alter(operation, outcome.sequence)
        if isinstance(operation, DeleteTableVersions):
            return self._delete_versions(operation, outcome.sequence)
        if isinstance(operation, CreateNamespace):
            self.namespaces.apply(operation)
            return []
        raise AssertionError(f"{operation_name(operation)} cannot have been committed")

    def _make(
        self,
        operation: TableMaker,
        result: OperationResult,
        outcome: Outcome,
        delta_of: DeltaOf,
        release: str,
    ) -> list[Change]:
        if result.incarnation != operation.incarnation:
            return []  # it existed, and that was fine
        standing = self.tables.get(operation.table)
        if standing is not None and standing.manifest is not None:
            return []
        registered = delta_of(result) if isinstance(operation, RegisterTable) else None
        table, change = make_table(
            operation,
            outcome.transaction_id,
            outcome.time_ms,
            result.location,
            registered,
            release,
        )
        table.changed_at = outcome.sequence
        self.tables[operation.table] = table
        self.locations.take(result.location, Place(operation.table, operation.incarnation, True))
        self.namespaces.apply(operation)
        return [change]

    def _end(self, table_id: TableId, rules: Rules, *, is_drop: bool) -> Change:
        table = self.tables.pop(table_id)
        if table.rows is not None and table.rows.pending:
            self.ended_rows[table.incarnation] = table.rows.applied
        version = table.version if rules.protocol >= LAST_VERSIONS_SINCE else 0
        self.locations.take(table.location, Place(table_id, table.incarnation, False, version))
        return change_of(table, ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED)

    def _drop_namespace(self, operation: DropNamespace, rules: Rules) -> list[Change]:
        namespace = operation.namespace
        inside = self.tables.below(namespace)
        changes = [self._end(table_id, rules, is_drop=True) for table_id in inside]
        for table_id in self.iceberg.tables.below(namespace):
            changes.append(self.iceberg.end(table_id, is_drop=True))
        self.namespaces.apply(operation)
        return changes

    def _rename(self, operation: RenameTable, sequence: int) -> list[Change]:
        if operation.table in self.iceberg.tables:
            return [self.iceberg.rename(operation.table, operation.new_table, sequence)]
        table = self.tables.pop(operation.table)
        table.table_id = operation.new_table
        table.changed_at = sequence
        self.tables[operation.new_table] = table
        self.locations.take(table.location, Place(operation.new_table, table.incarnation, True))
        self.namespaces.apply(operation)
        return [change_of(table, ChangeKind.RENAMED)]

    def _delete_versions(self, operation: DeleteTableVersions, sequence: int) -> list[Change]:
        table = self.tables[operation.table]
        table.deleted = extended(table.deleted, operation.ranges)
        for version in [v for v in table.noted if is_in(v, table.deleted)]:
            del table.noted[version]
        table.changed_at = sequence
        return [deletion(table, operation)]

    def _alter(self, operation: AlterProperties, sequence: int) -> list[Change]:
        if operation.is_namespace:
            self.namespaces.apply(operation)
            return []
        table = self.tables[operation.target]
        table.properties = altered(table.properties, operation)
        table.changed_at = sequence
        return [change_of(table, ChangeKind.PROPERTIES)]
