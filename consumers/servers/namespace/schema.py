"""A table's schema: columns and metadata, changed by pylance through the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lance
import pyarrow as pa
from lance_namespace import (
    AlterTableAddColumnsRequest,
    AlterTableAlterColumnsRequest,
    AlterTableDropColumnsRequest,
    InvalidInputError,
    RestoreTableRequest,
    TableColumnNotFoundError,
    UnsupportedOperationError,
    UpdateFieldMetadataRequest,
)
from lance_namespace_urllib3_client.models.update_table_schema_metadata_request import (
    UpdateTableSchemaMetadataRequest,
)

from consumers.servers.namespace.arrow_json import type_of
from consumers.servers.namespace.branch_rows import open_branch
from consumers.servers.namespace.branches import is_branch
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.native import commit_natively
from consumers.servers.namespace.service import Service


def add_columns(service: Service, call: Call) -> dict[str, Any]:
    """Add columns, each computed once by a SQL expression; those of an Arrow schema are null."""
    if call.is_arrow:
        schema = call.arrow_schema()
        branch = call.parameter("branch")
        return commit_natively(service, call, lambda dataset: dataset.add_columns(schema), branch)
    request = call.read(AlterTableAddColumnsRequest, {"branch", "new_columns"})
    expressions: dict[str, str] = {}
    for column in request.new_columns:
        if column.expression is None:
            raise UnsupportedOperationError(
                f"AlterTableAddColumns: column {column.name!r} has no expression, and virtual and"
                " maintained columns are not supported"
            )
        expressions[column.name] = column.expression
    return commit_natively(
        service, call, lambda dataset: dataset.add_columns(expressions), request.branch
    )


def alter_columns(service: Service, call: Call) -> dict[str, Any]:
    """Rename columns, let them be null, or give them another type."""
    request = call.read(AlterTableAlterColumnsRequest, {"branch", "alterations"})
    alterations: list[Any] = []
    for entry in request.alterations:
        if entry.virtual_column is not None:
            raise UnsupportedOperationError(
                f"AlterTableAlterColumns: {entry.path!r}: virtual_column is not supported"
            )
        change: dict[str, Any] = {"path": entry.path}
        if entry.rename is not None:
            change["name"] = entry.rename
        if entry.nullable is not None:
            change["nullable"] = entry.nullable
        if entry.data_type is not None:
            change["data_type"] = type_of(entry.data_type, f"alterations of {entry.path!r}")
        alterations.append(change)

    def change_all(dataset: lance.LanceDataset) -> None:
        _need_columns(dataset, [entry["path"] for entry in alterations])
        dataset.alter_columns(*alterations)

    return commit_natively(service, call, change_all, request.branch)


def drop_columns(service: Service, call: Call) -> dict[str, Any]:
    """Take columns away; their data stays in the files."""
    request = call.read(AlterTableDropColumnsRequest, {"branch", "columns"})

    def drop(dataset: lance.LanceDataset) -> None:
        _need_columns(dataset, request.columns)
        dataset.drop_columns(request.columns)

    return commit_natively(service, call, drop, request.branch)


def _need_columns(dataset: lance.LanceDataset, paths: list[str]) -> None:
    names = dataset.schema.names
    for path in paths:
        if path.split(".")[0].strip("`") not in names:
            raise TableColumnNotFoundError(
                f"the table has no column {path!r}; it has {', '.join(names)}"
            )


def update_schema_metadata(service: Service, call: Call) -> dict[str, str]:
    """Set the schema's metadata to what is given, and return it."""
    takes = {"branch", "metadata"}
    request = call.read(UpdateTableSchemaMetadataRequest, takes, adapt=_as_the_model_has_it)
    metadata: Mapping[str, str] = request.metadata or {}
    if not metadata:
        raise InvalidInputError("metadata is empty")
    body = commit_natively(
        service,
        call,
        lambda dataset: dataset.update_schema_metadata(dict(metadata)),
        request.branch,
    )
    schema = _schema(service, call, request.branch, body["version"])
    return {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}


def update_field_metadata(service: Service, call: Call) -> dict[str, Any]:
    """Set and remove entries of columns' metadata."""
    request = call.read(UpdateFieldMetadataRequest, {"branch", "updates"})
    replaces = {bool(entry.replace) for entry in request.updates}
    if len(replaces) != 1:
        raise InvalidInputError("updates is empty, or some entries replace and others don't")
    updates = {entry.path: dict(entry.metadata) for entry in request.updates}

    def change(dataset: lance.LanceDataset) -> None:
        _need_columns(dataset, list(updates))
        dataset.update_field_metadata(updates, replace=replaces.pop())

    body = commit_natively(service, call, change, request.branch)
    schema = _schema(service, call, request.branch, body["version"])
    fields = {
        path: {k.decode(): v.decode() for k, v in (schema.field(path).metadata or {}).items()}
        for path in updates
        if schema.get_field_index(path) >= 0
    }
    return {"version": body["version"], "fields": fields}


def _schema(service: Service, call: Call, branch: str | None, version: int) -> pa.Schema:
    if is_branch(branch):
        return open_branch(service, service.info(call.table), branch, version).schema
    return service.open(service.info(call.table), version).schema


def _as_the_model_has_it(fields: dict[str, Any]) -> None:
    """Take the entries as the body itself, as the REST form of the operation has them."""
    if "metadata" not in fields:
        entries = {k: v for k, v in fields.items() if k not in ("identity", "context", "branch")}
        for name in entries:
            del fields[name]
        fields["metadata"] = entries


def restore(service: Service, call: Call) -> dict[str, Any]:
    """Make a version's content the newest version; without a version, the newest one's."""
    request = call.read(RestoreTableRequest, {"version", "branch"}, adapt=_with_version)
    info = service.info(call.table)
    branch = request.branch if is_branch(request.branch) else None
    if branch is None and request.version:
        service.readable(info, request.version)

    def change(dataset: lance.LanceDataset) -> lance.LanceDataset:
        version = request.version or dataset.version
        old = dataset.checkout_version(version if branch is None else (branch, version))
        old.restore()  # type: ignore[no-untyped-call]
        return old

    body = commit_natively(service, call, change, branch)
    return {name: body[name] for name in ("transaction_id", "version") if name in body}


def _with_version(fields: dict[str, Any]) -> None:
    fields["version"] = fields.get("version") or 0
