"""Decides what a record asks of Iceberg tables, together with the rest of the record.

All Iceberg changes of a record are decided at the first of them, against the tables as the
operations before it left them; a follower comes to the same tables by `committed_tables`. The
metadata file of each changed table is written before the outcome, so it can be read as soon as
the commit is known; its name follows from the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from commitlog.core.catalogue.catalogue_state import Catalogue
from commitlog.core.catalogue.iceberg_lists import ListRebases
from commitlog.core.catalogue.iceberg_places import (
    check_alone,
    check_free,
    check_named,
    check_writable,
    checked_place,
)
from commitlog.core.catalogue.iceberg_references import (
    check_values,
    look_at_references,
    recorded_files,
    registered_in,
)
from commitlog.core.decisions import Change, ChangeKind, FileToWrite, Refused, rejected
from commitlog.core.draft import Draft
from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, decide_iceberg
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.iceberg.views import IcebergView, decide_views, is_view_change
from commitlog.core.lance.versions import record
from commitlog.core.tables.iceberg_tables import iceberg_change
from commitlog.core.tables.lance_tables import Place, normalize_location
from commitlog.errors import CorruptLog
from commitlog.model.limits import (
    ICEBERG_BOUNDS_SINCE,
    ICEBERG_LOOKS_TOGETHER_SINCE,
    ICEBERG_POSITION_SINCE,
    ICEBERG_REBASE_SINCE,
    ICEBERG_REFERENCES_SINCE,
    ICEBERG_UPDATES_MAX,
    ICEBERG_VIEWS_SINCE,
    RECORD_BYTES_MAX,
    Rules,
)
from commitlog.model.operations import (
    DeregisterTable,
    DropTable,
    IcebergChange,
    Operation,
    RenameTable,
    operation_name,
)
from commitlog.model.records import Code, FailedRequirement, OperationResult, Outcome, Transaction
from commitlog.model.table import TableId, format_table_id


def decide_change(draft: Draft, operation: IcebergChange, root: str) -> None:
    """Decide one change; the first one of a record decides them all."""
    if draft.iceberg_results is None:
        draft.iceberg_results = _decide_all(draft, root)
    result = draft.iceberg_results[operation.table]
    after = result.after
    made = OperationResult(
        operation.table,
        after.uuid,
        "IcebergView" if isinstance(after, IcebergView) else "IcebergChange",
        location=after.location,
        metadata_location=after.metadata_location,
        snapshot_id=-1 if after.current_snapshot_id is None else after.current_snapshot_id,
    )
    kept = draft.iceberg_deltas.get(operation.table)
    if kept is not None:
        made = replace(made, delta=record(draft, kept))
    if result.plan is not None:
        made = replace(made, rebased=True, rebased_over=result.plan.overtaken)
    draft.results.append(made)
    if result.is_changed:
        draft.changes.append(iceberg_change(operation.table, ChangeKind.ICEBERG, after))


def _decided(draft: Draft, root: str) -> tuple[IcebergResult, ...]:
    """Return what becomes of each table and view that the record changes, or refuse it."""
    changes = [o for o in draft.transaction.operations if isinstance(o, IcebergChange)]
    operations, of_views = apart(changes, draft.rules)
    names = {operation.table for operation in operations}
    lists = ListRebases(draft, root) if draft.rules.protocol >= ICEBERG_REBASE_SINCE else None
    files: dict[TableId, bytes] | None = None
    if draft.rules.protocol >= ICEBERG_BOUNDS_SINCE:
        check_values(changes)
    if draft.rules.protocol >= ICEBERG_REFERENCES_SINCE:
        files = look_at_references(draft, operations, root)
    namespaces = {one.table[:-1] for one in changes if draft.namespace(one.table[:-1]) is not None}
    standing = {
        one.table: found for one in changes if (found := draft.iceberg(one.table)) is not None
    }
    others = {
        one.table: view.table.incarnation
        for one in changes
        if (view := draft.find(one.table)) is not None
    }
    tables, views = kinds_of(standing)
    decided = decide_iceberg(
        tables,
        operations,
        time_ms=draft.time_ms,
        transaction_id=draft.transaction.transaction_id,
        namespaces=namespaces,
        others={**others, **{name: view.uuid for name, view in views.items()}},
        fits=lists.fits if lists is not None else None,
        protocol=draft.rules.protocol,
        position=position_said(draft.rules, draft.sequence),
        updates_max=(
            ICEBERG_UPDATES_MAX
            if draft.rules.protocol >= ICEBERG_BOUNDS_SINCE
            else RECORD_BYTES_MAX
        ),
        registered=registered_in(operations, files) if files is not None else None,
    )
    if isinstance(decided, IcebergRefused):
        raise _refused(decided)
    check_writable(draft, operations, decided)
    check_named(draft, decided, root)
    made = decide_views(
        views,
        of_views,
        time_ms=draft.time_ms,
        transaction_id=draft.transaction.transaction_id,
        namespaces=namespaces,
        others={**others, **{name: table.uuid for name, table in tables.items()}},
        position=draft.sequence,
        taken=names,
    )
    if isinstance(made, IcebergRefused):
        raise _refused(made)
    draft.iceberg_deltas = {**(files or {}), **(lists.recorded if lists is not None else {})}
    return (*decided, *made)


def _decide_all(draft: Draft, root: str) -> dict[TableId, IcebergResult]:
    decided = _decided(draft, root)
    results: dict[TableId, IcebergResult] = {}
    new_files: list[tuple[TableId, str]] = []
    for result in decided:
        results[result.table] = result
        if not result.is_changed:
            continue
        table_id, after = result.table, result.after
        if table_id in draft.read_only_made:
            for place in (after.location, after.metadata_location):
                checked_place(draft, table_id, place, root, is_shared=True)
            file = ""
        elif _is_elsewhere(result):
            place = checked_place(draft, table_id, after.location, root)
            file = checked_place(draft, table_id, after.metadata_location, root)
            check_alone(draft, result, (place, file))
            if result.writes_file:
                new_files.append((table_id, file.removeprefix(f"{root}/")))
                if draft.rules.protocol < ICEBERG_LOOKS_TOGETHER_SINCE:
                    check_free(draft, root, new_files[-1:])
            draft.take_for_iceberg(place, Place(table_id, after.uuid, is_live=True))
        else:
            file = normalize_location(after.metadata_location)
        if result.writes_file:
            draft.files.append(FileToWrite(root, file.removeprefix(f"{root}/"), after.encode()))
        draft.iceberg_views[table_id] = after
    if draft.rules.protocol >= ICEBERG_LOOKS_TOGETHER_SINCE:
        check_free(draft, root, new_files)
    return results


def apart(
    changes: Sequence[IcebergChange], rules: Rules
) -> tuple[list[IcebergChange], list[IcebergChange]]:
    """Return a record's changes of tables, and those of views."""
    if rules.protocol < ICEBERG_VIEWS_SINCE:
        return list(changes), []
    told = [(one, is_view_change(one)) for one in changes]
    return [one for one, is_view in told if not is_view], [one for one, is_view in told if is_view]


