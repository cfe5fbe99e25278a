"""The places that a change to an Iceberg table names: its readers will follow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from commitlog.core.iceberg.domain import IcebergResult
from commitlog.core.iceberg.iceberg_table import METADATA_PATH, IcebergTable

PLACE_PROPERTIES = (
    METADATA_PATH,
    *("write.data.path", "write.object-storage.path", "write.folder-storage.path"),
)
"""Properties that say where a table's writers put its files."""
_STATISTICS = ("set-statistics", "set-partition-statistics")


def named_places(result: IcebergResult) -> Iterator[str]:
    """Yield the places that a change adds, but for the table's location and metadata file.

    Those of its snapshots and statistics, and those of its properties.
    """
    if result.is_registered:
        yield from _of_table(result.after)
    for update in result.updates:
        yield from _of_update(update.action, update.arguments)
    known = result.before.properties if result.before is not None else {}
    for name in PLACE_PROPERTIES:
        place = result.after.properties.get(name)
        if place and place != known.get(name):
            yield place


def of_snapshot(snapshot: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what a snapshot says of where its manifests are, as it came: it may be no text."""
    if "manifest-list" in snapshot:
        yield snapshot["manifest-list"]
    manifests = snapshot.get("manifests")
    yield from manifests if isinstance(manifests, list) else ()


def _of_table(table: IcebergTable) -> Iterator[str]:
    for snapshot in table.snapshots:
        yield from _of_update("add-snapshot", snapshot)
    for shelf in (table.statistics, table.partition_statistics):
        for file in shelf:
            yield from _of_update("set-statistics", file)


def _of_update(action: str, arguments: Any) -> Iterator[str]:
    if action == "add-snapshot":
        yield from map(str, of_snapshot(arguments))
    elif action in _STATISTICS and "statistics-path" in arguments:
        yield str(arguments["statistics-path"])
