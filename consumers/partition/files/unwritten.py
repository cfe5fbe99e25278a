"""What is committed and waits for its files, by table, and which tables wait for too many.

A store may be slower than a table's writers, or away, and until a version has its files, it is in
the memory of every committer. So the leader appends nothing more to such a table for writers: they
wait for its store, and nobody else does. What is in the log all the same is decided as ever: this
is about what is appended, never about a decision. A writer that appends by itself isn't stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import Any

from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.decisions import ENDS, Change, ChangeKind
from commitlog.core.log.chain import ChainPlace
from commitlog.core.tables.lance_tables import Table, VersionRanges
from commitlog.errors import Overloaded
from commitlog.model.operations import DeregisterTable, DropNamespace, DropTable, WriteRows
from commitlog.model.records import LogRecord, Outcome, Transaction
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.events import Event, Filing, leaves_files
from consumers.partition.files.owed import Owed

CHANGE_BYTES = 3_500
"""What a small append takes until it has its file, in a committer's memory (measured)."""
RETRY_SECONDS = 1.0
MIB = 1 << 20
_GO_ON = (DropTable, DeregisterTable, WriteRows)
"""What ends a table frees memory; what only writes rows makes no version by itself."""


@dataclass(frozen=True, slots=True)
class UnwrittenMax:
    """How much may wait for its files, in the memory of one committer."""

    versions: int = 20_000
    """Of one table."""
    mib: int = 512
    """Of all tables: with more, those that have more than an equal share get no more."""


USUAL = UnwrittenMax()


def held_bytes(change: Change, event: Event) -> int:
    """Return about how many bytes a change takes until it has its files."""
    delta, size = change.delta, CHANGE_BYTES + len(event.record) + 3 * len(change.message)
    if delta is not None:
        size += len(delta.header or b"") + len(delta.index_section or b"")
        for _, fragment in delta.fragments:
            size += len(fragment)
    return size


