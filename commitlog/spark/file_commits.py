"""Commits what executors wrote into files as one transaction; runs on the driver's host."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import lance
from lance.fragment import FragmentMetadata

from commitlog.adapters.tracing import tracing
from commitlog.client.repeats import noted, tell_repeat
from commitlog.client.row_shapes import NotForTheLog
from commitlog.errors import InvalidTransaction, TransactionRejected, Unavailable
from commitlog.model.records import Application, Code, Outcome, Status
from commitlog.spark.files import (
    Target,
    WrittenFiles,
    Wrote,
    brought,
    in_fragments,
    small_enough,
)
from commitlog.spark.options import WriteOptions

RETRY_SECONDS = 0.5
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
    """Commit what the executors wrote as one transaction; no files and no overwrite: nothing.

    Raises:
        CommitConflict: the log refused it; the message says what to do.
        OutcomeUnknown: run the batch again, under the same application id and sequence.
    """
    if not files.rows and not overwrite:
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

    def submit() -> Any:
        fragments = files.metadata()
        operation: Any = lance.LanceOperation.Append(fragments)
        if overwrite:
            operation = _replacing(log.table(options.table), options.table, fragments)
        return log.submit(
            options.table,
            operation,
            application=application,
            inserted_keys=None if overwrite else files.key_hashes(target),
            properties=properties,
        )

    try:
        outcome = _decided(log, options, submit, wait)
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
    schema: Any = info.lance_schema
    known = set(_ids_of(schema.fields()))
    for file in (file for fragment in fragments for file in fragment.files):
        unknown = sorted(set(file.fields) - known)
        if unknown:
            raise InvalidTransaction(
                f"columns of {table} changed while its rows were written: it has no field"
                f" {unknown[0]} any more",
                field="columns", value=unknown, advice="Write the rows again",
            )  # fmt: skip
    return lance.LanceOperation.Overwrite(schema, fragments)


def _ids_of(fields: Iterable[Any]) -> Iterator[int]:
    for field in fields:
        yield field.id()
        yield from _ids_of(field.children())


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


def _decided(log: Any, options: WriteOptions, submit: Callable[[], Any], wait: str) -> Outcome:
    """Submit until it isn't retryable any more; return the outcome, and warn of repeats."""
    deadline = time.monotonic() + options.timeout_seconds
    while True:
        left = max(1.0, deadline - time.monotonic())
        try:
            ticket = submit()
            outcome: Outcome = ticket.result(timeout=left, wait=wait)
            if outcome.answers is not None:
                strict = options.strict_repeats
                tell_repeat(log.runtime(), ticket.transaction, outcome, strict=strict)
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
            continue
        # What was written stands: what was retryable is the same request over a newer head.
        if outcome.status is not Status.RETRYABLE or time.monotonic() > deadline:
            return outcome
