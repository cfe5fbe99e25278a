"""A table's schema: columns and metadata, changed by pylance through the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lance
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

from consumers.namespace.call import Call
from consumers.namespace.native import commit_natively, refuse_branch
from consumers.namespace.service import Service


def add_columns(service: Service, call: Call) -> dict[str, Any]:
    """Add columns, each computed once by a SQL expression."""
    request = call.read(AlterTableAddColumnsRequest, {"branch", "new_columns"})
    refuse_branch(call, service.info(call.table), request.branch)
    expressions: dict[str, str] = {}
    for column in request.new_columns:
        if column.expression is None:
            raise UnsupportedOperationError(
                f"AlterTableAddColumns: column {column.name!r} has no expression, and virtual and"
                " maintained columns are not supported"
            )
        expressions[column.name] = column.expression
    return commit_natively(service, call, lambda dataset: dataset.add_columns(expressions))


def alter_columns(service: Service, call: Call) -> dict[str, Any]:
    """Rename columns, or let them be null."""
    request = call.read(AlterTableAlterColumnsRequest, {"branch", "alterations"})
    info = service.info(call.table)
    refuse_branch(call, info, request.branch)
    alterations: list[Any] = []
    for entry in request.alterations:
        if entry.data_type is not None or entry.virtual_column is not None:
            raise UnsupportedOperationError(
                f"AlterTableAlterColumns: {entry.path!r}: data_type and virtual_column are not"
                " supported yet"
            )
        change: dict[str, Any] = {"path": entry.path}
        if entry.rename is not None:
            change["name"] = entry.rename
        if entry.nullable is not None:
            change["nullable"] = entry.nullable
        alterations.append(change)

    def change_all(dataset: lance.LanceDataset) -> None:
        _need_columns(service, call, [entry["path"] for entry in alterations])
        dataset.alter_columns(*alterations)

    return commit_natively(service, call, change_all)


def drop_columns(service: Service, call: Call) -> dict[str, Any]:
    """Take columns away; their data stays in the files."""
    request = call.read(AlterTableDropColumnsRequest, {"branch", "columns"})
    refuse_branch(call, service.info(call.table), request.branch)

    def drop(dataset: lance.LanceDataset) -> None:
        _need_columns(service, call, request.columns)
        dataset.drop_columns(request.columns)

    return commit_natively(service, call, drop)


def _need_columns(service: Service, call: Call, paths: list[str]) -> None:
    info = service.info(call.table)
    for path in paths:
        name = path.split(".")[0].strip("`")
        if name not in info.schema.names:
            raise TableColumnNotFoundError(
                f"{info.name} has no column {path!r}; it has {', '.join(info.schema.names)}"
            )


def update_schema_metadata(service: Service, call: Call) -> dict[str, str]:
    """Set the schema's metadata to what is given, and return it."""
    takes = {"branch", "metadata"}
    request = call.read(UpdateTableSchemaMetadataRequest, takes, adapt=_as_the_model_has_it)
    refuse_branch(call, service.info(call.table), request.branch)
    metadata: Mapping[str, str] = request.metadata or {}
    if not metadata:
        raise InvalidInputError("metadata is empty")
    body = commit_natively(
        service, call, lambda dataset: dataset.update_schema_metadata(dict(metadata))
    )
    info = service.info(call.table)
    schema = service.open(info, body["version"]).schema
    return {k.decode(): v.decode() for k, v in (schema.metadata or {}).items()}


def update_field_metadata(service: Service, call: Call) -> dict[str, Any]:
    """Set and remove entries of columns' metadata."""
    request = call.read(UpdateFieldMetadataRequest, {"branch", "updates"})
    refuse_branch(call, service.info(call.table), request.branch)
    replaces = {bool(entry.replace) for entry in request.updates}
    if len(replaces) != 1:
        raise InvalidInputError("updates is empty, or some entries replace and others don't")
    updates = {entry.path: dict(entry.metadata) for entry in request.updates}

    def change(dataset: lance.LanceDataset) -> None:
        _need_columns(service, call, list(updates))
        dataset.update_field_metadata(updates, replace=replaces.pop())

    body = commit_natively(service, call, change)
    schema = service.info(call.table).schema
    fields = {
        path: {k.decode(): v.decode() for k, v in (schema.field(path).metadata or {}).items()}
        for path in updates
        if schema.get_field_index(path) >= 0
    }
    return {"version": body["version"], "fields": fields}


def _as_the_model_has_it(fields: dict[str, Any]) -> None:
    """Take the entries as the body itself, as the REST form of the operation has them."""
    if "metadata" not in fields:
        entries = {k: v for k, v in fields.items() if k not in ("identity", "context", "branch")}
        for name in entries:
            del fields[name]
        fields["metadata"] = entries


def restore(service: Service, call: Call) -> dict[str, Any]:
    """Make a version's content the newest version."""
    request = call.read(RestoreTableRequest, {"version", "branch"})
    info = service.info(call.table)
    refuse_branch(call, info, request.branch)
    service.readable(info, request.version)

    def change(dataset: lance.LanceDataset) -> lance.LanceDataset:
        old = dataset.checkout_version(request.version)
        old.restore()  # type: ignore[no-untyped-call]
        return old

    body = commit_natively(service, call, change)
    return {name: body[name] for name in ("transaction_id",) if name in body}
