"""One Iceberg table as a value: its metadata, held so that a commit shares all it doesn't change.

`encode` writes the metadata file: the members in a fixed order, from bytes kept since each part
was added, so that the work for an old snapshot is one copy of them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.shelf import Index, PersistentRows, Shelf

MAIN = "main"
FORMAT_VERSIONS = (1, 2, 3)
ROW_IDS_SINCE = 3
COMPRESSION = "write.metadata.compression-codec"
METADATA_PATH = "write.metadata.path"

Value = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotLog:
    """Which snapshot was current since when."""

    rows: PersistentRows = field(default_factory=PersistentRows)
    places: Index[int, int] = field(default_factory=Index, compare=False)
    """The last place in `rows` of each snapshot."""
    gap: int = field(default=-1, compare=False)
    """The last place that names a snapshot which isn't there any more; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class IcebergTable:
    """The metadata of one version of a table."""

    format_version: int
    uuid: str
    location: str
    last_sequence_number: int
    last_updated_ms: int
    last_column_id: int
    current_schema_id: int
    schemas: Shelf
    default_spec_id: int
    specs: Shelf
    last_partition_id: int
    default_sort_order_id: int
    sort_orders: Shelf
    properties: Mapping[str, str]
    current_snapshot_id: int | None
    snapshots: Shelf
    refs: Mapping[str, Value]
    snapshot_log: SnapshotLog
    metadata_log: PersistentRows
    statistics: Shelf
    partition_statistics: Shelf
    next_row_id: int = 0
    encryption_keys: Mapping[str, Value] = field(default_factory=dict)
    extra: Value = field(default_factory=dict)
    """Members that this program doesn't know; they are kept."""
    metadata_location: str = ""

    def to_bytes(self) -> bytes:
        """Return the metadata as JSON, in ASCII."""
        pieces: list[bytes] = []
        for name, value in self._members():
            pieces.append(f'{"," if pieces else "{"}"{name}":'.encode("ascii"))
            if isinstance(value, PersistentRows):
                pieces += (b"[", *value.pieces(), b"]")
            else:
                pieces.append(value.encode("ascii"))
        pieces.append(b"}")
        return b"".join(pieces)

    def to_json(self) -> str:
        """Return the metadata as JSON."""
        return self.to_bytes().decode("ascii")

    def encode(self) -> bytes:
        """Return the bytes of the metadata file."""
        data = self.to_bytes()
        if is_compressed(self.metadata_location):
            return gzip.compress(data, compresslevel=6, mtime=0)
        return data

    @property
    def current_schema(self) -> Value:
        """The schema that new data is written with."""
        schema = self.schemas.get(self.current_schema_id)
        assert schema is not None
        return schema

    def _members(self) -> Iterator[tuple[str, str | PersistentRows]]:
        yield "format-version", str(self.format_version)
        yield "table-uuid", dump_json(self.uuid)
        yield "location", dump_json(self.location)
        if self.format_version > 1:
            yield "last-sequence-number", str(self.last_sequence_number)
        yield "last-updated-ms", str(self.last_updated_ms)
        yield "last-column-id", str(self.last_column_id)
        if self.format_version == 1:
            # Readers of the first format know only one schema and one partition spec.
            yield "schema", dump_json(self.current_schema)
            spec = self.specs.get(self.default_spec_id)
            assert spec is not None
            yield "partition-spec", dump_json(spec["fields"])
        yield "current-schema-id", str(self.current_schema_id)
        yield "schemas", self.schemas.rows
        yield "default-spec-id", str(self.default_spec_id)
        yield "partition-specs", self.specs.rows
        yield "last-partition-id", str(self.last_partition_id)
        yield "default-sort-order-id", str(self.default_sort_order_id)
        yield "sort-orders", self.sort_orders.rows
        yield "properties", dump_json(dict(self.properties))
        if self.current_snapshot_id is not None:
            yield "current-snapshot-id", str(self.current_snapshot_id)
        if self.format_version >= ROW_IDS_SINCE:
            yield "next-row-id", str(self.next_row_id)
        if self.encryption_keys:
            yield "encryption-keys", dump_json(list(self.encryption_keys.values()))
        yield "refs", dump_json(dict(self.refs))
        yield "snapshots", self.snapshots.rows
        yield "statistics", self.statistics.rows
        yield "partition-statistics", self.partition_statistics.rows
        yield "snapshot-log", self.snapshot_log.rows
        yield "metadata-log", self.metadata_log
        for name, value in self.extra.items():
            yield dump_json(name)[1:-1], dump_json(value)


def is_compressed(metadata_location: str) -> bool:
    """Return True if a metadata file is gzip, by its name."""
    return metadata_location.endswith((".gz.metadata.json", ".metadata.json.gz"))
