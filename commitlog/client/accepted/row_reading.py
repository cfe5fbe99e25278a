"""Reads the rows of accepted writes, and says of which ones they can't be applied."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
from pyarrow import types

from commitlog.adapters.row_text import check_text
from commitlog.adapters.row_values import Misfit, holds
from commitlog.client.accepted.row_shapes import STREAM_END
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import RowsUnusable, Write, keys_or_none
from commitlog.codecs.arrow_claims import claimed_by_stream
from commitlog.model.limits import ROWS_PENDING_BYTES_MAX, ROWS_UNPACKED_BYTES_MAX
from commitlog.model.operations import RowsMode, WriteRows
from commitlog.model.records import Code

_FRAME = 8
"""Bytes before a message of a stream of Arrow: a mark, and the size of its description."""


class Given(NamedTuple):
    """A write as it was accepted."""

    operation: WriteRows
    payload: bytes | None
    is_stale: bool


def read_writes(info: TableInfo, given: Sequence[Given]) -> list[Write | RowsUnusable]:
    """Return what `read_write` makes of each write, or why it can't be used.

    What many have in common is looked at once: rows of one schema, without nulls, in one batch.

    Raises MemoryError if they are compressed and too large together; fewer of them may do.
    """
    found: list[Write | RowsUnusable | None] = [None] * len(given)
    alike: dict[tuple[bytes, tuple[str, ...]], list[tuple[int, pa.RecordBatch]]] = {}
    checked: dict[tuple[bytes, RowsMode, bool], WriteRows | None] = {}
    for number, one in enumerate(given):
        operation = one.operation
        if (plain := _plain_rows(one)) is None:
            continue
        head, batch = plain
        name = (head, operation.mode, operation.insert_all)
        if name not in checked:
            checked[name] = operation if _fits(info, operation, batch.schema) else None
        like = checked[name]
        if like is not None and like.columns == operation.columns:
            alike.setdefault((head, operation.on), []).append((number, batch))
    for (_, on), batches in alike.items():
        _read_together(info, on, batches, given, found)
    _check_together(one for one, known in zip(given, found, strict=True) if known is None)
    return [
        one if one is not None else _read_alone(info, given[number])
        for number, one in enumerate(found)
    ]


def _check_together(alone: Iterable[Given]) -> None:
    unpacked = 0
    for one in alone:
        with suppress(ValueError):  # whoever reads it says so
            payload = one.payload or b""
            size = claimed_by_stream(payload)
            # Larger ones than may be aren't read.
            unpacked += size if len(payload) < size <= ROWS_UNPACKED_BYTES_MAX else 0
    if unpacked > ROWS_PENDING_BYTES_MAX:
        raise MemoryError(f"the rows are {unpacked} bytes once they are decompressed")


def _read_alone(info: TableInfo, one: Given) -> Write | RowsUnusable:
    try:
        return read_write(info, one.operation, one.payload, is_stale=one.is_stale)
    except RowsUnusable as refused:
        return refused


def _plain_rows(one: Given) -> tuple[bytes, pa.RecordBatch] | None:
    """Return how a write's stream begins, and its one batch; None: it has to be read alone."""
    operation, payload = one.operation, one.payload
    if payload is None or one.is_stale or not payload.endswith(STREAM_END):
        return None
    if hashlib.sha256(payload).digest() != operation.sha256:
        return None
    begin = _FRAME + int.from_bytes(payload[4:_FRAME], "little")
    size = int.from_bytes(payload[begin + 4 : begin + _FRAME], "little")
    if begin > len(payload) or size > len(payload):
        return None
    head = payload[:begin]
    try:
        if claimed_by_stream(payload) > len(payload):
            return None
        schema = _schema_of(head)
        message = pa.ipc.read_message(pa.py_buffer(payload)[begin:])
        end = begin + _FRAME + size + message.body.size + len(STREAM_END)
        if schema is None or message.type != "record batch" or end != len(payload):
            return None
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate()
    except (pa.ArrowException, OSError, ValueError):
        return None
    has_nulls = any(column.null_count for column in batch.columns)
    return None if has_nulls or batch.num_rows != operation.rows else (head, batch)


