"""What one of Lance's transactions adds, changes and removes, and a summary of it in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pyroaring import BitMap

from commitlog.client.leader.tables import TableInfo
from commitlog.errors import InvalidTransaction
from commitlog.lancepb.file_pb2 import Field
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


def complete(info: TableInfo, operation: Any, message: LanceMessage) -> None:
    """Add to a message what pylance leaves out of it."""
    operation = getattr(operation, "operation", operation)
    _cover_no_more(info, operation, message)
    schema = getattr(operation, "schema", getattr(operation, "new_schema", None))
    if hasattr(schema, "get_field_index"):  # Arrow's, whose fields have no ids
        if message.HasField("project"):
            _take_ids(info, message.project.schema)
        elif message.HasField("overwrite"):
            _check_numbered(info, message.overwrite)


def _take_ids(info: TableInfo, fields: Iterable[Field]) -> None:
    """Give an Arrow schema's fields, which Lance numbers anew, the ids that the table has.

    A Project keeps columns; numbered anew, they would read each other's values.
    """
    if not info.fields:
        return
    known = _by_place(info.field_ids.values())
    ids = {-1: -1}
    for field in fields:  # parents first
        parent = ids[field.parent_id]
        found = known.get((parent, field.name))
        if found is None and parent >= 0:  # a list's items have any name
            there = [one.id for one in info.field_ids.values() if one.parent_id == parent]
            found = there[0] if len(there) == 1 else None
        if found is None:
            raise InvalidTransaction(
                f"Project keeps columns, and {info.name} has no column {field.name!r}",
                field="schema",
                value=field.name,
                advice="Rename columns with log.alter_columns, add them with log.add_columns",
            )
        ids[field.id] = found
        field.parent_id, field.id = parent, found


def _check_numbered(info: TableInfo, overwrite: LanceMessage.Overwrite) -> None:
    """Refuse files that were written with the table's ids, where a schema numbers them anew."""
    known = _by_place(info.field_ids.values())
    if all(
        known.get(place, field) == field for place, field in _by_place(overwrite.schema).items()
    ):
        return  # it numbers them as the table does
    numbered = {field.id for field in overwrite.schema}
    for file in (file for fragment in overwrite.fragments for file in fragment.files):
        fields = [field for field in file.fields if field >= 0]
        if not numbered.issuperset(fields) or sorted(fields) != fields:
            raise InvalidTransaction(
                f"data file {file.path} has the field ids {fields}; an Arrow schema numbers its"
                f" columns from 0 to {len(numbered) - 1}, in its order",
                field="new_schema",
                value=fields,
                advice="Pass log.open(table).lance_schema, or write the fragments with"
                ' lance.fragment.write_fragments(data, log.open(table), mode="overwrite")',
            )


def _by_place(fields: Iterable[Field]) -> dict[tuple[int, str], int]:
    return {(field.parent_id, field.name): field.id for field in fields}


def _cover_no_more(info: TableInfo, operation: Any, message: LanceMessage) -> None:
    """Keep indices from covering new fragments of an Update whose mode isn't said.

    The message can't leave the mode open: it says `rewrite_rows`, under which an index of row ids
    covers new fragments unless the Update names its column. pylance covers none without a mode.
    """
    if getattr(operation, "update_mode", "no update"):
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
    """Return how many rows, bytes and fragments come and go, and the new files."""
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
