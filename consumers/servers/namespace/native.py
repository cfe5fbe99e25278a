"""Operations that pylance carries out by itself, on a dataset whose commits go through the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

import lance
import pyarrow as pa
from lance_namespace import (
    ConcurrentModificationError,
    InvalidInputError,
    UnsupportedOperationError,
)

from commitlog.adapters.lance_namespace import COMMIT_UNKNOWN, refusal_of
from commitlog.client.commits.caller import acting_for
from commitlog.client.leader.arguments import lances_words
from commitlog.errors import CommitLogError, InvalidTransaction, OutcomeUnknown
from commitlog.model.table import TableId, format_table_id
from consumers.servers.namespace.branch_rows import answered, change_branch
from consumers.servers.namespace.branches import is_branch
from consumers.servers.namespace.call import Call
from consumers.servers.namespace.service import Service, keyed

_PYLANCE = frozenset({"lance", "pyarrow"})
_CONFLICTS = (
    *("Commit conflict for version ", "Retryable commit conflict for version "),
    *("Incompatible transaction: ", "Too many concurrent writers", "Ref conflict error: "),
)
"""How Lance begins to say that another writer was faster."""


def commit_natively(
    service: Service,
    call: Call,
    work: Callable[[lance.LanceDataset], Any],
    branch: str | None = None,
) -> dict[str, Any]:
    """Let pylance change a table; return the transaction and version it committed.

    Under an Idempotency-Key that is done once, in one commit that the key names; on a branch,
    which the log doesn't keep, it is done each time.
    """
    if is_branch(branch):
        return answered(change_branch(service, call, branch, work)[0])
    first = service.first_answer(call)
    if first is not None:
        outcome = first[0]
        call.committed = outcome.transaction_id
        return {"version": outcome.version, "transaction_id": outcome.transaction_id}
    info = service.info(call.table)
    who = call.caller
    if call.key is not None:
        said = (*who.properties, *keyed(call))
        who = replace(who, transaction_id=call.key, properties=said)
    with acting_for(who):
        dataset = service.open_managed(info)
    before = dataset.version
    try:
        result = work(dataset)
    except Exception as error:
        raise refused_commit(dataset, error) from error
    changed = result if isinstance(result, lance.LanceDataset) else dataset
    body: dict[str, Any] = {"version": changed.version}
    if changed.version != before:
        call.committed = body["transaction_id"] = call.key or service.transaction_id_of(
            replace(info, version=changed.version), changed.version
        )
        with suppress(CommitLogError):  # it is committed, wherever that is
            decided = service.transaction(call.committed)
            call.position = decided[0].sequence if decided is not None else None
    return body


def refused_commit(dataset: lance.LanceDataset, error: Exception) -> Exception:
    """Return why the log refused what pylance offered it, or else pylance's own reason."""
    if isinstance(error, InvalidTransaction) and error.field == "arguments":
        error = cast(Exception, error.__cause__)  # pylance's, by which a status is chosen
    return refusal_of(dataset) or of_pylance(error)


def of_pylance(error: BaseException) -> Exception:
    """Return what a failure inside pylance or Arrow means to the client; others as they are.

    They raise whatever suits them where a request's values don't suit the table: an OverflowError
    for a large limit, a TypeError, a panic. All of that is the request's mistake, not ours.
    """
    if isinstance(error, Exception) and not _is_raised_by_pylance(error):
        return error
    # The beginning is Lance's own; names of the request may follow, and say anything.
    text = lances_words(error).removeprefix("Wrapped error: ")
    if text.startswith(COMMIT_UNKNOWN):
        return OutcomeUnknown(text, "")
    if text.startswith(_CONFLICTS):
        return ConcurrentModificationError(text)
    if isinstance(error, NotImplementedError) or text.startswith("Not supported: "):
        return UnsupportedOperationError(text)
    return InvalidInputError(f"Lance can't carry the request out: {text or type(error).__name__}")


def _is_raised_by_pylance(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = str(trace.tb_frame.f_globals.get("__name__", "")) if trace is not None else ""
    return isinstance(error, pa.ArrowException) or module.partition(".")[0] in _PYLANCE


def refuse_branch(call: Call, table: TableId, branch: str | None) -> None:
    """Refuse a branch, where an operation is for the main line alone."""
    if is_branch(branch):
        raise UnsupportedOperationError(
            f"{call.operation}: branch {branch!r} of {format_table_id(table)}: only the main "
            "branch supports this"
        )
