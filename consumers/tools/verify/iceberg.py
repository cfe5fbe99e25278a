"""Compares Iceberg tables' metadata files with what the log makes of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping

from commitlog.adapters.storage import ObjectStore
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.errors import CommitLogError
from commitlog.model.table import TableId, format_table_id
from consumers.tools.verify.findings import Problem, ProblemKind


def check_metadata(
    tables: Mapping[TableId, IcebergTable], open_store: Callable[[str], ObjectStore]
) -> Iterator[Problem]:
    """Look at each table's current metadata file; older ones may have been pruned."""
    for name, table in sorted(tables.items()):
        place = normalize_location(table.metadata_location)
        folder, _, file = place.rpartition("/")
        try:
            found = open_store(folder).read(file)
        except (OSError, CommitLogError) as error:
            text = f"the metadata file {place} of {format_table_id(name)} cannot be read: {error}"
            yield Problem(ProblemKind.MANIFEST, text, table=format_table_id(name))
            continue
        if not is_same_metadata(found, table.encode()):
            text = f"the metadata file {place} of {format_table_id(name)} isn't what the log says"
            yield Problem(ProblemKind.MANIFEST, text, table=format_table_id(name))


def is_same_metadata(one: bytes, other: bytes) -> bool:
    """Return True if two metadata files say the same; a registered one is somebody else's bytes."""
    if one == other:
        return True
    try:
        return bool(json.loads(_plain(one)) == json.loads(_plain(other)))
    except (ValueError, OSError, EOFError):
        return False


def _plain(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
