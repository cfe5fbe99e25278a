"""Looks at the metadata files that a record registers by their digests, and keeps what they had.

All files of a record are asked for at once. What they had goes into the outcome (large files beside
it, by their digests), from which a follower comes to the same tables when the files are long gone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from commitlog.core.decisions import BytesWanted, rejected
from commitlog.core.draft import Draft
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import Reference, Registered, read_table, references
from commitlog.core.iceberg.reading import has_more_values
from commitlog.core.lance.versions import recorded
from commitlog.core.tables.lance_tables import path_below
from commitlog.model.limits import ICEBERG_METADATA_BYTES_MAX, JSON_VALUES_MAX
from commitlog.model.operations import IcebergChange
from commitlog.model.records import Code, OperationResult
from commitlog.model.table import TableId, format_table_id


def check_values(operations: Sequence[IcebergChange]) -> None:
    """Refuse changes with more values than any body may have."""
    texts = [text for one in operations for text in (one.requirements, one.updates)]
    if has_more_values(",".join(texts).encode(errors="replace"), JSON_VALUES_MAX):
        raise rejected(Code.INVALID_OPERATION, "iceberg_too_many_values", count_max=JSON_VALUES_MAX)


def look_at_references(
    draft: Draft, operations: Sequence[IcebergChange], root: str
) -> dict[TableId, bytes]:
    """Return the bytes of the files that changes refer to; ask for all that were not read yet."""
    try:
        known = references(operations)
    except Invalid as error:
        raise rejected(
            Code.INVALID_OPERATION, error.phrase.name, **error.phrase.arguments
        ) from None
    wanted = {
        table: BytesWanted(root, _below(reference, table, root), ICEBERG_METADATA_BYTES_MAX)
        for table, reference in known.items()
    }
    files = {}
    found = draft.want_all(wanted.values())
    for (table, reference), seen in zip(known.items(), found, strict=True):
        files[table] = seen.data or b""
        is_it = (seen.observation.size, seen.observation.sha256) == (
            reference.size,
            reference.sha256,
        )
        if not is_it or seen.data is None:
            raise rejected(
                Code.INVALID_OPERATION,
                "iceberg_reference_differs",
                table=format_table_id(table),
                location=reference.location,
                size=reference.size,
                found=seen.observation.size,
            )
    return files


def registered_in(
    operations: Sequence[IcebergChange], files: Mapping[TableId, bytes]
) -> Registered:
    """Return what reads the tables of these files."""
    places = {table: one.location for table, one in references(operations).items()}

    def table_of_reference(table: TableId) -> IcebergTable:
        if table not in files:  # by another spelling of the action, which is no reference
            raise Invalid("iceberg_missing", place="updates[0].metadata")
        return _read(files[table], places[table])

    return table_of_reference


def recorded_files(
    results: Sequence[OperationResult], recordings: Mapping[bytes, bytes]
) -> dict[TableId, bytes]:
    """Return the files that an outcome keeps of its record's registrations."""
    return {
        result.table: recorded(result.delta, recordings)
        for result in results
        if result.operation == "IcebergChange" and result.delta is not None and not result.rebased
    }


def _below(reference: Reference, table: TableId, root: str) -> str:
    path = path_below(reference.location, root)
    if not path:
        raise rejected(
            Code.LOCATION_NOT_ALLOWED,
            "iceberg_reference_outside_root",
            table=format_table_id(table),
            location=reference.location,
            root=root or "(it has none)",
        )
    return path


@lru_cache(maxsize=2)
def _read(data: bytes, location: str) -> IcebergTable:
    # A record is decided twice or more, and a large file takes long to read.
    return read_table(data, location)