def kinds_of(
    standing: Mapping[TableId, IcebergTable],
) -> tuple[dict[TableId, IcebergTable], dict[TableId, IcebergView]]:
    """Return the tables and the views among what has names."""
    views = {name: one for name, one in standing.items() if isinstance(one, IcebergView)}
    return {name: one for name, one in standing.items() if name not in views}, views


def position_said(rules: Rules, sequence: int) -> int:
    """Return what metadata says of the position that commits it; 0: nothing."""
    return sequence if rules.protocol >= ICEBERG_POSITION_SINCE else 0


def _refused(decided: IcebergRefused) -> Refused:
    refusal = Refused(decided.status, decided.code, decided.phrase)
    refusal.failed_requirements = tuple(
        FailedRequirement(f.table, dump_json(dict(f.requirement)), dump_json(dict(f.actual)))
        for f in decided.failed
    )
    refusal.is_of_all = True
    return refusal


def _is_elsewhere(result: IcebergResult) -> bool:
    """Return True if metadata comes to be where the log hasn't put this table's before.

    Where it did, in the table's own location, nothing but Iceberg tables ever gets a place.
    """
    before, after = result.before, result.after
    if before is None or before.location != after.location:
        return True
    folder = after.metadata_location.rpartition("/")[0]
    is_inside = folder.startswith(f"{after.location}/")
    return not is_inside or before.metadata_location.rpartition("/")[0] != folder


def decide_catalogue(draft: Draft, operation: Operation) -> bool:
    """Decide an operation of the catalogue if it is about an Iceberg table; say whether it was."""
    if isinstance(operation, DropTable | DeregisterTable):
        table = draft.iceberg(operation.table)
        if table is None:
            return False
        if operation.incarnation and operation.incarnation != table.uuid:
            raise rejected(
                Code.TABLE_REPLACED,
                "iceberg_table_replaced",
                table=format_table_id(operation.table),
                uuid=table.uuid,
                expected=operation.incarnation,
            )
        draft.results.append(end_iceberg(draft, operation.table, operation))
        return True
    if isinstance(operation, RenameTable):
        table = draft.iceberg(operation.table)
        if table is not None:
            _decide_rename(draft, operation, table)
        return table is not None
    return False


