"""Commits what executors wrote into files as one transaction; runs on the driver's host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import lance
from lance.fragment import FragmentMetadata

from commitlog.adapters.tracing import tracing
from commitlog.client.accepted.row_shapes import NotForTheLog
from commitlog.client.leader.repeats import noted, tell_repeat
from commitlog.errors import InvalidTransaction, TransactionRejected
from commitlog.model.records import Application, Code, Outcome, Status
from commitlog.spark.connection import while_away
from commitlog.spark.files import (
    Target,
    WrittenFiles,
    Wrote,
    brought,
    fields_digest,
    in_fragments,
    small_enough,
)
from commitlog.spark.options import WriteOptions

UNFIT_FIELDS = ("fields", "files")
UNFIT_CODES = (Code.WRONG_SCHEMA, Code.TABLE_REPLACED, Code.MISSING_FILE)
"""What a client or the leader says of files that fit the table no more."""
WRITE_AGAIN = "Nothing was committed: write the rows again"


def commit_files(
    log: Any,
    options: WriteOptions,
    target: Target,
    files: WrittenFiles,
    *,
    overwrite: bool,
    application: Application | None,
    wait: str,
) -> Outcome | None:
    """Commit what the executors wrote as one transaction; without rows, only what is a repeat.

    Raises:
        CommitConflict: the log refused it; the message says what to do.
        OutcomeUnknown: run the batch again, under the same application id and sequence.
    """
    if not (files.rows or overwrite or has_committed(log, options, options.table, application)):
        return None
    properties = noted(brought(options.table, files.rows, files.digest)) if application else ()
    rows = small_enough(files)
    if rows is not None:
        write = partial(
            log.write_rows, options.table, rows, application=application, properties=properties
        )
        with contextlib.suppress(NotForTheLog):
            outcome = _decided(log, options, write, wait)
            trace_writes(outcome.transaction_id, files.wrote)
            # Older rules of a log know no rows in records.
            if outcome.code is not Code.MALFORMED_RECORD:
                return outcome.raise_for_conflict()
    files = in_fragments(files, target)
    is_older = False

    def submit() -> Any:
        nonlocal is_older
        fragments = files.metadata()
        operation: Any = lance.LanceOperation.Append(fragments)
        info = log.table(options.table)
        version = None
        if overwrite:
            operation = _replacing(info, options.table, fragments)
        else:
            version = version_written_for(info, fragments, files.version, files.fields)
        is_older = version is not None
        return log.submit(
            options.table,
            operation,
            read_version=version,
            application=application,
            inserted_keys=None if overwrite else files.key_hashes(target),
            properties=properties,
        )

    try:
        outcome = _decided(log, options, submit, wait, lambda: is_older)
        trace_writes(outcome.transaction_id, files.wrote)
        return outcome.raise_for_conflict()
    except InvalidTransaction as error:
        if error.field not in UNFIT_FIELDS:
            raise
        raise InvalidTransaction(
            _changed(options.table, str(error).removesuffix(f". {error.advice}.")),
            field=error.field, value=error.value, advice=WRITE_AGAIN,
        ) from error  # fmt: skip
    except TransactionRejected as error:
        if error.outcome.code not in UNFIT_CODES:
            raise
        reason = error.outcome.message.removesuffix(".")
        said = f"{_changed(options.table, reason)}. {WRITE_AGAIN}."
        raise TransactionRejected(said, error.outcome) from error


def has_committed(
    log: Any, options: WriteOptions, table: str, application: Application | None
) -> bool:
    """Return True if a table has a commit under an application's sequence; nothing is appended.

    A batch without rows makes no version. But if it is run again after an attempt that had rows,
    it is a repeat whose rows differ, and the log has to answer it.
    """
    if application is None:
        return False
    nothing = lance.LanceOperation.Append([])
    ask = partial(log.submit, table, nothing, application=application, dry_run=True)
    outcome = while_away(ask, time.monotonic() + options.timeout_seconds).result()
    return outcome.status is Status.COMMITTED and outcome.answers is not None


def version_written_for(
    now: Any, fragments: Sequence[FragmentMetadata], version: int, fields: str
) -> int | None:
    """Return the read version that an append of files must name; None: as of the head.

    Files name columns by field ids, and that of a dropped column may be another one's by now. The
    log knows, if it is told for which version they were written. It isn't told while the columns
    are the same, since it would refuse the rows for other changes, too. Nor if files have a field
    that the table lacks: as of the head the log refuses them, instead of leaving values out.
    """
    is_same = not fragments or fields_digest(now) == fields or _unknown(now, fragments)
    return None if is_same else min(version, now.version)


def _changed(table: str, reason: str) -> str:
    return (
        f"{table} was dropped and created again, or its columns changed, while rows for it were"
        f" written: {reason}"
    )


def _replacing(info: Any, table: str, fragments: list[FragmentMetadata]) -> Any:
    """Return what replaces a table's rows, its columns staying what they are.

    Files name columns by their ids, and Lance would give new ones to a plain schema. Values of a
    column that has another id by now would be lost.
    """
    unknown = _unknown(info, fragments)
    if unknown:
        raise InvalidTransaction(
            f"columns of {table} changed while its rows were written: it has no field"
            f" {unknown[0]} any more",
            field="columns", value=unknown, advice="Write the rows again",
        )  # fmt: skip
    schema: Any = info.lance_schema
    return lance.LanceOperation.Overwrite(schema, fragments)


def _unknown(info: Any, fragments: Iterable[FragmentMetadata]) -> list[int]:
    """Return the field ids in files that a table doesn't have."""
    files = (file for fragment in fragments for file in fragment.files)
    return sorted({field for file in files for field in file.fields} - info.field_ids.keys())


def trace_writes(transaction_id: str, wrote: Iterable[Wrote]) -> None:
    """Tell of the tasks that wrote a transaction's rows, as parts of its trace.

    They don't know their transaction: it gets its id once all of them are done. The driver's
    process may be ended at any moment after a commit, so spans are sent before it continues.
    """
    spans = tracing()
    if spans is None:
        return
    for one in wrote:
        ago = (time.time_ns() - one.ended_ns) / 1e9
        spans.part(transaction_id, "write", one.seconds, ago, host=one.host, rows=one.rows)
    spans.flush()


def _decided(
    log: Any,
    options: WriteOptions,
    submit: Callable[[], Any],
    wait: str,
    is_older: Callable[[], bool] = bool,
) -> Outcome:
    """Submit until it isn't retryable any more; return the outcome, and warn of repeats.

    What is submitted as of an older version is decided the same each time.
    """
    deadline = time.monotonic() + options.timeout_seconds

    def once() -> Outcome:
        ticket = submit()
        left = max(1.0, deadline - time.monotonic())
        outcome: Outcome = ticket.result(timeout=left, wait=wait)
        if outcome.answers is not None:
            strict = options.strict_repeats
            tell_repeat(log.runtime(), ticket.transaction, outcome, strict=strict)
        return outcome

    while True:
        outcome = while_away(once, deadline)
        # What was written stands: what was retryable is the same request over a newer head.
        is_late = is_older() or time.monotonic() > deadline
        if outcome.status is not Status.RETRYABLE or is_late:
            return outcome
