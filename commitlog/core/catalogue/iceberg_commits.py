"""Decides what a record asks of Iceberg tables, together with the rest of the record.

All Iceberg changes of a record are decided at the first of them, against the tables as the
operations before it left them; a follower comes to the same tables by `committed_tables`. The
metadata file of each changed table is written before the outcome, so whoever learns of a commit
can read it; its name follows from the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from commitlog.core.catalogue.catalogue_state import Catalogue
from commitlog.core.catalogue.iceberg_lists import ListRebases
from commitlog.core.catalogue.iceberg_references import (
    check_values,
    look_at_references,
    recorded_files,
    registered_in,
)
from commitlog.core.decisions import (
    Change,
    ChangeKind,
    FileToWrite,
    FileWanted,
    Refused,
    rejected,
)
from commitlog.core.draft import Draft
from commitlog.core.iceberg.domain import IcebergRefused, IcebergResult, decide_iceberg
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.reading import dump_json
from commitlog.core.lance.versions import record
from commitlog.core.tables.iceberg_tables import iceberg_change
from commitlog.core.tables.lance_tables import Place, location_parts, normalize_location
from commitlog.errors import CorruptLog
from commitlog.model.limits import (
    ICEBERG_BOUNDS_SINCE,
    ICEBERG_LOOKS_TOGETHER_SINCE,
    ICEBERG_PLACES_SINCE,
    ICEBERG_POSITION_SINCE,
    ICEBERG_REBASE_SINCE,
    ICEBERG_REFERENCES_SINCE,
    ICEBERG_UPDATES_MAX,
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
from commitlog.model.reasons import Phrase
from commitlog.model.records import (
    Code,
    FailedRequirement,
    OperationResult,
    Outcome,
    Transaction,
)
from commitlog.model.table import TableId, format_table_id

_PART_BYTES_MAX = 200
_LOCATION_BYTES_MAX = 2_000
"""What any file system takes, with room for a temporary file's name."""


