"""Metadata files in an Iceberg table's own location, from which it could be registered."""

from __future__ import annotations

import re

from commitlog.core.iceberg.iceberg_table import IcebergTable
from consumers.partition.files.iceberg_files import IcebergFiles, below, plain_place
from consumers.tools.orphans.leftover import GONE

OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); metadata files of others are ignored."""


def listed_metadata(table: IcebergTable) -> set[str]:
    """Return the metadata files that a table lists, those before its last one."""
    return {plain_place(str(entry.value["metadata-file"])) for entry in table.metadata_log}


def older_metadata(table: IcebergTable, last: str, files: IcebergFiles) -> list[str]:
    """Return a table's metadata files besides the last one, by their own names.

    They are there, or put aside. They are those of its metadata log, and the log's own beside them
    and beside the `last` one.
    """
    listed = sorted(listed_metadata(table))
    found = dict.fromkeys(one for one in listed if below(one, table.location) is not None)
    for folder in sorted({one.rpartition("/")[0] for one in (*found, last)}):
        if below(f"{folder}/{GONE}", table.location) is None:
            continue
        places = (f"{folder}/{name.removesuffix(GONE)}" for name in files.names(folder))
        found.update(dict.fromkeys(one for one in places if OURS.fullmatch(one)))
    found.pop(last, None)
    return list(found)
