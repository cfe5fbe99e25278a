"""Decides an append that brings plain fragments, and meets nothing that it could conflict with.

The result is what `commits` would decide, or the append is left to it. Each check here is a quick
one that most appends pass. An append that doesn't pass goes to `commits`, which checks it in full.
So nothing is refused here, and reasons are given in one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from commitlog.core.conflicts.grid import RULED
from commitlog.core.decisions import Change, Observed, Wants
from commitlog.core.draft import Parsed
from commitlog.core.lance.request_checks import files_wanted
from commitlog.core.lance.versions import plain_change
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.manifest.plain_appends import KIND
from commitlog.core.tables.lance_tables import Table
from commitlog.model.limits import INT64_MAX, Rules
from commitlog.model.operations import LanceCommit, Operation
from commitlog.model.records import Observation, OperationResult
from commitlog.model.table import TableId


class PlainCommit(NamedTuple):
    """What comes of an append."""

    result: OperationResult
    change: Change
    observed: tuple[Observation, ...]


def decide_plainly(
    tables: Mapping[TableId, Table],
    operation: Operation,
    parsed: Parsed,
    observed: Observed,
    *,
    rules: Rules,
    time_ms: int,
) -> PlainCommit | None:
    """Decide the only operation of a record; return None if `decide_commit` has to do that.

    Raises Wants for files that weren't looked at.
    """
    if not isinstance(operation, LanceCommit) or operation.table not in tables:
        return None
    table, read_version = tables[operation.table], operation.read_version
    state = table.manifest
    if state is None:
        return None
    is_plain = (
        operation.operation == KIND
        and operation.incarnation in ("", table.incarnation)
        and read_version <= state.version < INT64_MAX
        and operation.inserted_keys is None
        and not (operation.branch or operation.affected_rows or operation.schema_metadata)
    )
    if not is_plain or not _is_free(table, state, read_version, rules):
        return None
    change = plain_change(table, operation, parsed, time_ms=time_ms, release=rules.lance_release)
    if change is None or change.delta is None:
        return None
    wanted, sizes = files_wanted(table.location, state.header, parsed)
    found = [observed.get(one) for one in wanted]
    if not all(found):
        raise Wants(tuple([one for one, there in zip(wanted, found, strict=True) if not there]))
    seen = [there.observation for there in found if there]
    if sizes != tuple([there.size for there in seen]):
        return None
    result = OperationResult(
        table=table.table_id,
        incarnation=table.incarnation,
        operation=KIND,
        version=change.version,
        read_version=read_version,
        first_fragment_id=change.delta.fragments[0][0],
        first_row_id=state.next_row_id if change.delta.next_row_id > state.next_row_id else -1,
        rebased_over=state.version - read_version,
    )
    # A file that is named twice was looked at once.
    once = tuple(dict(zip(wanted, seen, strict=True)).values())
    return PlainCommit(result, change, once)


def _is_free(table: Table, state: ManifestState, read_version: int, rules: Rules) -> bool:
    """Return True if no version since can stand in an append's way, whatever it did."""
    history, version = table.history, state.version
    if read_version == version:
        return True
    if table.declares_key or read_version < max(history.floor, version - rules.history_versions):
        return False
    ruled = RULED[KIND]
    return not any(
        [
            versions[-1] > read_version and kind in ruled and kind != KIND
            for kind, versions in history.kinds.items()
        ]
    )
