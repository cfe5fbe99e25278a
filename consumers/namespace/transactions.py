"""Transactions of the log by their ids, for as long as the log remembers them."""

from __future__ import annotations

from typing import Any

from lance_namespace import (
    AlterTransactionRequest,
    ConcurrentModificationError,
    DescribeTransactionRequest,
    InvalidInputError,
    TransactionNotFoundError,
    UnsupportedOperationError,
)

from commitlog.model.operations import operation_name, target
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import format_table_id
from consumers.namespace.call import Call
from consumers.namespace.service import BODY_HASH, Service


def describe_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Say how a transaction ended, and what it was."""
    call.read(DescribeTransactionRequest)
    outcome, transaction = _need(service, call)
    return {"status": _status(outcome), "properties": _properties(outcome, transaction)}


def alter_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Refuse to change what is decided."""
    request = call.read(AlterTransactionRequest, {"actions"})
    outcome, _ = _need(service, call)
    for action in request.actions:
        chosen = action.set_status_action
        if chosen is not None:
            raise ConcurrentModificationError(
                f"transaction {outcome.transaction_id} is decided ({outcome.status}, outcome"
                f" {outcome.sequence}); its status cannot be set to {chosen.status!r}"
            )
        if action.set_property_action is None and action.unset_property_action is None:
            raise InvalidInputError("an action sets a status, or sets or unsets a property")
    raise UnsupportedOperationError(
        "AlterTransaction: properties of a decided transaction cannot be changed yet"
    )


def _need(service: Service, call: Call) -> tuple[Outcome, Transaction]:
    parts = call.parts
    found = service.transaction(parts[-1]) if parts else None
    if found is None:
        raise TransactionNotFoundError(f"the log holds no outcome of transaction {call.object_id}")
    return found


def _status(outcome: Outcome) -> str:
    return "Succeeded" if outcome.status is Status.COMMITTED else "Failed"


def _properties(outcome: Outcome, transaction: Transaction) -> dict[str, str]:
    found = {k: v for k, v in transaction.properties if k != BODY_HASH}
    found["commitlog.sequence"] = str(outcome.sequence)
    found["commitlog.status"] = str(outcome.status)
    found["commitlog.time_ms"] = str(outcome.time_ms)
    found["commitlog.operations"] = ", ".join(
        f"{operation_name(operation)} {format_table_id(target(operation))}"
        for operation in transaction.operations[:100]
    )
    if outcome.status is not Status.COMMITTED:
        found["commitlog.code"] = str(outcome.code)
        found["commitlog.message"] = outcome.message
    return found
