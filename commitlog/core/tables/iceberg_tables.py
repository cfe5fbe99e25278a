"""The Iceberg tables that stand, and how committed operations change them.

They share names and namespaces with tables of other formats. A location is shared among Iceberg
tables only, as Iceberg allows it: nothing else lies in, or around, a place that one ever had.
"""

from __future__ import annotations

from collections.abc import Mapping

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.tables.lance_tables import Locations, Place, normalize_location
from commitlog.model.table import Policy, TableId


class IcebergTables:
    """All Iceberg tables of a partition, by name."""

    def __init__(self) -> None:
        self.tables: dict[TableId, IcebergTable] = {}
        self.changed_at: dict[TableId, int] = {}
        """The sequence of the last outcome that changed each of them."""
        self.locations = Locations()

    def put(self, table_id: TableId, after: IcebergTable, sequence: int) -> list[Change]:
        """Take a table as a committed change leaves it."""
        if self.tables.get(table_id) is after:
            return []
        self.tables[table_id] = after
        self.changed_at[table_id] = sequence
        self.locations.take(
            normalize_location(after.location), Place(table_id, after.uuid, is_live=True)
        )
        return [iceberg_change(table_id, ChangeKind.ICEBERG, after)]

    def end(self, table_id: TableId, *, is_drop: bool) -> Change:
        """Forget a table; its location stays taken."""
        table = self.tables.pop(table_id)
        del self.changed_at[table_id]
        kind = ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED
        return iceberg_change(table_id, kind, table)

    def rename(self, table_id: TableId, new_id: TableId, sequence: int) -> Change:
        """Give a table another name."""
        table = self.tables[new_id] = self.tables.pop(table_id)
        del self.changed_at[table_id]
        self.changed_at[new_id] = sequence
        return iceberg_change(new_id, ChangeKind.RENAMED, table)

    def below(self, namespace: TableId) -> list[TableId]:
        """Return the names of the tables in a namespace, at any depth, sorted."""
        return below(namespace, self.tables)


def below(namespace: TableId, tables: Mapping[TableId, object]) -> list[TableId]:
    """Return the names that lie in a namespace, sorted."""
    depth = len(namespace)
    return sorted(t for t in tables if len(t) > depth and t[:depth] == namespace)


def iceberg_change(table_id: TableId, kind: ChangeKind, table: IcebergTable) -> Change:
    """Return what became of an Iceberg table: it has no manifest that anybody must write."""
    return Change(
        table=table_id,
        incarnation=table.uuid,
        kind=kind,
        location=table.location,
        policy=Policy.EVERY,
        iceberg=table,
    )
