"""Transactions of the log by their ids, for as long as the log remembers them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lance_namespace import (
    AlterTransactionRequest,
    ConcurrentModificationError,
    DescribeTransactionRequest,
    InvalidInputError,
    InvalidTableStateError,
    TransactionNotFoundError,
)

from commitlog.client.history.snapshot import standing
from commitlog.model.names import RESERVED
from commitlog.model.operations import AlterProperties, operation_name, target
from commitlog.model.records import Outcome, Status, Transaction
from commitlog.model.table import TableId, format_table_id
from consumers.servers.namespace.call import Call, one_of
from consumers.servers.namespace.service import BODY_HASH, ENDED, Service
from consumers.servers.security.grants import Access

SAID = "transaction."
"""How properties of a table begin that are really some transaction's: `transaction.<id>.<key>`."""


def visible(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a table's or a namespace's own properties."""
    return {name: value for name, value in properties.items() if not name.startswith(SAID)}


def noting_ended(call: Call, found: Mapping[str, Mapping[str, str]]) -> list[tuple[str, str]]:
    """Return what a record says of the properties of what it ends, by name: a repetition asks."""
    told = {name: properties for name, properties in found.items() if properties}
    return [(ENDED, json.dumps(told))] if told and call.key is not None else []


def noted_ended(transaction: Transaction) -> dict[str, dict[str, str]]:
    """Return what `noting_ended` noted."""
    noted: dict[str, dict[str, str]] = json.loads(dict(transaction.properties).get(ENDED, "{}"))
    return noted


def describe_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Say how a transaction ended, and what it was."""
    call.read(DescribeTransactionRequest)
    outcome, transaction = _need(service, call, Access.READ)
    place = _place(service, outcome, transaction)
    may = place is not None and service.security.may(call.principal, Access.READ, place.target)
    said = place.said(outcome.transaction_id) if place is not None and may else {}
    return _described(outcome, transaction, said)


def alter_transaction(service: Service, call: Call) -> dict[str, Any]:
    """Set and unset properties; a decided transaction's status stays."""
    request = call.read(AlterTransactionRequest, {"actions"})
    outcome, transaction = _need(service, call, Access.WRITE)
    place = _place(service, outcome, transaction)
    if place is not None:  # it may have another name now
        call.need(Access.WRITE, place.target)
    before = place.said(outcome.transaction_id) if place is not None else {}
    if service.first_answer(call) is not None:  # what it set is there: it can't be set again
        return _described(outcome, transaction, before)
    said = dict(before)
    for index, action in enumerate(request.actions):
        chosen = action.set_status_action
        if chosen is not None:
            raise ConcurrentModificationError(
                f"transaction {outcome.transaction_id} is decided ({outcome.status}, outcome"
                f" {outcome.sequence}); its status cannot be set to {chosen.status!r}"
            )
        _carry_out(f"actions[{index}]", action, said)
    if place is None:
        raise InvalidTableStateError(
            f"the tables that transaction {outcome.transaction_id} changed no longer exist, "
            "and its properties were kept there"
        )
    if said != before:
        prefix = f"{SAID}{outcome.transaction_id}."
        upserts = tuple(sorted((prefix + k, v) for k, v in said.items() if before.get(k) != v))
        removals = tuple(sorted(prefix + k for k in before if k not in said))
        service.change(call, AlterProperties(place.target, place.is_namespace, upserts, removals))
    return _described(outcome, transaction, said)


def _carry_out(where: str, action: Any, said: dict[str, str]) -> None:
    sets, unsets = action.set_property_action, action.unset_property_action
    chosen = sets or unsets
    if chosen is None or (sets is not None and unsets is not None):
        raise InvalidInputError(f"{where}: an action must set a status, or set or unset a property")
    key = chosen.key
    if not key or key.startswith(RESERVED):
        raise InvalidInputError(
            f"{where}: key is missing, or begins with the reserved prefix {RESERVED!r}"
        )
    if sets is not None:
        mode = one_of(f"{where}: mode", sets.mode, "overwrite", "fail", "skip")
        if sets.value is None:
            raise InvalidInputError(f"{where}: value is missing")
        if key in said and mode == "fail":
            raise ConcurrentModificationError(f"{where}: property {key!r} already exists")
        if key not in said or mode == "overwrite":
            said[key] = sets.value
    else:
        mode = one_of(f"{where}: mode", unsets.mode, "skip", "fail")
        if key not in said and mode == "fail":
            raise ConcurrentModificationError(f"{where}: property {key!r} does not exist")
        said.pop(key, None)


@dataclass(frozen=True, slots=True)
class _Place:
    """The table or namespace that a transaction changed first: its properties are kept there."""

    target: TableId
    is_namespace: bool
    properties: Mapping[str, str]

    def said(self, transaction_id: str) -> dict[str, str]:
        """Return what was set for a transaction."""
        prefix = f"{SAID}{transaction_id}."
        return {
            name.removeprefix(prefix): value
            for name, value in self.properties.items()
            if name.startswith(prefix)
        }


def _place(service: Service, outcome: Outcome, transaction: Transaction) -> _Place | None:
    name = target(transaction.operations[0])
    changed = dict.fromkeys(result.incarnation for result in outcome.results if result.incarnation)
    for table in (standing(service.log, incarnation) for incarnation in changed):
        if table is not None:
            return _Place(table.table_id, False, table.properties)
    info = service.find(name)
    if info is not None and not changed:
        return _Place(name, False, info.properties)
    found = service.namespaces(name, alone=True).get(name)
    return _Place(name, True, found) if found is not None else None


def _need(service: Service, call: Call, access: Access) -> tuple[Outcome, Transaction]:
    parts = call.parts
    found = service.transaction(parts[-1]) if parts else None
    if found is None:
        raise TransactionNotFoundError(f"the log has no outcome of transaction {call.object_id}")
    for operation in found[1].operations:
        call.need(access, target(operation))
    return found


def _described(
    outcome: Outcome, transaction: Transaction, said: Mapping[str, str]
) -> dict[str, Any]:
    """Describe a transaction, with what was set for it since."""
    has_committed = outcome.status is Status.COMMITTED
    found = {k: v for k, v in transaction.properties if k not in (BODY_HASH, ENDED)}
    found["commitlog.sequence"] = str(outcome.sequence)
    found["commitlog.status"] = str(outcome.status)
    found["commitlog.time_ms"] = str(outcome.time_ms)
    found["commitlog.operations"] = ", ".join(
        f"{operation_name(operation)} {format_table_id(target(operation))}"
        for operation in transaction.operations[:100]
    )
    if not has_committed:
        found["commitlog.code"] = str(outcome.code)
        found["commitlog.message"] = outcome.message
    status = "Succeeded" if has_committed else "Failed"
    return {"status": status, "properties": {**found, **said}}
