"""Small Iceberg tables and requests, for tests."""

from __future__ import annotations

from typing import Any

from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, decide_iceberg
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata import table_of
from commitlog.core.iceberg.reading import dump_json
from commitlog.model.limits import PROTOCOL_SUPPORTED
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId

EVENTS: TableId = ("analytics", "events")
LOCATION = "s3://bucket/events"
TIME_MS = 1_800_000_000_000
TRANSACTION = "0190a0a0-0000-7000-8000-000000000001"


def schema(*names: str) -> dict[str, Any]:
    """A schema of long columns with ids from 1."""
    fields = [
        {"id": i, "name": name, "required": False, "type": "long"}
        for i, name in enumerate(names, start=1)
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def snapshot(snapshot_id: int, number: int, parent: int | None = None, **more: Any) -> Any:
    """A snapshot a thousand seconds of 2024 plus its number."""
    found = {
        "snapshot-id": snapshot_id,
        "sequence-number": number,
        "timestamp-ms": 1_705_398_000_000 + 1_000 * number,
        "summary": {"operation": "append"},
        "manifest-list": f"{LOCATION}/metadata/snap-{snapshot_id}.avro",
        "schema-id": 0,
        **more,
    }
    return found if parent is None else {**found, "parent-snapshot-id": parent}


def metadata(format_version: int = 2, *, snapshots: int = 2, **members: Any) -> dict[str, Any]:
    """Metadata of a table with a chain of snapshots 1, 2, …, the last one current."""
    rows = {"first-row-id": 0, "added-rows": 0} if format_version == 3 else {}
    found: dict[str, Any] = {
        "format-version": format_version,
        "table-uuid": "550e8400-e29b-41d4-a716-446655440000",
        "location": LOCATION,
        "last-sequence-number": snapshots,
        "last-updated-ms": 1_705_398_000_000 + 1_000 * snapshots,
        "last-column-id": 2,
        "current-schema-id": 0,
        "schemas": [schema("id", "data")],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"owner": "team-a"},
        "snapshots": [
            snapshot(i, i if format_version > 1 else 0, i - 1 if i > 1 else None, **rows)
            for i in range(1, snapshots + 1)
        ],
        "snapshot-log": [
            {"snapshot-id": i, "timestamp-ms": 1_705_398_000_000 + 1_000 * i}
            for i in range(1, snapshots + 1)
        ],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
        "refs": {},
    }
    if snapshots:
        found["current-snapshot-id"] = snapshots
        found["refs"] = {"main": {"snapshot-id": snapshots, "type": "branch"}}
    if format_version == 1:
        del found["last-sequence-number"]
    if format_version == 3:
        found["next-row-id"] = 0
    return {**found, **members}


def table(format_version: int = 2, *, snapshots: int = 2, **members: Any) -> IcebergTable:
    """The table of `metadata`, at metadata file 7."""
    found = metadata(format_version, snapshots=snapshots, **members)
    return table_of(found, f"{LOCATION}/metadata/00007-x.metadata.json")


def change(updates: Any, requirements: Any = (), name: TableId = EVENTS) -> IcebergChange:
    """The operation of a table change."""
    return IcebergChange(name, dump_json(list(requirements)), dump_json(list(updates)))


def decide(
    tables: dict[TableId, IcebergTable],
    *changes: IcebergChange,
    time_ms: int = TIME_MS,
    transaction_id: str = TRANSACTION,
    protocol: int = PROTOCOL_SUPPORTED,
) -> tuple[IcebergResult, ...] | IcebergRefused:
    """Decide changes over tables, with the namespace `analytics`."""
    return decide_iceberg(
        tables,
        changes,
        time_ms=time_ms,
        transaction_id=transaction_id,
        protocol=protocol,
        namespaces={("analytics",)},
        others={("analytics", "lance"): "lance-uuid"},
    )


def updated(base: IcebergTable | None, *updates: dict[str, Any]) -> IcebergTable:
    """The table after updates that must be accepted; None makes one."""
    requirements = () if base is not None else ({"type": "assert-create"},)
    decided = decide({EVENTS: base} if base else {}, change(updates, requirements))
    assert not isinstance(decided, IcebergRefused), decided
    return decided[0].after


def refused(base: IcebergTable | None, *updates: dict[str, Any]) -> IcebergRefused:
    """The refusal of updates."""
    requirements = () if base is not None else ({"type": "assert-create"},)
    decided = decide({EVENTS: base} if base else {}, change(updates, requirements))
    assert isinstance(decided, IcebergRefused), decided
    return decided


def main_at(snapshot_id: int) -> dict[str, Any]:
    """The update that makes a snapshot current."""
    return {
        "action": "set-snapshot-ref",
        "ref-name": "main",
        "type": "branch",
        "snapshot-id": snapshot_id,
    }


def create_updates(location: str = LOCATION) -> list[dict[str, Any]]:
    """What makes an empty table."""
    return [
        {"action": "add-schema", "schema": schema("id", "data")},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": location},
    ]
