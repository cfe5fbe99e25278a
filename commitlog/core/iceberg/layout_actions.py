"""Partition specs and sort orders: added with ids of the server's choice, set, removed."""

from __future__ import annotations

from typing import Any

from commitlog.core.iceberg.actions import Action, current_fields, last_added
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.transforms import check_partition_name, check_source, read_transform
from commitlog.model.reasons import Phrase

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
    table = draft.table
    spec_id = 0
    for known in table.specs:
        if len(known["fields"]) == len(parts) and all(map(_is_same, known["fields"], parts)):
            # What was added here before keeps its meaning for -1 only while something was added.
            draft.last_added_spec = None if draft.last_added_spec is None else int(known["spec-id"])
            return
        spec_id = max(spec_id, known["spec-id"] + 1)
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
    draft.change(
        specs=table.specs.add({"spec-id": spec_id, "fields": numbered}),
        last_partition_id=max([table.last_partition_id, *ids]),
    )
    if draft.field_ids is not None:
        for part in numbered:
            draft.field_ids.setdefault(_source(part), part["field-id"])
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
        field_id = None if source in taken else known.get(source)
        taken.add(source)
        if field_id is None:
            following += 1
            field_id = following
        numbered.append({**part, "field-id": field_id})
    return numbered


def _known_ids(draft: MetadataDraft) -> dict[tuple[int, str], int]:
    """Return field ids: the same source and transform are the same field in every spec."""
    if draft.field_ids is None:
        draft.field_ids = {}
        for spec in draft.table.specs:
            for part in spec["fields"]:
                draft.field_ids.setdefault(_source(part), part["field-id"])
    return draft.field_ids


def _is_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        one["name"] == other["name"]
        and one["source-id"] == other["source-id"]
        and bool(one["transform"].lower() == other["transform"].lower())
    )


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
        draft.change(specs=draft.table.specs.remove(spec_ids))
        draft.field_ids = None


def _add_order(draft: MetadataDraft, parts: Parts) -> None:
    table = draft.table
    order_id = 1 if parts else UNSORTED
    for known in table.sort_orders:
        if list(known["fields"]) == parts:
            draft.last_added_order = (
                None if draft.last_added_order is None else int(known["order-id"])
            )
            return
        if parts:
            order_id = max(order_id, known["order-id"] + 1)
    if parts:
        fields = current_fields(draft)
        for part in parts:
            check_source(Phrase("iceberg_sort_field"), *_source(part), fields)
    draft.change(sort_orders=table.sort_orders.add({"order-id": order_id, "fields": parts}))
    draft.last_added_order = order_id


def _set_default_order(draft: MetadataDraft, wanted: int) -> None:
    order_id = last_added(wanted, draft.last_added_order, "sort order")
    if order_id != draft.table.default_sort_order_id:
        draft.change(default_sort_order_id=order_id)
        draft.is_layout_changed = True


def _read_spec_id(node: Node) -> int:
    return node.member("spec-id").int32(low=-1)


LAYOUT_ACTIONS = {
    "add-spec": Action(lambda node: read_spec(node.member("spec")), _add_spec),
    "set-default-spec": Action(_read_spec_id, _set_default_spec),
    "remove-partition-specs": Action(
        lambda node: [item.int32() for item in node.member("spec-ids").items()], _remove_specs
    ),
    "add-sort-order": Action(lambda node: read_order(node.member("sort-order")), _add_order),
    "set-default-sort-order": Action(
        lambda node: node.member("sort-order-id").int32(low=-1), _set_default_order
    ),
}
