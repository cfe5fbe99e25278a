"""The tables' heads as of the last acknowledged outcome: what writers are told when they ask.

The machine runs ahead of Kafka's acknowledgements, so its own heads are not to be shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import itemgetter
from typing import Any

from commitlog.core.catalogue.namespaces import Namespaces
from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.decisions import ENDS, Change, ChangeKind, Noted
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.views import IcebergView
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.partition.effects import E_TAGS_KEPT
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.lance_tables import Table, VersionRanges, is_in
from commitlog.errors import NoSuchTable, did_you_mean
from commitlog.messages import TableDescription
from commitlog.model.operations import (
    LanceCommit,
    Properties,
    RenameTable,
)
from commitlog.model.records import Outcome, Submitted, is_commit
from commitlog.model.table import Policy, TableId, format_table_id

_COMPARED_MAX = 250
"""To compare 10,000 names takes a quarter of a second, in which nothing is decided."""


@dataclass(frozen=True, slots=True)
class Head:
    """One table at its acknowledged head."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy
    version: int
    header: ManifestHeader | None
    """None for a table that is declared and has no version yet."""
    primary_key: tuple[str, ...]
    properties: tuple[tuple[str, str], ...]
    stable_row_ids: bool
    deleted: VersionRanges = ()
    """Versions that were deleted."""
    noted: dict[int, Noted] = field(default_factory=dict)
    """What clients said about the versions that they offered."""

    def at(self, version: int, header: ManifestHeader | None) -> Head:
        """Return the same table at another version; `replace` takes three times as long."""
        return Head(
            table=self.table,
            incarnation=self.incarnation,
            location=self.location,
            policy=self.policy,
            version=version,
            header=header,
            primary_key=self.primary_key,
            properties=self.properties,
            stable_row_ids=self.stable_row_ids,
            deleted=self.deleted,
            noted=self.noted,
        )

    def said(self, version: int) -> list[Any]:
        """Return the e_tag and the metadata that a client gave with a version."""
        found = self.noted.get(version)
        return [found.e_tag, dict(found.metadata)] if found is not None else ["", {}]

    def described(self, readable_version: int) -> TableDescription:
        """Describe the table without its schema."""
        return TableDescription(
            table_id=self.table,
            incarnation=self.incarnation,
            location=self.location,
            version=self.version,
            readable_version=readable_version,
            policy=self.policy,
            primary_key=self.primary_key,
            properties=dict(self.properties),
            stable_row_ids=self.stable_row_ids,
            deleted=self.deleted,
        )

    def described_whole(self, readable_version: int) -> TableDescription:
        """Describe the table with its schema."""
        told = self.described(readable_version)
        if self.header is None:
            return told
        message = self.header.message
        return replace(
            told,
            fields=tuple(one.SerializeToString() for one in message.fields),
            schema_metadata=tuple(sorted(message.schema_metadata.items())),
            data_storage_version=message.data_format.version,
        )


