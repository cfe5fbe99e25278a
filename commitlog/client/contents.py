"""What is in one of Lance's transactions: fragments added, changed, removed; and in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyroaring import BitMap

from commitlog.client.tables import TableInfo
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


def cover_no_more(info: TableInfo, operation: Any, message: LanceMessage) -> None:
    """Keep indices from covering new fragments of an Update whose mode isn't said.

    The message can't leave the mode open: it says `rewrite_rows`, under which an index of row ids
    covers new fragments unless the Update names its column. pylance covers none without a mode.
    """
    if getattr(getattr(operation, "operation", operation), "update_mode", "no update"):
        return
    update, named = message.update, set(message.update.fields_for_preserving_frag_bitmap)
    for field_id in (i for new in update.new_fragments for file in new.files for i in file.fields):
        while (field := info.field_ids.get(field_id)) is not None and field_id not in named:
            named.add(field_id)
            field_id = field.parent_id
    update.fields_for_preserving_frag_bitmap[:] = sorted(named)


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
