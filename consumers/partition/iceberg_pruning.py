"""Removes metadata files that fell out of a table's metadata log, where its properties say so.

Done once the outcome is acknowledged and told: a reader that has the older metadata may still need
the file until then. A file that cannot be removed stays; nothing depends on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.errors import CommitLogError
from commitlog.model.table import TableId
from consumers.partition.iceberg_files import TableFiles, below

DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"

logger = logging.getLogger(__name__)


def superseded(
    changes: Iterable[Change], before: Callable[[TableId], IcebergTable | None]
) -> Iterator[tuple[str, str]]:
    """Yield the metadata files that changes leave without anybody who names them.

    Each with the location of its table, outside of which nothing is removed.

    `before` returns a table as the changes found it.
    """
    for change in changes:
        after = change.iceberg
        if after is None or change.kind is not ChangeKind.ICEBERG:
            continue
        if after.properties.get(DELETE_AFTER_COMMIT, "").lower() != "true":
            continue
        base = before(change.table)
        if base is None or base.uuid != after.uuid:
            continue
        listed = {*_listed(base), base.metadata_location}
        for place in sorted(listed - {*_listed(after), after.metadata_location}):
            if below(place, after.location) is not None:
                yield place, after.location


def _listed(table: IcebergTable) -> Iterator[str]:
    return (str(entry.value["metadata-file"]) for entry in table.metadata_log)


def remove(places: Iterable[tuple[str, str]], tables_root: str) -> None:
    """Remove files below the tables root, each in its table's location."""
    files = TableFiles(tables_root)
    for place, location in places:
        try:
            files.delete(place, location)
        except (OSError, CommitLogError) as error:
            logger.warning("%s is no longer listed and cannot be removed: %s", place, error)
