"""The tables of a partition that were ever there, folded from its outcomes: what `undrop` finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commitlog.client.commits.names import like_known
from commitlog.core.catalogue.catalogue_state import altered
from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.model.operations import (
    AlterProperties,
    CreateTable,
    DeclareTable,
    DeleteTableVersions,
    DropNamespace,
    Operation,
    Properties,
    RegisterTable,
    RenameTable,
)
from commitlog.model.records import OperationResult, Outcome, Submitted, is_commit
from commitlog.model.table import Policy, TableId, format_table_id

_MAKERS = (CreateTable, DeclareTable, RegisterTable)
_ICEBERG = ("IcebergChange", "IcebergView")
_DROP, _DEREGISTER = "DropTable", "DeregisterTable"


@dataclass(slots=True)
class Life:
    """One incarnation of a table, as the log tells it."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy = Policy.EVERY
    primary_key: tuple[str, ...] = ()
    properties: Properties = ()
    version: int = 0
    deleted: VersionRanges = ()
    metadata_location: str = ""
    """An Iceberg table's metadata file; empty for a Lance table."""
    dropped_at: int = 0
    """The sequence of the outcome that dropped it; 0: it stands, or was only deregistered, which
    for Iceberg's clients is a drop."""


class Lives:
    """All tables that a partition ever had, folded outcome by outcome."""

    def __init__(self) -> None:
        self._lives: dict[str, Life] = {}
        self._names: dict[TableId, Life] = {}
        self._ended: list[Life] = []
        """Iceberg tables; two names of theirs may have one uuid."""

    def dropped(self, table: TableId) -> list[Life]:
        """Return what was dropped under a name, the last one last."""
        known = (*self._lives.values(), *self._ended)
        found = [one for one in known if one.dropped_at and one.table == table]
        return sorted(found, key=lambda one: one.dropped_at)

    def like_dropped(self, name: str) -> str:
        """Return a sentence that names what was dropped under a name like this one."""
        known = (*self._lives.values(), *self._ended)
        dropped = {format_table_id(one.table) for one in known if one.dropped_at}
        return like_known(name, dropped, "dropped tables")

    def take(self, outcome: Outcome, submitted: Submitted) -> None:
        """Take the next committed outcome."""
        if not is_commit(outcome):
            return
        for operation, result in zip(submitted.operations, outcome.results, strict=True):
            self._before(operation, result, outcome.sequence)
            if not result.incarnation:
                continue  # a namespace
            standing = self._names.get(result.table)
            if result.operation in _ICEBERG:
                life = Life(result.table, result.incarnation, result.location)
                life.metadata_location = result.metadata_location
                self._names[result.table] = life
            elif standing is not None and standing.metadata_location:
                if result.operation in {_DROP, _DEREGISTER}:
                    self._end(standing, outcome.sequence)
            elif (known := self._lives.get(result.incarnation)) is not None:
                known.version = result.version or known.version
                if result.operation == _DROP:
                    self._end(known, outcome.sequence)
                elif result.operation == _DEREGISTER:
                    self._names.pop(known.table, None)

    def _end(self, life: Life, sequence: int) -> None:
        life.dropped_at = sequence
        self._names.pop(life.table, None)
        if life.metadata_location:
            self._ended.append(life)

    def _before(self, operation: Operation, result: OperationResult, sequence: int) -> None:
        if isinstance(operation, _MAKERS):
            if result.incarnation != operation.incarnation:
                return  # it existed, and that was fine
            known = self._lives.get(operation.incarnation)
            key = () if isinstance(operation, DeclareTable) else operation.primary_key
            life = Life(
                table=operation.table,
                incarnation=operation.incarnation,
                location=operation.location,
                policy=operation.policy,
                primary_key=key,
                properties=operation.properties,
                version=known.version if known else 0,
                deleted=known.deleted if known else (),
            )
            self._lives[operation.incarnation] = self._names[operation.table] = life
            return
        if isinstance(operation, DropNamespace):
            depth = len(operation.namespace)
            for table in [one for one in self._names if one[:depth] == operation.namespace]:
                self._end(self._names[table], sequence)
            return
        for life in self._of(operation):
            if isinstance(operation, RenameTable):
                del self._names[life.table]
                life.table = operation.new_table
                self._names[life.table] = life
            elif isinstance(operation, AlterProperties):
                life.properties = altered(life.properties, operation)
            elif isinstance(operation, DeleteTableVersions):
                life.deleted = merged(life.deleted, operation.ranges)

    def _of(self, operation: Operation) -> Iterator[Life]:
        if isinstance(operation, AlterProperties) and operation.is_namespace:
            return
        if isinstance(operation, AlterProperties):
            table = operation.target
        elif isinstance(operation, RenameTable | DeleteTableVersions):
            table = operation.table
        else:
            return
        if table in self._names:
            yield self._names[table]
