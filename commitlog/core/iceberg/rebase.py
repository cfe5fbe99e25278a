"""Snapshots over others than their client saw: which may commit so, and what they become.

A client that lost the race for a branch's head would read again and put the same manifests over
the newer list. The log does it for the client, in its order. What a commit may overtake follows
from its operation, as Iceberg's own clients check it when they try again; what only they know (the
filter of a delete) is read in the strictest way. All of it follows from the log; whether the
manifest lists fit is asked of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from commitlog.core.iceberg.actions import MetadataUpdate
from commitlog.core.iceberg.errors import Stale
from commitlog.core.iceberg.iceberg_table import MAIN, ROW_IDS_SINCE, IcebergTable, Value
from commitlog.core.iceberg.manifests import ListHeader, SnapshotNumbers
from commitlog.core.iceberg.naming import derived_uuid, metadata_folder
from commitlog.core.iceberg.requests import TableChange
from commitlog.core.iceberg.requirements import Requirement
from commitlog.core.iceberg.snapshot_renewal import parent_of, renewed, summary_of
from commitlog.model.limits import (
    ICEBERG_FIRST_NUMBER_SINCE,
    ICEBERG_MERGES_SINCE,
    ICEBERG_NUMBERS_SINCE,
    ICEBERG_OVERTAKEN_MAX,
)
from commitlog.model.reasons import Phrase
from commitlog.model.table import TableId

POLICY = "commitlog.iceberg.rebase"
APPEND, SERIALIZABLE = "append", "serializable"
REBASED_FROM, REBASED_OVER = "commitlog.rebased-from", "commitlog.rebased-over"
"""In a snapshot's summary: the snapshot that its client saw, and how many came since."""

_ASSERT_REF = "assert-ref-snapshot-id"
_DATA_ONLY = frozenset(
    {
        "add-snapshot",
        "set-snapshot-ref",
        "set-properties",
        "remove-properties",
        "set-statistics",
        "set-partition-statistics",
    }
)
"""Updates that say nothing of columns, layout or place."""
_ISOLATIONS = tuple(f"write.{kind}.isolation-level" for kind in ("delete", "update", "merge"))
_MERGE_ISOLATION = "write.merge.isolation-level"
_MERGED = "spark.merge-into."
"""In a summary, what Spark 4.1 and newer count of a MERGE that looked for rows to change."""
_STREAMED = "spark.sql.streaming.epochId"
_COUNTED_SINCE = (4, 1)
_RELEASE = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])")
_PICKED = "source-snapshot-id"
"""In the summary of a snapshot that publishes another one, which may be published only once."""
_PROGRESS = "kafka.connect.offsets."
"""In a summary, what a sink has written so far: it checks that it wasn't written before."""


class Step(NamedTuple):
    """One snapshot that becomes another's successor, as its manifest list is rewritten."""

    operation: str
    client_list: str
    base_list: str
    """The list that the client began from; empty: there was none, or it isn't known."""
    new_list: str
    header: ListHeader
    believed: SnapshotNumbers
    filtered: str
    """Where manifests go of which only the files are kept that the snapshot adds."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a change commits over snapshots that its client hadn't seen."""

    change: TableChange
    """With the updates as they are applied."""
    head_list: str
    """Empty: there is none."""
    steps: tuple[Step, ...]
    overtaken: int
    """How many snapshots the client hadn't seen."""
    knows_base: bool
    """Whether the list is known that the client began from."""
    spec_id: int
    """The partition spec of new files."""


class _Behind(NamedTuple):
    """A commit that came too late for its branch's head."""

    table: IcebergTable
    snapshots: tuple[Value, ...]
    """Those that it adds, each upon the one before."""
    head: Value | None
    """None: they begin a branch, upon nothing."""
    base: Value | None
    """What its client saw, if it is still there."""
    overtaken: tuple[Value, ...]
    is_below: bool
    """Whether what its client saw is below the head; else the branch was set elsewhere."""
    operations: frozenset[str]
    """What those did that it didn't see."""
    progress: frozenset[str]
    """Whose progress they tell, among those whose progress its own snapshots tell."""


