"""The log as rows: one per outcome, with its transaction, in typed columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from commitlog.core.log.replica import Decided
from commitlog.model.limits import writers_time_us
from commitlog.model.operations import (
    LanceCommit,
    Operation,
    operation_name,
    target,
)
from commitlog.model.records import (
    Malformed,
    OperationResult,
    Outcome,
    Transaction,
    found_standing,
)
from commitlog.model.table import format_table_id

BATCH_ROWS = 2000
_TIME = pa.timestamp("us", "UTC")
_OPERATION = pa.struct(
    [
        ("table", pa.string()),
        ("operation", pa.string()),
        ("incarnation", pa.string()),
        ("read_version", pa.int64()),
        ("version", pa.int64()),
        ("rebased_over", pa.int64()),
        ("rebased", pa.bool_()),
        ("rows_added", pa.int64()),
        ("rows_removed", pa.int64()),
        ("bytes_added", pa.int64()),
        ("data_files", pa.list_(pa.string())),
    ]
)
_CONFLICT = pa.struct(
    [
        ("table", pa.string()),
        ("transaction_id", pa.string()),
        ("version", pa.int64()),
        ("operation", pa.string()),
        ("rule", pa.string()),
        ("fragments", pa.list_(pa.int64())),
        ("keys", pa.list_(pa.string())),
        ("advice", pa.string()),
    ]
)
LOG_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("sequence", pa.int64()),
        ("time", _TIME),
        ("transaction_id", pa.string()),
        ("attempt", pa.int32()),
        ("status", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
        ("answers", pa.int64()),
        ("principal", pa.string()),
        ("submitted_at", _TIME),
        ("application_id", pa.string()),
        ("application_sequence", pa.int64()),
        ("application_run", pa.string()),
        ("properties", pa.string()),
        ("operations", pa.list_(_OPERATION)),
        ("conflict", _CONFLICT),
        ("epoch", pa.int64()),
        ("node", pa.string()),
        ("offset", pa.int64()),
        ("transaction_offset", pa.int64()),
        ("payload_hash", pa.binary()),
        ("previous_hash", pa.binary()),
        ("hash", pa.binary()),
    ]
)
"""`offset` is the outcome's, `transaction_offset` the transaction's; `properties` are JSON."""


def log_batches(decided: Iterable[Decided]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of outcomes, in their order."""
    rows: list[dict[str, Any]] = []
    for one in decided:
        rows.append(log_row(one))
        if len(rows) == BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(rows, LOG_SCHEMA)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, LOG_SCHEMA)


def log_row(decided: Decided) -> dict[str, Any]:
    """Return one outcome's row; what is not known is null."""
    outcome, record = decided.outcome, decided.submitted.record
    known = record if isinstance(record, Transaction) else None
    application = known.application if known else None
    message = record.reason if isinstance(record, Malformed) else outcome.message
    return {
        "partition": decided.submitted.partition,
        "sequence": outcome.sequence,
        "time": outcome.time_ms * 1000,
        "transaction_id": outcome.transaction_id,
        "attempt": outcome.attempt,
        "status": str(outcome.status),
        "code": str(outcome.code) or None,
        "message": message or None,
        "answers": outcome.answers,
        "principal": (known.principal or None) if known else None,
        "submitted_at": writers_time_us(known.submitted_at_ms) if known else None,
        "application_id": application.application_id if application else None,
        "application_sequence": application.sequence if application else None,
        "application_run": (application.run or None) if application else None,
        "properties": json.dumps(dict(known.properties)) if known and known.properties else None,
        "operations": list(_operations(outcome, known)),
        "conflict": _conflict(outcome),
        "epoch": outcome.epoch,
        "node": outcome.node,
        "offset": decided.answered_offset,
        "transaction_offset": outcome.transaction_offset,
        "payload_hash": outcome.payload_hash,
        "previous_hash": outcome.previous_hash,
        "hash": outcome.hash,
    }


def _operations(outcome: Outcome, record: Transaction | None) -> Iterator[dict[str, Any]]:
    operations = record.operations if record else ()
    results: list[OperationResult | None] = [None] * len(operations)
    if outcome.answers is None and len(outcome.results) == len(operations):
        results = list(outcome.results)
    for operation, result in zip(operations, results, strict=True):
        yield _operation(operation, result)


def _operation(operation: Operation, result: OperationResult | None) -> dict[str, Any]:
    lance = operation if isinstance(operation, LanceCommit) else None
    summary = lance.summary if lance else None
    asked: str = getattr(operation, "incarnation", "")
    is_new = not found_standing(operation, result)
    return {
        "table": format_table_id(target(operation)),
        "operation": operation_name(operation),
        "incarnation": (result.incarnation if result else asked) or None,
        "read_version": lance.read_version if lance else None,
        "version": (result.version or None) if result and is_new else None,
        "rebased_over": result.rebased_over if result else None,
        "rebased": result.rebased if result else None,
        "rows_added": summary.rows_added if summary else None,
        "rows_removed": summary.rows_removed if summary else None,
        "bytes_added": summary.bytes_added if summary else None,
        "data_files": list(summary.data_files) if summary else None,
    }


def _conflict(outcome: Outcome) -> dict[str, Any] | None:
    found = outcome.conflict
    if found is None:
        return None
    return {
        "table": format_table_id(found.table),
        "transaction_id": found.transaction_id,
        "version": found.version,
        "operation": found.operation,
        "rule": found.rule,
        "fragments": list(found.fragments),
        "keys": list(found.keys),
        "advice": found.advice or None,
    }
