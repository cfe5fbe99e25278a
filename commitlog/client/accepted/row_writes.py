"""Writes of rows that go into the log as they are.

A write is accepted when its transaction is committed: from then on it is durable, has its place in
the order, and is applied exactly once, or refused by record. Which version has it, and what it did
there, is known once a row writer has applied it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from commitlog.adapters.storage import store_for
from commitlog.client.accepted.row_shapes import STREAM_END, NotForTheLog, is_as_written, row_shape
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.data import arrow_stream, conformed, kept, rows_source
from commitlog.client.rows.full_storage import names_full_storage
from commitlog.client.rows.host import Host
from commitlog.client.rows.merging import DEFAULTS, MergeOptions, check_merge
from commitlog.client.rows.options import UpsertChoices
from commitlog.core.rows.deciding import ROWS_DIRECTORY
from commitlog.errors import InvalidRequest, InvalidTransaction
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.operations import RowsMode, WriteRows
from commitlog.model.table import TableId

Found = TypeVar("Found")
BY_LOG = ("rows", "log")
"""The property of a table whose small writes go into the log as they are."""
NOT_BY_LOG = "files"


_NO_SETTINGS = tuple(
    one.name
    for one in fields(MergeOptions)
    if one.name.startswith("when_")
    and not one.name.startswith("when_matched_update_all")
    and one.name != "when_not_matched_insert_all"
)
"""What a merge has and no write of rows."""
_MODES = {mode.value: mode for mode in RowsMode}
_UPSERT = {"update_all": True, "update_if": "", "insert_all": True}
"""The settings of an upsert that names none."""
_PARTS = re.compile(r"""'[^']*'|"[^"]*"|--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<name>`[^`]*`)""", re.DOTALL)
"""Text and comments in SQL, and names that may look as if they held one."""
_CHANGING = re.compile(
    r"(?<![\w.`]) (?:"
    r"`?(?P<called>now|today|random|rand|uuid|current_(?:date|time|timestamp))`? \s* \("
    r"| (?P<word>current_(?:date|time|timestamp))\b )",
    re.VERBOSE | re.IGNORECASE,
)
"""What has another value each time that Lance evaluates it."""


def goes_by_log(info: TableInfo) -> bool:
    """Return True if small writes to a table go into the log as they are."""
    name, value = BY_LOG
    return info.properties.get(name) == value


def check_by_log(properties: Mapping[str, Any]) -> None:
    """Raise InvalidRequest for a value by which nothing would go into the log."""
    name, value = BY_LOG
    given = properties.get(name)
    if given not in (None, value, NOT_BY_LOG):
        raise InvalidRequest(
            f"the property {name}={given!r} says nothing",
            field="properties",
            value=given,
            advice=f"Use {name}={value} for small writes to go into the log as they are,"
            f" {name}={NOT_BY_LOG} or no such property for files",
        )


def rows_mode(mode: str) -> RowsMode:
    """Return a mode by its name."""
    found = _MODES.get(mode) if isinstance(mode, str) else None
    if found is None:
        raise InvalidTransaction(
            f"mode={mode!r} is unknown",
            field="mode",
            value=mode,
            advice=f"Use one of {', '.join(RowsMode)}",
        )
    return found


def settings_of(mode: RowsMode, options: MergeOptions) -> dict[str, Any]:
    """Return an upsert's settings as a record has them; reject those that no write of rows has."""
    if options is DEFAULTS:
        return _UPSERT if mode is RowsMode.UPSERT else {}
    others = [name for name in _NO_SETTINGS if getattr(options, name)]
    if others:
        raise NotForTheLog(
            f"{others[0]} is not supported for row writes",
            field=others[0],
            value=getattr(options, others[0]),
            advice="Use log.merge_insert on a table without the property rows=log",
        )
    if mode is not RowsMode.UPSERT:
        return {}
    condition = options.when_matched_update_all_filt
    if not options.when_matched_update_all and (
        condition or not options.when_not_matched_insert_all
    ):
        name = "when_matched_update_all_filt" if condition else "when_matched_update_all"
        raise NotForTheLog(
            f"{name}={getattr(options, name)!r} leaves nothing to be updated",
            field=name,
            value=getattr(options, name),
            advice="Set when_matched_update_all, or only insert (when_not_matched_insert_all)",
        )
    if condition:
        _check_lasting(condition)
    return {
        "update_all": bool(options.when_matched_update_all),
        "update_if": condition or "",
        "insert_all": options.when_not_matched_insert_all,
    }


def _check_lasting(condition: str) -> None:
    """Refuse a condition that holds at times: rows are applied again, to see and to prove them."""
    plain = _PARTS.sub(lambda part: part["name"] or " ", condition)
    found = _CHANGING.search(plain)
    if found:
        asked = (found["called"] or found["word"]).lower()
        raise NotForTheLog(
            f"the condition {condition!r} asks for {asked}(), which has another value each time"
            " that the rows are applied",
            field="when_matched_update_all_filt",
            value=condition,
            advice="Write the value itself, such as timestamp '2013-07-01 12:00:00', or use"
            " log.merge_insert, which applies the rows once",
        )


