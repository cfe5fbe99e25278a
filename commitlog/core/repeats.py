"""Finds the answer to what was asked before: the same id, or the same application's sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from commitlog.core.applications import Answer
from commitlog.core.decisions import Refused, rejected
from commitlog.core.log_time import is_too_old
from commitlog.core.once import Decided
from commitlog.core.tables import Table
from commitlog.model.operations import CreateTableVersion, LanceCommit
from commitlog.model.records import (
    Application,
    Code,
    FailedRequirement,
    OperationResult,
    Status,
    Transaction,
)
from commitlog.model.table import TableId, format_table_id

if TYPE_CHECKING:
    from commitlog.core.machine import Machine


class Repeat(NamedTuple):
    """An earlier outcome, told again."""

    status: Status
    answers: int
    results: tuple[OperationResult, ...] = ()
    code: Code = Code.NONE
    message: str = ""
    failed_requirements: tuple[FailedRequirement, ...] = ()


def find_repeat(machine: Machine, record: Transaction, time_ms: int) -> Repeat | None:
    """Return the answer to a duplicate, None for a new transaction; refuse a reused id."""
    known = machine.once.get(record.transaction_id)
    if known is not None and record.attempt < known.attempt:
        raise Refused(
            Status.SUPERSEDED,
            Code.NONE,
            f"attempt {record.attempt} comes after attempt {known.attempt} was decided",
        )
    is_answer = known is not None and (
        known.status is Status.COMMITTED or record.attempt == known.attempt
    )
    if known is not None and is_answer and known.payload_hash == record.payload_hash:
        return _repeat(known)
    if record.application is not None:
        answered = _application(machine, record, record.application)
        if answered is not None:
            return answered
    if known is None:
        _check_age(machine, record, time_ms)
        return None
    if is_answer:
        raise rejected(
            Code.ID_REUSED,
            f"{record.transaction_id} was decided with other content, as outcome "
            f"{known.sequence} ({known.status}); use a new id for a new transaction",
        )
    return None


def _repeat(known: Decided) -> Repeat:
    message = "" if known.status is Status.COMMITTED else f"as outcome {known.sequence} says"
    return Repeat(
        known.status,
        known.sequence,
        known.results,
        known.code,
        message,
        known.failed_requirements,
    )


def _check_age(machine: Machine, record: Transaction, time_ms: int) -> None:
    if is_too_old(machine, record, time_ms):
        raise rejected(
            Code.TOO_OLD,
            f"{record.transaction_id} is from before the log's memory of ids; whether it "
            "committed stands in the version index: look there, then use a new id",
        )


def _application(machine: Machine, record: Transaction, application: Application) -> Repeat | None:
    """Answer a sequence that committed: the first content wins."""
    answers: dict[TableId, Answer] = {}
    fresh: list[TableId] = []
    tables: dict[TableId, Table] = {}
    for operation in record.operations:
        if not isinstance(operation, LanceCommit | CreateTableVersion):
            continue
        table = machine.tables.get(operation.table)
        answer = _answer(table, application) if table is not None else None
        if table is None or answer is None:
            fresh.append(operation.table)
        else:
            answers[operation.table] = answer
            tables[operation.table] = table
    if not answers:
        return None
    name = f"sequence {application.sequence} of application {application.application_id}"
    if fresh:
        raise rejected(
            Code.ID_REUSED,
            f"{name} committed to {format_table_id(next(iter(answers)))} and not to "
            f"{format_table_id(fresh[0])}; send each sequence with the same tables",
        )
    results = tuple(
        OperationResult(table_id, tables[table_id].incarnation, a.operation, a.version)
        for table_id, a in answers.items()
    )
    first = max(answer.outcome_sequence for answer in answers.values())
    return Repeat(Status.COMMITTED, first, results)


def _answer(table: Table, application: Application) -> Answer | None:
    log = table.applications.get(application.application_id)
    if log is None or application.sequence > log.last:
        return None
    name = f"application {application.application_id} on {format_table_id(table.table_id)}"
    if application.run and log.run and application.run != log.run:
        raise rejected(
            Code.ID_REUSED,
            f"{name} is at sequence {log.last} in run {log.run}, and run {application.run} sends "
            f"sequence {application.sequence}: another stream uses the same id, or its "
            "checkpoint is new; give it an id of its own",
        )
    answer = log.get(application.sequence)
    if answer is None:
        is_old = application.sequence < log.first
        raise rejected(
            Code.TOO_OLD if is_old else Code.ID_REUSED,
            f"{name} is at sequence {log.last}; sequence {application.sequence} "
            + ("is no longer remembered" if is_old else "was passed over")
            + "; sequences only grow",
        )
    return answer
