"""Keeps tables fast beside writers, by work that is repeated until it commits.

Pylance plans and writes; the log decides. A compaction's Rewrite vouches for the order of its rows,
so the leader can rebase it over rows that others deleted meanwhile. An index or a column is
submitted with the version that it read, and the log rebases it over commits that don't touch it.
Whatever can't be rebased is done again from the new head.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from commitlog.adapters.lance_refs import Published, referenced_versions
from commitlog.client.commits.caller import caller
from commitlog.client.leader.arguments import has_columns, refused
from commitlog.client.leader.tickets import seconds_until
from commitlog.client.rows.full_storage import naming_full_storage
from commitlog.client.rows.host import Host, TableName
from commitlog.client.rows.opening import materialize
from commitlog.errors import InvalidTransaction, Unavailable
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import (
    INCARNATION,
    ROW_ORDER,
    ROW_ORDER_KEPT,
    DeleteTableVersions,
)
from commitlog.model.records import Outcome, Status
from commitlog.model.table import parse_table_id

if TYPE_CHECKING:
    import lance
    from lance.optimize import CompactionTask, RewriteResult

    from commitlog.client.leader.runtime import Runtime
    from commitlog.client.leader.tables import TableInfo
    from commitlog.client.leader.tickets import Ticket
    from commitlog.core.tables.lance_tables import VersionRanges
    from commitlog.lancepb.table_pb2 import IndexMetadata

ATTEMPTS_MAX = 5
TIMEOUT_SECONDS = 600.0
EXPIRE_AFTER = timedelta(days=14)
"""As Lance has it."""
TRY_PROPERTY = "commitlog.try"
"""In a transaction's properties: which try of a piece of upkeep it is."""


@dataclass(frozen=True)
class Kept:
    """The result of one maintenance task."""

    outcome: Outcome | None = None
    """The commit; None if there was nothing to do."""
    metrics: Mapping[str, int] | None = None
    """Of a compaction: fragments and files, removed and added."""
    refusals: tuple[str, ...] = ()
    """Why earlier tries didn't commit."""


logger = logging.getLogger(__name__)

Try = Callable[["TableInfo", float], tuple[Transaction, Mapping[str, int] | None] | None]
"""(the table as it is, deadline) -> what to commit; None: there is nothing to do."""

Finish = Callable[["Ticket", "TableInfo", Transaction, float], Outcome]
"""(what was submitted, on what, the transaction, deadline) -> what came of it: does what is still
to be done when it is its turn to be decided."""

RewriteGroups = Callable[
    ["TableInfo", "lance.LanceDataset", "Sequence[CompactionTask]", float], "list[RewriteResult]"
]
"""(the table, the version that was planned, the groups of its fragments, deadline) -> their
results: of some groups only, once the time is up."""


def rewrite_here(
    info: TableInfo, dataset: lance.LanceDataset, tasks: Sequence[CompactionTask], deadline: float
) -> list[RewriteResult]:
    """Rewrite groups of fragments one by one, in this process."""
    results = []
    for task in tasks:
        results.append(task.execute(dataset))
        if time.monotonic() > deadline:
            break  # the caller says so
    return results


