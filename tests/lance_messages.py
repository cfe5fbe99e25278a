"""pylance's operations as the bytes of Lance's message, for tests that submit or compare those."""

from __future__ import annotations

from typing import Any, NamedTuple

from commitlog.codecs.lance_objects import to_transaction
from commitlog.codecs.lance_schema import SchemaMetadata


class EncodedTransaction(NamedTuple):
    """A serialized message, and the schema metadata that it drops."""

    message: bytes
    schema_metadata: SchemaMetadata | None


def to_transaction_bytes(operation: Any, **more: Any) -> EncodedTransaction:
    """Encode what `to_transaction` makes."""
    message, schema_metadata = to_transaction(operation, **more)
    return EncodedTransaction(message.SerializeToString(deterministic=True), schema_metadata)