Fits = Callable[[Mapping[TableId, Plan]], Phrase | None]
"""Says why manifest lists can't be rewritten, None if they can."""


def plan(
    change: TableChange,
    table: IcebergTable,
    unmet: Sequence[Requirement],
    transaction_id: str,
    *,
    protocol: int,
) -> Plan | Phrase | None:
    """Return how a change is rebased, why it isn't, or None if it is no matter of rebasing.

    Raises:
        Stale: the table's format has changed since the client read it.
    """
    snapshots = [u.arguments for u in change.updates if u.action == "add-snapshot"]
    if not snapshots:
        return None
    _check_format(table, snapshots[0])
    has_numbers = protocol >= ICEBERG_NUMBERS_SINCE
    branch = _branch(change, table, snapshots, unmet)
    if branch is not None:
        head: int | None = int(table.refs[branch]["snapshot-id"])
    elif has_numbers and not unmet and _is_in_nobodys_way(change, table, snapshots, protocol):
        head = parent_of(snapshots[0])
    else:
        return None
    behind, has_merges = _behind(table, tuple(snapshots), head), protocol >= ICEBERG_MERGES_SINCE
    problem = (
        _why_not(change, table)
        or (_why_repeated(behind) if has_numbers else None)
        or _why_not_chain(behind)
        or (_why_no_row_ids(behind) if has_numbers else None)
        or next((p for s in snapshots if (p := _why_not_over(behind, s, has_merges))), None)
    )
    since_ms = _last_set_ms(table) if has_numbers and branch == MAIN else 0
    return problem or _planned(change, behind, transaction_id, since_ms)


def _check_format(table: IcebergTable, snapshot: Value) -> None:
    """Reject a snapshot without row ids whose client began before the table had any."""
    parent = parent_of(snapshot)
    if table.format_version < ROW_IDS_SINCE or "first-row-id" in snapshot or parent is None:
        return
    base = table.snapshots.get(parent)
    if base is None or "first-row-id" not in base:
        number, version = snapshot["snapshot-id"], table.format_version
        raise Stale("iceberg_format_changed_since", snapshot=number, format_version=version)


def _branch(
    change: TableChange,
    table: IcebergTable,
    snapshots: Sequence[Value],
    unmet: Sequence[Requirement],
) -> str | None:
    """Return the branch whose newer head is all that is in the way; None if that isn't so."""
    last = snapshots[-1]["snapshot-id"]
    moved = [
        name
        for update in change.updates
        if update.action == "set-snapshot-ref"
        for name, ref in [update.arguments]
        if ref["type"] == "branch" and ref["snapshot-id"] == last
    ]
    parent = parent_of(snapshots[0])
    if unmet:
        expected = {(one.type, one.arguments) for one in unmet}
        name = unmet[0].arguments[0] if unmet[0].type == _ASSERT_REF else ""
        if expected != {(_ASSERT_REF, (name, parent))}:
            return None
    else:
        names = {
            name for name in moved if (ref := table.refs.get(name)) and ref["snapshot-id"] == parent
        }
        if not names or not _is_stale(table, snapshots[0]):
            return None
        name = min(names)
    ref = table.refs.get(name)
    return name if name in moved and ref is not None and ref["type"] == "branch" else None


def _is_stale(table: IcebergTable, snapshot: Value) -> bool:
    """Return True if other branches' commits took the numbers that a snapshot was to have."""
    if table.format_version == 1:
        return False
    if snapshot.get("sequence-number", 0) <= table.last_sequence_number:
        return True
    first = snapshot.get("first-row-id")
    return table.format_version >= ROW_IDS_SINCE and first is not None and first < table.next_row_id


def _is_in_nobodys_way(
    change: TableChange, table: IcebergTable, snapshots: Sequence[Value], protocol: int
) -> bool:
    """Return True if snapshots begin a branch, or none, and only their numbers were taken."""
    parent, own = parent_of(snapshots[0]), {snapshot["snapshot-id"] for snapshot in snapshots}
    if parent is None and not (table.last_sequence_number or protocol < ICEBERG_FIRST_NUMBER_SINCE):
        return False  # nobody took a number
    is_moved = any(
        name in table.refs
        for update in change.updates
        if update.action == "set-snapshot-ref"
        for name, ref in [update.arguments]
        if ref["snapshot-id"] in own
    )
    is_known = parent is None or parent in table.snapshots
    is_new = not any(snapshot_id in table.snapshots for snapshot_id in own)
    return is_known and is_new and not is_moved and _is_stale(table, snapshots[0])


