"""A log's records between bytes and values, the same for every adapter."""

from __future__ import annotations

from commitlog.codecs import avro
from commitlog.errors import CorruptLog, RecordTooLarge, UnsupportedFormat
from commitlog.model.limits import OUTCOME_HEAD_BYTES_MAX, RECORD_BYTES_MAX
from commitlog.model.records import (
    Answered,
    OutcomeRecord,
    ProtocolVersion,
    Submitted,
    Transaction,
    Unreadable,
)
from commitlog.ports import RawRecord


def to_submitted(
    partition: int, offset: int, append_time_ms: int, key: bytes | None, value: bytes | None
) -> Submitted | None:
    """Decode a record of the transactions topic; None for a tombstone.

    A tombstone tells Kafka's cleaner what to remove, and goes the same way: what is there today
    and not tomorrow may have no outcome.
    """
    if value is None:
        return None
    record = avro.decode_log_record(key, value)
    return Submitted(
        partition=partition,
        offset=offset,
        append_time_ms=append_time_ms,
        record=record,
        key=key or b"",
    )


def to_raw(
    partition: int, offset: int, append_time_ms: int, key: bytes | None, value: bytes | None
) -> RawRecord:
    """Return a record as it is."""
    del partition
    return RawRecord(offset, append_time_ms, key, value)


def to_answered(
    partition: int, offset: int, append_time_ms: int, key: bytes | None, value: bytes | None
) -> Answered:
    """Decode a record of the outcomes topic; one that can't be is `Unreadable`, so void."""
    record: OutcomeRecord | Unreadable
    try:
        record = avro.decode_outcome_record(value)
    except (CorruptLog, UnsupportedFormat) as error:
        record = Unreadable(str(error))
    return Answered(
        partition=partition,
        offset=offset,
        append_time_ms=append_time_ms,
        record=record,
        raw=value or b"",
    )


def encode_to_append(transaction: Transaction | ProtocolVersion) -> bytes:
    """Encode what a writer appends, within the limit."""
    if isinstance(transaction, ProtocolVersion):
        return avro.encode_protocol_version(transaction)
    value = avro.encode_transaction(transaction)
    if len(value) > RECORD_BYTES_MAX:
        check_size(f"transaction {transaction.transaction_id}", value)
    return value


def check_outcome_size(key: str, value: bytes) -> None:
    """Raise RecordTooLarge for an outcome over the limit: its decision's, and what surrounds it."""
    check_size(f"outcome {key}", value, RECORD_BYTES_MAX + OUTCOME_HEAD_BYTES_MAX)


def check_size(what: str, value: bytes, bytes_max: int = RECORD_BYTES_MAX) -> None:
    """Raise RecordTooLarge for a value over the limit, before anything is sent."""
    if len(value) > bytes_max:
        raise RecordTooLarge(
            f"{what} has {len(value):,} bytes, the limit is {bytes_max:,}",
            field="record",
            value=len(value),
            advice="Split it: fewer operations or fragments per transaction, or commit large "
            "rewrites in parts",
        )
