"""What a committed operation touches, as aspects that the history keeps.

An aspect is named after the operation and what it did, such as `Delete.updated`; the rules ask for
it by this name. The module of each operation, in `operations`, says what it touches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from commitlog.core.conflicts.history import Aspect
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import KeyHashes

UNKNOWN = "Unknown"
KINDS = {
    field.name: "".join(word.capitalize() for word in field.name.split("_"))
    for field in Transaction.DESCRIPTOR.oneofs_by_name["operation"].fields
}
"""Lance 14.0.2's operations: the message's field, and the name."""
EXPLICIT_HASH_BYTES = 16
HASHES_OF_LANCE = "exact64"
HASHES_OF_OURS = "exact128"


class Keys(NamedTuple):
    """The keys that an operation inserts, as far as they are known."""

    signature: str
    """Which columns, hashed how; hashes compare only under one signature. Empty: unknown."""
    hashes: tuple[bytes, ...] = ()


UNKNOWN_KEYS = Keys("")


class Writes(NamedTuple):
    """What an operation touches, besides keys."""

    aspects: tuple[Aspect, ...] = ()
    notes: tuple[tuple[Aspect, Any], ...] = ()
    deletion_files: tuple[tuple[int, str], ...] = ()


NOTHING = Writes()


def kind_of(transaction: Transaction) -> str:
    """Return the operation's name; `Unknown` for an operation that 14.0.2 doesn't know."""
    field = transaction.WhichOneof("operation")
    return KINDS[field] if field else UNKNOWN


def explicit_keys(keys: KeyHashes) -> Keys | None:
    """Return the keys that a record carries, None if it says that no row has a new one."""
    fields = ",".join(map(str, keys.field_ids))
    data, size = keys.hashes, EXPLICIT_HASH_BYTES
    hashes = tuple(data[start : start + size] for start in range(0, len(data), size))
    return Keys(f"{HASHES_OF_OURS}:{fields}", hashes) if hashes else None


def key_aspects(kind: str, keys: Keys) -> Iterator[Aspect]:
    """Yield what an operation touches by the keys that it inserts."""
    if not keys.signature:
        yield f"{kind}.keys_unknown", ""
        return
    yield f"{kind}.keys", keys.signature
    yield f"{kind}.upsert", ""
    yield from ((f"{kind}.key", key) for key in keys.hashes)
