"""What is remembered of a decided id, as the row of JSON that a snapshot has of it."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from commitlog.core.log.canonical import to_json
from commitlog.model.records import Code, FailedRequirement, OperationResult, Outcome, Status


class KnownId(NamedTuple):
    """What is remembered of an id."""

    sequence: int
    """Of its outcome, or of the one that it repeats."""
    status: Status
    attempt: int
    payload_hash: bytes
    time_ms: int
    """From which its horizon counts."""
    code: Code = Code.NONE
    results: tuple[OperationResult, ...] = ()
    noted: int = 0
    """The sequence of the outcome that was noted last for the id."""
    failed_requirements: tuple[FailedRequirement, ...] = ()


TIME_MS, NOTED, _MADE_MS = 5, 8, 10
"""Where a row has these; the last only if it differs from the first."""


def made_ms(row: list[Any]) -> int:
    """Return when an id was made, by its own account."""
    return int(row[_MADE_MS] if len(row) > _MADE_MS else row[TIME_MS])


def id_of(row: bytes) -> str:
    """Return the id of a row."""
    text = row[2 : row.index(b'",')]
    # A quotation mark of the id's own stands behind a backslash.
    return str(json.loads(row)[0]) if b"\\" in text else text.decode()


def row_of(outcome: Outcome, kept_from_ms: int, made_at_ms: int) -> bytes:
    """Return what is remembered of an id, as a snapshot has it."""
    row = [
        outcome.transaction_id,
        outcome.sequence if outcome.answers is None else outcome.answers,
        outcome.status,
        outcome.attempt,
        outcome.payload_hash.hex(),
        kept_from_ms,
        outcome.code,
        [_result(result) for result in outcome.results],
        outcome.sequence,
        [[f.table, f.requirement, f.actual] for f in outcome.failed_requirements],
    ]
    if made_at_ms != kept_from_ms:
        row.append(made_at_ms)
    return to_json(row)


def _result(r: OperationResult) -> list[Any]:
    # The bytes are left out: an answer to a duplicate doesn't repeat them.
    return [
        r.table,
        r.incarnation,
        r.operation,
        r.version,
        r.read_version,
        r.first_fragment_id,
        r.first_row_id,
        r.rebased_over,
        r.rebased,
        r.location,
        r.metadata_location,
        r.snapshot_id,
    ]


def known(text: bytes) -> KnownId:
    """Return what a row says."""
    row = json.loads(text)
    return KnownId(
        sequence=row[1],
        status=Status(row[2]),
        attempt=row[3],
        payload_hash=bytes.fromhex(row[4]),
        time_ms=row[TIME_MS],
        code=Code(row[6]),
        results=tuple(_restore_result(result) for result in row[7]),
        noted=row[NOTED],
        failed_requirements=tuple(FailedRequirement(tuple(f[0]), f[1], f[2]) for f in row[9]),
    )


def _restore_result(row: list[Any]) -> OperationResult:
    return OperationResult(
        table=tuple(row[0]),
        incarnation=row[1],
        operation=row[2],
        version=row[3],
        read_version=row[4],
        first_fragment_id=row[5],
        first_row_id=row[6],
        rebased_over=row[7],
        rebased=row[8],
        location=row[9],
        metadata_location=row[10],
        snapshot_id=row[11],
    )
