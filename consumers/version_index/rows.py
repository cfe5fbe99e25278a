"""Rows of the version index: pure functions of a transaction and its outcome.

Every row follows from `Decided` alone: no clock, no state, no earlier rows. So an index that was
killed, restored or rebuilt holds the same rows as one that never stopped.

A transaction that an earlier commit answers has rows too, with the status `repeated` and without a
version: it was asked, and it changed nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from commitlog.core.replica import Decided
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
    DeclareTable,
    DeregisterTable,
    DropNamespace,
    DropTable,
    LanceCommit,
    Operation,
    RegisterTable,
    RenameTable,
    operation_name,
    target,
)
from commitlog.model.records import (
    Expect,
    KeyAbsent,
    LeaderStarted,
    Malformed,
    OperationResult,
    PredicateUnchanged,
    ProtocolVersion,
    Status,
    TableAbsent,
    Transaction,
)
from commitlog.model.table import format_table_id

Row = tuple[object, ...]
REPEATED = "repeated"
ENDING = {DropTable.__name__, DeregisterTable.__name__, DropNamespace.__name__}
MICROSECONDS_PER_MS = 1000


@dataclass(slots=True)
class Rows:
    """Rows by relation, in the columns' order of `schema`."""

    transactions: list[Row] = field(default_factory=list)
    operations: list[Row] = field(default_factory=list)
    collisions: list[Row] = field(default_factory=list)
    expectations: list[Row] = field(default_factory=list)
    data_files: list[Row] = field(default_factory=list)
    properties: list[Row] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Done:
    """One operation and what came of it: an operation's row before it is one."""

    ordinal: int
    name: str
    table: str
    status: str
    operation: Operation | None
    """None for what a result reports beyond the operations asked for."""
    result: OperationResult | None
    """None unless the operation took effect."""

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


def rows_of(batch: Iterable[Decided]) -> Rows:
    """Return the rows of decided transactions, in their order."""
    rows = Rows()
    for decided in batch:
        done = tuple(operations_done(decided))
        rows.transactions.append(_transaction(decided, done))
        place = (decided.submitted.partition, decided.outcome.sequence, _time(decided))
        rows.operations.extend(_operation(decided, place, one) for one in done)
        rows.data_files.extend(_data_files(decided, place, done))
        rows.properties.extend(_properties(decided, place, done))
        rows.expectations.extend(_expectations(decided, place))
        if decided.outcome.conflict is not None:
            rows.collisions.append(_collision(decided, place, done))
    return rows


def operations_done(decided: Decided) -> Iterator[Done]:
    """Yield each operation with its result, then results beyond the operations asked for."""
    outcome = decided.outcome
    record = decided.submitted.record
    operations = record.operations if isinstance(record, Transaction) else ()
    status = REPEATED if outcome.answers is not None else str(outcome.status)
    effective = outcome.status is Status.COMMITTED and outcome.answers is None
    results = list(outcome.results) if effective else []
    same_length = len(results) == len(operations)
    for ordinal, operation in enumerate(operations):
        table = target(operation)
        result: OperationResult | None
        if same_length:
            result = results[ordinal]
        else:
            result = next((one for one in results if one.table == table), None)
            results = [one for one in results if one is not result]
        name, became = _name_of(operation), status
        if _found_standing(operation, result):
            became, result = REPEATED, None
        yield Done(ordinal, name, format_table_id(table), became, operation, result)
    if not same_length:
        for ordinal, extra in enumerate(results, start=len(operations)):
            yield Done(ordinal, extra.operation, format_table_id(extra.table), status, None, extra)


def _name_of(operation: Operation) -> str:
    if isinstance(operation, CreateTableVersion) and operation.operation:
        return operation.operation  # what the client's library did
    return operation_name(operation)


def _found_standing(operation: Operation, result: OperationResult | None) -> bool:
    # With `exist_ok`: the result tells of the table that stood already.
    if result is None or not isinstance(operation, CreateTable):
        return False
    return result.incarnation != operation.incarnation


def _read_version(one: Done) -> int | None:
    if isinstance(one.operation, LanceCommit):
        return one.operation.read_version
    if isinstance(one.operation, CreateTableVersion) and one.result:
        return one.result.read_version
    return None


def _time(decided: Decided) -> int:
    return decided.outcome.time_ms * MICROSECONDS_PER_MS


def _transaction(decided: Decided, done: tuple[Done, ...]) -> Row:
    outcome, record = decided.outcome, decided.submitted.record
    known = record if isinstance(record, Transaction) else None
    application = known.application if known else None
    kind = "transaction" if known else "protocol"
    submitted_at = known.submitted_at_ms if known else 0
    return (
        decided.submitted.partition,
        outcome.sequence,
        _time(decided),
        str(outcome.status),
        str(outcome.code) or None,
        outcome.transaction_id,
        outcome.attempt,
        known.principal if known else "",
        "malformed" if isinstance(record, Malformed) else kind,
        [one.name for one in done] or _kind_of(record),
        [one.table for one in done],
        [one.version for one in done],
        outcome.message or None,
        outcome.answers,
        submitted_at * MICROSECONDS_PER_MS or None,
        application.application_id if application else None,
        application.sequence if application else None,
        (application.run or None) if application else None,
        json.dumps(dict(known.properties)) if known and known.properties else None,
        decided.submitted.offset,
        decided.answered_offset,
        outcome.epoch,
        outcome.node,
        outcome.payload_hash,
        outcome.hash,
    )


