"""Manifest lists as values: what a client's list changes in the one that it began from.

A snapshot is its manifest list. What a client did is the difference of two lists; done again to
another list, it is the same commit over a newer snapshot. Which files a manifest names isn't
looked at: a client that removes or rewrites a file rewrites the manifest that names it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from commitlog.core.iceberg.iceberg_table import ROW_IDS_SINCE
from commitlog.core.iceberg.reading import dump_json, load_json
from commitlog.model.reasons import Phrase

Record = dict[str, Any]
"""One manifest as a list names it, by the specification's names of the columns."""

DATA = 0
"""The content of a manifest of data files; others are of delete files."""
_RECORDING = "the recording of a manifest list"
_BYTES = frozenset({"lower_bound", "upper_bound", "key_metadata"})


class ListHeader(NamedTuple):
    """What a manifest list says of its snapshot."""

    format_version: int
    snapshot_id: int
    parent_id: int | None
    sequence_number: int
    first_row_id: int | None


class SnapshotNumbers(NamedTuple):
    """What a client believed that its snapshot would get."""

    sequence_number: int
    first_row_id: int | None


@dataclass(frozen=True, slots=True)
class ListDelta:
    """What a snapshot changes in the manifest list that it began from."""

    added: tuple[Record, ...]
    removed: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Return it as JSON."""
        return dump_json(self._to_json()).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> ListDelta:
        """Return what `to_bytes` wrote."""
        return cls._of_json(load_json(data, _RECORDING))

    def _to_json(self) -> dict[str, Any]:
        return {"added": list(map(_shown, self.added)), "removed": list(self.removed)}

    @classmethod
    def _of_json(cls, found: Mapping[str, Any]) -> ListDelta:
        return cls(tuple(map(_unshown, found["added"])), tuple(found["removed"]))


def write_deltas(deltas: Mapping[str, ListDelta]) -> bytes:
    """Return what an outcome keeps of a client's lists, by their paths."""
    return dump_json({path: delta._to_json() for path, delta in deltas.items()}).encode("ascii")


def read_deltas(data: bytes) -> dict[str, ListDelta]:
    """Return what `write_deltas` wrote."""
    found = load_json(data, _RECORDING)
    return {path: ListDelta._of_json(shown) for path, shown in found.items()}


def merges(record: Record) -> bool:
    """Return True if a new manifest holds files that older ones held, or removes some."""
    return bool(count(record, "existing_files_count") or count(record, "deleted_files_count"))


def count(record: Record, name: str) -> int:
    """Return a count; one that isn't known might be any."""
    value = record[name]
    return 1 if value is None else int(value)


def added_by(client: Sequence[Record], snapshot_id: int) -> tuple[Record, ...]:
    """Return the manifests that a snapshot wrote."""
    return tuple(record for record in client if record["added_snapshot_id"] == snapshot_id)


def removed_by(client: Sequence[Record], base: Iterable[str]) -> tuple[str, ...]:
    """Return the manifests that are no more in a client's list."""
    kept = {record["manifest_path"] for record in client}
    return tuple(path for path in base if path not in kept)


def why_unfit(
    head: Mapping[str, Record], base: Container[str] | None, delta: ListDelta
) -> Phrase | None:
    """Return why a difference can't be made to another list; None if it can.

    `base` is what it was made to; None: whatever happened since is no matter.
    """
    for path in delta.removed:
        if path not in head:
            return Phrase("iceberg_manifest_rewritten", {"path": path})
    if base is None:
        return None
    for path, record in head.items():
        removes = record["content"] != DATA or count(record, "deleted_files_count")
        if removes and path not in base:
            return Phrase("iceberg_files_removed_since", {"path": path})
    return None


def stamped(record: Record, header: ListHeader, believed: SnapshotNumbers) -> Record:
    """Return a new manifest with the numbers that its snapshot got, not those it hoped for."""
    changed = dict(record)
    if header.format_version > 1:
        changed["sequence_number"] = header.sequence_number
        if record["min_sequence_number"] >= believed.sequence_number:
            changed["min_sequence_number"] = header.sequence_number
    if header.format_version >= ROW_IDS_SINCE and record["first_row_id"] is not None:
        assert header.first_row_id is not None
        assert believed.first_row_id is not None
        ahead = record["first_row_id"] - believed.first_row_id
        if ahead >= 0:
            changed["first_row_id"] = header.first_row_id + ahead
    return changed


def only_added(record: Record, path: str, size: int) -> Record:
    """Return what a list says of a merged manifest once it names only the files that it adds."""
    return {
        **record,
        "manifest_path": path,
        "manifest_length": size,
        "existing_files_count": 0,
        "existing_rows_count": 0,
        "min_sequence_number": record["sequence_number"],
    }


def _shown(record: Record) -> Record:
    shown = _encoded(record)
    if record["partitions"] is not None:
        shown["partitions"] = [_encoded(one) for one in record["partitions"]]
    return shown


def _encoded(values: Record) -> Record:
    return {
        name: value.hex() if name in _BYTES and value is not None else value
        for name, value in values.items()
    }


def _unshown(shown: Record) -> Record:
    record = _decoded(shown)
    if shown["partitions"] is not None:
        record["partitions"] = [_decoded(one) for one in shown["partitions"]]
    return record


def _decoded(shown: Record) -> Record:
    return {
        name: bytes.fromhex(value) if name in _BYTES and value is not None else value
        for name, value in shown.items()
    }
