"""Decides writes of rows, and that a range of them was applied.

What a write's rows are isn't looked at here: the record says which columns they have, of which
types, and how many nulls. A row writer that finds the rows to be otherwise refuses them by record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from commitlog.core.decisions import FileWanted, Refused, rejected
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.operations.references import no_version
from commitlog.core.tables.row_writes import RowQueue
from commitlog.lancepb.file_pb2 import Field
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX, ROWS_PENDING_BYTES_MAX, ROWS_PENDING_MAX
from commitlog.model.operations import ApplyRows, RowsMode, WriteRows
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, OperationResult, Status
from commitlog.model.table import format_table_id

ROWS_DIRECTORY = "_rows/"
_HASH_BYTES = 32


def decide_write(draft: Draft, operation: WriteRows) -> None:
    """Accept a write of rows, or refuse it."""
    view = draft.view(operation.table, operation.incarnation)
    if view.state is None:
        raise no_version(view)
    _check_request(view, operation)
    _check_columns(view, operation, view.state.header)
    _check_room(view, operation)
    if operation.on and view.rows_key not in {(), operation.on}:
        raise _bad(view, "rows_keys_differ", key=operation.on, other=view.rows_key)
    view.rows_key = view.rows_key or operation.on
    if operation.path:
        _check_file(draft, view, operation)
    draft.results.append(_result(view, "WriteRows"))


def decide_application(draft: Draft, operation: ApplyRows) -> None:
    """Take a range of writes as applied, if it follows the ranges before."""
    view = draft.view(operation.table, operation.incarnation)
    rows = view.table.rows or RowQueue()
    name = format_table_id(operation.table)
    named = [(write.sequence, write.operation) for write in operation.writes]
    if operation.after != rows.applied or not named:
        raise rejected(
            Code.ROWS_RANGE,
            "rows_range_not_next",
            table=name,
            after=operation.after,
            applied=rows.applied,
        )
    if named != rows.through(operation.through) or named[-1][0] != operation.through:
        raise rejected(
            Code.ROWS_RANGE,
            "rows_range_differs",
            table=name,
            after=operation.after,
            through=operation.through,
            count=len(named),
            accepted=len(rows.through(operation.through)),
        )
    stale = set(rows.stale())
    applied = (write for write in operation.writes if stale and not write.refused)
    if late := [one.sequence for one in applied if (one.sequence, one.operation) in stale]:
        raise rejected(Code.ROWS_RANGE, "rows_stale", table=name, positions=late)
    if view.applied_rows:
        raise rejected(Code.ROWS_RANGE, "rows_applied_twice", table=name)
    view.applied_rows = True
    draft.results.append(_result(view, "ApplyRows"))


def dropped_columns(before: Mapping[int, Field], after: Mapping[int, Field]) -> frozenset[int]:
    """Return the ids of top-level columns that a version dropped, in whole or in part.

    What another name has now is another column: an id may be given again.
    """
    columns: dict[int, int] = {}
    gone = set()
    for number, field in before.items():
        columns[number] = columns.get(field.parent_id, number)
        now = after.get(number)
        if now is None or (now.name, now.parent_id) != (field.name, field.parent_id):
            gone.add(columns[number])
    return frozenset(gone)


def schema_digest(fields: Iterable[Field], names: Sequence[str]) -> bytes:
    """Return the hash of some top-level columns' fields and of all in them."""
    by_column: dict[int, list[bytes]] = {}
    column_of: dict[int, int] = {}
    ids: dict[str, int] = {}
    for field in fields:
        column = column_of.get(field.parent_id, field.id)
        column_of[field.id] = column
        if column == field.id:
            ids[field.name] = field.id
        by_column.setdefault(column, []).append(field.SerializeToString(deterministic=True))
    digest = hashlib.sha256()
    for name in names:
        for encoded in by_column.get(ids.get(name, -1), ()):
            digest.update(len(encoded).to_bytes(4) + encoded)
    return digest.digest()


@lru_cache(maxsize=256)
def _digest(header: ManifestHeader, names: tuple[str, ...]) -> bytes:
    return schema_digest(header.message.fields, names)


def _result(view: View, operation: str) -> OperationResult:
    table = view.table
    return OperationResult(table.table_id, table.incarnation, operation, read_version=view.version)


