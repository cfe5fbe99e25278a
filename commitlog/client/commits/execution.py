"""Operations on rows, retried while other commits come first.

A retryable conflict means that the rows must be read again. That is done here, under the same
transaction id with the next attempt; the properties of each attempt say why the earlier ones
failed. An incompatible conflict is never retried, because the operation may mean something else by
then, and neither is a precondition (`expects`) that doesn't hold. The last outcome is returned,
committed or not.

An id given by the caller is one transaction, however often the call is made: if it is already
committed, the outcome of that commit is returned.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from commitlog.client.accepted.row_shapes import NotForTheLog
from commitlog.client.accepted.row_writes import (
    by_what_is_known,
    encode_write,
    goes_by_log,
    is_small,
    key_of,
    settings_of,
)
from commitlog.client.commits.names import pairs
from commitlog.client.commits.submission import prepared_commit
from commitlog.client.leader.arguments import checked
from commitlog.client.leader.repeats import noted, tell_repeat
from commitlog.client.leader.row_tickets import accepted, settled
from commitlog.client.leader.tables import TableInfo
from commitlog.client.leader.tickets import Wait, deadline_after, in_time, seconds_until
from commitlog.client.rows import direct
from commitlog.client.rows.data import as_arrow, kept, rows_reader, rows_table
from commitlog.client.rows.host import Host, Pairs
from commitlog.client.rows.lance_request import new_transaction_id
from commitlog.client.rows.lost_files import is_of_deleted_version
from commitlog.client.rows.merging import MergeOptions, check_merge
from commitlog.client.rows.rows import (
    NOTHING_APPENDED,
    Prepared,
    prepare_append,
    remove_files,
)
from commitlog.errors import NoSuchVersion, OutcomeUnknown, Unavailable
from commitlog.model.limits import ROWS_INLINE_BYTES_MAX
from commitlog.model.operations import Operation, RowsMode, WriteRows
from commitlog.model.records import Application, Code, Expect, Outcome, Status, Transaction
from commitlog.model.table import TableId

# A generator of our own: programs that seed `random` get the same numbers as without us. The
# system's has no state, so forked processes don't all wait equally long.
_chance = random.SystemRandom()
ATTEMPTS_MAX = 50
BACKOFF_SECONDS = (0.002, 0.25)
ATTEMPT_PROPERTY = "commitlog.attempt."
_READ_AGAIN_MAX = 3
_READ_AGAIN = (Code.WRONG_SCHEMA, Code.TABLE_REPLACED, Code.MISSING_FILE, Code.UNKNOWN_FRAGMENT)


class Execution:
    """One operation on rows of one table."""

    @checked
    def __init__(
        self,
        log: Host,
        table: TableId,
        *,
        transaction_id: str | None = None,
        application: Application | None = None,
        properties: Pairs = (),
        expects: Sequence[Expect] = (),
        attempts_max: int = ATTEMPTS_MAX,
        timeout: float = 60.0,
        answer_seconds: float = math.inf,
        wait: Wait = "readable",
        notes_counts: bool = False,
        by_log: bool = True,
    ) -> None:
        """Take the options: at most `attempts_max` attempts within `timeout` seconds.

        The log has `answer_seconds` of these for each answer; finding and writing rows may take
        longer.

        With `notes_counts`, or under an application's sequence, the transaction's properties hold
        `counts`, for requests that repeat it. If the table has the property `rows="log"`, small
        appends and upserts go into the log as rows, unless `by_log` is False.
        """
        self._log = log
        self._table = table
        self._transaction_id = transaction_id or new_transaction_id()
        self._id_is_new = transaction_id is None
        self._application = application
        self._properties = pairs(properties)
        self._expects = tuple(expects)
        self._attempts_max = attempts_max
        self._deadline = deadline_after(timeout)
        self._timeout = timeout
        self._answer_seconds = answer_seconds
        self._wait: Wait = wait
        self._is_append = False
        self._first_attempt = 0
        self._may_be_first = False
        """Another program's record under this id was refused, so this one's may be committed."""
        self._by_log = by_log
        self._notes_counts = notes_counts or application is not None
        self.counts: Mapping[str, int] = {}
        """Rows inserted, updated and deleted by the last attempt."""

    @in_time
    def append(self, data: Any) -> Outcome:
        """Append rows. Files are written once, and again only if the schema changes."""
        data = as_arrow(data)
        if (outcome := self._write_rows(data, RowsMode.APPEND)) is not None:
            return outcome
        self._is_append = True
        written: list[tuple[TableInfo, Prepared]] = []
        # A stream is read once; other rows can be cast again if the schema changed, and are cast
        # before a file is begun.
        is_stream = isinstance(data, pa.RecordBatchReader)
        data = data if is_stream else kept(data)

        def cast(info: TableInfo) -> tuple[TableInfo, pa.RecordBatchReader]:
            rows = rows_reader(data, info.schema, info.name)
            return info, rows if is_stream else rows.read_all().to_reader()

        # A schema from memory might be outdated, and refuse a stream's values halfway.
        known = self._log.describe(self._table, fresh=True) if is_stream else None
        cast_for, rows = cast(known) if known else by_what_is_known(self._log, self._table, cast)

        def prepare(info: TableInfo) -> Prepared:
            if written and (is_stream or _is_alike(written[0][0], info)):
                return replace(written[0][1], read_version=info.version if info.primary_key else 0)
            dataset = self._log.opened.for_writing(info)
            source = rows
            if written:
                self._remove(*written.pop())
                source = rows_reader(data, info.schema, info.name)
            elif info.fields != cast_for.fields:
                # A stream that was cast is cast again: it wasn't read yet.
                source = rows_reader(rows if is_stream else data, info.schema, info.name)
            try:
                prepared = prepare_append(info, dataset, source)
            except OSError as error:
                if is_stream or not is_of_deleted_version(error, dataset.version):
                    raise
                raise NoSuchVersion(f"{info.name}: an opened version was deleted") from error
            written.append((info, prepared))
            return prepared

        first = None if cast_for.primary_key else cast_for
        return self._run(prepare, keeps_files=True, first=first)

    @in_time
    def delete(self, predicate: str, said: str | None = None) -> Outcome:
        """Delete the rows for which a predicate holds; the log records `said` instead, if given."""
        opened = self._log.opened
        return self._run(lambda info: direct.delete(info, opened, predicate, said))

    @in_time
    def update(self, values: Mapping[str, Any], where: str | None) -> Outcome:
        """Set columns of the rows for which a predicate holds."""
        opened = self._log.opened
        return self._run(lambda info: direct.update(info, opened, values, where))

    @in_time
    def merge_insert(
        self, data: Any, on: str | Sequence[str] | None, options: MergeOptions
    ) -> Outcome:
        """Join rows with the table by key, the table's own if none is named."""
        data = as_arrow(data)
        if (outcome := self._write_rows(data, RowsMode.UPSERT, on, options)) is not None:
            return outcome
        data = kept(data)

        def cast(info: TableInfo) -> pa.Table:
            rows = rows_table(data, info.schema, info.name)
            check_merge(info, rows, key_of(info, on), options)
            return rows

        source = by_what_is_known(self._log, self._table, cast)

        def prepare(info: TableInfo) -> Prepared:
            rows = rows_table(source, info.schema, info.name)
            return direct.merge(info, self._log.opened, rows, key_of(info, on), options)

        return self._run(prepare)

    def _write_rows(
        self,
        data: Any,
        mode: RowsMode,
        on: str | Sequence[str] | None = None,
        options: MergeOptions | None = None,
    ) -> Outcome | None:
        """Write small rows into the log, if the table's property says so; else return None."""
        known = self._log.describe(self._table, fresh=False)
        if not (self._by_log and goes_by_log(known) and is_small(data)):
            return None

        def encode(info: TableInfo) -> tuple[WriteRows, bytes]:
            settings = settings_of(mode, options) if options is not None else {}
            return encode_write(info, data, mode, on, **settings)

        runtime = self._log.runtime()
        for attempt in range(self._attempts_max):
            try:
                operation, payload = by_what_is_known(self._log, self._table, encode)
            except NotForTheLog:
                return None
            if len(payload) > ROWS_INLINE_BYTES_MAX:
                return None
            transaction = self._transaction(operation, attempt, self._properties, (payload,))
            ticket = runtime.submit(
                transaction,
                id_is_new=self._id_is_new,
                any_content=True,
                awaits_rows=self._wait == "readable",
            )
            outcome = accepted(ticket, seconds_until(self._answer_by()))
            if outcome.code is Code.MALFORMED_RECORD:
                # The log's rules know no rows in records yet; this attempt of the id is refused.
                self._first_attempt = attempt + 1
                return None
            is_full = outcome.code is Code.ROWS_BACKLOG
            if not (is_full or outcome.code in _READ_AGAIN) or time.monotonic() > self._deadline:
                break
            if not is_full:
                self._log.describe(self._table, fresh=True)
            self._back_off(attempt)
        rows = settled(runtime, outcome, self._wait, self._answer_by(), ticket.applied)
        self.counts = rows.counts
        return rows

    def _run(
        self,
        prepare: Callable[[TableInfo], Prepared],
        *,
        keeps_files: bool = False,
        first: TableInfo | None = None,
    ) -> Outcome:
        reasons: list[str] = []
        attempt = self._first_attempt
        unread: TableInfo | None = None
        while True:
            described = first or self._log.describe(
                self._table, fresh=True, readable=not self._is_append
            )
            first = None
            try:
                prepared = prepare(described)
            except NoSuchVersion:
                is_same = unread is not None and _is_same_version(unread, described)
                if is_same or len(reasons) + 1 >= self._attempts_max:
                    raise
                unread = described
                reasons.append("the table was replaced, or the version that was read is deleted")
                continue
            self.counts = prepared.counts
            try:
                transaction, outcome = self._submit(described, prepared, attempt, reasons)
            except NOTHING_APPENDED:
                self._remove(described, prepared)
                raise
            if outcome.code is Code.ID_REUSED:
                self._may_be_first = True
                outcome = self._first_decision(outcome)
            tell_repeat(self._log.runtime(), transaction, outcome)
            if outcome.status is Status.COMMITTED:
                return outcome
            again = self._is_worth_it(outcome) and len(reasons) + 1 < self._attempts_max
            self._remove(described, prepared, keep_data=keeps_files and again)
            if not again or time.monotonic() > self._deadline:
                return outcome
            reasons.append(_reason(outcome))
            attempt = max(attempt, outcome.attempt) + 1
            self._back_off(len(reasons))

    def _submit(
        self, info: TableInfo, prepared: Prepared, attempt: int, reasons: Sequence[str]
    ) -> tuple[Transaction, Outcome]:
        commit = prepared_commit(info, prepared, self._transaction_id, id_is_new=self._id_is_new)
        tried = [(f"{ATTEMPT_PROPERTY}{number}", reason) for number, reason in enumerate(reasons)]
        if self._notes_counts:
            tried += noted(self.counts)
        transaction = self._transaction(commit, attempt, [*self._properties, *tried])
        left = self._deadline - time.monotonic()
        if left <= 0 and not reasons:
            if self._id_is_new:
                raise Unavailable(
                    f"{self._timeout:g} s passed before this call appended anything. Make it again"
                    " with more time"
                )
            self._remove(info, prepared)
            raise OutcomeUnknown(
                f"{self._timeout:g} s passed before this call appended transaction"
                f" {self._transaction_id}. Ask again with log.outcome(id), or make the same call"
                " again under this id",
                self._transaction_id,
            )
        # Files differ each time a caller repeats an id: whatever content was committed counts.
        ticket = self._log.runtime().submit(
            transaction, id_is_new=self._id_is_new, any_content=True
        )
        left = min(max(left, 1.0), self._answer_seconds)
        return transaction, ticket.result(left, self._wait)

    def _answer_by(self) -> float:
        return min(self._deadline, time.monotonic() + self._answer_seconds)

    def _transaction(
        self, operation: Operation, attempt: int, said: Pairs, payloads: tuple[bytes, ...] = ()
    ) -> Transaction:
        """Make an attempt's transaction, whose properties are `said`."""
        return self._log.transaction(
            (operation,),
            transaction_id=self._transaction_id,
            attempt=attempt,
            application=self._application,
            properties=said,
            expects=self._expects,
            payloads=payloads,
        )

    def _first_decision(self, refusal: Outcome) -> Outcome:
        """Return what another program committed under this id, or else this record's refusal.

        Files are named anew each time, so any further attempt under the id would be refused, too.
        """
        reason = refusal.reason
        if self._id_is_new or reason is None or reason.argument("status") != Status.COMMITTED:
            return refusal
        runtime = self._log.runtime()
        ticket = runtime.watch(self._transaction_id)
        try:
            first = ticket.result(seconds_until(self._answer_by()), self._wait)
        finally:
            runtime.forget(ticket)
        return first if first.status is Status.COMMITTED else refusal

    def _remove(self, info: TableInfo, prepared: Prepared, *, keep_data: bool = False) -> None:
        """Remove what an attempt wrote, unless what the log committed first may name it."""
        if not self._may_be_first:
            remove_files(info, prepared, keep_data=keep_data)

    def _is_worth_it(self, outcome: Outcome) -> bool:
        if outcome.code is Code.EXPECTATION_FAILED:
            # The caller named what must hold; reading the rows again doesn't make it so.
            return False
        if outcome.status is Status.RETRYABLE:
            # A key that somebody inserted would be there twice after another append.
            return not (self._is_append and outcome.conflict and outcome.conflict.keys)
        if outcome.status is Status.SUPERSEDED:
            return True
        if outcome.code is Code.ID_REUSED:
            # Somebody's refused attempt under this id; a higher attempt may follow it.
            return not self._id_is_new
        return outcome.code in _READ_AGAIN and outcome.attempt < _READ_AGAIN_MAX

    def _back_off(self, failures: int) -> None:
        low, high = BACKOFF_SECONDS
        limit = min(high, low * 2 ** min(failures, 10))
        left = self._deadline - time.monotonic()
        time.sleep(max(0.0, min(_chance.uniform(low, limit), left)))


def _is_alike(one: TableInfo, other: TableInfo) -> bool:
    """Return True if rows that were written for one description fit the other."""
    return (one.location, one.fields) == (other.location, other.fields)


def _is_same_version(one: TableInfo, other: TableInfo) -> bool:
    """Return True if one version was described twice: a file of it that is gone stays away."""
    return (one.incarnation, one.version) == (other.incarnation, other.version)


def _reason(outcome: Outcome) -> str:
    conflict = outcome.conflict
    if conflict is None:
        return f"{outcome.status} {outcome.code}: {outcome.message}"
    return (
        f"{outcome.status} {outcome.code}: {conflict.rule} against {conflict.operation}"
        f" {conflict.transaction_id} at version {conflict.version}"
    )
