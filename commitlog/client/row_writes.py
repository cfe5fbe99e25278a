"""Writes of rows that go into the log as they are, and the wait for what comes of them.

A write is accepted when its transaction is committed: from then on it is durable, has its place in
the order, and is applied exactly once, or refused by record. Which version has it, and what it did
there, is known once a row writer has applied it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple
from uuid import uuid4

import pyarrow as pa

from commitlog.adapters.row_values import holds_blobs
from commitlog.adapters.storage import store_for
from commitlog.client.data import rows_table
from commitlog.client.merging import MergeOptions, check_merge
from commitlog.client.runtime import Runtime
from commitlog.client.tables import TableInfo
from commitlog.client.tickets import RESULT_TIMEOUT_SECONDS, Ticket
from commitlog.core.rows.deciding import ROWS_DIRECTORY, schema_digest
from commitlog.errors import InvalidTransaction, OutcomeUnknown, Unavailable
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.operations import RowsColumn, RowsMode, WriteRows
from commitlog.model.records import Code, Outcome, Status

RowsWait = Literal["accepted", "committed", "readable"]
BY_LOG = ("rows", "log")
"""The property of a table whose small writes go into the log as they are."""
REQUEST_SECONDS = 20.0
"""How long the leader is asked at once for what came of a write."""
PAUSE_SECONDS = 0.1
_WRITE = "WriteRows"


class RowsApplied(NamedTuple):
    """What came of one write of rows."""

    operation: int
    """Which of its transaction's operations it is."""
    version: int
    """The table's version that has it; 0 if that is forgotten."""
    inserted: int
    updated: int
    deleted: int
    refused: str = ""
    """A code; empty: it was applied."""
    problem: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class RowsOutcome(Outcome):
    """The outcome of a transaction that writes rows, with what came of them."""

    writes: tuple[RowsApplied, ...] = ()
    """One for each write of rows in it; none as long as they are only accepted."""

    @property
    def inserted(self) -> int:
        """How many rows were inserted."""
        return sum(write.inserted for write in self.writes)

    @property
    def updated(self) -> int:
        """How many rows were updated."""
        return sum(write.updated for write in self.writes)

    @property
    def deleted(self) -> int:
        """How many rows were deleted."""
        return sum(write.deleted for write in self.writes)


def check_rows_wait(wait: str) -> None:
    """Reject anything but the three ways to wait."""
    if wait not in ("accepted", "committed", "readable"):
        raise InvalidTransaction(
            f"wait={wait!r} is unknown",
            field="wait",
            value=wait,
            advice="Use 'accepted' (it is in the log), 'committed' (a version has it) or"
            " 'readable' (that version opens by path)",
        )


def goes_by_log(info: TableInfo) -> bool:
    """Return True if small writes to a table go into the log as they are."""
    name, value = BY_LOG
    return info.properties.get(name) == value


def rows_mode(mode: str) -> RowsMode:
    """Return a mode by its name."""
    try:
        return RowsMode(mode)
    except ValueError:
        raise InvalidTransaction(
            f"mode={mode!r} is unknown",
            field="mode",
            value=mode,
            advice=f"Use one of {', '.join(RowsMode)}",
        ) from None


def settings_of(mode: RowsMode, options: MergeOptions) -> dict[str, Any]:
    """Return an upsert's settings as a record has them; reject those that no write of rows has."""
    others = [
        one.name
        for one in fields(MergeOptions)
        if one.name.startswith("when_")
        and not one.name.startswith("when_matched_update_all")
        and one.name != "when_not_matched_insert_all"
        and getattr(options, one.name)
    ]
    if others:
        raise InvalidTransaction(
            f"{others[0]} is not for writes of rows",
            field=others[0],
            value=getattr(options, others[0]),
            advice="Use log.merge_insert on a table without the property rows=log",
        )
    if mode is not RowsMode.UPSERT:
        return {}
    return {
        "update_all": bool(options.when_matched_update_all),
        "update_if": options.when_matched_update_all_filt or "",
        "insert_all": options.when_not_matched_insert_all,
    }


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
    key = () if mode is RowsMode.APPEND else _key(info, on)
    rows = rows_table(data, info.schema, info.name, required=mode is RowsMode.APPEND)
    if mode is RowsMode.DELETE:
        rows = rows.select([name for name in key if name in rows.schema.names])
    _check(info, rows)
    if key:
        check_merge(info, rows, key)
        for name in key:
            if rows.column(name).null_count:
                raise InvalidTransaction(
                    f"the key's column {name!r} holds a null",
                    field=name,
                    advice="Give each row a key",
                )
    names = rows.schema.names
    if settings.get("insert_all"):
        lacking = [f.name for f in info.schema if not f.nullable and f.name not in names]
        if lacking:
            raise InvalidTransaction(
                f"column {lacking[0]!r} of {info.name} may not be null and is missing",
                field="schema",
                value=lacking[0],
                advice="Give it values, or only update (when_not_matched_insert_all=False)",
            )
    payload = _encoded(rows)
    ids = info.top_level_ids(names)
    operation = WriteRows(
        table=info.table_id,
        mode=mode,
        rows=rows.num_rows,
        columns=tuple(
            RowsColumn(field_id, name, rows.column(name).null_count)
            for field_id, name in zip(ids, names, strict=True)
        ),
        schema_digest=schema_digest(info.field_ids.values(), names),
        sha256=hashlib.sha256(payload).digest(),
        size=len(payload),
        on=key,
        incarnation=info.incarnation,
        **settings,
    )
    return operation, payload


