"""What stands now: one row per life of a table, folded from decided transactions.

A fold of the same operations in the order of their sequences gives the same rows, whatever the
batches were. `former_names` keeps a renamed table's history findable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field, fields

from commitlog.core.log.replica import Decided
from commitlog.model.limits import INT64_MAX
from commitlog.model.operations import (
    CreateTable,
    DeclareTable,
    DropNamespace,
    IcebergChange,
    Operation,
    RegisterTable,
)
from commitlog.model.table import DELIMITER, format_table_id
from consumers.views.version_index.contents import Row
from consumers.views.version_index.operation_results import (
    DoneAppend,
    DoneOperation,
    Told,
    counts_of,
)
from consumers.views.version_index.rows import MICROSECONDS_PER_MS


@dataclass(slots=True)
class IndexedLife:
    """A life of a table; the fields are the columns of `tables`, times in microseconds."""

    incarnation: str
    table_name: str
    format: str
    partition: int
    location: str | None = None
    policy: str | None = None
    primary_key: list[str] = field(default_factory=list)
    stable_row_ids: bool | None = None
    version: int | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None
    sequence: int = 0
    changed_at: int = 0
    changed_by: str = ""
    created_sequence: int = 0
    created_at: int = 0
    created_by: str = ""
    commits: int = 0
    rows_added: int = 0
    rows_removed: int = 0
    bytes_added: int = 0
    former_names: list[str] = field(default_factory=list)
    ended_by: str | None = None
    ended_sequence: int | None = None
    ended_at: int | None = None

    def row(self) -> Row:
        """Return the row of `tables`."""
        return tuple(getattr(self, name) for name in COLUMNS)


COLUMNS = tuple(one.name for one in fields(IndexedLife))


def fold(heads: MutableMapping[str, IndexedLife], told: Iterable[Told]) -> set[str]:
    """Apply decided transactions to `heads`; return the incarnations that changed."""
    changed: set[str] = set()
    for decided, done in told:
        if isinstance(done, DoneAppend):
            _append(heads, decided, done)
            changed.add(done.incarnation)
            continue
        dropped = set[str]()
        for one in done:
            if one.result is not None and isinstance(one.operation, DropNamespace):
                dropped.add(format_table_id(one.operation.namespace))
            elif one.result is not None:
                changed.update(_end_all(heads, decided, dropped))
                changed.update(_apply(heads, decided, one))
        changed.update(_end_all(heads, decided, dropped))
    return changed


def _apply(
    heads: MutableMapping[str, IndexedLife], decided: Decided, one: DoneOperation
) -> Iterable[str]:
    incarnation = one.incarnation
    if not one.is_table or incarnation is None:
        return ()
    head = heads.get(incarnation)
    if head is None:
        head = heads[incarnation] = _first(decided, one.operation, incarnation, one.table)
    _touch(head, decided)
    if one.result and one.result.location:
        head.location = one.result.location
    if one.version is not None:
        head.version = max(one.version, head.version or 0)
        head.commits += 1
    elif isinstance(one.operation, IcebergChange):
        head.snapshot_id = one.snapshot_id
        head.commits += 1
    if one.result and one.result.metadata_location:
        head.metadata_location = one.result.metadata_location
    counts = counts_of(one)
    if counts is not None:
        _add(head, counts.rows_added, counts.bytes_added)
        head.rows_removed = min(head.rows_removed + counts.rows_removed, INT64_MAX)
    if one.name_after is None:
        _end(head, decided, one.name)
    else:
        _name(head, one.name_after)
    return (incarnation,)


def _append(heads: MutableMapping[str, IndexedLife], decided: Decided, one: DoneAppend) -> None:
    head = heads.get(one.incarnation)
    if head is None:
        head = heads[one.incarnation] = _first(decided, None, one.incarnation, one.table)
    _touch(head, decided)
    head.version = max(one.version, head.version or 0)
    head.commits += 1
    _add(head, one.rows, one.bytes)
    _name(head, one.table)


def _add(head: IndexedLife, rows: int, size: int) -> None:
    head.rows_added = min(head.rows_added + rows, INT64_MAX)
    head.bytes_added = min(head.bytes_added + size, INT64_MAX)


def _name(head: IndexedLife, name: str) -> None:
    if name != head.table_name:
        head.former_names = [*head.former_names, head.table_name]
        head.table_name = name


def _first(
    decided: Decided, operation: Operation | None, incarnation: str, table: str
) -> IndexedLife:
    kind = "iceberg" if isinstance(operation, IcebergChange) else "lance"
    head = IndexedLife(incarnation, table, kind, decided.submitted.partition)
    head.created_sequence = decided.outcome.sequence
    head.created_at = decided.outcome.time_ms * MICROSECONDS_PER_MS
    head.created_by = decided.submitted.principal
    if isinstance(operation, CreateTable | DeclareTable | RegisterTable):
        head.location = operation.location
        head.policy = str(operation.policy)
    if isinstance(operation, CreateTable | RegisterTable):
        head.primary_key = list(operation.primary_key)
    if isinstance(operation, CreateTable):
        head.stable_row_ids = operation.stable_row_ids
    return head


def _touch(head: IndexedLife, decided: Decided) -> None:
    head.sequence = decided.outcome.sequence
    head.changed_at = decided.outcome.time_ms * MICROSECONDS_PER_MS
    head.changed_by = decided.submitted.principal
    head.ended_by = head.ended_sequence = head.ended_at = None


def _end(head: IndexedLife, decided: Decided, how: str) -> None:
    head.ended_by = how
    head.ended_sequence = decided.outcome.sequence
    head.ended_at = decided.outcome.time_ms * MICROSECONDS_PER_MS


def _end_all(
    heads: MutableMapping[str, IndexedLife], decided: Decided, dropped: set[str]
) -> list[str]:
    """End what is in namespaces that were dropped, which are forgotten.

    All lives are looked at once for a row of drops: for each of a thousand, it took seconds.
    """
    # A cascade may report the tables as results of their own; those are ended before or after
    # this, with the same position.
    ended = []
    for head in heads.values() if dropped else ():
        inside = any(one in dropped for one in _namespaces(head.table_name))
        if inside and head.ended_by is None and head.partition == decided.submitted.partition:
            _touch(head, decided)
            _end(head, decided, DropNamespace.__name__)
            ended.append(head.incarnation)
    dropped.clear()
    return ended


def _namespaces(name: str) -> Iterator[str]:
    end = name.find(DELIMITER)
    while end >= 0:
        yield name[:end]
        end = name.find(DELIMITER, end + 1)
