"""Decides the Iceberg part of a transaction over the tables as they stand: all or nothing.

Checked in this order, over all tables before the next: the request itself (400), whether tables
and namespaces exist (404), requirements (409, all that fail), then the updates, whose own
refusals are 400, or 409 for values that the table has moved past. The same call with the same
arguments gives the same answer in every process: a follower applies an outcome by it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from commitlog.core.iceberg.actions import MetadataUpdate
from commitlog.core.iceberg.errors import Invalid, Stale
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import Registered
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.rebase import Fits, Plan
from commitlog.core.iceberg.rebase import plan as plan_rebase
from commitlog.core.iceberg.requests import TableChange, check_distinct, parse_change
from commitlog.core.iceberg.requirements import Requirement, unmet
from commitlog.core.iceberg.updates import apply_updates
from commitlog.model.limits import ICEBERG_NUMBERS_SINCE, PROTOCOL_SUPPORTED, RECORD_BYTES_MAX
from commitlog.model.operations import IcebergChange
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code, Status
from commitlog.model.table import TableId
from commitlog.words import say


@dataclass(frozen=True, slots=True)
class UnmetRequirement:
    """A requirement that didn't hold, and what the table has instead."""

    table: TableId
    requirement: Mapping[str, Any]
    actual: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class IcebergRefused:
    """Why nothing of the transaction is applied."""

    status: Status
    code: Code
    phrase: Phrase
    failed: tuple[UnmetRequirement, ...] = ()

    @property
    def message(self) -> str:
        """Why, for people."""
        return say(self.phrase)


@dataclass(frozen=True, slots=True)
class IcebergResult:
    """What became of one table."""

    table: TableId
    before: IcebergTable | None
    after: IcebergTable

    is_registered: bool = False
    """Whether `after` is somebody else's metadata file, taken over as it is."""
    plan: Plan | None = None
    """How it was rebased, if it was."""
    updates: tuple[MetadataUpdate, ...] = ()
    """What was applied."""

    @property
    def is_changed(self) -> bool:
        """Return True if the table has another metadata file than before."""
        return self.after is not self.before

    @property
    def writes_file(self) -> bool:
        """Return True if `after.encode()` must be written to `after.metadata_location`."""
        return self.is_changed and not self.is_registered


def decide_iceberg(
    tables: Mapping[TableId, IcebergTable],
    operations: Sequence[IcebergChange],
    *,
    time_ms: int,
    transaction_id: str,
    namespaces: Container[TableId],
    others: Mapping[TableId, str],
    fits: Fits | None = None,
    protocol: int = PROTOCOL_SUPPORTED,
    position: int = 0,
    updates_max: int = RECORD_BYTES_MAX,
    registered: Registered | None = None,
) -> tuple[IcebergResult, ...] | IcebergRefused:
    """Decide all Iceberg changes of one transaction; changes nothing.

    `others` are the tables of other formats, by name, with their uuids: they hold their names, but
    no Iceberg change can touch them. `fits` says whether manifest lists can be rewritten where
    snapshots are rebased; without it, none is. `protocol` is the log's.
    `position` is the outcome's sequence, which the metadata then says; 0: it doesn't.
    `registered` reads metadata that a change refers to; without it, changes hold theirs.
    """
    try:
        parse = partial(
            parse_change, updates_max=updates_max, registered=registered, protocol=protocol
        )
        changes = [parse(operation) for operation in operations]
        check_distinct(changes)
        for change in changes:
            if refused := _missing(change, tables, namespaces, others):
                return refused
        unmet_ones = [_unmet(change, tables, others) for change in changes]
        plans, problem = _planned(changes, unmet_ones, tables, transaction_id, fits, protocol)
        if any(failed and plan is None for failed, plan in zip(unmet_ones, plans, strict=True)):
            return _failed(list(chain.from_iterable(unmet_ones)), problem)
        if problem is not None and protocol >= ICEBERG_NUMBERS_SINCE:
            raise Stale("iceberg_numbers_taken", problem=problem)
        results = []
        for change, plan in zip(changes, plans, strict=True):
            before, applied = tables.get(change.table), plan.change if plan else change
            after = _applied(applied, before, time_ms, transaction_id, position, protocol)
            results.append(
                IcebergResult(
                    change.table,
                    before,
                    after,
                    is_registered=change.is_register,
                    plan=plan,
                    updates=applied.updates,
                )
            )
        return tuple(results)
    except Invalid as error:
        return IcebergRefused(Status.REJECTED, Code.INVALID_OPERATION, error.phrase)
    except Stale as error:
        return IcebergRefused(Status.RETRYABLE, Code.EXPECTATION_FAILED, error.phrase)


