"""A table while a request's updates are applied to it, and the checks when all of them are.

The rules are those of Iceberg's Java `TableMetadata.Builder`. What a request added in this draft
decides what `-1` means, which snapshot-log entries are intermediate, and which time one gets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from commitlog.core.iceberg.by_content import ByContent
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable, SnapshotLog
from commitlog.core.iceberg.naming import derived_uuid, next_metadata_location
from commitlog.core.iceberg.schemas import Field, Fields, stored_fields
from commitlog.core.iceberg.shelf import PersistentRows, Shelf
from commitlog.core.iceberg.transforms import IDENTITY, VOID, check_partition_name, check_source
from commitlog.model.limits import ICEBERG_LAYOUTS_SINCE, PROTOCOL_SUPPORTED
from commitlog.model.reasons import Phrase

SKEW_MS = 60_000
"""How far back a time may be behind the one before it: clocks differ."""
POSITION = "commitlog.position"
"""The property that says by which outcome a version of the metadata was committed."""
METADATA_LOG_MAX = "write.metadata.previous-versions-max"
_METADATA_LOG_MAX_DEFAULT = 100


@dataclass(slots=True)
class MetadataDraft:
    """A table in the making: each update replaces `table` by one that shares the rest with it."""

    table: IcebergTable
    is_new: bool
    time_ms: int
    """The log's time, and never before the table's own last update."""
    is_changed: bool = False
    is_layout_changed: bool = False
    """Whether columns, default spec or default order changed, so that they must fit again."""
    last_added_schema: int | None = None
    last_added_spec: int | None = None
    last_added_order: int | None = None
    added_schemas: set[int] = field(default_factory=set)
    added_snapshots: set[int] = field(default_factory=set)
    removed_snapshots: set[int] = field(default_factory=set)
    mains: list[int] = field(default_factory=list)
    """The snapshots that became current, in order."""
    fields_of: dict[int, tuple[Mapping[str, Any], Fields]] = field(default_factory=dict)
    """Schemas that were current when somebody asked, with their fields, by their address."""
    field_ids: dict[tuple[int, str], dict[int, int]] | None = None
    """By source and transform, the ids of the specs' fields by spec, once they were asked for."""
    known: dict[str, ByContent] = field(default_factory=dict)
    """Specs, orders or schemas by what they say, once something was added to them."""
    has_uuid: bool = False
    owned: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Members of the table that belong to this draft alone, such as its properties."""
    names_of: dict[int, dict[str, None]] | None = None
    """By snapshot, the branches and tags that name it, once they were asked for."""

    def own(self, member: str) -> dict[str, Any]:
        """Return a member that may be changed in place: a thousand updates copy it once."""
        if member not in self.owned:
            self.owned[member] = dict(getattr(self.table, member))
            self.change(**{member: self.owned[member]})
        return self.owned[member]

    def by_content(
        self, member: str, key: str, content: Callable[[Mapping[str, Any]], Hashable]
    ) -> ByContent:
        """Return what there is of a kind, to be found by what it says; `key` is its id's member."""
        if member not in self.known:
            self.known[member] = ByContent(key, getattr(self.table, member), content)
        return self.known[member]

    def remove(self, member: str, ids: Iterable[int]) -> None:
        """Remove values of a kind by their ids; unknown ones are ignored."""
        self.change(**{member: getattr(self.table, member).remove(ids)})
        if member in self.known:
            self.known[member].remove(ids)

    def names_by_snapshot(self) -> dict[int, dict[str, None]]:
        """Return the names of each snapshot; a thousand updates look through them all once."""
        if self.names_of is None:
            self.names_of = {}
            for name, ref in self.table.refs.items():
                self.names_of.setdefault(ref["snapshot-id"], {})[name] = None
        return self.names_of

    def name_snapshot(self, name: str, ref: Mapping[str, Any] | None) -> None:
        """Let a branch or tag name a snapshot, or none."""
        refs = self.own("refs")
        if self.names_of is not None and name in refs:
            del self.names_of[refs[name]["snapshot-id"]][name]
        if ref is None:
            del refs[name]
            return
        refs[name] = ref
        if self.names_of is not None:
            self.names_of.setdefault(ref["snapshot-id"], {})[name] = None

    def change(self, **members: Any) -> None:
        """Replace members of the table."""
        self.table = replace(self.table, **members)
        self.is_changed = True