def end_iceberg(draft: Draft, table_id: TableId, operation: Operation) -> OperationResult:
    """Forget a table in the draft; return the result of the operation that ends it."""
    table = draft.iceberg(table_id)
    assert table is not None
    is_drop = not isinstance(operation, DeregisterTable) and not draft.is_read_only(table_id)
    kind = ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED
    result = _result(table_id, table, operation)
    if isinstance(operation, DropTable) and not is_drop:
        # A second name has no files of its own.
        result = replace(result, operation=DeregisterTable.__name__)
    draft.changes.append(iceberg_change(table_id, kind, table))
    draft.iceberg_views[table_id] = None
    return result


def _decide_rename(draft: Draft, operation: RenameTable, table: IcebergTable) -> None:
    new = operation.new_table
    if draft.is_taken(new):
        raise rejected(Code.TABLE_EXISTS, "table_exists", table=format_table_id(new))
    if not draft.is_single:
        raise rejected(Code.SPLIT_TRANSACTION, "rename_not_alone")
    if new[:-1] and draft.namespace(new[:-1]) is None:
        raise rejected(
            Code.NO_SUCH_NAMESPACE, "no_such_namespace", namespace=format_table_id(new[:-1])
        )
    draft.results.append(_result(new, table, operation))
    draft.changes.append(iceberg_change(new, ChangeKind.RENAMED, table))


def _result(table_id: TableId, table: IcebergTable, operation: Operation) -> OperationResult:
    return OperationResult(
        table_id,
        table.uuid,
        operation_name(operation),
        location=table.location,
        metadata_location=table.metadata_location,
    )


def committed_tables(
    catalogue: Catalogue,
    record: Transaction,
    outcome: Outcome,
    changes: tuple[Change, ...] | None,
    rules: Rules,
    recordings: Mapping[bytes, bytes],
) -> Callable[[TableId], IcebergTable]:
    """Return where a record's Iceberg tables are found as it left them.

    Called where its first Iceberg change is applied; `changes` spares deciding again.
    """
    if changes is not None:
        known = {
            change.table: change.iceberg
            for change in changes
            if change.kind is ChangeKind.ICEBERG and change.iceberg is not None
        }
        return lambda name: known.get(name) or catalogue.iceberg.tables[name]
    return _decided_again(catalogue, record, outcome, rules, recordings).__getitem__


def _decided_again(
    catalogue: Catalogue,
    record: Transaction,
    outcome: Outcome,
    rules: Rules,
    recordings: Mapping[bytes, bytes],
) -> Mapping[TableId, IcebergTable]:
    changes = [o for o in record.operations if isinstance(o, IcebergChange)]
    operations, of_views = apart(changes, rules)
    names = {operation.table for operation in changes}
    known = catalogue.iceberg.tables
    tables, views = kinds_of({name: known[name] for name in names if name in known})
    others = {
        name: catalogue.tables[name].incarnation for name in names if name in catalogue.tables
    }
    files = recorded_files(outcome.results, recordings)
    decided = decide_iceberg(
        tables,
        operations,
        time_ms=outcome.time_ms,
        transaction_id=outcome.transaction_id,
        namespaces=catalogue.namespaces,
        others=others,
        # It committed, so the lists of what was rebased fitted.
        fits=(lambda _: None) if any(result.rebased for result in outcome.results) else None,
        protocol=rules.protocol,
        position=position_said(rules, outcome.sequence),
        registered=registered_in(operations, files) if files else None,
    )
    made = decide_views(
        views,
        of_views,
        time_ms=outcome.time_ms,
        transaction_id=outcome.transaction_id,
        namespaces=catalogue.namespaces,
        others=others,
        position=outcome.sequence,
    )
    for refused in (decided, made):
        if isinstance(refused, IcebergRefused):
            raise CorruptLog(
                f"outcome {outcome.sequence} commits what this program refuses"
                f" ({refused.message}); run `commitlog verify`"
            )
    assert not isinstance(decided, IcebergRefused)
    assert not isinstance(made, IcebergRefused)
    after = {result.table: result.after for result in (*decided, *made)}
    for operation, result in zip(record.operations, outcome.results, strict=True):
        if isinstance(operation, IcebergChange) and (
            after[operation.table].metadata_location != result.metadata_location
        ):
            raise CorruptLog(
                f"outcome {outcome.sequence} leaves {format_table_id(operation.table)} at "
                f"{result.metadata_location}, and this program comes to "
                f"{after[operation.table].metadata_location}; run `commitlog verify`"
            )
    return after
