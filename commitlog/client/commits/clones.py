"""Clones as they are submitted: a name and a location for the new table, and Lance's operation."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import lance

from commitlog.adapters.places import is_moved, recorded
from commitlog.client.commits import catalogue
from commitlog.client.rows.host import Host
from commitlog.client.rows.lance_request import LanceRequest, parse_message
from commitlog.codecs.lance_objects import to_transaction
from commitlog.core.tables.branch_names import branch_home, branch_location, branch_name_problem
from commitlog.errors import InvalidTransaction, NoSuchTable
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import BRANCHES_SINCE
from commitlog.model.operations import DeclareTable, LanceCommit, Operation
from commitlog.model.table import TableId

_CLONE_TAG = b"\x8a\x07"
"""The tag of the field `clone` in Lance's message; most messages don't contain these bytes."""


def is_clone(operation: Any) -> bool:
    """Return True if an operation is Lance's Clone."""
    if isinstance(operation, bytes | bytearray | memoryview):
        data = bytes(operation)
        return _CLONE_TAG in data and parse_message(data).HasField("clone")
    inner = operation.operation if isinstance(operation, lance.Transaction) else operation
    return isinstance(inner, lance.LanceOperation.Clone)


def clone(log: Host, table: TableId, request: LanceRequest) -> tuple[Operation, ...]:
    """Return a clone's operations: a declaration, unless the table exists, and the Clone."""
    declared: tuple[Operation, ...] = ()
    message = _as_recorded(_message(request))
    parsed = parse_message(message)
    try:
        incarnation = log.describe(table, fresh=True).incarnation
    except NoSuchTable:
        incarnation = str(uuid4())
        location = _branch_location(parsed.clone)
        if location:
            _check_protocol(log, table)
        else:
            location = catalogue.default_location(log.runtime().genesis, table, incarnation)
        declared = (DeclareTable(table, incarnation, location),)
    copied = LanceCommit(
        table=table,
        operation="Clone",
        read_version=parsed.read_version,
        message=message,
        incarnation=incarnation,
    )
    return (*declared, copied)


def _as_recorded(message: bytes) -> bytes:
    """Name the source by its recorded place; refuse a shallow clone of tables that were moved."""
    parsed = parse_message(message)
    clone, place = parsed.clone, recorded(parsed.clone.ref_path)
    if clone.is_shallow and is_moved(place):
        raise InvalidTransaction(
            f"a shallow clone's files would name {place}, but the tables were moved away from "
            "there",
            field="ref_path",
            value=clone.ref_path,
            advice="Make a deep clone, or link the old place to the new one instead of binding it",
        )
    if place == clone.ref_path:
        return message
    clone.ref_path = place
    return parsed.SerializeToString(deterministic=True)


def _branch_location(clone: Transaction.Clone) -> str:
    """Return the location of the branch that a clone makes, empty if it makes none."""
    if not clone.HasField("branch_name"):
        return ""
    problem = branch_name_problem(clone.branch_name)
    if problem:
        raise InvalidTransaction(
            f"{clone.branch_name!r} is not a valid branch name: {problem}",
            field="branch_name",
            value=clone.branch_name,
            advice="Choose another name",
        )
    home = branch_home(clone.ref_path.rstrip("/"), clone.ref_name)
    return branch_location(home, clone.branch_name)


def _check_protocol(log: Host, table: TableId) -> None:
    """Refuse a branch while the log's protocol has none."""
    runtime = log.runtime()
    partition = runtime.domains.partition(table)
    status = runtime.request(partition, "status", newest_rules=True)
    protocol = status.get("rules", {}).get("protocol", BRANCHES_SINCE)
    if protocol < BRANCHES_SINCE:
        raise InvalidTransaction(
            f"the log {runtime.log.name} uses protocol {protocol}, which has no branches",
            field="branch_name",
            advice=(
                "Run `commitlog rules --upgrade` once all programs that follow the log are upgraded"
            ),
        )


def _message(request: LanceRequest) -> bytes:
    operation = request.operation
    if isinstance(operation, bytes | bytearray | memoryview):
        return bytes(operation)
    inner: Any = operation.operation if isinstance(operation, lance.Transaction) else operation
    # As in Lance, a clone's read version is the version that it copies.
    read = inner.ref_version
    message, _ = to_transaction(operation, read_version=read, uuid=request.uuid)
    return message.SerializeToString(deterministic=True)
