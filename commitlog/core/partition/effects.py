"""What a committed outcome changes in the state: versions, tables, answers to applications."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from commitlog.core.catalogue.iceberg_commits import committed_tables
from commitlog.core.conflicts.history import History
from commitlog.core.decisions import Change, rejected
from commitlog.core.draft import Parsed
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.requests import registers_read_only
from commitlog.core.iceberg.updates import REGISTER
from commitlog.core.lance.versions import (
    finalize,
    plain_write_set,
    realize,
    recorded,
    write_set_of_version,
)
from commitlog.core.log.applications import ApplicationAnswer, ApplicationLog
from commitlog.core.manifest.manifest_state import ManifestDelta, apply_delta
from commitlog.core.partition.state import PartitionState
from commitlog.core.rows.deciding import dropped_columns
from commitlog.core.tables.creation import empty_state
from commitlog.core.tables.lance_tables import Table
from commitlog.core.tables.row_writes import RowQueue
from commitlog.errors import UnsupportedFormat
from commitlog.model.limits import (
    ICEBERG_PLACES_SINCE,
    ICEBERG_READ_ONLY_SINCE,
    LANCE_RELEASE_LENGTH_MAX,
    LANCE_RELEASE_SINCE,
    PROTOCOL_SUPPORTED,
    ROWS_COLUMNS_SINCE,
    ROWS_SINCE,
    Rules,
)
from commitlog.model.operations import (
    ApplyRows,
    CreateTableVersion,
    IcebergChange,
    LanceCommit,
    WriteRows,
)
from commitlog.model.records import (
    Application,
    Code,
    Malformed,
    OperationResult,
    Outcome,
    ProtocolVersion,
    Submitted,
    Transaction,
)
from commitlog.model.table import TableId

_SECOND_SCHEMAS_SINCE = max(LANCE_RELEASE_SINCE, ROWS_SINCE)
_RELEASE = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+[0-9A-Za-z.+-]*")
E_TAGS_KEPT = 1000
"""E_tags that clients gave are kept for this many versions at least."""


def carry_out(
    machine: PartitionState,
    record: Transaction,
    parsed: Sequence[Parsed | None],
    outcome: Outcome,
    changes: tuple[Change, ...] | None,
    recordings: Mapping[bytes, bytes],
) -> tuple[Change, ...]:
    """Apply a committed outcome to the state; return its changes."""
    known = {(c.table, c.incarnation, c.version): c for c in changes or () if c.delta is not None}
    done: list[Change] = []
    iceberg: Callable[[TableId], IcebergTable] | None = None
    each = zip(record.operations, parsed, outcome.results, strict=True)
    for index, (operation, message, result) in enumerate(each):
        if isinstance(operation, IcebergChange):
            if iceberg is None:
                iceberg = committed_tables(
                    machine.catalogue, record, outcome, changes, machine.rules, recordings
                )
            after = iceberg(operation.table)
            is_registered = (
                machine.rules.protocol >= ICEBERG_PLACES_SINCE and REGISTER in operation.updates
            )
            is_second = machine.rules.protocol >= ICEBERG_READ_ONLY_SINCE
            done += machine.iceberg.put(
                operation.table,
                after,
                outcome.sequence,
                is_registered=is_registered,
                is_read_only=is_second and registers_read_only(operation),
            )
            continue
        if isinstance(operation, WriteRows | ApplyRows):
            _carry_out_rows(machine, operation, index, outcome)
            continue
        change = known.get((result.table, result.incarnation, result.version))
        if message is None:
            delta = partial(_delta_of, change, recordings)
            done += machine.catalogue.apply(operation, result, outcome, delta, machine.rules)
            continue
        assert isinstance(operation, LanceCommit | CreateTableVersion)
        table = machine.tables[operation.table]
        if table.manifest is None:
            table.manifest = empty_state()
            table.history = History(result.version - 1)
        if change is None:
            release = machine.rules.lance_release
            change = realize(
                table, operation, message, result, outcome.time_ms, recordings, release
            )
        _advance(machine, table, operation, message, result, change, outcome)
        done.append(change)
    if record.application is not None:
        _note_application(machine, record.application, outcome)
    return tuple(done)


def _advance(
    machine: PartitionState,
    table: Table,
    operation: LanceCommit | CreateTableVersion,
    parsed: Parsed,
    result: OperationResult,
    change: Change,
    outcome: Outcome,
) -> None:
    state, delta = table.manifest, change.delta
    assert state is not None
    assert delta is not None
    write_set = plain_write_set(table, operation, parsed)
    if write_set is None:
        final = parsed.transaction
        if isinstance(operation, LanceCommit) and result.images:
            final = finalize(final, result.read_version, result.images)
        write_set = write_set_of_version(table, operation, parsed.kind, final, state)
    before = state.header
    apply_delta(state, delta)
    if delta.header is not None and table.rows is not None and table.rows.pending:
        table.rows.drop_columns(dropped_columns(before.fields, state.header.fields))
    table.history.record(outcome.transaction_id, write_set)
    table.history.prune(machine.rules.history_versions)
    if change.noted is not None:
        table.noted[result.version] = change.noted
        _forget_e_tags(table)
    table.changed_at = outcome.sequence


def _carry_out_rows(
    machine: PartitionState, operation: WriteRows | ApplyRows, index: int, outcome: Outcome
) -> None:
    table = machine.tables[operation.table]
    table.rows = table.rows or RowQueue()
    sequence, offset = outcome.sequence, outcome.transaction_offset
    if isinstance(operation, WriteRows):
        with_columns = machine.rules.protocol >= ROWS_COLUMNS_SINCE
        table.rows.accept(sequence, offset, index, operation, with_columns=with_columns)
    else:
        made = (r.version for r in outcome.results if r.incarnation == table.incarnation)
        table.rows.apply(operation, sequence, offset, max(made) or table.version)
    table.changed_at = sequence


def _forget_e_tags(table: Table) -> None:
    """Forget the e_tags of older versions that have nothing else noted; alike in every process."""
    if table.version % E_TAGS_KEPT:
        return
    oldest = table.version - E_TAGS_KEPT
    for version in [v for v, said in table.noted.items() if v < oldest and not said.metadata]:
        del table.noted[version]


def _note_application(machine: PartitionState, application: Application, outcome: Outcome) -> None:
    for result in outcome.results:
        table = machine.tables.get(result.table)
        if table is None or not (result.version or result.operation == WriteRows.__name__):
            continue
        log = table.applications.setdefault(application.application_id, ApplicationLog())
        answer = ApplicationAnswer(outcome.sequence, result.version, result.operation)
        log.note(application.sequence, application.run, answer)
        table.changed_at = outcome.sequence


def _delta_of(
    change: Change | None, recordings: Mapping[bytes, bytes], result: OperationResult
) -> ManifestDelta:
    if change is not None and change.delta is not None:
        return change.delta
    assert result.delta is not None
    return ManifestDelta.from_bytes(recorded(result.delta, recordings))


def as_read(rules: Rules, submitted: Submitted) -> Submitted:
    """Return a record as all programs read it under these rules."""
    record = submitted.record
    if rules.protocol >= _SECOND_SCHEMAS_SINCE or isinstance(record, Malformed):
        return submitted
    return replace(submitted, record=record.unread) if record.unread is not None else submitted


def check_supported(protocol: int) -> None:
    """Raise UnsupportedFormat if a log is decided by a protocol that this program doesn't know."""
    if protocol > PROTOCOL_SUPPORTED:
        raise UnsupportedFormat(
            f"the log uses protocol {protocol}, but this program knows only "
            f"{PROTOCOL_SUPPORTED}; upgrade the program"
        )


def rules_after(rules: Rules, record: ProtocolVersion, sequence: int) -> Rules:
    """Return the rules that a ProtocolVersion puts in force; a newer one stops this program."""
    check_supported(record.protocol)
    numbers = (record.id_horizon_ms, record.history_versions, record.operations_max)
    if record.protocol < rules.protocol or min(numbers) < 1:
        raise rejected(
            Code.INVALID_OPERATION,
            "rules_cannot_follow",
            protocol=record.protocol,
            limits=numbers,
            current=rules.protocol,
        )
    release, releases = record.lance_release, rules.lance_releases
    is_name = _RELEASE.fullmatch(release) and len(release) <= LANCE_RELEASE_LENGTH_MAX
    if release and not is_name:
        raise rejected(Code.INVALID_OPERATION, "lance_release_invalid", release=release)
    if release and release != rules.lance_release:
        releases = (*releases, (sequence, release))
    return Rules(
        protocol=record.protocol,
        id_horizon_ms=record.id_horizon_ms,
        history_versions=record.history_versions,
        operations_max=record.operations_max,
        lance_releases=releases,
    )
