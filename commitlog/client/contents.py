"""What is in one of Lance's transactions: fragments added, changed, removed; and in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import AffectedRows, Summary


def new_fragments(message: LanceMessage) -> list[DataFragment]:
    """Return the fragments that a transaction adds."""
    which = message.WhichOneof("operation")
    if which == "update":
        return list(message.update.new_fragments)
    if which == "rewrite":
        groups = [*message.rewrite.groups]
        return [f for group in groups for f in group.new_fragments]
    if which in ("append", "overwrite"):
        return list(getattr(message, which).fragments)
    return []


def touched(message: LanceMessage) -> tuple[list[DataFragment], list[int]]:
    """Return the post-images and the ids of removed fragments of a Delete or Update."""
    which = message.WhichOneof("operation")
    if which == "delete":
        return list(message.delete.updated_fragments), list(message.delete.deleted_fragment_ids)
    if which == "update":
        return list(message.update.updated_fragments), list(message.update.removed_fragment_ids)
    return [], []


def summary(
    added: Sequence[DataFragment],
    updated: Sequence[DataFragment],
    removed: Sequence[int],
    rows: Sequence[AffectedRows],
) -> Summary:
    """Return what an auditor asks for."""
    rows_added = bytes_added = 0
    data_files = []
    for fragment in added:
        rows_added += fragment.physical_rows
        for file in fragment.files:
            bytes_added += file.file_size_bytes
            data_files.append(file.path)
    return Summary(
        rows_added=rows_added,
        rows_removed=sum(len(BitMap.deserialize(entry.rows)) for entry in rows),
        bytes_added=bytes_added,
        fragments_added=len(added),
        fragments_updated=len(updated),
        fragments_removed=len(removed),
        data_files=tuple(data_files),
    )