@dataclass(slots=True)
class _Backlog:
    last: Change
    """The newest change."""
    waiting: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Of each change what it holds, its version (0: it made none) and its outcome, in their order,
    in which they get their files too."""
    bytes: int = 0
    version: int = 0
    """The newest version that was made."""
    deleted: VersionRanges = ()
    """Versions that were deleted since the oldest change or before."""

    def owed(self, before: Callable[[int], ChainPlace], newest: Callable[[str], int]) -> Owed:
        """Return what a checkpoint owes if it is made now."""
        first = next((version for _, version, _ in self.waiting if version), 0)
        last, sequence = self.last, self.waiting[0][2]
        return Owed(
            table=last.table,
            incarnation=last.incarnation,
            location=last.location,
            policy=last.policy,
            changes=len(self.waiting),
            first=first,
            last=self.version if first else 0,
            # Nobody knows what was written of a table that has left the log.
            base=max(0, first - 1) if last.kind in ENDS else newest(last.incarnation),
            sequence=sequence,
            place=before(sequence),
            deleted=self.deleted,
            end=last.kind if last.kind in ENDS else None,
        )


def _around(table: TableId) -> Iterator[TableId]:
    """Yield the namespaces that a table is in."""
    return (table[:parts] for parts in range(1, len(table)))


class Unwritten:
    """The backlog of each table whose files are behind. Owned by the loop."""

    def __init__(self, tables: Mapping[TableId, Table], most: UnwrittenMax = USUAL) -> None:
        """Know no backlog; `tables` says which incarnation has a name now."""
        self._tables, self.most = tables, most
        self._behind: dict[str, _Backlog] = {}
        self._long: set[str] = set()
        """Those of them that have as many changes as a table may."""
        self._bytes, self._room = 0, most.mib * MIB

    def committed(self, events: Iterable[Event]) -> None:
        """Count what Kafka acknowledged."""
        for event in events:
            for change in event.changes:
                if change.iceberg is None:
                    backlog = self._behind.get(change.incarnation)
                    if backlog is None:
                        backlog = self._behind[change.incarnation] = _Backlog(change)
                    size, version = held_bytes(change, event), 0
                    if change.delta is not None:
                        version = backlog.version = change.version
                    elif change.deleted:
                        backlog.deleted = merged(backlog.deleted, change.deleted)
                    backlog.last = change
                    backlog.waiting.append((size, version, event.outcome.sequence))
                    backlog.bytes += size
                    self._bytes += size
                    if len(backlog.waiting) >= self.most.versions:
                        self._long.add(change.incarnation)

    def adopt(self, owed: Owed) -> None:
        """Take what a checkpoint owes of a table: its changes wait, and hold nothing."""
        backlog = _Backlog(owed.change(owed.end or ChangeKind.VERSION))
        # A version is filed as one change, and with the last one those that made none.
        versions = chain(range(owed.first, owed.last + 1), repeat(0))
        waiting = islice(versions, owed.changes)
        backlog.waiting.extend((0, version, owed.sequence) for version in waiting)
        backlog.version, backlog.deleted = owed.last, owed.deleted
        self._behind[owed.incarnation] = backlog
        if owed.changes >= self.most.versions:
            self._long.add(owed.incarnation)

    def owed(
        self, before: Callable[[int], ChainPlace], newest: Callable[[str], int]
    ) -> tuple[Owed, ...]:
        """Return what a checkpoint owes if it is made now.

        `before` returns a place before an outcome, `newest` a table's newest version with a file.
        """
        found = (backlog.owed(before, newest) for backlog in self._behind.values())
        # Where a table was only declared, say, or renamed, there is nothing to write.
        return tuple(one for one in found if one.has_versions or one.deleted or one.end)

    def filed(self, filings: Iterable[Filing]) -> None:
        """Hear from the materializer what has its files."""
        for incarnation, count in filings:
            backlog = self._behind[incarnation]
            for _ in range(count):
                size = backlog.waiting.popleft()[0]
                backlog.bytes -= size
                self._bytes -= size
            if len(backlog.waiting) < self.most.versions:
                self._long.discard(incarnation)
            if not backlog.waiting:
                del self._behind[incarnation]

    def ends(self, outcome: Outcome) -> bool:
        """Return True if an outcome is about a table that ended, and whose files are to say so."""
        for result in outcome.results:
            backlog = self._behind.get(result.incarnation)
            if backlog is not None and leaves_files(backlog.last):
                return True
        # What is in a namespace that ends has no result of its own.
        names = {one.table for one in outcome.results if one.operation == DropNamespace.__name__}
        return bool(names) and any(
            leaves_files(backlog.last) and not names.isdisjoint(_around(backlog.last.table))
            for backlog in self._behind.values()
        )

    def why_not(self, record: LogRecord) -> Overloaded | None:
        """Say why no such record is appended for a writer now; None if it may be."""
        if not self._long and self._bytes <= self._room:
            return None
        if not isinstance(record, Transaction):
            return None
        for operation in record.operations:
            table = self._tables.get(getattr(operation, "table", ()))
            backlog = self._behind.get(table.incarnation) if table is not None else None
            if table is None or backlog is None or not self._is_full(backlog):
                continue
            if isinstance(operation, _GO_ON):
                continue
            name = format_table_id(table.table_id)
            return Overloaded(
                f"{name} has {len(backlog.waiting):,} committed versions"
                f" ({backlog.bytes / MIB:,.1f} MiB) whose files aren't written yet, since its"
                f" store is slower than its writers, or away. {self._limit(backlog)} Repeat the"
                " call later; `commitlog doctor` and the committer's log say what the store does",
                RETRY_SECONDS,
                name,
            )
        return None

    def status(self) -> dict[str, Any]:
        """Return how much waits, and which tables get no more."""
        full = (one for one in self._behind.values() if self._is_full(one))
        return {
            "unwritten_versions": sum(len(one.waiting) for one in self._behind.values()),
            "unwritten_bytes": self._bytes,
            "full_tables": [format_table_id(one.last.table) for one in full],
        }

    def tables(self) -> list[str]:
        """Return the names of the tables whose files are behind."""
        return [format_table_id(one.last.table) for one in self._behind.values()]

    def _is_full(self, backlog: _Backlog) -> bool:
        if len(backlog.waiting) >= self.most.versions:
            return True
        return self._bytes > self._room and backlog.bytes * len(self._behind) > self._room

    def _limit(self, backlog: _Backlog) -> str:
        if len(backlog.waiting) >= self.most.versions:
            return f"At most {self.most.versions:,} of a table may be (unwritten_versions)."
        return f"All tables' may take {self.most.mib:,} MiB of memory (unwritten_memory)."