def _applied(
    change: TableChange,
    before: IcebergTable | None,
    time_ms: int,
    transaction_id: str,
    position: int,
    protocol: int,
) -> IcebergTable:
    name = ".".join(change.table)
    try:
        return apply_updates(
            before,
            change.updates,
            time_ms=time_ms,
            # The metadata file of each table of a transaction has a name of its own.
            transaction_id="\x1f".join((transaction_id, *change.table)),
            position=position,
            protocol=protocol,
        )
    except Invalid as error:
        raise Invalid("iceberg_in_table", table=name, problem=error.phrase) from None
    except Stale as error:
        raise Stale("iceberg_in_table", table=name, problem=error.phrase) from None


def _missing(
    change: TableChange,
    tables: Mapping[TableId, IcebergTable],
    namespaces: Container[TableId],
    others: Mapping[TableId, str],
) -> IcebergRefused | None:
    name, parent = ".".join(change.table), change.table[:-1]
    if not change.is_create and change.table not in tables:
        is_other = change.table in others
        reason = "iceberg_not_an_iceberg_table" if is_other else "iceberg_no_such_table"
        phrase = Phrase(reason, {"table": name})
        return IcebergRefused(Status.REJECTED, Code.NO_SUCH_TABLE, phrase)
    if change.is_create and parent and parent not in namespaces:
        return IcebergRefused(
            Status.REJECTED,
            Code.NO_SUCH_NAMESPACE,
            Phrase("iceberg_no_such_namespace", {"namespace": ".".join(parent)}),
        )
    return None


def _unmet(
    change: TableChange, tables: Mapping[TableId, IcebergTable], others: Mapping[TableId, str]
) -> list[tuple[Requirement, UnmetRequirement]]:
    found, is_create = [], change.is_create
    for requirement in change.requirements:
        if is_create and change.table in others:
            actual: Mapping[str, Any] | None = {"uuid": others[change.table]}
        else:
            actual = unmet(requirement, tables.get(change.table))
        if actual is not None:
            failed = UnmetRequirement(change.table, requirement.sent, actual)
            found.append((requirement, failed))
    return found


def _planned(
    changes: Sequence[TableChange],
    unmet_ones: Sequence[Sequence[tuple[Requirement, UnmetRequirement]]],
    tables: Mapping[TableId, IcebergTable],
    transaction_id: str,
    fits: Fits | None,
    protocol: int,
) -> tuple[Sequence[Plan | None], Phrase | None]:
    """Return how each change is rebased, or why none is; None where that is no matter of it."""
    nothing: list[Plan | None] = [None] * len(changes)
    if fits is None:
        return nothing, None
    plans = list(nothing)
    for number, (change, failed) in enumerate(zip(changes, unmet_ones, strict=True)):
        table = tables.get(change.table)
        if table is None:
            continue
        named = "\x1f".join((transaction_id, *change.table))
        unmet_here = [requirement for requirement, _ in failed]
        planned = plan_rebase(change, table, unmet_here, named, protocol=protocol)
        is_in_question = failed or (planned is not None and protocol >= ICEBERG_NUMBERS_SINCE)
        if is_in_question and not isinstance(planned, Plan):
            return nothing, planned
        plans[number] = planned if isinstance(planned, Plan) else None
    known = {c.table: plan for c, plan in zip(changes, plans, strict=True) if plan is not None}
    problem = fits(known) if known else None
    return (nothing, problem) if problem is not None else (plans, None)


def _failed(
    failed: Sequence[tuple[Requirement, UnmetRequirement]], problem: Phrase | None
) -> IcebergRefused:
    names = dict.fromkeys(".".join(item.table) for _, item in failed)
    reason = "iceberg_requirements_failed" if len(names) > 1 else "iceberg_requirement_failed"
    phrase = Phrase(reason, {"tables": list(names)})
    if problem is not None:
        phrase = Phrase("iceberg_not_rebased", {"failed": phrase, "problem": problem})
    return IcebergRefused(
        Status.RETRYABLE, Code.EXPECTATION_FAILED, phrase, tuple(item for _, item in failed)
    )


def encode_state(table: IcebergTable) -> bytes:
    """Return what a checkpoint keeps of a table."""
    return dump_json(table.metadata_location).encode("ascii") + b"\n" + table.to_bytes()


def state_digest(table: IcebergTable) -> bytes:
    """Return a digest of all that is known of a table."""
    return hashlib.sha256(encode_state(table)).digest()