def start(
    base: IcebergTable | None, *, time_ms: int, uuid: str, format_version: int = 2
) -> MetadataDraft:
    """Return a draft of the next version.

    A new table starts in `format_version`, with this `uuid` unless an update assigns one.
    """
    if base is not None:
        return MetadataDraft(base, is_new=False, time_ms=max(time_ms, base.last_updated_ms))
    table = IcebergTable(
        format_version=format_version,
        uuid=uuid,
        location="",
        last_sequence_number=0,
        last_updated_ms=time_ms,
        last_column_id=0,
        current_schema_id=0,
        schemas=Shelf("schema-id"),
        default_spec_id=0,
        specs=Shelf("spec-id"),
        last_partition_id=999,
        default_sort_order_id=0,
        sort_orders=Shelf("order-id"),
        properties={},
        current_snapshot_id=None,
        snapshots=Shelf("snapshot-id"),
        refs={},
        snapshot_log=SnapshotLog(),
        metadata_log=PersistentRows(),
        statistics=Shelf("snapshot-id"),
        partition_statistics=Shelf("snapshot-id"),
    )
    return MetadataDraft(
        table, is_new=True, time_ms=time_ms, is_changed=True, is_layout_changed=True
    )


def finish(
    draft: MetadataDraft,
    base: IcebergTable | None,
    *,
    transaction_id: str,
    position: int = 0,
    protocol: int = PROTOCOL_SUPPORTED,
) -> IcebergTable:
    """Return the next version, or `base` itself if nothing changed."""
    if base is not None and not draft.is_changed:
        return base
    if draft.is_new:
        _check_whole(draft.table)
    if draft.is_layout_changed:
        fields = stored_fields(draft.table.current_schema)
        _check_layout(draft.table, fields)
        if protocol >= ICEBERG_LAYOUTS_SINCE:
            _check_specs(draft.table, fields)
    if position:
        draft.own("properties")[POSITION] = str(position)
    table = draft.table
    return replace(
        table,
        last_updated_ms=draft.time_ms,
        snapshot_log=_checked_log(draft, base.snapshot_log if base else SnapshotLog()),
        metadata_log=_longer_metadata_log(table, base) if base else table.metadata_log,
        metadata_location=next_metadata_location(
            table.location,
            table.properties,
            base.metadata_location if base else "",
            derived_uuid(transaction_id, table.uuid),
        ),
    )


def log_current(log: SnapshotLog, snapshot_id: int, time_ms: int) -> SnapshotLog:
    """Return the snapshot log with one more entry."""
    place = log.rows.next_ordinal
    rows = log.rows.append({"timestamp-ms": time_ms, "snapshot-id": snapshot_id})
    return replace(log, rows=rows, places=log.places.set(snapshot_id, place))


def _check_whole(table: IcebergTable) -> None:
    for what, is_there in {
        "iceberg_add_schema": len(table.schemas),
        "iceberg_set_current_schema": table.current_schema_id in table.schemas,
        "iceberg_add_spec": len(table.specs),
        "iceberg_add_sort_order": len(table.sort_orders),
        "iceberg_set_location": table.location,
    }.items():
        if not is_there:
            raise Invalid("iceberg_update_missing", what=Phrase(what))


def _check_layout(table: IcebergTable, fields: Fields) -> None:
    spec = table.specs.get(table.default_spec_id)
    if spec is None:
        raise Invalid("iceberg_default_spec_unknown", spec=table.default_spec_id)
    for part in spec["fields"]:
        what = Phrase("iceberg_partition_field", {"part": part["name"]})
        check_source(what, part["source-id"], part["transform"], fields)
    order = table.sort_orders.get(table.default_sort_order_id)
    if order is None:
        raise Invalid("iceberg_default_order_unknown", order=table.default_sort_order_id)
    for part in order["fields"]:
        check_source(Phrase("iceberg_sort_field"), part["source-id"], part["transform"], fields)


