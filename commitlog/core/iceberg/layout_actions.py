"""Schemas, partition specs and sort orders: added with ids of the server's choice, set, removed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from commitlog.core.iceberg.actions import Action, current_fields, last_added
from commitlog.core.iceberg.by_content import frozen
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.schemas import check_format, read_schema, schema_content, stored_fields
from commitlog.core.iceberg.transforms import check_partition_name, check_source, read_transform
from commitlog.model.reasons import Phrase


def _read_new_schema(node: Node) -> dict[str, Any]:
    if (last := node.optional("last-column-id")) is not None:
        last.int32()  # deprecated: the fields themselves say it
    return read_schema(node.member("schema"))


def _add_schema(draft: MetadataDraft, schema: dict[str, Any]) -> None:
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


def _set_current_schema(draft: MetadataDraft, wanted: int) -> None:
    schema_id = last_added(wanted, draft.last_added_schema, "schema")
    if schema_id not in draft.table.schemas:
        raise Invalid("iceberg_no_such_schema", schema=schema_id)
    if schema_id != draft.table.current_schema_id:
        draft.change(current_schema_id=schema_id)
        draft.is_layout_changed = True


def _remove_schemas(draft: MetadataDraft, schema_ids: list[int]) -> None:
    if draft.table.current_schema_id in schema_ids:
        raise Invalid("iceberg_schema_is_current", schema=draft.table.current_schema_id)
    if schema_ids:
        draft.remove("schemas", schema_ids)


FIRST_PARTITION_FIELD_ID = 1000
UNSORTED = 0

Parts = list[dict[str, Any]]


def read_spec(node: Node) -> Parts:
    """Return a partition spec's fields; they have ids all or none."""
    if (spec_id := node.optional("spec-id")) is not None:
        spec_id.int32()
    parts: Parts = []
    names: set[str] = set()
    for item in node.member("fields").items():
        part: dict[str, Any] = {
            "name": item.member("name").text(),
            "transform": read_transform(item.member("transform")),
            "source-id": item.member("source-id").int32(),
        }
        if (field_id := item.optional("field-id")) is not None:
            part["field-id"] = field_id.int32(low=0)
        if part["name"] in names:
            item.fail("iceberg_partition_name_twice", name=part["name"])
        names.add(part["name"])
        parts.append(part)
    ids = [part["field-id"] for part in parts if "field-id" in part]
    if len(ids) not in {0, len(parts)}:
        node.fail("iceberg_field_ids_incomplete")
    if len(ids) != len(set(ids)):
        node.fail("iceberg_field_ids_twice")
    return parts


def read_order(node: Node) -> Parts:
    """Return a sort order's fields."""
    if (order_id := node.optional("order-id")) is not None:
        order_id.int32()
    return [_read_sort_field(item) for item in node.member("fields").items()]


def _read_sort_field(item: Node) -> dict[str, Any]:
    part = {
        "transform": read_transform(item.member("transform")),
        "source-id": item.member("source-id").int32(),
        "direction": item.member("direction").string().lower(),
        "null-order": item.member("null-order").string().lower(),
    }
    if part["direction"] not in {"asc", "desc"}:
        item.member("direction").fail("iceberg_direction_invalid")
    if part["null-order"] not in {"nulls-first", "nulls-last"}:
        item.member("null-order").fail("iceberg_null_order_invalid")
    return part


def _add_spec(draft: MetadataDraft, parts: Parts) -> None:
    table, known = draft.table, draft.by_content("specs", "spec-id", _spec_content)
    if (found := known.find({"fields": parts})) is not None:
        # What was added here before keeps its meaning for -1 only while something was added.
        draft.last_added_spec = None if draft.last_added_spec is None else found
        return
    spec_id = known.following(0)
    fields = current_fields(draft)
    for part in parts:
        check_partition_name(part["name"], part["source-id"], fields)
        check_source(
            Phrase("iceberg_partition_field", {"part": part["name"]}), *_source(part), fields
        )
    numbered = _numbered(draft, parts)
    ids = [part["field-id"] for part in numbered]
    expected = list(range(FIRST_PARTITION_FIELD_ID, FIRST_PARTITION_FIELD_ID + len(ids)))
    if table.format_version == 1 and ids != expected:
        raise Invalid("iceberg_partition_ids_not_dense", expected=expected, ids=ids)
    spec = {"spec-id": spec_id, "fields": numbered}
    known.add(spec)
    draft.change(
        specs=table.specs.add(spec),
        last_partition_id=max([table.last_partition_id, *ids]),
    )
    if draft.field_ids is not None:
        _know_ids(draft.field_ids, spec)
    draft.last_added_spec = spec_id


