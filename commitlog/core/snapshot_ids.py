"""The remembered ids as bytes: one part of a snapshot per range of outcomes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from commitlog.core.once import Decided
from commitlog.model.records import Code, FailedRequirement, OperationResult, Status

if TYPE_CHECKING:
    from commitlog.core.machine import Machine


def to_json(value: Any) -> bytes:
    """Return a value as JSON of which there is only one form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def ids_of(machine: Machine, chunk: int) -> bytes:
    """Return the part of one range."""
    ids = [
        [
            transaction_id,
            d.sequence,
            d.status.value,
            d.attempt,
            d.payload_hash.hex(),
            d.time_ms,
            d.code.value,
            [_result(result) for result in d.results],
            d.noted,
            [[list(f.table), f.requirement, f.actual] for f in d.failed_requirements],
        ]
        for transaction_id, d in machine.once.chunk(chunk)
    ]
    return to_json({"changed": dict(machine.once.chunks())[chunk], "ids": ids})


def _result(r: OperationResult) -> list[Any]:
    return [
        list(r.table),
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


def restore_ids(machine: Machine, number: int, state: Any) -> None:
    """Take a range back."""
    machine.once.restore(
        number,
        (
            (
                row[0],
                Decided(
                    row[1],
                    Status(row[2]),
                    row[3],
                    bytes.fromhex(row[4]),
                    row[5],
                    Code(row[6]),
                    tuple(_restore_result(result) for result in row[7]),
                    row[8],
                    tuple(FailedRequirement(tuple(f[0]), f[1], f[2]) for f in row[9]),
                ),
            )
            for row in state["ids"]
        ),
        state["changed"],
    )
