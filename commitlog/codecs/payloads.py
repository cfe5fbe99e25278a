"""Takes rows out of a transaction's record.

Operations name their rows by hash, and the payload hash covers the operations. So a record without
its rows has the content that its outcome names, byte for byte, and the chain holds over it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cache

from commitlog.codecs.avro import RecordSchema, load_schema
from commitlog.model.operations import WriteRows
from commitlog.model.records import Transaction


@cache
def _schema() -> RecordSchema:
    return RecordSchema(load_schema("transaction-v2"))


def inline_writes(transaction: Transaction) -> dict[int, int]:
    """Return which payload each write of rows has in the record, by the operation's number."""
    inline = [
        number
        for number, operation in enumerate(transaction.operations)
        if isinstance(operation, WriteRows) and not operation.path
    ]
    return {number: at for at, number in enumerate(inline)}


def payload_of(transaction: Transaction, operation: int) -> bytes | None:
    """Return the rows that an operation has in its record; None if they were taken out."""
    at = inline_writes(transaction).get(operation, -1)
    found = transaction.payloads[at] if 0 <= at < len(transaction.payloads) else b""
    return found or None


def without_rows(value: bytes, transaction: Transaction, operations: Collection[int]) -> bytes:
    """Return a transaction's record without the rows of some operations."""
    if not transaction.payloads:
        return value
    taken = {at for number, at in inline_writes(transaction).items() if number in operations}
    schema = _schema()
    head, _, content = schema.decode_parts(value)
    kept = [b"" if at in taken else one for at, one in enumerate(head["payloads"])]
    return schema.encode_parts({**head, "payloads": kept}, content)