@lru_cache(maxsize=256)
def _schema_of(head: bytes) -> pa.Schema | None:
    """Return the schema that a stream begins with; None if a batch may not be all of its rows.

    What says it otherwise than Arrow does here may mean more, such as another order of bytes.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    is_own = schema.serialize() == pa.py_buffer(head)
    has_dictionary = any(holds(one.type, types.is_dictionary) for one in schema)
    return None if not is_own or has_dictionary else schema


def _fits(info: TableInfo, operation: WriteRows, schema: pa.Schema) -> bool:
    """Return True if rows of a schema can be used, whatever values they have, but no nulls."""
    try:
        _check_columns(info, operation, schema.empty_table())
    except RowsUnusable:
        return False
    return True


def _read_together(
    info: TableInfo,
    on: tuple[str, ...],
    batches: Sequence[tuple[int, pa.RecordBatch]],
    given: Sequence[Given],
    found: list[Write | RowsUnusable | None],
) -> None:
    """Note what writes are that have one schema and one key; leave out what is wrong."""
    whole = pa.Table.from_batches([batch for _, batch in batches])
    try:
        _check_texts(whole)
    except Misfit:
        return
    keys = keys_or_none(info, on, whole.select(on).combine_chunks()) if on else []
    start = 0
    for number, batch in batches:
        operation, end = given[number].operation, start + batch.num_rows
        own = keys[start:end]
        start = end
        if operation.mode is not RowsMode.UPSERT or len(set(own)) == len(own):
            found[number] = Write(operation, pa.Table.from_batches([batch]), own)


def read_write(
    info: TableInfo, operation: WriteRows, payload: bytes | None, *, is_stale: bool = False
) -> Write:
    """Return a write's rows; RowsUnusable if they aren't what the record says, or don't fit now."""
    if payload is None or hashlib.sha256(payload).digest() != operation.sha256:
        raise RowsUnusable(Code.ROWS_REFUSED, "its rows are missing, or others than were accepted")
    try:
        rows = unpacked_rows(payload)
        rows.validate()
        _check_texts(rows)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise RowsUnusable(
            Code.ROWS_REFUSED, f"its rows are not an Arrow stream: {error}"
        ) from None
    except Misfit as found:
        raise RowsUnusable(Code.ROWS_REFUSED, f"{found.shown} is in it: {found.reason}") from None
    if rows.num_rows != operation.rows:
        problem = f"it has {rows.num_rows} rows, and its record says {operation.rows}"
        raise RowsUnusable(Code.ROWS_REFUSED, problem)
    _check_columns(info, operation, rows)
    if is_stale:
        problem = "one of its columns was dropped or replaced since it was accepted"
        raise RowsUnusable(Code.WRONG_SCHEMA, problem)
    for name in operation.on:
        if rows.column(name).null_count:
            raise RowsUnusable(Code.ROWS_REFUSED, f"the key's column {name!r} holds a null")
    write = Write(operation, rows)
    if operation.on:
        write.keys = keys_or_none(info, operation.on, rows)
        if operation.mode is RowsMode.UPSERT and len(set(write.keys)) < rows.num_rows:
            raise RowsUnusable(Code.ROWS_REFUSED, "it has a key more than once")
    return write


def unpacked_rows(payload: bytes) -> pa.Table:
    """Return the rows in a write's stream.

    Raises pa.ArrowException, OSError or ValueError if it isn't one, or too large once decompressed.
    """
    most, claimed = max(len(payload), ROWS_UNPACKED_BYTES_MAX), claimed_by_stream(payload)
    if claimed > most:
        raise ValueError(f"it has {claimed} bytes once it is decompressed, over {most}")
    with pa.ipc.open_stream(payload) as reader:
        return reader.read_all()


def _check_texts(rows: pa.Table) -> None:
    """Raise Misfit for the first text that isn't one."""
    for column in rows.columns:
        for chunk in column.chunks:
            check_text(chunk)


def _check_columns(info: TableInfo, operation: WriteRows, rows: pa.Table) -> None:
    if operation.mode is RowsMode.UPSERT and info.has_blobs:
        problem = "rows of a table with columns of blobs can't be updated by writes of rows"
        raise RowsUnusable(Code.ROWS_REFUSED, problem)
    if [column.name for column in operation.columns] != rows.schema.names:
        raise RowsUnusable(Code.ROWS_REFUSED, "its columns aren't those that its record names")
    for column in operation.columns:
        if info.column_ids.get(column.name) != column.field_id:
            problem = f"column {column.name!r} was dropped or replaced since it was accepted"
            raise RowsUnusable(Code.WRONG_SCHEMA, problem)
        wanted, given = info.schema.field(column.name), rows.schema.field(column.name)
        if not given.type.equals(wanted.type):
            problem = f"column {column.name!r} is {wanted.type} now, and its rows are {given.type}"
            raise RowsUnusable(Code.WRONG_SCHEMA, problem)
        if rows.column(column.name).null_count and not wanted.nullable:
            problem = f"column {column.name!r} may not be null now, and its rows have nulls"
            raise RowsUnusable(Code.WRONG_SCHEMA, problem)
    brings_rows = operation.mode is RowsMode.APPEND or operation.insert_all
    there = set(rows.schema.names)
    lacking = [name for name in info.required_columns if name not in there]
    if brings_rows and lacking:
        raise RowsUnusable(Code.WRONG_SCHEMA, f"column {lacking[0]!r} may not be null now")
