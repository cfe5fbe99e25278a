"""One of Lance's operations as callers hand it over: which id it has, and what it read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from google.protobuf.message import DecodeError
from uuid_utils import uuid7

from commitlog.errors import InvalidTransaction
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.names import first_problem, key_problem
from commitlog.model.values import made_fast

HEAD = -1
"""The read version of who reads whatever the head is when it is submitted."""


def new_transaction_id() -> str:
    """Return a fresh id, which sorts by time."""
    return str(uuid7())


@made_fast
@dataclass(frozen=True, slots=True)
class LanceRequest:
    """One of Lance's operations as it was handed over, before the head is known."""

    operation: Any
    """A `lance.LanceOperation`, a `lance.Transaction`, or a message, serialized or not."""
    transaction_id: str
    id_is_new: bool
    read_version: int
    """`HEAD`: the head must be asked for first."""

    @property
    def uuid(self) -> str:
        """The id as Lance's message has it: itself if it is a UUID, else one made of it."""
        if self.id_is_new:
            return self.transaction_id
        try:
            UUID(self.transaction_id)
        except ValueError:
            return str(uuid5(NAMESPACE_OID, self.transaction_id))
        return self.transaction_id


def read_request(
    operation: Any, *, read_version: int | None, transaction_id: str | None
) -> LanceRequest:
    """Find out an operation's id and read version."""
    if transaction_id and (
        problem := first_problem("transaction_id", (transaction_id,), key_problem)
    ):
        raise problem.error()
    import lance

    own_id, own_version = "", None
    is_append = isinstance(operation, lance.LanceOperation.Append)
    if isinstance(operation, lance.Transaction):
        own_id, own_version = operation.uuid, operation.read_version
        is_append = isinstance(operation.operation, lance.LanceOperation.Append)
    elif isinstance(operation, bytes | bytearray | memoryview):
        message = parse_message(bytes(operation))
        own_id, own_version = message.uuid, message.read_version
        is_append = message.WhichOneof("operation") == "append"
    version = own_version if read_version is None else read_version
    if version is not None and version < 0:
        raise InvalidTransaction(
            f"read version {version} is negative",
            field="read_version",
            value=version,
            advice="Pass the version that was read, or leave it out for the head",
        )
    if not version:
        # An append reads nothing, so it is as of the head whenever it is decided.
        version = 0 if is_append else HEAD
    chosen = transaction_id or own_id
    return LanceRequest(operation, chosen or new_transaction_id(), not chosen, version)


def parse_message(data: bytes) -> LanceMessage:
    """Decode a serialized `lance.table.Transaction`."""
    try:
        return LanceMessage.FromString(data)
    except DecodeError as error:
        raise InvalidTransaction(
            "the bytes are not a Lance transaction",
            field="operation",
            advice="Pass a serialized lance.table.Transaction",
        ) from error
