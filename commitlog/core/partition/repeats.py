"""Finds the answer to what was asked before: the same id, or the same application's sequence."""

from __future__ import annotations

from typing import NamedTuple

from commitlog.core.decisions import Refused, rejected
from commitlog.core.log.applications import ApplicationAnswer
from commitlog.core.log.known_ids import KnownId
from commitlog.core.partition.log_time import is_too_old
from commitlog.core.partition.state import PartitionState
from commitlog.core.tables.lance_tables import Table
from commitlog.model.operations import CreateTableVersion, LanceCommit, WriteRows
from commitlog.model.reasons import Phrase
from commitlog.model.records import (
    Application,
    Code,
    FailedRequirement,
    OperationResult,
    Status,
    Transaction,
)
from commitlog.model.table import TableId, format_table_id

OTHER_TABLES = "sequence_of_other_tables"
"""The reason against a sequence that committed to some of a record's tables."""


class RepeatedOutcome(NamedTuple):
    """An earlier outcome, told again."""

    status: Status
    answers: int
    results: tuple[OperationResult, ...] = ()
    code: Code = Code.NONE
    phrase: Phrase | None = None
    failed_requirements: tuple[FailedRequirement, ...] = ()


def find_repeat(
    machine: PartitionState, record: Transaction, time_ms: int
) -> RepeatedOutcome | None:
    """Return the answer to a duplicate, None for a new transaction; refuse a reused id."""
    known = machine.deduplication.get(record.transaction_id)
    if known is not None and record.attempt < known.attempt:
        attempts = {"attempt": record.attempt, "decided": known.attempt}
        raise Refused(Status.SUPERSEDED, Code.NONE, Phrase("attempt_superseded", attempts))
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
            "id_reused",
            transaction_id=record.transaction_id,
            sequence=known.sequence,
            status=known.status,
        )
    return None


def _repeat(known: KnownId) -> RepeatedOutcome:
    is_refused = known.status is not Status.COMMITTED
    phrase = Phrase("as_before", {"sequence": known.sequence}) if is_refused else None
    return RepeatedOutcome(
        status=known.status,
        answers=known.sequence,
        results=known.results,
        code=known.code,
        phrase=phrase,
        failed_requirements=known.failed_requirements,
    )


def _check_age(machine: PartitionState, record: Transaction, time_ms: int) -> None:
    if is_too_old(machine, record, time_ms):
        raise rejected(Code.TOO_OLD, "id_too_old", transaction_id=record.transaction_id)


def _application(
    machine: PartitionState, record: Transaction, application: Application
) -> RepeatedOutcome | None:
    """Answer a sequence that committed: the first content wins."""
    answers: dict[TableId, ApplicationAnswer] = {}
    fresh: list[TableId] = []
    tables: dict[TableId, Table] = {}
    for operation in record.operations:
        if not isinstance(operation, LanceCommit | CreateTableVersion | WriteRows):
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
    if fresh:
        raise rejected(
            Code.ID_REUSED,
            OTHER_TABLES,
            sequence=application.sequence,
            application=application.application_id,
            table=format_table_id(next(iter(answers))),
            other=format_table_id(fresh[0]),
        )
    results = tuple(
        OperationResult(table_id, tables[table_id].incarnation, a.operation, a.version)
        for table_id, a in answers.items()
    )
    first = max(answer.outcome_sequence for answer in answers.values())
    return RepeatedOutcome(Status.COMMITTED, first, results)


def _answer(table: Table, application: Application) -> ApplicationAnswer | None:
    log = table.applications.get(application.application_id)
    if log is None or application.sequence > log.last:
        return None
    known = {
        "application": application.application_id,
        "table": format_table_id(table.table_id),
        "last": log.last,
        "sequence": application.sequence,
    }
    if application.run and log.run and application.run != log.run:
        runs = {"run": log.run, "other_run": application.run}
        raise rejected(Code.ID_REUSED, "application_runs_twice", **known, **runs)
    answer = log.get(application.sequence)
    if answer is None:
        if application.sequence < log.first:
            raise rejected(Code.TOO_OLD, "sequence_forgotten", **known)
        raise rejected(Code.ID_REUSED, "sequence_passed_over", **known)
    return answer
