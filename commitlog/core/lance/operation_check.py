"""Whether Lance can open what an operation brings: names, schemas, indices, encoded sets.

Asked of the operation alone, before anything else is: by the client and the servers before they
append, and by the machine of every record. What takes the table's state is in `new_version`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from commitlog.core.operations.registry import operation_of
from commitlog.core.schema_check.schema import (
    format_problem,
    nesting_problem,
    schema_key_problem,
    schema_problem,
)
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.json_depth import is_too_deep
from commitlog.model.limits import NESTING_SINCE, PROTOCOL_SUPPORTED
from commitlog.model.names import NameProblem, first_problem, key_problem, path_problem, problem_of
from commitlog.model.operations import CreateTable, IcebergChange, LanceCommit, Operation

_JSON_NUL = "\\u0000"


def operation_problem(
    operation: Operation, message: Transaction | None, protocol: int = PROTOCOL_SUPPORTED
) -> NameProblem | None:
    """Return what an operation brings that Lance couldn't open, None if nothing.

    `message` is Lance's own, if the operation carries one.
    """
    try:
        fields = _schema(operation, message)
    except DecodeError:
        return None  # refused where the fields are read
    problem = _problem(operation, message, fields, protocol)
    return problem or (nesting_problem(fields) if protocol >= NESTING_SINCE else None)


def _schema(operation: Operation, message: Transaction | None) -> Sequence[Field]:
    """Return the fields that an operation brings."""
    if isinstance(operation, CreateTable):
        return [Field.FromString(encoded) for encoded in operation.fields]
    of_kind = operation_of(message) if message is not None else None
    if message is None or of_kind is None:
        return ()
    schema: Sequence[Field] = getattr(of_kind.body(message), "schema", ())
    return schema


def _problem(
    operation: Operation, message: Transaction | None, fields: Sequence[Field], protocol: int
) -> NameProblem | None:
    if isinstance(operation, CreateTable):
        return (
            problem_of(operation, protocol)
            or schema_problem(fields)
            or format_problem(fields, operation.data_storage_version)
            or first_problem("metadata key", dict(operation.schema_metadata), schema_key_problem)
        )
    if isinstance(operation, IcebergChange):
        return problem_of(operation, protocol) or _iceberg_problem(operation)
    if message is None:
        return problem_of(operation, protocol)
    problem = message_problem(message)
    if isinstance(operation, LanceCommit):
        if operation.schema_metadata:
            keys = dict(operation.schema_metadata)
            problem = problem or first_problem("metadata key", keys, schema_key_problem)
        of_kind = operation_of(message)
        if of_kind is not None and of_kind.makes_table:
            problem = problem or path_problem("table", operation.table, protocol)
    return problem


def _iceberg_problem(operation: IcebergChange) -> NameProblem | None:
    """Return the first column or property with a NUL, which readers' native code cuts off."""
    if _JSON_NUL not in operation.updates or is_too_deep(operation.updates):
        return None  # refused where the updates are read, if they are too deep
    try:
        updates = json.loads(operation.updates)
    except (ValueError, RecursionError):
        return None  # refused where the updates are read
    left = [updates]
    while left:
        value = left.pop()
        if isinstance(value, list):
            left.extend(value)
        elif isinstance(value, dict):
            left.extend(value.values())
            names = [value["name"]] if isinstance(value.get("name"), str) else []
            problem = first_problem("column", names, key_problem) or first_problem(
                "properties", value, key_problem
            )
            if problem is not None:
                return problem
    return None


def message_problem(message: Transaction) -> NameProblem | None:
    """Return what is wrong with what a message brings, None if nothing."""
    operation = operation_of(message)
    return operation.problem(operation.body(message)) if operation is not None else None