class PartitionHeads:
    """All heads of a partition. Owned by the loop."""

    def __init__(
        self,
        tables: Mapping[TableId, Table],
        namespaces: Mapping[TableId, Properties] | None = None,
        iceberg: Mapping[TableId, IcebergTable] | None = None,
    ) -> None:
        """Start with the heads of a machine that has applied acknowledged outcomes only."""
        self._tables = tables
        self._namespaces = Namespaces(namespaces or {})
        self._iceberg, self._views = ByName[IcebergTable](), ByName[IcebergTable]()
        for name, one in (iceberg or {}).items():
            self._of_kind(one)[name] = one
        self._known = ByName[Head]((name, _head(table)) for name, table in tables.items())
        self._named = {head.incarnation: name for name, head in self._known.items()}
        self._newer: dict[TableId, int] = {}
        """Newer versions of some tables, put into their heads when asked for: most never are."""

    @property
    def _heads(self) -> ByName[Head]:
        """All heads, as they are now."""
        if self._newer:
            for table_id, version in self._newer.items():
                head = self._known[table_id]
                self._known[table_id] = head.at(version, head.header)
            self._newer.clear()
        return self._known

    def apply(self, changes: Iterable[Change]) -> None:
        """Take the changes of an acknowledged outcome."""
        for change in changes:
            self._apply(change)

    def apply_namespaces(self, submitted: Submitted, outcome: Outcome) -> None:
        """Take what an acknowledged outcome does that its changes don't say.

        That is what it does to namespaces, and the former names of Iceberg tables.
        """
        for operation in submitted.operations if is_commit(outcome) else ():
            if isinstance(operation, LanceCommit):
                continue
            self._namespaces.apply(operation)
            if isinstance(operation, RenameTable):
                for tables in (self._iceberg, self._views):
                    if operation.table in tables:
                        tables[operation.new_table] = tables.pop(operation.table)

    def namespaces(self, within: TableId = ()) -> list[tuple[TableId, Properties]]:
        """Return a namespace and those in it, or all, with their properties, by name."""
        return [(name, self._namespaces[name]) for name in self._namespaces.within(within)]

    def namespace(self, name: TableId) -> list[tuple[TableId, Properties]]:
        """Return a namespace with its properties; nothing if there is none of this name."""
        return [(name, self._namespaces[name])] if name in self._namespaces else []

    def next_namespaces(
        self, parent: TableId, after: str, limit: int
    ) -> list[tuple[TableId, Properties]]:
        """Return so many namespaces directly in one, by name, after a name."""
        names = self._namespaces.directly_in(parent, after)
        return [(name, self._namespaces[name]) for name in islice(names, limit)]

    def head(self, table: TableId) -> Head:
        """Return a Lance table's head; raise NoSuchTable naming tables that are called alike."""
        head = self._heads.get(table)
        if head is None and (other := self.iceberg_table(table)) is not None:
            kind = "view" if isinstance(other, IcebergView) else "table"
            raise NoSuchTable(
                f"{format_table_id(table)} is an Iceberg {kind}, not a Lance table: use an Iceberg"
                " client, such as pyiceberg, at the HTTP server's address"
            )
        if head is None:
            raise no_such_table(table, self._heads)
        return head

    def heads(self, within: TableId = ()) -> list[Head]:
        """Return the heads of a namespace's tables, or all, by name."""
        heads = self._heads
        return [heads[table] for table in heads.within(within)]

    def heads_of(self, incarnation: str = "", ending: str = "") -> list[Head]:
        """Return the head of one incarnation, or those of tables whose location ends so."""
        heads = self._heads
        if incarnation:
            head = heads.get(self._named.get(incarnation, ()))
            return [head] if head is not None and head.incarnation == incarnation else []
        return [head for head in heads.values() if head.location.endswith(ending)]

    def next_heads(self, namespace: TableId, after: str, limit: int) -> list[Head]:
        """Return so many heads of tables directly in a namespace, by name, after a name."""
        heads = self._heads
        return [heads[table] for table in islice(heads.directly_in(namespace, after), limit)]

    def iceberg_table(self, table: TableId) -> IcebergTable | None:
        """Return an Iceberg table or view at its head, None if there is none of this name."""
        return self._iceberg.get(table) or self._views.get(table)

    def iceberg_tables(self, within: TableId = ()) -> list[tuple[TableId, IcebergTable]]:
        """Return a namespace's Iceberg tables, or all, by name."""
        of_kinds = (self._iceberg, self._views)
        found = [(name, known[name]) for known in of_kinds for name in known.within(within)]
        return sorted(found, key=itemgetter(0))

    def next_iceberg_tables(
        self, namespace: TableId, after: str, limit: int, *, is_view: bool
    ) -> list[tuple[TableId, IcebergTable]]:
        """Return so many views, or tables, directly in a namespace, by name, after a name."""
        known = self._views if is_view else self._iceberg
        names = known.directly_in(namespace, after)
        return [(name, known[name]) for name in islice(names, limit)]

    def _apply(self, change: Change) -> None:
        if change.iceberg is not None:
            self._apply_iceberg(change, change.iceberg)
            return
        delta, is_version = change.delta, change.kind is ChangeKind.VERSION
        is_plain = is_version and delta is not None and delta.header is None
        may_forget = is_version and not change.version % E_TAGS_KEPT
        if is_plain and change.noted is None and not may_forget and change.table in self._known:
            self._newer[change.table] = change.version
            return
        head = self._heads.get(change.table)
        if change.kind in ENDS:
            if head is not None:
                del self._heads[change.table]
                self._named.pop(head.incarnation, None)
            return
        if head is not None and is_version and delta is not None:
            encoded = delta.header
            header = head.header if encoded is None else ManifestHeader(encoded)
            if change.noted is not None:
                head.noted[change.version] = change.noted
            if may_forget:
                oldest = change.version - E_TAGS_KEPT
                _forget(head, lambda version, said: version < oldest and not said.metadata)
            self._heads[change.table] = head.at(change.version, header)
            return
        if head is not None and change.kind is ChangeKind.VERSIONS_DELETED:
            deleted = merged(head.deleted, change.deleted)
            _forget(head, lambda version, said: is_in(version, deleted))
            self._heads[change.table] = replace(head, deleted=deleted)
            return
        if change.kind is ChangeKind.RENAMED:
            old = self._named.get(change.incarnation)
            if old is not None:
                head = self._heads[change.table] = replace(self._heads.pop(old), table=change.table)
                self._named[change.incarnation] = change.table
        table = self._tables.get(change.table)
        if table is None or table.incarnation != change.incarnation:
            return  # a later change, which drops or renames it, is in flight
        self._heads[change.table] = replace(
            _head(table), version=change.version or (head.version if head else 0)
        )
        self._named[change.incarnation] = change.table

    def _apply_iceberg(self, change: Change, after: IcebergTable) -> None:
        if change.kind is ChangeKind.RENAMED:
            return  # of a new name, the operation says the old one
        for known in (self._iceberg, self._views):
            if change.kind is ChangeKind.ICEBERG and known is self._of_kind(after):
                known[change.table] = after
            elif change.table in known:
                del known[change.table]

    def _of_kind(self, one: IcebergTable) -> ByName[IcebergTable]:
        """Return all tables or all views: a page of the few of one looks at none of the other."""
        return self._views if isinstance(one, IcebergView) else self._iceberg


def no_such_table(table: TableId, known: Collection[TableId]) -> NoSuchTable:
    """Return the error, with similar names if the log doesn't have too many to compare."""
    name = format_table_id(table)
    names = [format_table_id(one) for one in (known if len(known) <= _COMPARED_MAX else ())]
    hint = did_you_mean(name, names) or NoSuchTable.ADVICE
    return NoSuchTable(f"the log has no table {name}.", hint=hint)


def _forget(head: Head, is_gone: Callable[[int, Noted], bool]) -> None:
    """Forget notes on versions when the machine does: a term may last for years."""
    for version in [v for v, said in head.noted.items() if is_gone(v, said)]:
        del head.noted[version]


def _head(table: Table) -> Head:
    return Head(
        table=table.table_id,
        incarnation=table.incarnation,
        location=table.location,
        policy=table.policy,
        version=table.version,
        header=table.manifest.header if table.manifest is not None else None,
        primary_key=table.primary_key,
        properties=table.properties,
        stable_row_ids=table.stable_row_ids,
        deleted=table.deleted,
        noted=dict(table.noted),
    )
