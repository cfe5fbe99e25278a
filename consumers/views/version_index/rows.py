"""Rows of the version index: pure functions of a transaction, its outcome and what this recorded.

Every row follows from those alone: no clock, no state, no earlier rows. So an index that was
killed, restored or rebuilt holds the same rows as one that never stopped.

A transaction that an earlier commit answers has rows too, with the status `repeated` and without a
version: it was asked, and it changed nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

from commitlog.core.log.replica import Decided
from commitlog.model.limits import writers_time_us
from commitlog.model.operations import (
    AlterProperties,
    ApplyRows,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
    DeclareTable,
    DeleteTableVersions,
    IcebergChange,
    LanceCommit,
    RegisterTable,
)
from commitlog.model.records import (
    Expect,
    KeyAbsent,
    LeaderStarted,
    Malformed,
    Outcome,
    PredicateUnchanged,
    ProtocolVersion,
    Status,
    TableAbsent,
    Transaction,
)
from commitlog.model.table import format_table_id
from consumers.views.version_index.contents import Contents, Recordings, Row
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.operation_results import (
    REPEATED,
    Counts,
    DoneAppend,
    DoneOperation,
    Told,
    counts_of,
    what_of_rows,
)

MICROSECONDS_PER_MS = 1000
NOT_COUNTED = (None,) * len(Counts._fields)


def no_recordings(outcome: Outcome) -> dict[bytes, bytes]:
    """Find nothing: for outcomes that recorded nothing outside themselves."""
    return {}


RelationRows = defaultdict[str, list[Row]]
"""Rows by relation, in the columns' order of `schema`."""


def rows_of(
    told: Sequence[Told], recordings: Recordings = no_recordings, counting: Counting | None = None
) -> RelationRows:
    """Return the rows of decided transactions, in their order, and note what each one counts.

    Those of a `DoneAppend` are made elsewhere; see `appends.py`.
    """
    rows = RelationRows(list)
    counting = counting or Counting()
    counting.prepare(told)
    for decided, done in told:
        if isinstance(done, DoneAppend):
            counting.note(done)
            continue
        outcome = decided.outcome
        rows["transactions"].append(_transaction(decided, done))
        place = place_of(decided)
        for one in done:
            if one.iceberg is not None:
                rows["snapshots"].extend(_snapshots(decided, place, one))
            if one.result is not None:
                first = len(rows["fragment_changes"])
                _add_contents(rows, decided, place, one, recordings)
                counting.count(one, rows["fragment_changes"][first:])
            elif outcome.status is not Status.COMMITTED and isinstance(one.operation, LanceCommit):
                rows["refused_files"].extend(_refused_files(decided, place, one))
            rows["operations"].append(_operation(decided, place, one))
        record = decided.submitted.record
        if isinstance(record, Transaction) and record.expects:
            rows["expectations"].extend(_expectations(record, place, outcome))
        if outcome.conflict is not None:
            rows["collisions"].append(_collision(decided, place, done))
        for ordinal, failed in enumerate(outcome.failed_requirements):
            about = (
                format_table_id(failed.table),
                outcome.transaction_id,
                decided.submitted.principal,
            )
            row = (*place, ordinal, *about, failed.requirement, failed.actual)
            rows["failed_requirements"].append(row)
    return rows


def _add_contents(
    rows: RelationRows, decided: Decided, place: Row, one: DoneOperation, recordings: Recordings
) -> None:
    outcome = decided.outcome
    head = (*place, one.ordinal, one.table)
    if isinstance(
        one.operation,
        LanceCommit | CreateTableVersion | CreateTable | RegisterTable | IcebergChange,
    ):
        contents = Contents(place, one, outcome, recordings)
        rows["fragment_changes"].extend(contents.fragments())
        rows["field_changes"].extend(contents.fields())
        rows["index_changes"].extend(contents.indices())
        for scope, key, value in contents.settings():
            setting = (one.is_table, scope, outcome.transaction_id, key, value)
            rows["properties"].append((*head, *setting))
    if isinstance(one.operation, DeleteTableVersions):
        about = (decided.submitted.principal, outcome.transaction_id)
        for first, last in one.operation.ranges:
            rows["expiries"].append((*head, one.incarnation, first, last, *about))
    if isinstance(one.operation, ApplyRows):
        rows["applied_rows"].append((*head, *_applied(one.operation, outcome)))
    for key, value in _properties(one):
        setting = (one.is_table, "properties", outcome.transaction_id, key, value)
        rows["properties"].append((*head, *setting))
    if one.iceberg is not None:
        whose = (one.incarnation, outcome.transaction_id, decided.submitted.principal)
        for ref in one.iceberg.refs:
            rows["ref_changes"].append((*head, *whose, ref.name, ref.kind, ref.snapshot_id))


def _applied(operation: ApplyRows, outcome: Outcome) -> Row:
    table, done = operation.table, [one for one in operation.writes if not one.refused]
    made = (one.version for one in outcome.results if one.table == table and one.version)
    return (
        operation.incarnation,
        operation.after,
        operation.through,
        next(made, None),
        len(done),
        len(operation.writes) - len(done),
        sum(one.inserted for one in done),
        sum(one.updated for one in done),
        sum(one.deleted for one in done),
        outcome.transaction_id,
    )


def _read_version(one: DoneOperation) -> int | None:
    if isinstance(one.operation, LanceCommit):
        return one.operation.read_version
    if isinstance(one.operation, CreateTableVersion) and one.result:
        return one.result.read_version
    return None


def place_of(decided: Decided) -> Row:
    """Return what every row about a decided transaction begins with."""
    return (decided.submitted.partition, decided.outcome.sequence, _time(decided))