def _last_set_ms(table: IcebergTable) -> int:
    """Return when the table's current snapshot was last set, to a new one or to an older one."""
    last = table.snapshot_log.rows.last()
    return int(last["timestamp-ms"]) if last is not None else 0


def _behind(table: IcebergTable, snapshots: tuple[Value, ...], head_id: int | None) -> _Behind:
    parent = parent_of(snapshots[0])
    head = None if head_id is None else table.snapshots.get(head_id)
    assert head is not None or head_id is None, "a ref names a snapshot that is there"
    base = None if parent is None else table.snapshots.get(parent)
    found: list[Value] = []
    current: Value | None = head
    while current is not None and current["snapshot-id"] != parent:
        found.append(current)
        above = parent_of(current)
        current = None if above is None else table.snapshots.get(above)
        if len(found) == ICEBERG_OVERTAKEN_MAX:
            break
    is_below = (
        current is not None if parent is not None else not found or parent_of(found[-1]) is None
    )
    operations = frozenset(str(summary_of(one).get("operation", "")) for one in found)
    told = {name for one in snapshots for name in one["summary"] if name.startswith(_PROGRESS)}
    told = {name for one in found for name in told & summary_of(one).keys()} if told else told
    return _Behind(
        table, snapshots, head, base, tuple(found), is_below, operations, frozenset(told)
    )


def _why_not(change: TableChange, table: IcebergTable) -> Phrase | None:
    policy = table.properties.get(POLICY, APPEND)
    if policy not in (APPEND, SERIALIZABLE):
        return Phrase("iceberg_rebase_off", {"property": POLICY, "value": policy})
    others = sorted({u.action for u in change.updates} - _DATA_ONLY)
    if others:
        return Phrase("iceberg_changes_more_than_rows", {"actions": others})
    return None


def _why_not_chain(behind: _Behind) -> Phrase | None:
    table = behind.table
    parent = parent_of(behind.snapshots[0])
    for snapshot in behind.snapshots:
        number = snapshot["snapshot-id"]
        if parent_of(snapshot) != parent:
            return Phrase("iceberg_snapshots_not_a_chain", {"snapshot": number})
        if number in table.snapshots or "key-id" in snapshot:
            return Phrase("iceberg_snapshot_not_rebasable", {"snapshot": number})
        known = snapshot.get("schema-id", -1)
        if known != table.current_schema_id and not (known == -1 and len(table.schemas) == 1):
            return Phrase("iceberg_schema_changed_since", {"snapshot": number})
        parent = number
    for one in (behind.head, behind.base):
        if one is not None and "manifest-list" not in one:
            return Phrase("iceberg_snapshot_not_rebasable", {"snapshot": one["snapshot-id"]})
    return None


def _may_be_merge(summary: Value, properties: Mapping[str, str]) -> bool:
    """Return True if an append may be a MERGE whose client checks that no other writer added rows.

    It found nothing to change in what it read, but another writer's row might need the change.
    Spark before 4.1 doesn't say which of its batches were one.
    """
    if properties.get(_MERGE_ISOLATION, "").lower() == "snapshot":
        return False
    if any(name.startswith(_MERGED) for name in summary):
        return True
    release = _RELEASE.match(summary.get("engine-version", ""))
    is_spark = summary.get("engine-name") == "spark" and _STREAMED not in summary
    if not is_spark or release is None:
        return False
    return (int(release[1]), int(release[2])) < _COUNTED_SINCE