def _check_specs(table: IcebergTable, fields: Fields) -> None:
    """Refuse columns with which Iceberg's Java library couldn't read the table's specs."""
    for spec in table.specs:
        is_default = spec["spec-id"] == table.default_spec_id
        for part in spec["fields"]:
            name, source_id, transform = part["name"], part["source-id"], part["transform"]
            if (source := fields.by_id.get(source_id)) is None:
                continue
            check_partition_name(name, source_id, fields)
            what = Phrase("iceberg_partition_field", {"part": name})
            if is_default and transform != VOID:  # the rest of it is a matter of the layout
                _check_single(what, source, fields)
            elif transform != IDENTITY:  # what no longer splits a table may be of any type
                check_source(what, source_id, transform, fields)


def _check_single(what: Phrase, source: Field, fields: Fields) -> None:
    """Refuse a column of which one row may have several values."""
    if any(parent.type != "struct" for parent in fields.ancestors(source)):
        raise Invalid("iceberg_source_column_repeated", what=what, name=source.name)


def _checked_log(draft: MetadataDraft, before: SnapshotLog) -> SnapshotLog:
    table, log = draft.table, draft.table.snapshot_log
    current = table.current_snapshot_id
    gone = {id_ for id_ in draft.removed_snapshots if id_ not in table.snapshots}
    if gone:
        # History with a hole would show a snapshot as current while another one was.
        places = [place for id_ in gone if (place := log.places.get(id_)) is not None]
        log = replace(log, rows=log.rows.after(max([log.gap, *places])))
    tail = log.rows.tail(before.rows.next_ordinal) if draft.mains else []
    intermediate = {i for i in draft.mains if i in draft.added_snapshots and i != current}
    drop = [row for row in tail if row.value["snapshot-id"] in intermediate]
    for row in drop:
        log = replace(log, places=log.places.discard(row.value["snapshot-id"]))
    log = replace(log, rows=log.rows.without(row.ordinal for row in drop))
    last = log.rows.last()
    is_rewritten = bool(gone or drop)
    if is_rewritten and last is not None and current is not None and last["snapshot-id"] != current:
        raise Invalid("iceberg_snapshot_log_ends_elsewhere")
    if draft.mains:
        _check_times(log.rows.newest(len(tail) - len(drop) + 1), draft.time_ms)
    return log


def _check_times(rows: PersistentRows, time_ms: int) -> None:
    previous: Mapping[str, Any] | None = None
    for row in rows:
        entry = row.value
        if previous and entry["timestamp-ms"] - previous["timestamp-ms"] < -SKEW_MS:
            raise Invalid(
                "iceberg_snapshot_before_previous",
                snapshot=entry["snapshot-id"],
                time=entry["timestamp-ms"],
                previous=previous["timestamp-ms"],
            )
        previous = entry
    if previous and time_ms - previous["timestamp-ms"] < -SKEW_MS:
        raise Invalid(
            "iceberg_snapshot_in_future",
            snapshot=previous["snapshot-id"],
            time=previous["timestamp-ms"],
            now=time_ms,
        )


def _longer_metadata_log(table: IcebergTable, base: IcebergTable) -> PersistentRows:
    entry = {"timestamp-ms": base.last_updated_ms, "metadata-file": base.metadata_location}
    try:
        most = max(1, int(table.properties.get(METADATA_LOG_MAX, _METADATA_LOG_MAX_DEFAULT)))
    except ValueError:
        raise Invalid(
            "iceberg_property_not_a_number",
            property=METADATA_LOG_MAX,
            value=table.properties[METADATA_LOG_MAX],
        ) from None
    log = base.metadata_log.append(entry)
    return log.newest(most)