def _time(decided: Decided) -> int:
    return decided.outcome.time_ms * MICROSECONDS_PER_MS


def _transaction(decided: Decided, done: tuple[DoneOperation, ...]) -> Row:
    outcome, record = decided.outcome, decided.submitted.record
    known = record if isinstance(record, Transaction) else None
    application = known.application if known else None
    kind = "transaction" if known else "protocol"
    submitted_at = known.submitted_at_ms if known else 0
    return (
        decided.submitted.partition,
        outcome.sequence,
        _time(decided),
        str(outcome.status),
        str(outcome.code) or None,
        outcome.transaction_id,
        outcome.attempt,
        known.principal if known else "",
        "malformed" if isinstance(record, Malformed) else kind,
        [one.name for one in done] or _kind_of(record),
        [one.table for one in done],
        [one.version for one in done],
        outcome.message or None,
        outcome.answers,
        writers_time_us(submitted_at),
        application.application_id if application else None,
        application.sequence if application else None,
        (application.run or None) if application else None,
        json.dumps(dict(known.properties)) if known and known.properties else None,
        decided.submitted.offset,
        decided.answered_offset,
        outcome.epoch,
        outcome.node,
        outcome.payload_hash,
        outcome.hash,
    )


def _kind_of(record: object) -> list[str]:
    return [type(record).__name__] if isinstance(record, ProtocolVersion) else []


def _operation(decided: Decided, place: Row, one: DoneOperation) -> Row:
    outcome, result = decided.outcome, one.result
    refused = outcome.status is not Status.COMMITTED
    return (
        *place,
        one.ordinal,
        one.table,
        one.incarnation,
        one.name,
        one.status,
        str(outcome.code) or None,
        (outcome.message or None) if refused else what_of_rows(one.operation),
        decided.submitted.principal,
        outcome.transaction_id,
        _read_version(one),
        one.version,
        result.read_version if result and one.version else None,
        result.rebased_over if result else None,
        result.rebased if result else None,
        *(counts_of(one) or NOT_COUNTED),
        result.first_fragment_id if result and result.first_fragment_id >= 0 else None,
        result.first_row_id if result and result.first_row_id >= 0 else None,
        getattr(one.operation, "branch", "") or None,
        one.is_table,
        one.name_after,
        (result.location if result else getattr(one.operation, "location", "")) or None,
        one.snapshot_id,
        (result.metadata_location or None) if result else None,
        decided.answered_offset,
    )


def _collision(decided: Decided, place: Row, done: tuple[DoneOperation, ...]) -> Row:
    outcome, conflict = decided.outcome, decided.outcome.conflict
    assert conflict is not None
    table = format_table_id(conflict.table)
    loser = next((one for one in done if one.table == table), done[0] if done else None)
    lance = loser.operation if loser and isinstance(loser.operation, LanceCommit) else None
    return (
        *place,
        table,
        loser.incarnation if loser and loser.table == table else None,
        outcome.transaction_id,
        decided.submitted.principal,
        loser.name if loser else None,
        lance.read_version if lance else None,
        str(outcome.status),
        conflict.rule,
        list(conflict.fragments),
        list(conflict.keys),
        conflict.transaction_id,
        conflict.version,
        conflict.operation,
        conflict.advice or None,
        outcome.message or None,
    )


def _refused_files(decided: Decided, place: Row, one: DoneOperation) -> Iterator[Row]:
    assert isinstance(one.operation, LanceCommit)
    about = (one.ordinal, one.table, one.incarnation, one.status, decided.outcome.transaction_id)
    for path in one.operation.summary.data_files:
        yield (*place, *about, path)


def _snapshots(decided: Decided, place: Row, one: DoneOperation) -> Iterator[Row]:
    assert one.iceberg is not None
    about = (
        one.incarnation,
        one.status,
        decided.outcome.transaction_id,
        decided.submitted.principal,
    )
    for made in one.iceberg.snapshots:
        snapshot = (made.snapshot_id, made.parent_id, made.sequence_number, made.operation)
        rest = (made.manifest_list or None, made.summary)
        yield (*place, one.ordinal, one.table, *about, *snapshot, *rest)


def _properties(one: DoneOperation) -> Iterator[tuple[str, str | None]]:
    match one.operation:
        case AlterProperties(upserts=upserts, removals=removals):
            yield from upserts
            yield from ((key, None) for key in removals)
        case (
            CreateTable(properties=properties)
            | DeclareTable(properties=properties)
            | RegisterTable(properties=properties)
            | CreateNamespace(properties=properties)
        ):
            yield from properties
    if one.iceberg is not None:
        yield from one.iceberg.properties


def _expectations(record: Transaction, place: Row, outcome: Outcome) -> Iterator[Row]:
    status = REPEATED if outcome.answers is not None else str(outcome.status)
    for ordinal, expect in enumerate(record.expects):
        head = (ordinal, outcome.transaction_id, status, type(expect).__name__)
        yield (*place, *head, format_table_id(expect.table), *_expected(expect))


def _expected(expect: Expect) -> tuple[int | None, str | None]:
    match expect:
        case TableAbsent():
            return None, None
        case KeyAbsent():
            return expect.since_version, expect.key_hash.hex()
        case PredicateUnchanged():
            return expect.version, expect.predicate
        case _:
            return expect.version, None


def leader_row(partition: int, leader: LeaderStarted, offset: int) -> Row:
    """Return the row of a term."""
    return (
        partition,
        leader.epoch,
        leader.node,
        leader.leader_id,
        leader.sequence,
        leader.started_at_ms * MICROSECONDS_PER_MS,
        leader.version,
        offset,
        leader.previous_hash,
        leader.state_digest,
    )
