"""What is in one of Lance's transactions: fragments added, changed, removed; and in numbers."""

from __future__ import annotations

from collections.abc import Sequence

from pyroaring import BitMap

from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import AffectedRows, Summary


def contents(
    message: LanceMessage,
) -> tuple[str, Sequence[DataFragment], Sequence[DataFragment], Sequence[int]]:
    """Return the operation's field, the fragments that it adds, post-images and ids removed.

    The last two are those of a Delete or Update.
    """
    which = message.WhichOneof("operation") or ""
    if which == "append":
        return which, message.append.fragments, (), ()
    if which == "delete":
        delete = message.delete
        return which, (), delete.updated_fragments, delete.deleted_fragment_ids
    if which == "update":
        update = message.update
        removed = update.removed_fragment_ids
        return which, update.new_fragments, update.updated_fragments, removed
    if which == "overwrite":
        return which, message.overwrite.fragments, (), ()
    if which == "rewrite":
        groups = message.rewrite.groups
        return which, [f for group in groups for f in group.new_fragments], (), ()
    return which, (), (), ()


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
        rows_removed=sum(len(BitMap.deserialize(entry.rows)) for entry in rows) if rows else 0,
        bytes_added=bytes_added,
        fragments_added=len(added),
        fragments_updated=len(updated),
        fragments_removed=len(removed),
        data_files=tuple(data_files),
    )
