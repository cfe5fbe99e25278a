"""A create-table request as the requirements and updates that create the table.

Column ids are assigned again, each struct's fields before what is nested in them, and partition and
sort fields follow their columns, as Iceberg's Java library does for every new table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from commitlog.core.iceberg.defaults import check_defaults
from commitlog.core.iceberg.iceberg_table import FORMAT_VERSIONS
from commitlog.core.iceberg.layout_actions import FIRST_PARTITION_FIELD_ID, read_order, read_spec
from commitlog.core.iceberg.reading import Node, dump_json
from commitlog.core.iceberg.requests import READ_ONLY
from commitlog.core.iceberg.requirements import ASSERT_CREATE
from commitlog.core.iceberg.schemas import read_schema
from commitlog.core.iceberg.updates import REGISTER
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId

FORMAT_VERSION = "format-version"
_NOT_KEPT = frozenset(
    {
        "current-schema",
        "current-snapshot-id",
        "current-snapshot-summary",
        "current-snapshot-timestamp-ms",
        "default-partition-spec",
        "default-sort-order",
        "format-version",
        "snapshot-count",
        "uuid",
    }
)
"""Names that Iceberg reserves: they say something to the request, not of the table."""
_DEFAULTS = {"write.parquet.compression-codec": "zstd"}


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A request to make a table."""

    name: str
    location: str
    """Empty: the server chooses."""
    is_staged: bool
    updates: tuple[dict[str, Any], ...]
    """All but assign-uuid and set-location, which the server knows."""

    def change(self, table: TableId, *, uuid: str, location: str) -> IcebergChange:
        """Return the operation that makes the table."""
        known = (
            {"action": "assign-uuid", "uuid": uuid},
            {"action": "set-location", "location": location},
        )
        return IcebergChange(
            table, dump_json([{"type": ASSERT_CREATE}]), dump_json([*known, *self.updates])
        )


def parse_create(body: Any) -> CreateRequest:
    """Read the body of a create-table request."""
    node = Node(body, "")
    name = node.member("name").text()
    properties = p.strings() if (p := node.optional("properties")) else {}
    version = properties.get(FORMAT_VERSION, "2")
    if version not in {str(known) for known in FORMAT_VERSIONS}:
        Node(version, f"properties.{FORMAT_VERSION}").fail(
            "iceberg_format_version_text", version=version, known=FORMAT_VERSIONS
        )
    schema, ids = _with_fresh_ids(read_schema(node.member("schema")))
    check_defaults(node.member("schema"))
    spec = [
        {**part, "source-id": source, "field-id": FIRST_PARTITION_FIELD_ID + i}
        for i, (part, source) in enumerate(
            _sources(node.optional("partition-spec"), ids, read_spec)
        )
    ]
    order = [
        {**part, "source-id": source}
        for part, source in _sources(node.optional("write-order"), ids, read_order)
    ]
    kept = {k: v for k, v in properties.items() if k not in _NOT_KEPT}
    location = node.optional("location")
    staged = node.optional("stage-create")
    return CreateRequest(
        name,
        location.string().rstrip("/") if location else "",
        staged.boolean() if staged else False,
        (
            {"action": "upgrade-format-version", "format-version": int(version)},
            {"action": "add-schema", "schema": schema},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": spec}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": order}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-properties", "updates": {**_DEFAULTS, **kept}},
        ),
    )


def register_change(
    table: TableId,
    *,
    metadata: Any,
    metadata_location: str,
    replaces: str = "",
    read_only: bool = False,
) -> IcebergChange:
    """Return the operation that takes over a table's metadata file, and holds what is in it.

    `replaces` is the uuid of the table that leaves the name; empty: there must be none. With
    `read_only` the metadata and the place may be another table's.
    """
    update = {"action": REGISTER, "metadata-location": metadata_location, "metadata": metadata}
    return _register(table, update, replaces, read_only)


def register_reference(
    table: TableId,
    *,
    data: bytes,
    metadata_location: str,
    replaces: str = "",
    read_only: bool = False,
) -> IcebergChange:
    """Return the operation that takes over a metadata file, by its digest; since protocol 4."""
    digest = hashlib.sha256(data).hexdigest()
    file = {"metadata-location": metadata_location, "size": len(data), "sha256": digest}
    return _register(table, {"action": REGISTER, **file}, replaces, read_only)


def _register(
    table: TableId, update: Mapping[str, Any], replaces: str, read_only: bool
) -> IcebergChange:
    requirement: dict[str, Any] = (
        {"type": "assert-table-uuid", "uuid": replaces} if replaces else {"type": ASSERT_CREATE}
    )
    if read_only:
        requirement[READ_ONLY] = True
    return IcebergChange(table, dump_json([requirement]), dump_json([update]))


def _sources(node: Node | None, ids: dict[int, int], read: Any) -> Iterator[tuple[Any, int]]:
    for i, part in enumerate(read(node) if node else ()):
        source = ids.get(part["source-id"])
        if source is None:
            assert node is not None
            Node(part["source-id"], f"{node.path}.fields[{i}].source-id").fail(
                "iceberg_source_unknown", source=part["source-id"]
            )
        yield part, source


def _with_fresh_ids(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[int, int]]:
    ids: dict[int, int] = {}
    following = count(1)

    def fresh(old: int) -> int:
        ids[old] = next(following)
        return ids[old]

    def renumber(kind: Any) -> Any:
        if isinstance(kind, str):
            return kind
        changed = dict(kind)
        if kind["type"] == "struct":
            fields = [{**field, "id": fresh(field["id"])} for field in kind["fields"]]
            changed["fields"] = [{**field, "type": renumber(field["type"])} for field in fields]
            return changed
        parts = ("element",) if kind["type"] == "list" else ("key", "value")
        for part in parts:
            changed[f"{part}-id"] = fresh(kind[f"{part}-id"])
        for part in parts:
            changed[part] = renumber(kind[part])
        return changed

    renumbered = {**renumber(schema), "schema-id": 0}
    if schema.get("identifier-field-ids"):
        renumbered["identifier-field-ids"] = [ids[old] for old in schema["identifier-field-ids"]]
    return renumbered, ids