def encode_write(
    info: TableInfo,
    data: Any,
    mode: RowsMode,
    on: Sequence[str] | str | None = None,
    **settings: Any,
) -> tuple[WriteRows, bytes]:
    """Return the operation that writes rows, and the rows as it names them.

    Raises InvalidTransaction for whatever is surely wrong with them.
    """
    key = () if mode is RowsMode.APPEND else key_of(info, on)
    source = rows_source(data, info.schema, info.name)
    shape = row_shape(info, source.schema, mode, key, settings)
    batches = list(source)
    columns = shape.columns
    rows: pa.Table | pa.RecordBatch
    if shape.head and len(batches) == 1 and is_as_written(batches[0]):
        rows = batches[0]
        payload = b"".join((shape.head, rows.serialize(), STREAM_END))
    else:
        fitting = conformed(batches, shape.fitting, info.name)
        names = [column.name for column in columns]
        rows = pa.Table.from_batches(list(fitting), shape.fitting).select(names)
        payload = arrow_stream(rows.combine_chunks().replace_schema_metadata(None))
        columns = tuple(replace(one, nulls=rows.column(one.name).null_count) for one in columns)
        for column in columns:
            if column.nulls and column.name in key:
                raise NotForTheLog(
                    f"the key's column {column.name!r} holds a null",
                    field=column.name,
                    advice="Give each row a key, or use log.merge_insert, which inserts such rows",
                )
    if not rows.num_rows:
        raise NotForTheLog("no rows are given", field="data", advice="Pass at least one row")
    if key and rows.num_rows > 1:
        check_merge(info, rows, key)
    operation = WriteRows(
        table=info.table_id,
        mode=mode,
        rows=rows.num_rows,
        columns=columns,
        schema_digest=shape.digest,
        sha256=hashlib.sha256(payload).digest(),
        size=len(payload),
        on=key,
        incarnation=info.incarnation,
        **settings,
    )
    return operation, payload


@names_full_storage
def put_apart(
    info: TableInfo, operation: WriteRows, payload: bytes, transaction_id: str
) -> WriteRows:
    """Write rows, too large for a record, to a file; return the operation that names it.

    The same rows under the same id are the same file: sent again, the record is the same too.
    """
    name = hashlib.blake2b(transaction_id.encode() + operation.sha256, digest_size=16).hexdigest()
    path = f"{ROWS_DIRECTORY}{name}.arrow"
    store_for(info.location).create(path, payload)
    return replace(operation, path=path)


def key_of(info: TableInfo, on: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the columns of a key that a caller names, or the table's own key.

    As in Lance, a name in another case names the column too, if it is the only one.
    """
    given = info.primary_key if on is None else (on,) if isinstance(on, str) else on
    # A tuple, mostly: to look at `Sequence` is slow.
    is_listed = isinstance(given, tuple | Sequence)
    key = tuple(given) if is_listed else ()
    if on is not None:
        key = tuple(_column(info, name) for name in key)
    if len(set(key)) != len(key) or not is_listed:
        raise InvalidTransaction(
            f"on={on!r} names no key",
            field="on",
            value=on,
            advice="Give a column's name, or several, each once",
        )
    if not key and info.lost_key:
        gone = next(name for name in info.lost_key if name not in info.column_ids)
        raise InvalidTransaction(
            f"{info.name} has no key now: its column {gone!r} was renamed or dropped",
            field="on",
            advice="Name the key's columns, or give the column its name again",
        )
    if on is not None and not key:
        raise InvalidTransaction(
            f"on={on!r} names no column",
            field="on",
            value=on,
            advice="Name the key's columns, or leave it out to use the table's own key",
        )
    if not key:
        raise InvalidTransaction(
            f"{info.name} has no key",
            field="on",
            advice="Name the key's columns, or create the table with a primary_key",
        )
    return key


def _column(info: TableInfo, name: str) -> str:
    if name in info.column_ids or not isinstance(name, str):
        return name
    like = [column for column in info.column_ids if column.lower() == name.lower()]
    return like[0] if len(like) == 1 else name


def is_small(data: Any) -> bool:
    """Return True if rows may fit a record; a stream is read once, so it never does."""
    if isinstance(data, pa.Table | pa.RecordBatch):
        return bool(data.nbytes <= ROWS_INLINE_BYTES_MAX)
    return isinstance(data, Mapping | Sequence)


def by_what_is_known(log: Host, table: TableId, work: Callable[[TableInfo], Found]) -> Found:
    """Use the description that is known; where it is refused, ask: others change schemas."""
    known = log.describe(table, fresh=False)
    try:
        return work(known)
    except InvalidTransaction:
        asked = log.describe(table, fresh=True)
        if (asked.incarnation, asked.fields) == (known.incarnation, known.fields):
            raise
        return work(asked)


def made_write(
    log: Host,
    table: TableId,
    data: Any,
    mode: str,
    on: str | Sequence[str] | None,
    options: Mapping[str, Any],
    transaction_id: str | None,
) -> tuple[WriteRows, tuple[bytes, ...]]:
    """Return what writes rows, with the payloads of its transaction; see `write_rows`."""
    kind = rows_mode(mode)
    merge, others = MergeOptions.taken_from(options)
    if others or (options and kind is not RowsMode.UPSERT):
        name = next(iter(others or options))
        raise InvalidTransaction(
            f"{name} is not an option of mode {mode!r}",
            field=name,
            value=options[name],
            advice=f"Its options are {', '.join(UpsertChoices.__annotations__)}"
            if kind is RowsMode.UPSERT
            else "Leave it out",
        )
    if on is not None and kind is RowsMode.APPEND:
        raise InvalidTransaction(
            "an append has no key: it adds each row",
            field="on",
            value=on,
            advice="Leave it out, or use mode 'upsert'",
        )
    log.describe(table, fresh=False)  # a wrong name is told before a stream is read
    settings = settings_of(kind, merge)
    rows = data if isinstance(data, pa.RecordBatch | pa.Table | list | dict) else kept(data)
    info, operation, payload = by_what_is_known(
        log, table, lambda info: (info, *encode_write(info, rows, kind, on, **settings))
    )
    if len(payload) <= ROWS_INLINE_BYTES_MAX:
        return operation, (payload,)
    return put_apart(info, operation, payload, transaction_id or str(uuid4())), ()