def _bad(view: View, problem: str, **arguments: Any) -> Refused:
    name = format_table_id(view.table.table_id)
    return rejected(Code.INVALID_OPERATION, problem, table=name, **arguments)


def _check_request(view: View, operation: WriteRows) -> None:
    """Refuse a write that contradicts itself."""
    names = [column.name for column in operation.columns]
    counts = [operation.rows, *(column.nulls for column in operation.columns)]
    is_sane = len(operation.sha256) == _HASH_BYTES and operation.size > 0
    if min(counts) < 0 or max(counts) != operation.rows or not operation.rows or not is_sane:
        raise _bad(view, "rows_malformed")
    if operation.size > ROWS_INLINE_BYTES_MAX and not operation.path:
        raise _bad(view, "rows_too_large", size=operation.size, size_max=ROWS_INLINE_BYTES_MAX)
    is_upsert = operation.mode is RowsMode.UPSERT
    changes = operation.update_all or operation.insert_all
    has_settings = changes or bool(operation.update_if)
    if is_upsert != has_settings or (operation.update_if and not operation.update_all):
        raise _bad(view, "rows_settings_wrong", mode=operation.mode.value)
    has_key = operation.mode is not RowsMode.APPEND
    if has_key != bool(operation.on) or len(set(operation.on)) != len(operation.on):
        raise _bad(view, "rows_key_wrong", mode=operation.mode.value, key=operation.on)
    missing = [name for name in operation.on if name not in names]
    if missing:
        raise _bad(view, "rows_key_missing", key=missing, columns=names)
    nulls = [c.name for c in operation.columns if c.name in operation.on and c.nulls]
    if nulls:
        raise _bad(view, "rows_key_null", key=nulls)


def _check_columns(view: View, operation: WriteRows, header: ManifestHeader) -> None:
    """Refuse rows that aren't of the table's columns, or lack what may not be null."""
    name = format_table_id(view.table.table_id)
    names = tuple(column.name for column in operation.columns)
    fields = {field.name: field for field in header.message.fields if field.parent_id == -1}
    ids = {column.name: column.field_id for column in operation.columns}
    unknown = [n for n in names if n not in fields or fields[n].id != ids[n]]
    if unknown or len(ids) != len(names) or not names:
        raise rejected(Code.WRONG_SCHEMA, "rows_columns_unknown", table=name, columns=unknown)
    if operation.schema_digest != _digest(header, names):
        raise rejected(Code.WRONG_SCHEMA, "rows_schema_differs", table=name)
    nulls = [c.name for c in operation.columns if c.nulls and not fields[c.name].nullable]
    brings_rows = operation.mode is RowsMode.APPEND or operation.insert_all
    lacking = [n for n, f in fields.items() if brings_rows and n not in ids and not f.nullable]
    if nulls or lacking:
        raise rejected(Code.WRONG_SCHEMA, "rows_nulls", table=name, columns=nulls + lacking)


def _check_room(view: View, operation: WriteRows) -> None:
    rows = view.table.rows
    if rows is None:
        return
    if len(rows.pending) >= ROWS_PENDING_MAX or rows.size + operation.size > ROWS_PENDING_BYTES_MAX:
        arguments = {
            "table": format_table_id(view.table.table_id),
            "count": len(rows.pending),
            "size": rows.size,
        }
        phrase = Phrase("rows_backlog_full", arguments)
        raise Refused(Status.RETRYABLE, Code.ROWS_BACKLOG, phrase)


def _check_file(draft: Draft, view: View, operation: WriteRows) -> None:
    folder, _, file = operation.path.rpartition("/")
    if f"{folder}/" != ROWS_DIRECTORY or file in {"", ".", ".."} or "\0" in file or "\\" in file:
        raise _bad(view, "rows_path_wrong", path=operation.path, folder=ROWS_DIRECTORY)
    wanted = FileWanted(view.table.location, operation.path)
    seen = draft.want(wanted).observation.size
    if seen != operation.size:
        known = {"path": operation.path, "location": view.table.location}
        if seen < 0:
            raise rejected(Code.MISSING_FILE, "data_file_missing", **known)
        raise rejected(
            Code.MISSING_FILE, "data_file_cut", **known, size=seen, expected=operation.size
        )
