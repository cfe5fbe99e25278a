"""Deleting old versions: which ones are gone, and which a record may delete.

A record names versions that are there, each once, so that what it deletes can be read off the
record for ever. The newest version is the table itself and cannot be deleted; make a newer one
first, in the same record if need be. Version numbers are never reused.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

from commitlog.core.decisions import Change, ChangeKind, rejected
from commitlog.core.draft import Draft, View
from commitlog.core.tables.lance_tables import Table, VersionRanges, has_any
from commitlog.model.limits import HOLDS_SINCE, INCARNATIONS_SINCE
from commitlog.model.operations import INCARNATION, DeleteTableVersions
from commitlog.model.records import Code, OperationResult
from commitlog.model.table import format_table_id

HOLD = "commitlog.hold."
"""How the names of properties begin that keep versions of their table from being deleted."""
_FEW = 16
_HOLD = re.compile(r"(?P<version>[1-9][0-9]{0,17})(?P<on>-?)(?: until (?P<until>[0-9]{1,18}))?")


def merged(*ranges: Iterable[tuple[int, int]]) -> VersionRanges:
    """Return ranges of versions, both ends included, sorted and none touching another."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(one for some in ranges for one in some):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def extended(ranges: VersionRanges, more: VersionRanges) -> VersionRanges:
    """Return the same as `merged`, fast where few ranges come to many."""
    if len(more) > _FEW:
        return merged(ranges, more)
    found = list(ranges)
    for first, last in more:
        at = bisect_left(found, first - 1, key=itemgetter(1))
        end = bisect_right(found, last + 1, lo=at, key=itemgetter(0))
        around = [(first, last), *found[at:end]]
        found[at:end] = [(min(a for a, _ in around), max(b for _, b in around))]
    return tuple(found)


def without(ranges: Iterable[tuple[int, int]], gone: VersionRanges) -> VersionRanges:
    """Return the part of ranges that `gone` doesn't cover."""
    left: list[tuple[int, int]] = []
    for first, last in merged(ranges):
        at = bisect_left(gone, first, key=itemgetter(1))
        while at < len(gone) and gone[at][0] <= last:
            if first < gone[at][0]:
                left.append((first, gone[at][0] - 1))
            first = gone[at][1] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def held_versions(
    properties: Iterable[tuple[str, str]], newest: int, now_ms: int
) -> list[tuple[int, int]]:
    """Return the ranges of versions that a table's properties hold: `VERSION` or `VERSION-`.

    A hold may end: `VERSION until MILLISECONDS`. One that isn't written so holds all versions.
    """
    found = []
    for name, value in properties:
        if not name.startswith(HOLD):
            continue
        hold = _HOLD.fullmatch(value)
        if hold is None:
            found.append((1, newest))
        elif hold["until"] is None or int(hold["until"]) > now_ms:
            first = int(hold["version"])
            found.append((first, max(first, newest) if hold["on"] else first))
    return found


def decide_delete_versions(draft: Draft, operation: DeleteTableVersions) -> None:
    """Delete versions of a table, or refuse."""
    incarnation = ""
    if draft.rules.protocol >= INCARNATIONS_SINCE:
        incarnation = dict(draft.transaction.properties).get(INCARNATION, "")
    view = draft.view(operation.table, incarnation)
    if operation.branch:
        raise rejected(
            Code.UNSUPPORTED_OPERATION,
            "branch_unsupported",
            branch=operation.branch,
            table=format_table_id(operation.table),
        )
    _check(draft, view, operation)
    table = view.table
    draft.results.append(
        OperationResult(
            table.table_id, table.incarnation, "DeleteTableVersions", location=table.location
        )
    )
    view.deleted = extended(view.deleted, operation.ranges)
    draft.changes.append(deletion(table, operation))


def _check(draft: Draft, view: View, operation: DeleteTableVersions) -> None:
    name, newest = format_table_id(operation.table), view.version
    before = 0
    for first, last in operation.ranges:
        if not before < first <= last:
            raise rejected(
                Code.INVALID_OPERATION, "ranges_out_of_order", first=first, last=last, table=name
            )
        if last >= newest:
            raise rejected(
                Code.INVALID_OPERATION,
                "newest_version_stays",
                first=first,
                last=last,
                table=name,
                newest=newest,
            )
        before = last
    if draft.rules.protocol >= HOLDS_SINCE:
        held = merged(held_versions(view.table.properties, newest, draft.time_ms))
        if any(has_any(first, last, held) for first, last in operation.ranges):
            raise rejected(
                Code.INVALID_OPERATION,
                "versions_held",
                ranges=list(operation.ranges),
                table=name,
                held=list(held),
            )
    if any(has_any(first, last, view.deleted) for first, last in operation.ranges):
        raise rejected(
            Code.EXPECTATION_FAILED,
            "versions_deleted_already",
            ranges=list(operation.ranges),
            table=name,
            deleted=list(view.deleted),
        )


def deletion(table: Table, operation: DeleteTableVersions) -> Change:
    """Return the change that a committed deletion stands for."""
    return Change(
        table=table.table_id,
        incarnation=table.incarnation,
        kind=ChangeKind.VERSIONS_DELETED,
        location=table.location,
        policy=table.policy,
        deleted=operation.ranges,
    )
