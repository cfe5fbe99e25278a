"""An Iceberg table's metadata of then: read again, and what makes the table as it was."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from typing import Any

from commitlog.adapters.storage import local_path, store_for
from commitlog.codecs.avro_manifests import data_paths, manifest_paths
from commitlog.core.iceberg.iceberg_table import MAIN, is_compressed
from commitlog.core.iceberg.metadata_draft import POSITION
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.views import ASSERT_CREATE, ASSERT_UUID
from commitlog.errors import NoSuchVersion
from commitlog.model.operations import IcebergChange
from commitlog.model.table import TableId, format_table_id

Metadata = Mapping[str, Any]

_CURRENT = (
    ("current-schema-id", "schemas", "schema-id", "set-current-schema", "add-schema", "schema"),
    ("default-spec-id", "partition-specs", "spec-id", "set-default-spec", "add-spec", "spec"),
    (
        *("default-sort-order-id", "sort-orders", "order-id", "set-default-sort-order"),
        *("add-sort-order", "sort-order"),
    ),
)
"""What is current: its member, the list that has it, its id there, and what sets and adds it."""


def metadata_at(location: str) -> Metadata:
    """Return the metadata in a file; FileNotFoundError if it is gone."""
    data = _read(location)
    try:
        found: Metadata = json.loads(gzip.decompress(data) if is_compressed(location) else data)
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise NoSuchVersion(f"the metadata at {location} cannot be read: {error}") from error
    return found


def check_files(metadata: Metadata) -> None:
    """Raise FileNotFoundError if a file of the current snapshot is gone."""
    current = metadata.get("current-snapshot-id")
    for snapshot in metadata.get("snapshots", ()):
        if snapshot["snapshot-id"] == current and "manifest-list" in snapshot:
            for manifest in manifest_paths(_read(snapshot["manifest-list"])):
                for path in data_paths(_read(manifest)):
                    folder, name = _split(path)
                    if store_for(folder).size(name) < 0:
                        raise FileNotFoundError(f"{path} isn't there")


def undoing_change(table: TableId, then: Metadata, now: Metadata) -> IcebergChange | None:
    """Return what makes a table as it was then; None if it is so.

    It holds only over the metadata of now: whatever somebody commits meanwhile wins.
    """
    updates: list[dict[str, Any]] = []
    requirements: list[dict[str, Any]] = [{"type": "assert-table-uuid", "uuid": now["table-uuid"]}]
    for member, listed, id_name, set_action, add_action, what in _CURRENT:
        wanted = then.get(member, 0)
        if wanted == now[member]:
            continue
        requirements.append({"type": f"assert-{member}", member: now[member]})
        if all(one[id_name] != wanted for one in now[listed]):
            gone = next(one for one in then[listed] if one[id_name] == wanted)
            updates.append({"action": add_action, what: gone})
            wanted = -1
        updates.append({"action": set_action, _set_member(what, id_name): wanted})
    for name, (ref, standing) in _refs(table, then, now).items():
        before = None if standing is None else standing["snapshot-id"]
        requirements.append({"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": before})
        if ref is None:
            updates.append({"action": "remove-snapshot-ref", "ref-name": name})
        else:
            updates.append({"action": "set-snapshot-ref", "ref-name": name, **ref})
    updates += _properties(then.get("properties", {}), now.get("properties", {}))
    if not updates:
        return None
    return IcebergChange(table, dump_json(requirements), dump_json(updates))


def is_view(metadata: Metadata) -> bool:
    """Return True for the metadata of a view."""
    return "view-uuid" in metadata


def view_again(name: TableId, metadata: Metadata) -> IcebergChange:
    """Return what makes a view again that was dropped, with its uuid and its versions."""
    current = metadata["current-version-id"]
    versions = sorted(metadata["versions"], key=lambda one: one["version-id"] == current)
    updates: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": metadata["view-uuid"]},
        {"action": "set-location", "location": metadata["location"]},
        {"action": "set-properties", "updates": dict(metadata["properties"])},
    ]
    for version in versions:
        updates += _version_of(metadata, version)
    return IcebergChange(name, dump_json([{"type": ASSERT_CREATE}]), dump_json(updates))


def undoing_view(name: TableId, then: Metadata, now: Metadata) -> IcebergChange | None:
    """Return what makes a view as it was then; None if it is so."""
    updates = _properties(then["properties"], now["properties"])
    wanted, current = (
        next(v for v in one["versions"] if v["version-id"] == one["current-version-id"])
        for one in (then, now)
    )
    if wanted != current:
        updates += _version_of(then, wanted)
    if not updates:
        return None
    requirement = {"type": ASSERT_UUID, "uuid": now["view-uuid"]}
    return IcebergChange(name, dump_json([requirement]), dump_json(updates))


def _version_of(metadata: Metadata, version: Metadata) -> list[dict[str, Any]]:
    ids = {one["schema-id"]: one for one in metadata["schemas"]}
    return [
        {"action": "add-schema", "schema": ids[version["schema-id"]]},
        {"action": "add-view-version", "view-version": {**version, "schema-id": -1}},
        {"action": "set-current-view-version", "view-version-id": -1},
    ]


def _set_member(what: str, id_name: str) -> str:
    return "sort-order-id" if what == "sort-order" else id_name


def _refs(
    table: TableId, then: Metadata, now: Metadata
) -> dict[str, tuple[dict[str, Any] | None, dict[str, Any] | None]]:
    """Return the branches and tags that differ, as they were and as they are."""
    were, are = _named(then), _named(now)
    kept = {one["snapshot-id"] for one in now.get("snapshots", ())}
    for name, ref in were.items():
        if ref["snapshot-id"] not in kept:
            raise NoSuchVersion(
                f"{format_table_id(table)} can't be restored: snapshot {ref['snapshot-id']} of "
                f"{name} was expired"
            )
    found = {name: (ref, are.get(name)) for name, ref in were.items() if are.get(name) != ref}
    if MAIN in are and MAIN not in were:
        return {**found, MAIN: (None, are[MAIN])}
    return {**found}


def _named(metadata: Metadata) -> dict[str, dict[str, Any]]:
    found = dict(metadata.get("refs", {}))
    current = metadata.get("current-snapshot-id")
    if MAIN not in found and current is not None and current >= 0:
        found[MAIN] = {"snapshot-id": current, "type": "branch"}
    return found


def _properties(were: Mapping[str, str], are: Mapping[str, str]) -> list[dict[str, Any]]:
    changed = {k: v for k, v in were.items() if are.get(k) != v and k != POSITION}
    added = [name for name in are if name not in were and name != POSITION]
    updates: list[dict[str, Any]] = []
    if changed:
        updates.append({"action": "set-properties", "updates": changed})
    if added:
        updates.append({"action": "remove-properties", "removals": added})
    return updates


def _read(location: str) -> bytes:
    folder, name = _split(location)
    return store_for(folder).read(name)


def _split(location: str) -> tuple[str, str]:
    path = local_path(location)
    folder, _, name = (location if path is None else str(path)).rpartition("/")
    return folder, name
