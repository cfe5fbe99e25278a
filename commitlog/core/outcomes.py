"""The outcome that a decision becomes, whatever it is."""

from __future__ import annotations

from typing import Any

from commitlog.model.records import Outcome, ProtocolVersion, Status, Submitted, Transaction
from commitlog.words import worded


def outcome_of(
    submitted: Submitted, sequence: int, status: Status, time_ms: int, **held: Any
) -> Outcome:
    """Return the outcome of a record, in words if it has a reason."""
    record = submitted.record
    outcome = Outcome(
        sequence=sequence,
        transaction_id=record.transaction_id,
        transaction_offset=submitted.offset,
        status=status,
        attempt=record.attempt if isinstance(record, Transaction) else 0,
        time_ms=time_ms,
        payload_hash=b"" if isinstance(record, ProtocolVersion) else record.payload_hash,
        **held,
    )
    return worded(outcome)
