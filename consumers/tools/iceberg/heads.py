"""Which Iceberg tables exist, by the outcomes of a log: their last metadata files and their places.

A second name of a table shares its place, and often its metadata file. A rename doesn't say the
former name, so it may take away another name of the same file. What stays then stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from commitlog.core.iceberg.naming import derived_uuid
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.model.records import OperationResult, Outcome, is_commit
from commitlog.model.table import TableId


class End(Enum):
    """What a commit made of a table."""

    NONE = "it exists"
    KEPT = "it was dropped, and its files stay"
    PURGED = "it was dropped with its files"


_ENDS = {"DropTable": End.PURGED, "DeregisterTable": End.KEPT}
_DROP_NAMESPACE = "DropNamespace"
"""Its outcome doesn't name the tables that were in the namespace."""


@dataclass(frozen=True, slots=True)
class Named:
    """A metadata file as a commit names it."""

    table: TableId
    place: str
    home: str
    """The table's location."""
    end: End = End.NONE


@dataclass(frozen=True, slots=True)
class IcebergHead:
    """A table that exists."""

    place: str
    """Its last metadata file."""
    home: str
    """Its location."""
    uuid: str
    is_written: bool
    """Whether the log has changed it since it was registered, if it was."""


class IcebergHeads:
    """Takes the commits of a log in their order."""

    def __init__(self) -> None:
        """Begin with no table."""
        self.by_name: dict[TableId, IcebergHead] = {}

    def take(self, outcome: Outcome) -> Iterator[Named]:
        """Take what a commit made of tables; yield the metadata files that it names.

        But not that of a second name that ended: it has no files of its own.
        """
        if not is_commit(outcome):
            return
        for result in outcome.results:
            if result.operation == _DROP_NAMESPACE:
                yield from self._without(result.table)
            elif result.metadata_location:
                named = Named(
                    result.table,
                    normalize_location(result.metadata_location),
                    normalize_location(result.location),
                    _ENDS.get(result.operation, End.NONE),
                )
                self._take(named, result, outcome.transaction_id)
                if named.end is not End.KEPT or not self._has(result.incarnation, named.home):
                    yield named

    def within(self, home: str, besides: TableId = ()) -> IcebergHead | None:
        """Return another table that is at a location or in it, or has its metadata file there."""
        start = f"{home}/"
        for name, head in self.by_name.items():
            is_here = f"{head.home}/".startswith(start) or head.place.startswith(start)
            if is_here and name != besides:
                return head
        return None

    def _take(self, named: Named, result: OperationResult, transaction_id: str) -> None:
        known, name, uuid = self.by_name, named.table, result.incarnation
        before = known.pop(name, None)
        if before is not None and before.uuid != uuid:
            # It had been renamed, and another name of the same file was taken away for it.
            known["", before.place] = replace(before, is_written=False)
            before = None
        if result.operation == "RenameTable":
            same = (other for other, head in known.items() if head.place == named.place)
            before = known.pop(next(same, name), None)
        if named.end is End.NONE:
            is_same = before is not None and before.is_written and before.place == named.place
            # As the core names what a change writes; a registration names what is there.
            written = derived_uuid("\x1f".join((transaction_id, *name)), uuid)
            is_written = is_same or written in named.place
            known[name] = IcebergHead(named.place, named.home, uuid, is_written)

    def _has(self, uuid: str, home: str) -> bool:
        """Return True if a table exists, under whichever name."""
        return any((head.uuid, head.home) == (uuid, home) for head in self.by_name.values())

    def _without(self, namespace: TableId) -> Iterator[Named]:
        """Take away all tables of a namespace; yield those of which no other name is left."""
        inside = [name for name in self.by_name if name[: len(namespace)] == namespace]
        gone = {name: self.by_name.pop(name) for name in inside}
        for name, head in gone.items():
            if not self._has(head.uuid, head.home):
                yield Named(name, head.place, head.home, End.KEPT)