def put_apart(info: TableInfo, operation: WriteRows, payload: bytes) -> WriteRows:
    """Write rows that are too large for a record to a file; return the operation that names it."""
    if len(payload) <= ROWS_INLINE_BYTES_MAX:
        return operation
    path = f"{ROWS_DIRECTORY}{uuid4()}.arrow"
    store_for(info.location).create(path, payload)
    return replace(operation, path=path)


def _key(info: TableInfo, on: Sequence[str] | str | None) -> tuple[str, ...]:
    key = info.primary_key if on is None else (on,) if isinstance(on, str) else tuple(on)
    if not key:
        raise InvalidTransaction(
            f"{info.name} has no key",
            field="on",
            advice="Name the key's columns, or create the table with a primary_key",
        )
    return key


def _check(info: TableInfo, rows: pa.Table) -> None:
    if not rows.num_rows:
        raise InvalidTransaction("there are no rows", field="data", advice="Pass at least one")
    for column in rows.schema:
        wanted = info.schema.field(column.name)
        if holds_blobs(wanted):
            raise InvalidTransaction(
                f"column {column.name!r} of {info.name} holds blobs, which a write of rows cannot",
                field=column.name,
                advice="Use log.append or log.merge_insert on a table without rows=log",
            )
        if not column.type.equals(wanted.type):
            raise InvalidTransaction(
                f"column {column.name!r} lacks fields of the struct that {info.name} has there",
                field=column.name,
                advice="Give all of them, with nulls where there is no value",
            )


def _encoded(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema.remove_metadata()) as writer:
        writer.write_table(rows.combine_chunks().replace_schema_metadata(None))
    return bytes(sink.getvalue())


class RowsTicket:
    """The pending outcome of a write of rows. Thread-safe, and awaitable."""

    def __init__(self, runtime: Runtime, ticket: Ticket) -> None:
        """Take the ticket of the transaction that has the rows."""
        self._runtime = runtime
        self._ticket = ticket

    @property
    def transaction_id(self) -> str:
        """The id by which anybody may ask for the outcome."""
        return self._ticket.transaction_id

    def done(self) -> bool:
        """Return True if it is known whether the rows are accepted."""
        return self._ticket.done()

    def result(
        self, timeout: float = RESULT_TIMEOUT_SECONDS, wait: RowsWait = "readable"
    ) -> RowsOutcome:
        """Wait until the rows are accepted, a version has them, or that version opens by path.

        Raises OutcomeUnknown when the time is over.
        """
        check_rows_wait(wait)
        deadline = time.monotonic() + timeout
        outcome = self._ticket.result(timeout, "committed")
        return settled(self._runtime, outcome, wait, deadline)

    def __await__(self) -> Generator[Any, None, RowsOutcome]:
        """Wait as `result()` does, without blocking the event loop."""
        return asyncio.to_thread(self.result).__await__()

    def __repr__(self) -> str:
        """Show the id and what is known."""
        return f"RowsTicket({self.transaction_id!r}, {'accepted' if self.done() else 'pending'})"


def writes_rows(outcome: Outcome) -> bool:
    """Return True if a committed transaction wrote rows."""
    return any(result.operation == _WRITE for result in outcome.results)


def settled(runtime: Runtime, outcome: Outcome, wait: RowsWait, deadline: float) -> RowsOutcome:
    """Return an outcome with what came of its rows, once a row writer has applied them."""
    known = {one.name: getattr(outcome, one.name) for one in fields(Outcome)}
    if outcome.status is not Status.COMMITTED or wait == "accepted":
        return RowsOutcome(**known)
    results, writes = list(outcome.results), []
    for index, result in enumerate(outcome.results):
        if result.operation == _WRITE:
            asked = {
                "table": list(result.table),
                "incarnation": result.incarnation,
                "sequence": outcome.answers or outcome.sequence,
                "operation": index,
                "readable": wait == "readable",
            }
            write = _applied(runtime, outcome, asked, wait, deadline)
            writes.append(write)
            results[index] = replace(result, version=write.version)
    known |= {"results": tuple(results), "writes": tuple(writes)}
    if refused := next((write for write in writes if write.refused), None):
        code = Code(refused.refused) if refused.refused in set(Code) else Code.ROWS_REFUSED
        problem = f"its rows were accepted, and refused when they were applied: {refused.problem}"
        known |= {"status": Status.REJECTED, "code": code, "message": problem}
    return RowsOutcome(**known)


def _applied(
    runtime: Runtime, outcome: Outcome, asked: dict[str, Any], wait: str, deadline: float
) -> RowsApplied:
    partition = runtime.domains.partition(tuple(asked["table"]))
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise OutcomeUnknown(
                f"transaction {outcome.transaction_id} is accepted at position"
                f" {asked['sequence']}, and not {wait} in time; see whether a row writer runs"
                " (`commitlog rows`), and ask again with log.outcome(id)",
                outcome.transaction_id,
            )
        try:
            seconds = min(left, REQUEST_SECONDS)
            found = runtime.request(partition, "rows_applied", **asked, seconds=seconds)
        except Unavailable:
            time.sleep(min(PAUSE_SECONDS, max(left, 0)))
            continue
        if found is not None:
            return RowsApplied(asked["operation"], *found)