def _numbered(draft: MetadataDraft, parts: Parts) -> Parts:
    if all("field-id" in part for part in parts):
        return parts
    table = draft.table
    known = _known_ids(draft) if table.format_version > 1 else {}
    taken: set[tuple[int, str]] = set()
    is_first = table.format_version == 1
    following = FIRST_PARTITION_FIELD_ID - 1 if is_first else table.last_partition_id
    numbered: Parts = []
    for part in parts:
        source = _source(part)
        of_source = {} if source in taken else known.get(source, {})
        field_id = next(iter(of_source.values()), None)
        taken.add(source)
        if field_id is None:
            following += 1
            field_id = following
        numbered.append({**part, "field-id": field_id})
    return numbered


def _known_ids(draft: MetadataDraft) -> dict[tuple[int, str], dict[int, int]]:
    """Return field ids: the same source and transform are the same field in every spec."""
    if draft.field_ids is None:
        draft.field_ids = {}
        for spec in draft.table.specs:
            _know_ids(draft.field_ids, spec)
    return draft.field_ids


def _know_ids(known: dict[tuple[int, str], dict[int, int]], spec: Mapping[str, Any]) -> None:
    for part in spec["fields"]:
        known.setdefault(_source(part), {}).setdefault(spec["spec-id"], part["field-id"])


def _spec_content(spec: Mapping[str, Any]) -> Hashable:
    return tuple((p["name"], p["source-id"], p["transform"].lower()) for p in spec["fields"])


def _order_content(order: Mapping[str, Any]) -> Hashable:
    return frozen(order["fields"])


def _source(part: dict[str, Any]) -> tuple[int, str]:
    return part["source-id"], part["transform"]


def _set_default_spec(draft: MetadataDraft, wanted: int) -> None:
    spec_id = last_added(wanted, draft.last_added_spec, "partition spec")
    if spec_id != draft.table.default_spec_id:
        # Whether there is such a spec is checked when all updates are applied.
        draft.change(default_spec_id=spec_id)
        draft.is_layout_changed = True


def _remove_specs(draft: MetadataDraft, spec_ids: list[int]) -> None:
    if draft.table.default_spec_id in spec_ids:
        raise Invalid("iceberg_spec_is_default", spec=draft.table.default_spec_id)
    if spec_ids:
        specs, ids = draft.table.specs, draft.field_ids if draft.field_ids is not None else {}
        for spec in filter(None, map(specs.get, set(spec_ids))):
            for part in spec["fields"] if ids else ():
                ids[_source(part)].pop(spec["spec-id"], None)
        draft.remove("specs", spec_ids)


def _add_order(draft: MetadataDraft, parts: Parts) -> None:
    table, known = draft.table, draft.by_content("sort_orders", "order-id", _order_content)
    if (found := known.find({"fields": parts})) is not None:
        draft.last_added_order = None if draft.last_added_order is None else found
        return
    order_id = known.following(1) if parts else UNSORTED
    if parts:
        fields = current_fields(draft)
        for part in parts:
            check_source(Phrase("iceberg_sort_field"), *_source(part), fields)
    order = {"order-id": order_id, "fields": parts}
    draft.change(sort_orders=table.sort_orders.add(order))
    if order_id in table.sort_orders:
        del draft.known["sort_orders"]  # an order of this id left
    else:
        known.add(order)
    draft.last_added_order = order_id


def _set_default_order(draft: MetadataDraft, wanted: int) -> None:
    order_id = last_added(wanted, draft.last_added_order, "sort order")
    if order_id != draft.table.default_sort_order_id:
        draft.change(default_sort_order_id=order_id)
        draft.is_layout_changed = True


LAYOUT_ACTIONS = {
    "add-schema": Action(_read_new_schema, _add_schema),
    "set-current-schema": Action(
        lambda node: node.member("schema-id").int32(low=-1), _set_current_schema
    ),
    "remove-schemas": Action(
        lambda node: [item.int32() for item in node.member("schema-ids").items()], _remove_schemas
    ),
    "add-spec": Action(lambda node: read_spec(node.member("spec")), _add_spec),
    "set-default-spec": Action(
        lambda node: node.member("spec-id").int32(low=-1), _set_default_spec
    ),
    "remove-partition-specs": Action(
        lambda node: [item.int32() for item in node.member("spec-ids").items()], _remove_specs
    ),
    "add-sort-order": Action(lambda node: read_order(node.member("sort-order")), _add_order),
    "set-default-sort-order": Action(
        lambda node: node.member("sort-order-id").int32(low=-1), _set_default_order
    ),
}
