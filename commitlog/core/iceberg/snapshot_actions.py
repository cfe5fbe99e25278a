"""Snapshots and the branches and tags that name them."""

from __future__ import annotations

from typing import Any

from commitlog.core.iceberg.actions import Action
from commitlog.core.iceberg.errors import Invalid, Stale
from commitlog.core.iceberg.iceberg_table import MAIN, ROW_IDS_SINCE, IcebergTable
from commitlog.core.iceberg.metadata_draft import MetadataDraft, log_current
from commitlog.core.iceberg.reading import INT64, Node

_OPERATIONS = {"append", "replace", "overwrite", "delete"}


def read_snapshot(node: Node) -> dict[str, Any]:
    """Return a snapshot as it was sent, without members that are null."""
    node.member("snapshot-id").integer(low=0)
    node.member("timestamp-ms").integer(low=0)
    node.member("manifest-list").text()
    node.member("summary").strings()
    operation = node.member("summary").member("operation").string()
    if operation not in _OPERATIONS:
        node.member("summary").member("operation").fail(
            "iceberg_one_of", value=operation, known=sorted(_OPERATIONS)
        )
    for name in ("parent-snapshot-id", "sequence-number", "first-row-id", "added-rows"):
        if (value := node.optional(name)) is not None:
            value.integer(low=-1 if name == "parent-snapshot-id" else 0)
    if (schema_id := node.optional("schema-id")) is not None:
        schema_id.int32()
    if node.optional("first-row-id") and not node.optional("added-rows"):
        node.fail("iceberg_added_rows_missing")
    return {name: value for name, value in node.object().items() if value is not None}


def _add(draft: MetadataDraft, snapshot: dict[str, Any]) -> None:
    table = draft.table
    for what, there in (
        ("schema", len(table.schemas)),
        ("partition spec", len(table.specs)),
        ("sort order", len(table.sort_orders)),
    ):
        if not there:
            raise Invalid("iceberg_snapshot_too_early", what=what)
    snapshot_id = snapshot["snapshot-id"]
    if snapshot_id in table.snapshots:
        raise Invalid("iceberg_snapshot_exists", snapshot=snapshot_id)
    sequence_number = _checked_sequence_number(table, snapshot)
    next_row_id = _checked_next_row_id(table, snapshot)
    draft.change(
        snapshots=table.snapshots.add(snapshot),
        last_sequence_number=sequence_number,
        next_row_id=next_row_id,
    )
    draft.added_snapshots.add(snapshot_id)


def _checked_sequence_number(table: IcebergTable, snapshot: dict[str, Any]) -> int:
    number: int = snapshot.get("sequence-number", 0)
    last = table.last_sequence_number
    if table.format_version == 1:
        if number:
            raise Invalid(
                "iceberg_sequence_number_in_version_1",
                snapshot=snapshot["snapshot-id"],
                number=number,
            )
    elif "parent-snapshot-id" in snapshot and number <= last:
        raise Stale(
            "iceberg_sequence_number_stale",
            snapshot=snapshot["snapshot-id"],
            number=number,
            last=last,
        )
    elif number < last:
        # Java lets a snapshot without a parent take the table's last sequence number back.
        raise Invalid(
            "iceberg_sequence_number_lower",
            snapshot=snapshot["snapshot-id"],
            number=number,
            last=last,
        )
    return number


def _checked_next_row_id(table: IcebergTable, snapshot: dict[str, Any]) -> int:
    if table.format_version < ROW_IDS_SINCE:
        return table.next_row_id
    first: int | None = snapshot.get("first-row-id")
    if first is None:
        raise Invalid(
            "iceberg_first_row_id_missing",
            snapshot=snapshot["snapshot-id"],
            format_version=ROW_IDS_SINCE,
        )
    if first < table.next_row_id:
        raise Stale(
            "iceberg_first_row_id_stale",
            snapshot=snapshot["snapshot-id"],
            first=first,
            next_row_id=table.next_row_id,
        )
    # Not next-row-id plus added-rows: a gap before `first` would make ids be given out twice.
    following = first + int(snapshot["added-rows"])
    if following > INT64:
        raise Invalid(
            "iceberg_row_ids_exhausted", snapshot=snapshot["snapshot-id"], following=following
        )
    return following


def _remove(draft: MetadataDraft, snapshot_ids: list[int]) -> None:
    table = draft.table
    gone = {id_ for id_ in snapshot_ids if id_ in table.snapshots}
    if not gone:
        return
    draft.change(
        snapshots=table.snapshots.remove(gone),
        statistics=table.statistics.remove(gone),
        partition_statistics=table.partition_statistics.remove(gone),
    )
    draft.removed_snapshots |= gone
    names = draft.names_by_snapshot()
    for name in [name for snapshot_id in gone for name in names.get(snapshot_id, ())]:
        _remove_ref(draft, name)


def _read_set_ref(node: Node) -> tuple[str, dict[str, Any]]:
    name = node.member("ref-name").text()
    return name, read_ref(node, name)


def read_ref(node: Node, name: str) -> dict[str, Any]:
    """Return what a branch or tag says of itself."""
    kind = node.member("type").string().lower()
    if kind not in {"branch", "tag"}:
        node.member("type").fail("iceberg_ref_type_unknown", value=node.value["type"])
    if kind == "tag" and name == MAIN:
        node.member("type").fail("iceberg_main_not_a_branch")
    ref: dict[str, Any] = {"snapshot-id": node.member("snapshot-id").integer(), "type": kind}
    for limit in ("min-snapshots-to-keep", "max-snapshot-age-ms", "max-ref-age-ms"):
        value = node.optional(limit)
        if value is None:
            continue
        if kind == "tag" and limit != "max-ref-age-ms":
            value.fail("iceberg_not_for_tags")
        small = limit == "min-snapshots-to-keep"
        ref[limit] = value.int32(low=1) if small else value.integer(low=1)
    return ref


def _set_ref(draft: MetadataDraft, arguments: tuple[str, dict[str, Any]]) -> None:
    name, ref = arguments
    table = draft.table
    if table.refs.get(name) == ref:
        return
    snapshot = table.snapshots.get(ref["snapshot-id"])
    if snapshot is None:
        raise Invalid("iceberg_no_such_snapshot", name=name, snapshot=ref["snapshot-id"])
    draft.name_snapshot(name, ref)
    if name == MAIN:
        snapshot_id = ref["snapshot-id"]
        is_added = snapshot_id in draft.added_snapshots
        time_ms = snapshot["timestamp-ms"] if is_added else draft.time_ms
        draft.mains.append(snapshot_id)
        draft.change(
            current_snapshot_id=snapshot_id,
            snapshot_log=log_current(table.snapshot_log, snapshot_id, time_ms),
        )


def _remove_ref(draft: MetadataDraft, name: str) -> None:
    if name in draft.table.refs:
        draft.name_snapshot(name, None)
        if name == MAIN:
            draft.change(current_snapshot_id=None)


SNAPSHOT_ACTIONS = {
    "add-snapshot": Action(lambda node: read_snapshot(node.member("snapshot")), _add),
    "remove-snapshots": Action(
        lambda node: [item.integer() for item in node.member("snapshot-ids").items()], _remove
    ),
    "set-snapshot-ref": Action(_read_set_ref, _set_ref),
    "remove-snapshot-ref": Action(lambda node: node.member("ref-name").text(), _remove_ref),
}
