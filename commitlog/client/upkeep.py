"""Keeps tables fast beside writers: compaction that is done again until it lands.

Pylance plans and rewrites; the log decides. A compaction's Rewrite vouches for the order of its
rows, so the leader carries it over rows that others deleted meanwhile. What it can't be carried
over (new values of a column, another compaction, a new index) is planned again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance.optimize import Compaction

from commitlog.adapters.lance_compaction import (
    Rewritten,
    new_fragment_count,
    reserved_ids,
    rewrite_of,
)
from commitlog.client.opening import materialize
from commitlog.errors import InvalidTransaction, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import ROW_ORDER, ROW_ORDER_KEPT
from commitlog.model.records import Outcome, Status
from commitlog.model.table import TableId

if TYPE_CHECKING:
    from commitlog.client.log import CommitLog
    from commitlog.client.tables import TableInfo

TRIES_MAX = 5
TIMEOUT_SECONDS = 600.0
TRY_PROPERTY = "commitlog.try"
"""In a transaction's properties: which try of a piece of upkeep it is."""


@dataclass(frozen=True)
class Compacted:
    """What came of a compaction."""

    outcome: Outcome | None = None
    """The commit; None if there was nothing to compact."""
    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    refusals: tuple[str, ...] = ()
    """Why earlier tries didn't commit."""


def compact(
    log: CommitLog,
    table: TableId,
    options: Mapping[str, Any],
    *,
    tries_max: int = TRIES_MAX,
    timeout: float = TIMEOUT_SECONDS,
    properties: Mapping[str, str] | None = None,
) -> Compacted:
    """Compact a table as of its head, again for as long as others win in between."""
    if options.get("defer_index_remap"):
        raise InvalidTransaction(
            "a compaction through the log can't defer the remapping of indices",
            field="defer_index_remap",
            value=True,
            advice="Leave it out: indices are remapped in the same commit",
        )
    deadline = time.monotonic() + timeout
    refusals: list[str] = []
    while True:
        info = log.describe(table, fresh=True, readable=True)
        results = _run_tasks(log, info, options, deadline, timeout)
        if not results:
            return Compacted(refusals=tuple(refusals))
        rewritten = _rewritten(log, info, results, deadline)
        told = {**(properties or {}), TRY_PROPERTY: str(len(refusals) + 1)}
        ticket = log.submit(table, in_row_order(rewritten.message, info.version), properties=told)
        outcome = ticket.result(_left(deadline))
        if outcome.status is not Status.RETRYABLE or len(refusals) + 1 >= tries_max:
            outcome.raise_for_conflict()
            return Compacted(outcome, *rewritten[1:], refusals=tuple(refusals))
        refusals.append(outcome.message)


def in_row_order(rewrite: Transaction, read_version: int) -> bytes:
    """Return a Rewrite whose writer vouches for the order of its rows."""
    rewrite.read_version = read_version
    rewrite.transaction_properties[ROW_ORDER] = ROW_ORDER_KEPT
    return rewrite.SerializeToString(deterministic=True)


def _run_tasks(
    log: CommitLog, info: TableInfo, options: Mapping[str, Any], deadline: float, timeout: float
) -> list[Any]:
    dataset = log.open(info.table_id, info.version)
    results = []
    for task in Compaction.plan(dataset, dict(options)).tasks:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"the compaction of {info.name} took longer than {timeout:g} s and was given up;"
                " nothing was submitted. Give it more time, or compact less at once"
                " (max_source_fragments)"
            )
        results.append(task.execute(dataset))
    return results


def _rewritten(log: CommitLog, info: TableInfo, results: list[Any], deadline: float) -> Rewritten:
    """Reserve the ids of the new fragments, and let pylance write remapped indices for them."""
    read = materialize(log.runtime(), info, info.version)
    count, first_id = new_fragment_count(results), -1
    if count:
        reserve = Transaction(read_version=info.version, uuid=str(uuid.uuid4()))
        reserve.reserve_fragments.num_fragments = count
        ticket = log.submit(info.table_id, reserve.SerializeToString())
        outcome = ticket.result(_left(deadline)).raise_for_conflict()
        now = log.describe(info.table_id, fresh=True)
        reserved = materialize(log.runtime(), now, outcome.version)
        first_id = reserved_ids(info.location, reserved, count)
    return rewrite_of(info.location, info.version, read, first_id, results)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 1.0)
