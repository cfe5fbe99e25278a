"""add-schema, set-current-schema, remove-schemas: the server picks the ids."""

from __future__ import annotations

from typing import Any

from commitlog.core.iceberg.actions import Action, last_added
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.schemas import check_format, read_schema, schema_content, stored_fields


def _read_add(node: Node) -> dict[str, Any]:
    if (last := node.optional("last-column-id")) is not None:
        last.int32()  # deprecated: the fields themselves say it
    return read_schema(node.member("schema"))


def _add(draft: MetadataDraft, schema: dict[str, Any]) -> None:
    table = draft.table
    fields = stored_fields(schema)
    check_format(fields, table.format_version)
    known = draft.by_content("schemas", "schema-id", schema_content)
    if (found := known.find(schema)) is not None:
        draft.last_added_schema = found if found in draft.added_schemas else None
        return
    schema_id = known.following(table.current_schema_id)
    added = {**schema, "schema-id": schema_id}
    known.add(added)
    draft.change(
        schemas=table.schemas.add(added),
        last_column_id=max(table.last_column_id, fields.highest_id),
    )
    draft.last_added_schema = schema_id
    draft.added_schemas.add(schema_id)


def _read_id(node: Node) -> int:
    return node.member("schema-id").int32(low=-1)


def _set_current(draft: MetadataDraft, wanted: int) -> None:
    schema_id = last_added(wanted, draft.last_added_schema, "schema")
    if schema_id not in draft.table.schemas:
        raise Invalid("iceberg_no_such_schema", schema=schema_id)
    if schema_id != draft.table.current_schema_id:
        draft.change(current_schema_id=schema_id)
        draft.is_layout_changed = True


def _read_ids(node: Node) -> list[int]:
    return [item.int32() for item in node.member("schema-ids").items()]


def _remove(draft: MetadataDraft, schema_ids: list[int]) -> None:
    if draft.table.current_schema_id in schema_ids:
        raise Invalid("iceberg_schema_is_current", schema=draft.table.current_schema_id)
    if schema_ids:
        draft.change(schemas=draft.table.schemas.remove(schema_ids))
        if "schemas" in draft.known:
            draft.known["schemas"].remove(schema_ids)


SCHEMA_ACTIONS = {
    "add-schema": Action(_read_add, _add),
    "set-current-schema": Action(_read_id, _set_current),
    "remove-schemas": Action(_read_ids, _remove),
}
