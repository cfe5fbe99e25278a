"""The Iceberg tables that exist, and how committed operations change them.

They share names and namespaces with tables of other formats. Nothing else is in, or around, a
place that one ever had, but another Iceberg table may take the place of one that was dropped.
"""

from __future__ import annotations

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.tables.by_name import ByName
from commitlog.core.tables.lance_tables import Locations, Place, normalize_location
from commitlog.model.table import Policy, TableId


class IcebergTables:
    """All Iceberg tables of a partition, by name."""

    def __init__(self) -> None:
        self.tables = ByName[IcebergTable]()
        self.changed_at: dict[TableId, int] = {}
        """The sequence of the last outcome that changed each of them."""
        self.locations = Locations()
        self._names: dict[str, dict[TableId, None]] = {}
        """By uuid: one, unless metadata was registered twice under an earlier protocol."""

        self.registered: dict[TableId, None] = {}
        """Tables without a commit since they were registered, from protocol 4 on."""

        self.read_only: dict[TableId, None] = {}
        """Second names of tables: they share uuid and place with others, and own neither."""

    def restore(
        self,
        table_id: TableId,
        table: IcebergTable,
        sequence: int,
        *,
        is_registered: bool = False,
        is_read_only: bool = False,
    ) -> None:
        """Restore a table from a checkpoint, which knows the locations too."""
        if is_registered:
            self.registered[table_id] = None
        else:
            self.registered.pop(table_id, None)
        before = self.tables.get(table_id)
        if before is not None:
            self._forget_name(table_id, before)
        self.tables[table_id] = table
        self.changed_at[table_id] = sequence
        if is_read_only:
            self.read_only[table_id] = None
        else:
            self._names.setdefault(table.uuid, {})[table_id] = None

    def names(self, uuid: str) -> list[TableId]:
        """Return the names of the tables that have a uuid for themselves, sorted."""
        return sorted(self._names.get(uuid, ()))

    def _forget_name(self, table_id: TableId, table: IcebergTable) -> None:
        if table_id in self.read_only:
            del self.read_only[table_id]
            return
        names = self._names[table.uuid]
        del names[table_id]
        if not names:
            del self._names[table.uuid]

    def put(
        self,
        table_id: TableId,
        after: IcebergTable,
        sequence: int,
        *,
        is_registered: bool = False,
        is_read_only: bool = False,
    ) -> list[Change]:
        """Keep a table as a committed change leaves it."""
        if self.tables.get(table_id) is after:
            return []
        self.restore(
            table_id, after, sequence, is_registered=is_registered, is_read_only=is_read_only
        )
        if not is_read_only:
            self.locations.take(
                normalize_location(after.location), Place(table_id, after.uuid, is_live=True)
            )
        return [iceberg_change(table_id, ChangeKind.ICEBERG, after)]

    def end(self, table_id: TableId, *, is_drop: bool) -> Change:
        """Forget a table; its location stays taken, and the files of a second name stay."""
        is_drop = is_drop and table_id not in self.read_only
        table = self.tables.pop(table_id)
        self._forget_name(table_id, table)
        self.registered.pop(table_id, None)
        del self.changed_at[table_id]
        kind = ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED
        return iceberg_change(table_id, kind, table)

    def rename(self, table_id: TableId, new_id: TableId, sequence: int) -> Change:
        """Give a table another name."""
        table = self.tables.pop(table_id)
        is_read_only = table_id in self.read_only
        self._forget_name(table_id, table)
        del self.changed_at[table_id]
        is_registered = table_id in self.registered
        self.registered.pop(table_id, None)
        self.restore(
            new_id, table, sequence, is_registered=is_registered, is_read_only=is_read_only
        )
        return iceberg_change(new_id, ChangeKind.RENAMED, table)


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
