"""Reads table metadata that somebody else wrote, and what `IcebergTable.to_json` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from commitlog.core.iceberg.iceberg_table import (
    FORMAT_VERSIONS,
    MAIN,
    ROW_IDS_SINCE,
    IcebergTable,
    SnapshotLog,
)
from commitlog.core.iceberg.layout_actions import (
    FIRST_PARTITION_FIELD_ID,
    Parts,
    read_order,
    read_spec,
)
from commitlog.core.iceberg.plain_actions import (
    read_key,
    read_partition_statistics,
    read_statistics,
    read_uuid,
)
from commitlog.core.iceberg.reading import Node
from commitlog.core.iceberg.schemas import read_schema
from commitlog.core.iceberg.shelf import Index, PersistentRows, Shelf
from commitlog.core.iceberg.snapshot_actions import read_ref

_KNOWN = frozenset(
    {
        "format-version",
        "table-uuid",
        "location",
        "last-sequence-number",
        "last-updated-ms",
        "last-column-id",
        "schema",
        "schemas",
        "current-schema-id",
        "partition-spec",
        "partition-specs",
        "default-spec-id",
        "last-partition-id",
        "sort-orders",
        "default-sort-order-id",
        "properties",
        "current-snapshot-id",
        "next-row-id",
        "encryption-keys",
        "refs",
        "snapshots",
        "statistics",
        "partition-statistics",
        "snapshot-log",
        "metadata-log",
    }
)


def table_of(metadata: Any, metadata_location: str, *, path: str = "metadata") -> IcebergTable:
    """Return the table that metadata describes; raise Invalid naming what is wrong with it."""
    node = Node(metadata, path)
    version = node.member("format-version").int32()
    if version not in FORMAT_VERSIONS:
        node.member("format-version").fail(
            "iceberg_format_version", value=version, known=FORMAT_VERSIONS
        )
    schemas, current_schema_id = _schemas(node, version)
    specs, default_spec_id = _specs(node, version)
    orders = _list(node, "sort-orders", _order)
    refs = _refs(node)
    current = node.optional("current-snapshot-id")
    current_id = current.integer() if current is not None else -1
    snapshots = Shelf("snapshot-id", _list(node, "snapshots", _snapshot))
    if current_id >= 0 and node.optional("refs") is None:
        refs = {MAIN: {"snapshot-id": current_id, "type": "branch"}}
    _check_refs(node, refs, snapshots, current_id)
    default_order = node.optional("default-sort-order-id")
    last_partition = node.optional("last-partition-id")
    return IcebergTable(
        format_version=version,
        uuid=read_uuid(node.member("table-uuid")),
        location=node.member("location").text().rstrip("/"),
        last_sequence_number=(
            node.member("last-sequence-number").integer(low=0) if version > 1 else 0
        ),
        last_updated_ms=node.member("last-updated-ms").integer(low=0),
        last_column_id=node.member("last-column-id").int32(low=0),
        current_schema_id=current_schema_id,
        schemas=schemas,
        default_spec_id=default_spec_id,
        specs=specs,
        last_partition_id=last_partition.int32() if last_partition else _last_field_id(specs),
        default_sort_order_id=default_order.int32() if default_order else 0,
        sort_orders=Shelf("order-id", orders or [{"order-id": 0, "fields": []}]),
        properties=p.strings() if (p := node.optional("properties")) else {},
        current_snapshot_id=current_id if current_id >= 0 else None,
        snapshots=snapshots,
        refs=refs,
        snapshot_log=_snapshot_log(node, snapshots),
        metadata_log=PersistentRows(_list(node, "metadata-log", _metadata_log_entry)),
        statistics=Shelf("snapshot-id", _list(node, "statistics", read_statistics)),
        partition_statistics=Shelf(
            "snapshot-id", _list(node, "partition-statistics", read_partition_statistics)
        ),
        next_row_id=(node.member("next-row-id").integer(low=0) if version >= ROW_IDS_SINCE else 0),
        encryption_keys={k["key-id"]: k for k in _list(node, "encryption-keys", read_key)},
        extra={name: value for name, value in metadata.items() if name not in _KNOWN},
        metadata_location=metadata_location,
    )


def _list(node: Node, name: str, read: Any) -> list[Any]:
    items = node.optional(name)
    return [] if items is None else [read(item) for item in items.items()]


def _schemas(node: Node, version: int) -> tuple[Shelf, int]:
    if version == 1 and node.optional("schemas") is None:
        schema = {"schema-id": 0, **read_schema(node.member("schema"))}
        schema["schema-id"] = schema["schema-id"] or 0  # null, as some say it
        return Shelf("schema-id", [schema]), int(schema["schema-id"])
    current = node.member("current-schema-id")
    found = {}
    for item in node.member("schemas").items():
        found[item.member("schema-id").int32()] = read_schema(item)
    if current.int32() not in found:
        current.fail("iceberg_current_schema_unlisted", value=current.value)
    return Shelf("schema-id", found.values()), current.int32()


def _specs(node: Node, version: int) -> tuple[Shelf, int]:
    if version == 1 and node.optional("partition-specs") is None:
        parts = read_spec(Node({"fields": node.member("partition-spec").value}, node.path))
        return Shelf("spec-id", [{"spec-id": 0, "fields": _numbered(parts)}]), 0
    default = node.member("default-spec-id")
    found = {}
    for item in node.member("partition-specs").items():
        spec_id = item.member("spec-id").int32()
        found[spec_id] = {"spec-id": spec_id, "fields": _numbered(read_spec(item))}
    if default.int32() not in found:
        default.fail("iceberg_default_spec_unlisted", value=default.value)
    return Shelf("spec-id", found.values()), default.int32()


def _numbered(parts: Parts) -> Parts:
    # Old writers left the ids out; they count from the first one.
    first = FIRST_PARTITION_FIELD_ID
    return [p if "field-id" in p else {**p, "field-id": first + i} for i, p in enumerate(parts)]


def _order(item: Node) -> Mapping[str, Any]:
    return {"order-id": item.member("order-id").int32(), "fields": read_order(item)}


def _snapshot(item: Node) -> dict[str, Any]:
    # What is in a table is kept, even if a commit of it would be refused today.
    item.member("snapshot-id").integer()
    item.member("timestamp-ms").integer()
    for name in ("sequence-number", "first-row-id", "added-rows"):
        if (value := item.optional(name)) is not None:
            value.integer()
    return item.object()


def _refs(node: Node) -> dict[str, Mapping[str, Any]]:
    refs = node.optional("refs")
    if refs is None:
        return {}
    return {name: read_ref(refs.member(name), name) for name in refs.object()}


def _check_refs(
    node: Node, refs: Mapping[str, Mapping[str, Any]], snapshots: Shelf, current_id: int
) -> None:
    for name, ref in refs.items():
        if ref["snapshot-id"] not in snapshots:
            node.fail("iceberg_ref_snapshot_unlisted", name=name, snapshot=ref["snapshot-id"])
    main = refs[MAIN]["snapshot-id"] if MAIN in refs else -1
    if main != current_id:
        node.fail("iceberg_current_snapshot_not_main", snapshot=current_id, main=main)


def _snapshot_log(node: Node, snapshots: Shelf) -> SnapshotLog:
    entries = _list(node, "snapshot-log", _snapshot_log_entry)
    missing = [i for i, entry in enumerate(entries) if entry["snapshot-id"] not in snapshots]
    places: Index[int, int] = Index((e["snapshot-id"], i) for i, e in enumerate(entries))
    return SnapshotLog(PersistentRows(entries), places, max(missing, default=-1))


def _snapshot_log_entry(item: Node) -> dict[str, Any]:
    item.member("timestamp-ms").integer()
    item.member("snapshot-id").integer()
    return item.object()


def _metadata_log_entry(item: Node) -> dict[str, Any]:
    item.member("timestamp-ms").integer()
    item.member("metadata-file").string()
    return item.object()


def _last_field_id(specs: Shelf) -> int:
    return max((part["field-id"] for spec in specs for part in spec["fields"]), default=999)
