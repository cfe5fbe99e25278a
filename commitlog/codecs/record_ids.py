"""Which ids a transaction may have, and how its record's key names it."""

from __future__ import annotations

TRANSACTION_ID_LENGTH_MAX = 128
"""A UUID has 36 characters; others' idempotency keys stay below this."""


def id_problem(transaction_id: str) -> str:
    """Return what is wrong with an id, empty if nothing."""
    if not transaction_id:
        return "the transaction id is empty"
    if len(transaction_id) > TRANSACTION_ID_LENGTH_MAX:
        return f"the transaction id is longer than {TRANSACTION_ID_LENGTH_MAX} characters"
    if "/" in transaction_id or not (transaction_id.isascii() and transaction_id.isprintable()):
        return "the transaction id has characters other than printable ASCII without '/'"
    return ""


def id_in_key(key: bytes | None) -> str:
    """Return the transaction id of `transaction_id/nonce`, empty if the key isn't of that shape."""
    found = (key or b"").partition(b"/")[0][: TRANSACTION_ID_LENGTH_MAX + 1]
    transaction_id = found.decode("ascii", "replace")
    return "" if id_problem(transaction_id) else transaction_id


def is_keyed_by(key: bytes | None, transaction_id: str) -> bool:
    """Return True if `id_in_key` is this id, which has no problem; cheaper than to read it."""
    start = transaction_id.encode()
    return key is not None and (key.startswith(start + b"/") or key == start)
