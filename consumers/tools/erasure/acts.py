"""The recorded acts by which rows were erased, or expired, as the log has them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from commitlog.core.log.replica import Decided
from commitlog.model.names import REASON, ROWS_EXPIRED_THROUGH
from commitlog.model.operations import AlterProperties, LanceCommit
from commitlog.model.records import Status, Transaction, is_commit
from commitlog.model.table import format_table_id
from consumers.partition.files.events import by_record

ERASURE = "commitlog.erasure"
"""In a transaction's properties: what it erases, in JSON."""
DONE = "commitlog.erasure.done"
"""In a transaction's properties: the act through which the table's own files are done."""
SAID = "rows that are erased"
"""What the Delete of an act says of its rows."""


class Position(NamedTuple):
    """A write of rows: its transaction's position, and which of the operations it is."""

    sequence: int
    operation: int


@dataclass(frozen=True, slots=True)
class RecordedErasure:
    """One act: what was erased, by whom, when and why."""

    table: str
    incarnation: str
    sequence: int
    time_ms: int
    principal: str
    reason: str
    writes: tuple[Position, ...]
    """The writes whose rows are taken out of the log."""

    def __str__(self) -> str:
        recorded = by_record(self.sequence, self.time_ms, self.principal)
        return (
            f"rows of {self.table} were erased{recorded}, with the rows of {len(self.writes):,}"
            f" writes: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class RowExpiry:
    """A record by which rows of applied writes left the log, since they were old enough."""

    table: str
    incarnation: str
    through: int
    """The position of the last write that it is about."""
    sequence: int
    time_ms: int
    principal: str
    reason: str

    def __str__(self) -> str:
        recorded = by_record(self.sequence, self.time_ms, self.principal)
        return (
            f"rows that were written to {self.table} through position {self.through}"
            f" expired{recorded}: {self.reason}"
        )


def property_of(reason: str, writes: Iterable[Position]) -> tuple[str, str]:
    """Return what an act's transaction says."""
    body = {"reason": reason, "writes": sorted(writes)}
    return ERASURE, json.dumps(body, separators=(",", ":"))


def done_in(decided: Decided) -> int:
    """Return the act through which a decided transaction calls its table's files done, else 0."""
    record = decided.submitted.record
    if not isinstance(record, Transaction) or decided.outcome.status is not Status.COMMITTED:
        return 0
    said = dict(record.properties).get(DONE, "")
    return int(said) if said.isdecimal() else 0


def act_in(decided: Decided) -> RecordedErasure | None:
    """Return the act that a decided transaction is; None if it is none."""
    record, outcome = decided.submitted.record, decided.outcome
    if not isinstance(record, Transaction):
        return None
    said = dict(record.properties).get(ERASURE)
    if said is None or not is_commit(outcome):
        return None
    tables = [
        result
        for operation, result in zip(record.operations, outcome.results, strict=False)
        if isinstance(operation, LanceCommit | AlterProperties)
    ]
    try:
        body = json.loads(said)
        writes = tuple(Position(int(at), int(number)) for at, number in body["writes"])
        reason = str(body["reason"])
    except (ValueError, KeyError, TypeError):
        return None  # somebody else's property of this name
    if not tables:
        return None
    return RecordedErasure(
        table=format_table_id(tables[0].table),
        incarnation=tables[0].incarnation,
        sequence=outcome.sequence,
        time_ms=outcome.time_ms,
        principal=record.principal,
        reason=reason,
        writes=writes,
    )


def expiry_in(decided: Decided) -> RowExpiry | None:
    """Return the expiry of rows that a decided transaction is; None if it is none."""
    record, outcome = decided.submitted.record, decided.outcome
    if not isinstance(record, Transaction) or len(record.operations) != 1:
        return None
    [operation] = record.operations
    if not isinstance(operation, AlterProperties) or operation.is_namespace:
        return None
    said = dict(operation.upserts).get(ROWS_EXPIRED_THROUGH, "")
    if not is_commit(outcome) or not said.isdecimal():
        return None
    [result] = outcome.results
    return RowExpiry(
        table=format_table_id(operation.target),
        incarnation=result.incarnation,
        through=int(said),
        sequence=outcome.sequence,
        time_ms=outcome.time_ms,
        principal=record.principal,
        reason=dict(record.properties).get(REASON, "no reason was given"),
    )