class KeepsTables(Host):
    """Adds to `CommitLog` the methods that keep tables fast."""

    def compact(
        self,
        table_id: TableName,
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
        rewrite: RewriteGroups = rewrite_here,
        **options: Any,
    ) -> Kept:
        """Merge small fragments and drop deleted rows, while others write.

        Takes the options of pylance's `compact_files` (`target_rows_per_fragment`,
        `materialize_deletions_threshold`, `max_source_fragments`, …), except `defer_index_remap`.
        `rewrite` rewrites the planned groups of fragments (`commitlog.spark.compact`).

        Raises:
            RetryableConflict: others won `attempts_max` times in a row.
            Unavailable: the rewriting took longer than `timeout` seconds; nothing was submitted.
        """
        if options.get("defer_index_remap"):
            raise InvalidTransaction(
                "compactions through the log can't defer index remapping",
                field="defer_index_remap",
                value=True,
                advice="Leave it out: indices are remapped in the same commit",
            )

        return self._until_it_lands(
            table_id, partial(self._rewrite, options, rewrite), timeout, attempts_max, properties
        )

    def optimize(
        self,
        table_id: TableName,
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Kept:
        """Add the rows that indices don't cover yet, like pylance's `optimize_indices`."""

        def work(dataset: lance.LanceDataset) -> None:
            with refused(
                "the indices can't be optimized", "options", options, has_columns(dataset)
            ):
                dataset.optimize.optimize_indices(**options)

        return self._until_it_lands(
            table_id, self._captured(work), timeout, attempts_max, properties
        )

    def create_index(
        self,
        table_id: TableName,
        column: str | list[str],
        index_type: str,
        *,
        timeout: float = TIMEOUT_SECONDS,
        attempts_max: int = ATTEMPTS_MAX,
        properties: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Kept:
        """Build an index of any of pylance's types, while others write.

        Takes the options of pylance's `create_scalar_index` or `create_index`, by the type.
        """
        is_vector = index_type.upper().startswith("IVF")

        def work(dataset: lance.LanceDataset) -> None:
            make: Callable[..., Any] = (
                dataset.create_index if is_vector else dataset.create_scalar_index
            )
            message = f"no {index_type} index can be made on {column!r}"
            with refused(message, "column", column, has_columns(dataset)):
                make(column, index_type, **options)

        return self._until_it_lands(
            table_id, self._captured(work), timeout, attempts_max, properties
        )

    def expire_versions(
        self,
        table_id: TableName,
        *,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        keep_milestones: bool = False,
        timeout: float = TIMEOUT_SECONDS,
        properties: Mapping[str, str] | None = None,
    ) -> Outcome | None:
        """Delete old versions by a record; return its outcome, or None if there are none.

        Expires versions that are both older than `older_than` and not among the newest
        `retain_versions`. If neither is given, expires those older than two weeks. Versions with
        tags or branches stay. With `keep_milestones`, so does the last one of each hour of the last
        day, of each day of the last month and of each month. Manifests are removed once the record
        is decided; data files stay.
        """
        info = self.describe(parse_table_id(table_id), fresh=True)
        ranges = _expirable(self.runtime(), info, older_than, retain_versions, keep_milestones)
        if not ranges:
            return None
        operation = DeleteTableVersions(info.table_id, ranges)
        properties = {**(properties or {}), INCARNATION: info.incarnation}
        ticket = self.submit(None, operation, properties=properties)
        return ticket.result(timeout).raise_for_conflict()

    def expirable(
        self,
        table_id: TableName,
        *,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        keep_milestones: bool = False,
    ) -> VersionRanges:
        """Return the ranges of versions that `expire_versions` would delete."""
        info = self.describe(parse_table_id(table_id), fresh=True)
        return _expirable(self.runtime(), info, older_than, retain_versions, keep_milestones)

    def _until_it_lands(
        self,
        table_id: TableName,
        attempt: Try,
        timeout: float,
        attempts_max: int,
        properties: Mapping[str, str] | None,
        finish: Finish | None = None,
    ) -> Kept:
        deadline = time.monotonic() + timeout
        refusals: list[str] = []
        called = caller().transaction_id or None
        while True:
            info = self.describe(parse_table_id(table_id), fresh=True, readable=True)
            with naming_full_storage(info.name, info.location):
                done = attempt(info, deadline)
            if done is None:
                return Kept(refusals=tuple(refusals))
            if time.monotonic() > deadline:
                raise too_late(info, timeout)
            message, metrics = done
            told = {**(properties or {}), TRY_PROPERTY: str(len(refusals) + 1)}
            attempts = len(refusals) if called else 0
            ticket = self._commit_to(
                info, message, transaction_id=called, attempt=attempts, properties=told
            )
            if finish is None:
                outcome = ticket.result(seconds_until(deadline))
            else:
                outcome = finish(ticket, info, message, deadline)
            if outcome.status is not Status.RETRYABLE or len(refusals) + 1 >= attempts_max:
                outcome.raise_for_conflict()
                return Kept(outcome, metrics, tuple(refusals))
            refusals.append(outcome.message)

    def _captured(self, work: Callable[[lance.LanceDataset], None]) -> Try:
        """Return a try whose transaction is what `work` commits."""
        from commitlog.adapters.lance_private import captured

        def attempt(info: TableInfo, deadline: float) -> tuple[Transaction, None] | None:
            path = materialize(self.runtime(), info, info.version)
            message, _ = captured(info.location, info.version, path, work)
            return None if message is None else (message, None)

        return attempt

    def _rewrite(
        self, options: Any, rewrite: RewriteGroups, info: TableInfo, deadline: float
    ) -> tuple[Transaction, Mapping[str, int]] | None:
        from lance.optimize import Compaction

        from commitlog.adapters import lance_private as private

        dataset = self.open(info.table_id, info.version)
        read = materialize(self.runtime(), info, info.version)
        state = private.state_at(info.location, read)
        stale = private.stale_fragments(state)
        advice = "Give options of pylance's compact_files"
        with refused("the table can't be compacted", "options", options, advice):
            planned = Compaction.plan(dataset, options).tasks
        tasks = planned
        if stale:
            tasks = [one for one in planned if stale.isdisjoint(private.fragments_of(one))]
        if len(tasks) < len(planned):
            logger.warning(
                "%s: fragments of a compaction that left its indices for later are left alone; "
                "create these indices again (replace=True), and they are merged",
                info.name,
            )
        if not tasks:
            return None
        if unmasked := private.unmasked_indices(state, tasks):
            return self._rewrite(options, rewrite, self._mask(info, unmasked, deadline), deadline)
        results = rewrite(info, dataset, tasks, deadline)
        count, first_id = private.new_fragment_count(results), -1
        if count:
            reserved = self._reserve(info, count, deadline)
            first_id = private.first_reserved_id(info.location, reserved, count)
        message, metrics = private.captured(
            info.location,
            info.version,
            read,
            lambda of: Compaction.commit(of, private.as_read_privately(of, results)),
            first_free_id=first_id,
        )
        if message is None:
            return None
        return in_row_order(message), {
            name: getattr(metrics, name)
            for name in ("fragments_removed", "fragments_added", "files_removed", "files_added")
        }

    def _commit_to(
        self,
        info: TableInfo,
        message: Transaction,
        *,
        transaction_id: str | None = None,
        **more: Any,
    ) -> Ticket:
        """Submit for this incarnation of the table: another may have the name by now."""
        from commitlog.client.commits.submission import lance_commit
        from commitlog.client.rows.lance_request import read_request

        encoded = message.SerializeToString(deterministic=True)
        request = read_request(encoded, read_version=None, transaction_id=transaction_id)
        operation = lance_commit(info, request)
        return self.submit(None, operation, transaction_id=request.transaction_id, **more)

    def _mask(
        self, info: TableInfo, indices: Sequence[IndexMetadata], deadline: float
    ) -> TableInfo:
        """Have indices leave out the rows that a compaction removes next."""
        from commitlog.adapters.lance_private import first_reserved_id, masked

        gone = first_reserved_id(info.location, self._reserve(info, 1, deadline), 1)
        ticket = self._commit_to(info, masked(indices, gone, info.version))
        ticket.result(seconds_until(deadline)).raise_for_conflict()
        return self.describe(info.table_id, fresh=True, readable=True)

    def _reserve(self, info: TableInfo, count: int, deadline: float) -> str:
        """Reserve fragment ids; return the path of the manifest that did."""
        reserve = Transaction(read_version=info.version, uuid=str(uuid.uuid4()))
        reserve.reserve_fragments.num_fragments = count
        ticket = self._commit_to(info, reserve)
        outcome = ticket.result(seconds_until(deadline)).raise_for_conflict()
        now = self.describe(info.table_id, fresh=True)
        return materialize(self.runtime(), now, outcome.version)


def in_row_order(rewrite: Transaction) -> Transaction:
    """Return a Rewrite whose writer vouches for the order of its rows."""
    rewrite.transaction_properties[ROW_ORDER] = ROW_ORDER_KEPT
    return rewrite


def too_late(info: TableInfo, timeout: float) -> Unavailable:
    """Return the error of work that took too long."""
    return Unavailable(
        f"the work on {info.name} took longer than {timeout:g} s and was cancelled; "
        "nothing was submitted. Raise the timeout, or do less at once "
        "(max_source_fragments of a compaction)"
    )


def _expirable(
    runtime: Runtime,
    info: TableInfo,
    older_than: timedelta | None,
    retain_versions: int | None,
    keep_milestones: bool,
) -> VersionRanges:
    from commitlog.core.catalogue.version_deletion import held_versions, merged, without

    if older_than is None and retain_versions is None:
        older_than = EXPIRE_AFTER
    if retain_versions is not None and retain_versions < 1:
        raise InvalidTransaction(
            f"retain_versions must be at least 1, not {retain_versions}",
            field="retain_versions",
            value=retain_versions,
            advice="The newest version is always kept",
        )
    last, now_ms = info.version - (retain_versions or 1), runtime.leader_time_ms(info.table_id)
    published = Published(info.location)
    if older_than is not None:
        last = min(last, published.last_before(now_ms / 1000 - older_than.total_seconds()))
    if last < 1:
        return ()
    held = held_versions(info.properties.items(), info.version, now_ms)
    named = referenced_versions(info.location)
    if keep_milestones:
        named |= published.milestones(now_ms / 1000)
    kept = merged(held, ((v, v) for v in named))
    return without(without([(1, last)], info.deleted), kept)
