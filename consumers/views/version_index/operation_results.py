"""The result of each operation of a decided transaction, read once for rows and heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from commitlog.codecs.iceberg_changes import IcebergChanges, read_changes
from commitlog.core.log.replica import Decided
from commitlog.model.operations import (
    AlterProperties,
    ApplyRows,
    CreateNamespace,
    CreateTableVersion,
    DeregisterTable,
    DropNamespace,
    DropTable,
    IcebergChange,
    LanceCommit,
    Operation,
    RegisterTable,
    RenameTable,
    Summary,
    WriteRows,
    operation_name,
    target,
)
from commitlog.model.records import OperationResult, found_standing, is_commit
from commitlog.model.table import format_table_id

REPEATED = "repeated"
ENDING = {DropTable.__name__, DeregisterTable.__name__, DropNamespace.__name__}


class Counts(NamedTuple):
    """Rows, bytes of data files and fragments, by the fragments that an operation left."""

    rows_added: int
    rows_removed: int
    bytes_added: int
    fragments_added: int
    fragments_updated: int
    fragments_removed: int


@dataclass(slots=True)
class DoneOperation:
    """One operation and what came of it: an operation's row before it is one."""

    ordinal: int
    name: str
    table: str
    status: str
    operation: Operation | None
    """None for what a result reports beyond the operations asked for."""
    result: OperationResult | None
    """None unless the operation took effect."""
    iceberg: IcebergChanges | None = None
    """What an Iceberg change asks for; None for everything else."""
    counts: Counts | None = None
    """What it added and removed, once it was counted."""

    @property
    def is_table(self) -> bool:
        """Whether it is about a table, not a namespace."""
        operation = self.operation
        if isinstance(operation, AlterProperties):
            return not operation.is_namespace
        return not isinstance(operation, CreateNamespace | DropNamespace)

    @property
    def version(self) -> int | None:
        """The version that it made."""
        return (self.result.version or None) if self.result else None

    @property
    def snapshot_id(self) -> int | None:
        """The Iceberg snapshot after it."""
        return self.result.snapshot_id if self.result and self.result.snapshot_id >= 0 else None

    @property
    def incarnation(self) -> str | None:
        """The life of the table that it is about, where known."""
        asked: str = getattr(self.operation, "incarnation", "")
        return (self.result.incarnation if self.result else asked) or None

    @property
    def name_after(self) -> str | None:
        """The table's name after it; None if it ended the table."""
        if isinstance(self.operation, RenameTable):
            return format_table_id(self.operation.new_table)
        return None if self.name in ENDING else self.table

    @property
    def lists_all(self) -> bool:
        """Whether it lists all fragments of its table, as the registration of one does."""
        is_registered = isinstance(self.operation, RegisterTable) and self.result is not None
        return is_registered and self.result is not None and self.result.delta is not None

    @property
    def summary(self) -> Summary | None:
        """What it added and removed, where it says so."""
        if isinstance(self.operation, LanceCommit):
            return self.operation.summary
        return self.iceberg.summary if self.iceberg else None


def counts_of(one: DoneOperation) -> Counts | None:
    """Return what an operation added and removed; of a refused one, what it says of itself."""
    summary = one.summary
    if one.counts is not None or summary is None:
        return one.counts
    return Counts(*(getattr(summary, name) for name in Counts._fields))


def what_of_rows(operation: Operation | None) -> str | None:
    """Return in words what was accepted or applied, of writes of rows."""
    match operation:
        case WriteRows(rows=rows, mode=mode):
            return f"{rows} {'row' if rows == 1 else 'rows'} to {mode}"
        case ApplyRows(writes=writes):
            done = [one for one in writes if not one.refused]
            parts = [
                f"{len(done)} {'write' if len(done) == 1 else 'writes'} applied, rows:"
                f" {sum(one.inserted for one in done)} inserted,"
                f" {sum(one.updated for one in done)} updated,"
                f" {sum(one.deleted for one in done)} deleted"
            ]
            if len(done) < len(writes):
                parts.append(f"{len(writes) - len(done)} refused")
            return "; ".join(parts)
    return None


class DoneAppend(NamedTuple):
    """A committed append of new fragments, of which nothing else is to be told."""

    table: str
    incarnation: str
    version: int
    rows: int
    bytes: int
    fragments: tuple[tuple[int, int, int], ...]
    """Of each its id, its rows and its bytes."""


Told = tuple[Decided, tuple[DoneOperation, ...] | DoneAppend]
"""A decided transaction with what its operations came to."""


def beside_appends(told: Iterable[Told]) -> Iterator[tuple[Decided, DoneOperation]]:
    """Yield the operations of all transactions but those that are a `DoneAppend`."""
    for decided, done in told:
        if not isinstance(done, DoneAppend):
            yield from ((decided, one) for one in done)


def read(batch: Iterable[Decided]) -> list[Told]:
    """Return decided transactions with what their operations came to."""
    return [(decided, tuple(operations_done(decided))) for decided in batch]


def operations_done(decided: Decided) -> Iterator[DoneOperation]:
    """Yield each operation with its result, then results beyond the operations asked for."""
    outcome, operations = decided.outcome, decided.submitted.operations
    status = REPEATED if outcome.answers is not None else str(outcome.status)
    results = list(outcome.results) if is_commit(outcome) else []
    same_length = len(results) == len(operations)
    for ordinal, operation in enumerate(operations):
        table = target(operation)
        result: OperationResult | None
        if same_length:
            result = results[ordinal]
        else:
            result = next((one for one in results if one.table == table), None)
            results = [one for one in results if one is not result]
        became = status
        if found_standing(operation, result):
            became, result = REPEATED, None
        changes = read_changes(operation) if isinstance(operation, IcebergChange) else None
        name = _name_of(operation, changes)
        yield DoneOperation(
            ordinal=ordinal,
            name=name,
            table=format_table_id(table),
            status=became,
            operation=operation,
            result=result,
            iceberg=changes,
        )
    if not same_length:
        for ordinal, extra in enumerate(results, start=len(operations)):
            yield DoneOperation(
                ordinal=ordinal,
                name=extra.operation,
                table=format_table_id(extra.table),
                status=status,
                operation=None,
                result=extra,
            )


def _name_of(operation: Operation, changes: IcebergChanges | None) -> str:
    if isinstance(operation, CreateTableVersion) and operation.operation:
        return operation.operation  # what the client's library did
    return changes.name if changes is not None else operation_name(operation)
