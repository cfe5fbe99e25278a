"""The updates of single members: uuid, format, location, properties, statistics, keys."""

from __future__ import annotations

import re
from typing import Any

from commitlog.core.iceberg.actions import Action
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import FORMAT_VERSIONS
from commitlog.core.iceberg.metadata_draft import MetadataDraft
from commitlog.core.iceberg.naming import check_place
from commitlog.core.iceberg.reading import Node

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def read_uuid(node: Node) -> str:
    """Return a uuid as it was written."""
    if not UUID.fullmatch(node.string()):
        node.fail("iceberg_not_uuid", value=node.value)
    return str(node.value)


def _assign_uuid(draft: MetadataDraft, uuid: str) -> None:
    if uuid.lower() == draft.table.uuid.lower():
        draft.has_uuid = True
        return
    if not draft.is_new or draft.has_uuid:
        # Java allows it; a table whose uuid changes is another table to everybody who reads it.
        raise Invalid("iceberg_uuid_is_set", uuid=draft.table.uuid, asked=uuid)
    draft.change(uuid=uuid)
    draft.has_uuid = True


def _read_format(node: Node) -> int:
    version = node.member("format-version")
    if version.int32() not in FORMAT_VERSIONS:
        version.fail("iceberg_format_version", value=version.value, known=FORMAT_VERSIONS)
    return int(version.value)


def _upgrade(draft: MetadataDraft, version: int) -> None:
    if version < draft.table.format_version:
        raise Invalid(
            "iceberg_format_version_lower", current=draft.table.format_version, version=version
        )
    if version != draft.table.format_version:
        draft.change(format_version=version)


def _set_location(draft: MetadataDraft, location: str) -> None:
    if location != draft.table.location:
        draft.change(location=location)


def _read_location(node: Node) -> str:
    location = node.member("location")
    return check_place(location.text(), location.path)


def _read_properties(node: Node) -> dict[str, str]:
    # Clients before the REST specification's first release say `updated`.
    name = "updated" if "updates" not in node.object() and "updated" in node.value else "updates"
    return node.member(name).strings()


def _set_properties(draft: MetadataDraft, updates: dict[str, str]) -> None:
    if updates:
        draft.own("properties").update(updates)


def _read_removals(node: Node) -> list[str]:
    name = "removed" if "removals" not in node.object() and "removed" in node.value else "removals"
    return [item.string() for item in node.member(name).items()]


def _remove_properties(draft: MetadataDraft, removals: list[str]) -> None:
    if removals:
        properties = draft.own("properties")
        for name in removals:
            properties.pop(name, None)


def read_statistics(node: Node) -> dict[str, Any]:
    """Return a statistics file as it was sent."""
    for name in ("snapshot-id", "file-size-in-bytes", "file-footer-size-in-bytes"):
        node.member(name).integer(low=0)
    node.member("statistics-path").text()
    for blob in node.member("blob-metadata").items():
        blob.member("type").string()
        blob.member("snapshot-id").integer()
        blob.member("sequence-number").integer()
        for item in blob.member("fields").items():
            item.int32()
        if (properties := blob.optional("properties")) is not None:
            properties.strings()
    return node.object()


def read_partition_statistics(node: Node) -> dict[str, Any]:
    """Return a partition statistics file as it was sent."""
    node.member("snapshot-id").integer(low=0)
    node.member("file-size-in-bytes").integer(low=0)
    node.member("statistics-path").text()
    return node.object()


def _set_statistics(draft: MetadataDraft, file: dict[str, Any]) -> None:
    draft.change(statistics=draft.table.statistics.add(file))


def _set_partition_statistics(draft: MetadataDraft, file: dict[str, Any]) -> None:
    draft.change(partition_statistics=draft.table.partition_statistics.add(file))


def _remove_statistics(draft: MetadataDraft, snapshot_id: int) -> None:
    if snapshot_id in draft.table.statistics:
        draft.change(statistics=draft.table.statistics.remove([snapshot_id]))


def _remove_partition_statistics(draft: MetadataDraft, snapshot_id: int) -> None:
    if snapshot_id in draft.table.partition_statistics:
        left = draft.table.partition_statistics.remove([snapshot_id])
        draft.change(partition_statistics=left)


def read_key(node: Node) -> dict[str, Any]:
    """Return an encryption key as it was sent."""
    node.member("key-id").text()
    node.member("encrypted-key-metadata").string()
    if (by := node.optional("encrypted-by-id")) is not None:
        by.string()
    if (properties := node.optional("properties")) is not None:
        properties.strings()
    return node.object()


def _add_key(draft: MetadataDraft, key: dict[str, Any]) -> None:
    if key["key-id"] not in draft.table.encryption_keys:
        draft.own("encryption_keys")[key["key-id"]] = key


def _remove_key(draft: MetadataDraft, key_id: str) -> None:
    if key_id in draft.table.encryption_keys:
        del draft.own("encryption_keys")[key_id]


def _read_snapshot_id(node: Node) -> int:
    return node.member("snapshot-id").integer()


PLAIN_ACTIONS = {
    "assign-uuid": Action(lambda node: read_uuid(node.member("uuid")), _assign_uuid),
    "upgrade-format-version": Action(_read_format, _upgrade),
    "set-location": Action(_read_location, _set_location),
    "set-properties": Action(_read_properties, _set_properties),
    "remove-properties": Action(_read_removals, _remove_properties),
    "set-statistics": Action(
        lambda node: read_statistics(node.member("statistics")), _set_statistics
    ),
    "remove-statistics": Action(_read_snapshot_id, _remove_statistics),
    "set-partition-statistics": Action(
        lambda node: read_partition_statistics(node.member("partition-statistics")),
        _set_partition_statistics,
    ),
    "remove-partition-statistics": Action(_read_snapshot_id, _remove_partition_statistics),
    "add-encryption-key": Action(lambda node: read_key(node.member("encryption-key")), _add_key),
    "remove-encryption-key": Action(lambda node: node.member("key-id").text(), _remove_key),
}