def decide_change(draft: Draft, operation: IcebergChange, root: str) -> None:
    """Decide one change; the first one of a record decides them all."""
    if draft.iceberg_results is None:
        draft.iceberg_results = _decide_all(draft, root)
    result = draft.iceberg_results[operation.table]
    after = result.after
    made = OperationResult(
        operation.table,
        after.uuid,
        "IcebergChange",
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


def _decide_all(draft: Draft, root: str) -> dict[TableId, IcebergResult]:
    operations = [o for o in draft.transaction.operations if isinstance(o, IcebergChange)]
    names = {operation.table for operation in operations}
    lists = ListRebases(draft, root) if draft.rules.protocol >= ICEBERG_REBASE_SINCE else None
    files: dict[TableId, bytes] | None = None
    if draft.rules.protocol >= ICEBERG_BOUNDS_SINCE:
        check_values(operations)
    if draft.rules.protocol >= ICEBERG_REFERENCES_SINCE:
        files = look_at_references(draft, operations, root)
    decided = decide_iceberg(
        {name: table for name in names if (table := draft.iceberg(name)) is not None},
        operations,
        time_ms=draft.time_ms,
        transaction_id=draft.transaction.transaction_id,
        namespaces={name[:-1] for name in names if draft.namespace(name[:-1]) is not None},
        others={
            name: view.table.incarnation for name in names if (view := draft.find(name)) is not None
        },
        fits=lists.fits if lists is not None else None,
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
    draft.iceberg_deltas = {**(files or {}), **(lists.recorded if lists is not None else {})}
    results: dict[TableId, IcebergResult] = {}
    new_files: list[tuple[TableId, str]] = []
    for result in decided:
        results[result.table] = result
        if not result.is_changed:
            continue
        table_id, after = result.table, result.after
        if _is_elsewhere(result):
            place = _checked_place(draft, table_id, after.location, root)
            file = _checked_place(draft, table_id, after.metadata_location, root)
            _check_alone(draft, result, (place, file))
            if result.writes_file:
                new_files.append((table_id, file.removeprefix(f"{root}/")))
                if draft.rules.protocol < ICEBERG_LOOKS_TOGETHER_SINCE:
                    _check_free(draft, root, new_files[-1:])
            draft.take_for_iceberg(place, Place(table_id, after.uuid, is_live=True))
        else:
            file = normalize_location(after.metadata_location)
        if result.writes_file:
            draft.files.append(FileToWrite(root, file.removeprefix(f"{root}/"), after.encode()))
        draft.iceberg_views[table_id] = after
    if draft.rules.protocol >= ICEBERG_LOOKS_TOGETHER_SINCE:
        _check_free(draft, root, new_files)
    return results


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


def _not_at_all(code: Code, reason: str, **arguments: Any) -> Refused:
    """Return a refusal of the whole record."""
    refusal = rejected(code, reason, **arguments)
    refusal.is_of_all = True
    return refusal


def _checked_place(draft: Draft, table: TableId, location: str, root: str) -> str:
    """Return a location as it is compared; refuse one where the leader must not write."""
    name = format_table_id(table)
    place = normalize_location(location)
    parts, root_parts = location_parts(place), location_parts(root) if root else ("\0",)
    depth = len(root_parts)
    is_uri = "://" in location or location.startswith("file:")
    problem: Phrase | None = None
    if len(parts) <= depth or parts[:depth] != root_parts or parts[depth] == "_commitlog":
        problem = Phrase("iceberg_outside_root", {"root": root or "(it has none)"})
    elif is_uri and any(mark in location for mark in "%?#"):
        problem = Phrase("iceberg_uri_character")
    elif max(len(part.encode()) for part in parts) > _PART_BYTES_MAX:
        problem = Phrase("iceberg_part_too_long", {"bytes_max": _PART_BYTES_MAX})
    elif len(place.encode()) > _LOCATION_BYTES_MAX:
        problem = Phrase("iceberg_location_too_long", {"bytes_max": _LOCATION_BYTES_MAX})
    if problem:
        refused = {"table": name, "location": location, "problem": problem}
        raise _not_at_all(Code.LOCATION_NOT_ALLOWED, "iceberg_location_not_allowed", **refused)
    taken = draft.clash_with_others(place)
    if taken is not None:
        owner = format_table_id(taken.table_id)
        refused = {"table": name, "location": location, "owner": owner}
        raise _not_at_all(Code.LOCATION_TAKEN, "iceberg_location_taken", **refused)
    return place


def _check_alone(draft: Draft, result: IcebergResult, places: Sequence[str]) -> None:
    """Refuse metadata or a place of another table: each would change the other's files.

    Copies of one metadata file may be registered under many names while nobody commits to them.
    """
    if draft.rules.protocol < ICEBERG_PLACES_SINCE:
        return
    after = result.after
    named = {"table": format_table_id(result.table)}
    for place in places:
        for owner in draft.clash_in_iceberg(place):
            if owner != result.table and not _is_copy(draft, result, owner):
                named |= {"location": place, "owner": format_table_id(owner)}
                raise _not_at_all(Code.LOCATION_TAKEN, "iceberg_location_taken", **named)
    if result.before is None or result.before.uuid != after.uuid:
        for owner in draft.iceberg_named(after.uuid):
            if owner != result.table and not _is_copy(draft, result, owner):
                named |= {"uuid": after.uuid, "owner": format_table_id(owner)}
                raise _not_at_all(Code.LOCATION_TAKEN, "iceberg_uuid_taken", **named)


def _is_copy(draft: Draft, result: IcebergResult, owner: TableId) -> bool:
    other = draft.iceberg(owner)
    assert other is not None
    is_same = other.metadata_location == result.after.metadata_location
    return result.is_registered and is_same and draft.is_as_registered(owner)


def _is_elsewhere(result: IcebergResult) -> bool:
    """Return True if metadata comes to lie where the log hasn't put this table's before.

    Where it did, in the table's own location, nothing but Iceberg tables ever gets a place.
    """
    before, after = result.before, result.after
    if before is None or before.location != after.location:
        return True
    folder = after.metadata_location.rpartition("/")[0]
    is_inside = folder.startswith(f"{after.location}/")
    return not is_inside or before.metadata_location.rpartition("/")[0] != folder


def _check_free(draft: Draft, root: str, files: Sequence[tuple[TableId, str]]) -> None:
    """Refuse metadata files that a file on their path keeps from ever being written."""
    if not root.startswith("/"):
        return  # an object store: it has no folders
    above: dict[str, tuple[TableId, str]] = {}
    for table, path in files:
        folders = path.split("/")[:-1]
        for depth in range(len(folders)):
            above.setdefault("/".join(folders[: depth + 1]), (table, path))
    found = draft.want_all(FileWanted(root, folder) for folder in above)
    for (folder, (table, path)), there in zip(above.items(), found, strict=True):
        if there.observation.size >= 0:
            name = format_table_id(table)
            refused = {"table": name, "root": root, "path": path, "folder": folder}
            raise _not_at_all(Code.LOCATION_NOT_ALLOWED, "iceberg_metadata_behind_file", **refused)


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
        end_iceberg(draft, operation.table, operation)
        return True
    if isinstance(operation, RenameTable):
        table = draft.iceberg(operation.table)
        if table is not None:
            _decide_rename(draft, operation, table)
        return table is not None
    return False


def end_iceberg(draft: Draft, table_id: TableId, operation: Operation) -> None:
    """Forget a table in the draft."""
    table = draft.iceberg(table_id)
    assert table is not None
    is_drop = not isinstance(operation, DeregisterTable)
    kind = ChangeKind.DROPPED if is_drop else ChangeKind.DEREGISTERED
    draft.results.append(_result(table_id, table, operation))
    draft.changes.append(iceberg_change(table_id, kind, table))
    draft.iceberg_views[table_id] = None


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
    operations = [o for o in record.operations if isinstance(o, IcebergChange)]
    names = {operation.table for operation in operations}
    tables, others = catalogue.iceberg.tables, catalogue.tables
    files = recorded_files(outcome.results, recordings)
    decided = decide_iceberg(
        {name: tables[name] for name in names if name in tables},
        operations,
        time_ms=outcome.time_ms,
        transaction_id=outcome.transaction_id,
        namespaces=catalogue.namespaces,
        others={name: others[name].incarnation for name in names if name in others},
        # It committed, so the lists of what was rebased fitted.
        fits=(lambda _: None) if any(result.rebased for result in outcome.results) else None,
        position=position_said(rules, outcome.sequence),
        registered=registered_in(operations, files) if files else None,
    )
    if isinstance(decided, IcebergRefused):
        raise CorruptLog(
            f"outcome {outcome.sequence} commits what this program refuses ({decided.message}); "
            "run `commitlog verify`"
        )
    after = {result.table: result.after for result in decided}
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