def _kind_of(record: object) -> list[str]:
    return [type(record).__name__] if isinstance(record, ProtocolVersion) else []


def _operation(decided: Decided, place: Row, one: Done) -> Row:
    outcome, result = decided.outcome, one.result
    lance = one.operation if isinstance(one.operation, LanceCommit) else None
    summary = lance.summary if lance else None
    refused = outcome.status is not Status.COMMITTED
    return (
        *place,
        one.ordinal,
        one.table,
        one.incarnation,
        one.name,
        one.status,
        str(outcome.code) or None,
        (outcome.message or None) if refused else None,
        _principal(decided),
        outcome.transaction_id,
        _read_version(one),
        one.version,
        result.read_version if result and one.version else None,
        result.rebased_over if result else None,
        result.rebased if result else None,
        summary.rows_added if summary else None,
        summary.rows_removed if summary else None,
        summary.bytes_added if summary else None,
        summary.fragments_added if summary else None,
        summary.fragments_updated if summary else None,
        summary.fragments_removed if summary else None,
        result.first_fragment_id if result and result.first_fragment_id >= 0 else None,
        result.first_row_id if result and result.first_row_id >= 0 else None,
        getattr(one.operation, "branch", "") or None,
        one.is_table,
        one.name_after,
        (result.location if result else getattr(one.operation, "location", "")) or None,
        decided.answered_offset,
    )


def _principal(decided: Decided) -> str:
    record = decided.submitted.record
    return record.principal if isinstance(record, Transaction) else ""


def _collision(decided: Decided, place: Row, done: tuple[Done, ...]) -> Row:
    outcome, conflict = decided.outcome, decided.outcome.conflict
    assert conflict is not None
    table = format_table_id(conflict.table)
    loser = next((one for one in done if one.table == table), done[0] if done else None)
    lance = loser.operation if loser and isinstance(loser.operation, LanceCommit) else None
    return (
        *place,
        table,
        outcome.transaction_id,
        _principal(decided),
        loser.name if loser else None,
        lance.read_version if lance else None,
        str(outcome.status),
        conflict.rule,
        list(conflict.fragments),
        list(conflict.keys),
        conflict.transaction_id,
        conflict.version,
        conflict.operation,
        conflict.advice or None,
        outcome.message or None,
    )


def _data_files(decided: Decided, place: Row, done: tuple[Done, ...]) -> Iterator[Row]:
    for one in done:
        if isinstance(one.operation, LanceCommit):
            head = (one.table, one.incarnation, one.version, one.status)
            for path in one.operation.summary.data_files:
                yield (*place, one.ordinal, *head, decided.outcome.transaction_id, path)


def _properties(decided: Decided, place: Row, done: tuple[Done, ...]) -> Iterator[Row]:
    for one in done:
        if one.result is None:
            continue
        changes: list[tuple[str, str | None]] = []
        match one.operation:
            case AlterProperties(upserts=upserts, removals=removals):
                changes = [*upserts, *((key, None) for key in removals)]
            case (
                CreateTable(properties=properties)
                | DeclareTable(properties=properties)
                | RegisterTable(properties=properties)
                | CreateNamespace(properties=properties)
            ):
                changes = list(properties)
        for key, value in changes:
            head = (one.ordinal, one.table, one.is_table, decided.outcome.transaction_id)
            yield (*place, *head, key, value)


def _expectations(decided: Decided, place: Row) -> Iterator[Row]:
    record, outcome = decided.submitted.record, decided.outcome
    if not isinstance(record, Transaction):
        return
    status = REPEATED if outcome.answers is not None else str(outcome.status)
    for ordinal, expect in enumerate(record.expects):
        head = (ordinal, outcome.transaction_id, status, type(expect).__name__)
        yield (*place, *head, format_table_id(expect.table), *_expected(expect))


def _expected(expect: Expect) -> tuple[int | None, str | None]:
    match expect:
        case TableAbsent():
            return None, None
        case KeyAbsent():
            return expect.since_version, expect.key_hash.hex()
        case PredicateUnchanged():
            return expect.version, expect.predicate
        case _:
            return expect.version, None


def leader_row(partition: int, leader: LeaderStarted, offset: int) -> Row:
    """Return the row of a term."""
    return (
        partition,
        leader.epoch,
        leader.node,
        leader.leader_id,
        leader.sequence,
        leader.started_at_ms * MICROSECONDS_PER_MS,
        leader.version,
        offset,
        leader.previous_hash,
        leader.state_digest,
    )