def _why_not_over(behind: _Behind, snapshot: Value, has_merges: bool) -> Phrase | None:
    """Return why a snapshot may not overtake what its client hasn't seen."""
    summary, properties = snapshot["summary"], behind.table.properties
    operation, is_serializable = summary["operation"], properties.get(POLICY) == SERIALIZABLE
    if _PICKED in summary or behind.progress & summary.keys():
        return Phrase("iceberg_checked_by_its_client", {"snapshot": snapshot["snapshot-id"]})
    is_merge = has_merges and operation == "append" and _may_be_merge(summary, properties)
    if operation == "append" and not (is_serializable or is_merge):
        return None
    if not behind.is_below:
        return Phrase("iceberg_read_elsewhere", {"operation": operation})
    if operation == "append":
        allowed = {"replace"}
    elif operation == "replace":
        allowed = {"append"}
    else:
        levels = {properties.get(name, "").lower() for name in _ISOLATIONS}
        allowed = {"append"} if levels == {"snapshot"} and not is_serializable else set()
    if behind.operations <= allowed:
        return None
    refused = {"operation": operation, "overtaken": sorted(behind.operations - allowed)}
    return Phrase("iceberg_merge_overtakes" if is_merge else "iceberg_overtakes", refused)


def _why_repeated(behind: _Behind) -> Phrase | None:
    """Return why a snapshot is no news: its client may not have heard of its commit."""
    for snapshot in behind.snapshots:
        if (number := snapshot["snapshot-id"]) in behind.table.snapshots:
            return Phrase("iceberg_snapshot_exists", {"snapshot": number})
    return None


def _why_no_row_ids(behind: _Behind) -> Phrase | None:
    """Return why a snapshot can't be put over one from before the table had row ids.

    Its client gave ids to the rows of the one that it read, which the log can't do for it.
    """
    head, table = behind.head, behind.table
    if table.format_version < ROW_IDS_SINCE or head is None or "first-row-id" in head:
        return None
    return Phrase("iceberg_head_without_row_ids", {"snapshot": head["snapshot-id"]})


def _planned(change: TableChange, behind: _Behind, transaction_id: str, since_ms: int) -> Plan:
    table, base = behind.table, behind.base
    folder = metadata_folder(table.location, table.properties)
    base_list = str(base["manifest-list"]) if base is not None else ""
    next_row, before = table.next_row_id, behind.head
    steps: list[Step] = []
    made: list[Value] = []
    for number, snapshot in enumerate(behind.snapshots):
        uuid = derived_uuid(transaction_id, table.uuid, "manifest-list", str(number))
        after = renewed(snapshot, before, since_ms)
        after["manifest-list"] = f"{folder}/snap-{snapshot['snapshot-id']}-{number}-{uuid}.avro"
        after["summary"] |= {
            REBASED_FROM: str(parent_of(behind.snapshots[0])).lower(),
            REBASED_OVER: str(len(behind.overtaken)),
        }
        if table.format_version > 1:
            after["sequence-number"] = table.last_sequence_number + number + 1
        if table.format_version >= ROW_IDS_SINCE and "first-row-id" in snapshot:
            after["first-row-id"] = next_row
            next_row += int(after["added-rows"])
        header = ListHeader(
            table.format_version,
            snapshot["snapshot-id"],
            before["snapshot-id"] if before is not None else None,
            after.get("sequence-number", 0),
            after.get("first-row-id"),
        )
        believed = SnapshotNumbers(snapshot.get("sequence-number", 0), snapshot.get("first-row-id"))
        step = Step(
            operation=snapshot["summary"]["operation"],
            client_list=snapshot["manifest-list"],
            base_list=base_list,
            new_list=after["manifest-list"],
            header=header,
            believed=believed,
            filtered=f"{folder}/{uuid}",
        )
        steps.append(step)
        made.append(after)
        before, base_list = after, snapshot["manifest-list"]
    fresh = iter(made)
    updates = tuple(
        MetadataUpdate(update.action, next(fresh)) if update.action == "add-snapshot" else update
        for update in change.updates
    )
    return Plan(
        replace(change, updates=updates),
        str(behind.head["manifest-list"]) if behind.head is not None else "",
        tuple(steps),
        len(behind.overtaken),
        knows_base=base is not None or parent_of(behind.snapshots[0]) is None,
        spec_id=table.default_spec_id,
    )
