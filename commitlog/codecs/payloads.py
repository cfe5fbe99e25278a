"""Takes rows out of a transaction's record.

Operations name their rows by hash, and the payload hash covers the operations. So a record without
its rows has the content that its outcome names, byte for byte, and the chain holds over it.
"""

from __future__ import annotations

from collections.abc import Collection

from commitlog.codecs.avro import record_schema
from commitlog.model.operations import WriteRows
from commitlog.model.records import Transaction


def inline_rows(transaction: Transaction) -> dict[int, bytes | None]:
    """Return the rows in a record by the numbers of their operations; None: they were taken out."""
    inline = [
        number
        for number, operation in enumerate(transaction.operations)
        if isinstance(operation, WriteRows) and not operation.path
    ]
    there = {n: rows or None for n, rows in zip(inline, transaction.payloads, strict=False)}
    return dict.fromkeys(inline) | there


def without_rows(value: bytes, transaction: Transaction, operations: Collection[int]) -> bytes:
    """Return a transaction's record without the rows of some operations."""
    if not transaction.payloads:
        return value
    taken = {at for at, number in enumerate(inline_rows(transaction)) if number in operations}
    schema = record_schema("transaction-v2")
    head, _, content = schema.decode_parts(value)
    kept = [b"" if at in taken else one for at, one in enumerate(head["payloads"])]
    return schema.encode_parts({**head, "payloads": kept}, content)
