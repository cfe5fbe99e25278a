"""What a transaction expects of the state, and that one partition decides all of it."""

from __future__ import annotations

from typing import Any

from commitlog.core.conflicts.history import History
from commitlog.core.decisions import Refused, rejected
from commitlog.core.operations.registry import OPERATIONS
from commitlog.core.partition.state import PartitionState
from commitlog.core.refusals import winner_of
from commitlog.core.tables.lance_tables import Table, no_such_table
from commitlog.model.operations import RenameTable, deciding_name, target
from commitlog.model.reasons import Phrase
from commitlog.model.records import (
    Code,
    KeyAbsent,
    PredicateUnchanged,
    Status,
    TableAbsent,
    TableVersionIs,
    Transaction,
)
from commitlog.model.table import DomainMap, TableId, format_table_id

KEEPS_ROWS = frozenset(operation.name for operation in OPERATIONS if operation.keeps_rows)
"""Operations after which every row reads as before."""


def check_domains(domains: DomainMap, partition: int, record: Transaction) -> None:
    """Refuse a record that names tables which another partition decides."""
    if not domains.partitions and partition == 0:
        return
    names: dict[TableId, int] = {}
    for operation in record.operations:
        names[target(operation)] = domains.partition(deciding_name(operation))
        if isinstance(operation, RenameTable):
            names[operation.new_table] = domains.partition(operation.new_table)
    names.update((e.table, domains.partition(e.table)) for e in record.expects)
    found = list(names.items())
    for name, of_name in found:
        if of_name != found[0][1]:
            raise rejected(
                Code.DOMAIN_MISMATCH,
                "two_partitions",
                table=format_table_id(found[0][0]),
                partition=found[0][1],
                other=format_table_id(name),
                other_partition=of_name,
            )
        if of_name != partition:
            raise rejected(
                Code.DOMAIN_MISMATCH,
                "wrong_partition",
                table=format_table_id(name),
                decided_by=of_name,
                partition=partition,
            )


def check_expects(machine: PartitionState, record: Transaction) -> None:
    """Reject a transaction whose expectations do not hold."""
    for expect in record.expects:
        table = machine.tables.get(expect.table)
        name = format_table_id(expect.table)
        if isinstance(expect, TableAbsent):
            if table is not None or expect.table in machine.iceberg.tables:
                raise rejected(Code.EXPECTATION_FAILED, "table_exists_unexpectedly", table=name)
            continue
        if table is None:
            raise no_such_table(expect.table)
        if isinstance(expect, TableVersionIs):
            if table.version != expect.version:
                expected = {"expected": expect.version}
                raise _failed(table, table.version, "expected_version_differs", **expected)
        elif isinstance(expect, KeyAbsent):
            _check_window(machine, table, expect.since_version)
            _check_key(table, expect)
        elif isinstance(expect, PredicateUnchanged):
            _check_window(machine, table, expect.version)
            version = _first_change_of_rows(table.history, expect.version)
            if version:
                changed = {"version": version, "predicate": expect.predicate}
                raise _failed(table, version, "rows_may_have_changed", **changed)


def _check_window(machine: PartitionState, table: Table, since: int) -> None:
    oldest = max(table.history.floor, table.version - machine.rules.history_versions)
    if since > table.version:
        raise rejected(
            Code.FUTURE_READ_VERSION,
            "expected_version_in_future",
            expected=since,
            table=format_table_id(table.table_id),
            head=table.version,
        )
    if since < oldest:
        raise _failed(table, table.version, "expected_version_pruned", oldest=oldest)


def _check_key(table: Table, expect: KeyAbsent) -> None:
    """Refuse a key that came since a version, or may have come."""
    history, since = table.history, expect.since_version
    found = [
        history.first("Append.key", expect.key_hash, since),
        history.first("Update.key", expect.key_hash, since),
        history.first("Update.keys_unknown", "", since),
        *(history.first_of_kind(kind, since) for kind in ("Overwrite", "Merge", "Restore")),
    ]
    # Appends of unknown keys leave no trace but their kind until one with keys is there.
    appended = history.first_of_kind("Append", since)
    if appended != history.first("Append.upsert", "", since):
        found.append(history.first("Append.keys_unknown", "", since) or appended)
    version = min((v for v in found if v), default=0)
    if version:
        came = {"key": expect.key_hash.hex(), "version": version}
        raise _failed(table, version, "key_may_have_come", **came)


def _first_change_of_rows(history: History, after: int) -> int:
    kinds = [kind for kind in history.kinds if kind not in KEEPS_ROWS]
    found = [history.first_of_kind(kind, after) for kind in kinds]
    return min((version for version in found if version), default=0)


def _failed(table: Table, winner: int, reason: str, **arguments: Any) -> Refused:
    known = {"table": format_table_id(table.table_id), "head": table.version}
    conflict = winner_of(table, table.history, winner, "expectation_failed")
    phrase = Phrase(reason, {**known, **arguments})
    return Refused(Status.RETRYABLE, Code.EXPECTATION_FAILED, phrase, conflict)
