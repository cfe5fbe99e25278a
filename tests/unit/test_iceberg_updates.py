"""Each update's rules, where they are easy to get wrong."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from commitlog.core.iceberg.domain import IcebergRefused
from commitlog.core.iceberg.updates import ACTIONS, ALIASES
from commitlog.model.limits import ICEBERG_LAYOUTS_SINCE
from commitlog.model.records import Code, Status
from tests.unit.iceberg_examples import (
    EVENTS,
    LOCATION,
    TIME_MS,
    change,
    create_updates,
    decide,
    main_at,
    refused,
    schema,
    snapshot,
    table,
    updated,
)


def _add(snapshot_id: int, number: int, parent: int | None = None, **more: Any) -> dict[str, Any]:
    return {"action": "add-snapshot", "snapshot": snapshot(snapshot_id, number, parent, **more)}


def _spec(*parts: tuple[int, str, str], **ids: int) -> dict[str, Any]:
    fields = [{"source-id": s, "transform": t, "name": n} for s, t, n in parts]
    fields = [{**f, "field-id": ids[f["name"]]} if f["name"] in ids else f for f in fields]
    return {"action": "add-spec", "spec": {"fields": fields}}


def _order(source: int, direction: str = "asc") -> dict[str, Any]:
    part = {
        "transform": "identity",
        "source-id": source,
        "direction": direction,
        "null-order": "nulls-first",
    }
    return {"action": "add-sort-order", "sort-order": {"order-id": 9, "fields": [part]}}


def test_every_official_table_update_is_known() -> None:
    assert len({*ACTIONS, *ALIASES} - {"add-partition-spec"}) == 23


def test_nothing_changed_leaves_the_very_same_table() -> None:
    base = table()
    same: list[dict[str, Any]] = [
        {"action": "assign-uuid", "uuid": base.uuid.upper()},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-location", "location": f"{LOCATION}/"},
        {"action": "set-properties", "updates": {}},
        {"action": "remove-properties", "removals": []},
        {"action": "remove-snapshots", "snapshot-ids": [77]},
        {"action": "remove-snapshot-ref", "ref-name": "nobody"},
        {"action": "remove-statistics", "snapshot-id": 77},
        {"action": "remove-encryption-key", "key-id": "nobody"},
        {"action": "set-default-spec", "spec-id": 0},
        main_at(2),
    ]
    assert updated(base) is base
    assert updated(base, *same) is base


def test_a_change_names_the_next_file_and_logs_the_last_one() -> None:
    base = table()
    after = updated(base, {"action": "set-properties", "updates": {"a": "1"}})
    assert after.metadata_location.startswith(f"{LOCATION}/metadata/00008-")
    assert after.metadata_log.last() == {
        "timestamp-ms": base.last_updated_ms,
        "metadata-file": base.metadata_location,
    }
    assert after.last_updated_ms == TIME_MS
    assert updated(base, {"action": "set-properties", "updates": {"a": "1"}}) == after


def test_the_metadata_log_is_pruned_and_never_empty() -> None:
    limit = "write.metadata.previous-versions-max"
    base = updated(table(), {"action": "set-properties", "updates": {limit: "3"}})
    for i in range(5):
        base = updated(base, {"action": "set-properties", "updates": {"i": str(i)}})
    assert len(base.metadata_log) == 3
    base = updated(base, {"action": "set-properties", "updates": {limit: "0"}})
    assert len(base.metadata_log) == 1
    bad = refused(base, {"action": "set-properties", "updates": {limit: "many"}})
    assert limit in bad.message


def test_metadata_is_compressed_on_request() -> None:
    wish = {"write.metadata.compression-codec": "gzip", "write.metadata.path": "s3://other/place"}
    after = updated(table(), {"action": "set-properties", "updates": wish})
    assert after.metadata_location.startswith("s3://other/place/00008-")
    assert after.metadata_location.endswith(".gz.metadata.json")
    assert json.loads(gzip.decompress(after.encode())) == json.loads(after.to_json())
    assert after.encode() == after.encode()


def test_the_server_picks_schema_ids_and_finds_a_schema_again() -> None:
    first = {"action": "add-schema", "schema": {**schema("id", "data", "c"), "schema-id": 5}}
    after = updated(table(), first, {"action": "set-current-schema", "schema-id": -1})
    assert (after.current_schema_id, after.last_column_id) == (1, 3)
    again = {"action": "add-schema", "schema": {**schema("id", "data", "c"), "schema-id": 8}}
    back = {"action": "add-schema", "schema": schema("id", "data")}
    assert updated(after, again) is after
    # As in Java: what was there before isn't added, so -1 doesn't mean it.
    assert "none" in refused(after, back, {"action": "set-current-schema", "schema-id": -1}).message
    assert refused(table(), first, {"action": "set-current-schema", "schema-id": 5})


def test_minus_one_is_the_last_added_not_the_highest() -> None:
    first, second = schema("id", "data", "c"), schema("id", "data", "d")
    after = updated(
        table(),
        {"action": "add-schema", "schema": first},
        {"action": "add-schema", "schema": second},
        {"action": "add-schema", "schema": first},
        {"action": "set-current-schema", "schema-id": -1},
    )
    assert after.current_schema_id == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"fields": [{"id": 1, "name": "a", "required": False, "type": "blob"}]}, "not a type"),
        ({"fields": [{"id": 1, "name": "a", "required": 0, "type": "int"}]}, "required"),
        ({"fields": [{"id": 1, "name": "a", "required": False, "type": "variant"}]}, "version 3"),
        (
            {"fields": [{"id": 1, "name": n, "required": False, "type": "int"} for n in "ab"]},
            "gives id 1",
        ),
        (
            {"fields": [{"id": i, "name": "a", "required": False, "type": "int"} for i in (1, 2)]},
            "two fields",
        ),
        ({**schema("id"), "identifier-field-ids": [1]}, "optional"),
        ({**schema("id"), "identifier-field-ids": [7]}, "doesn't have"),
    ],
)
def test_a_schema_that_is_not_whole_is_refused(bad: dict[str, Any], said: str) -> None:
    found = refused(table(), {"action": "add-schema", "schema": {"type": "struct", **bad}})
    assert (found.status, found.code) == (Status.REJECTED, Code.INVALID_OPERATION)
    assert said in found.message


def test_a_column_of_the_default_spec_cannot_go() -> None:
    parted = updated(
        table(),
        _spec((2, "bucket[4]", "data_bucket")),
        {"action": "set-default-spec", "spec-id": -1},
    )
    without = {"action": "add-schema", "schema": schema("id")}
    current = {"action": "set-current-schema", "schema-id": -1}
    assert "data_bucket" in refused(parted, without, current).message
    assert updated(parted, without).current_schema_id == 0


def _column(field_id: int, name: str, kind: Any) -> dict[str, Any]:
    return {"id": field_id, "name": name, "required": False, "type": kind}


_LIST = {"type": "list", "element-id": 5, "element": "long", "element-required": False}


@pytest.mark.parametrize("is_default", [False, True])
@pytest.mark.parametrize(
    ("part", "columns", "said"),
    [
        ((1, "bucket[4]", "b"), [_column(1, "id", "long"), _column(3, "b", "long")], "the name"),
        ((1, "bucket[4]", "b"), [_column(1, "id", "double")], "cannot apply"),
        ((1, "identity", "b"), [_column(1, "id", _LIST)], ""),
        ((1, "void", "b"), [_column(1, "id", "double")], None),
        ((1, "bucket[4]", "b"), [_column(3, "b", "long")], ""),
        ((1, "bucket[4]", "b"), [_column(1, "b", "int"), _column(3, "id", "long")], None),
    ],
)
def test_columns_that_fit_no_spec_which_the_table_has_are_refused(
    part: tuple[int, str, str],
    columns: list[dict[str, Any]],
    said: str | None,
    is_default: bool,
) -> None:
    """Java opens no table with one: `said` is empty where only the default spec must fit."""
    base = updated(table(), _spec(part), {"action": "set-default-spec", "spec-id": int(is_default)})
    added = {"action": "add-schema", "schema": {"type": "struct", "fields": columns}}
    change_it = change([added, {"action": "set-current-schema", "schema-id": -1}])
    before = decide({EVENTS: base}, change_it, protocol=ICEBERG_LAYOUTS_SINCE - 1)
    decided = decide({EVENTS: base}, change_it)
    if said is None or (said == "" and not is_default):
        assert not isinstance(decided, IcebergRefused)
        assert not isinstance(before, IcebergRefused)
        return
    assert isinstance(decided, IcebergRefused)
    assert said in decided.message
    if said == "the name" or not is_default:
        assert not isinstance(before, IcebergRefused)


def test_a_column_of_several_values_splits_no_table() -> None:
    columns = {"type": "struct", "fields": [_column(1, "id", "long"), _column(2, "data", _LIST)]}
    current = {"action": "set-current-schema", "schema-id": -1}
    base = updated(table(), {"action": "add-schema", "schema": columns}, current)
    default = {"action": "set-default-spec", "spec-id": -1}
    assert "data.element" in refused(base, _spec((5, "identity", "x")), default).message
    assert len(updated(base, _spec((5, "identity", "x"))).specs) == 2
    old = change([_spec((5, "identity", "x")), default])
    older = decide({EVENTS: base}, old, protocol=ICEBERG_LAYOUTS_SINCE - 1)
    assert not isinstance(older, IcebergRefused)


def test_a_default_in_a_record_is_of_its_columns_type() -> None:
    field = {**_column(3, "n", "int"), "initial-default": "one", "write-default": "one"}
    wanted = {"type": "struct", "fields": [*schema("id", "data")["fields"], field]}
    record = change([{"action": "add-schema", "schema": wanted}])
    decided = decide({EVENTS: table(3)}, record)
    assert isinstance(decided, IcebergRefused)
    assert "not a value of type int" in decided.message
    older = decide({EVENTS: table(3)}, record, protocol=ICEBERG_LAYOUTS_SINCE - 1)
    assert not isinstance(older, IcebergRefused)


def test_partition_specs_are_reused_and_their_fields_keep_their_ids() -> None:
    first = updated(table(), _spec((1, "bucket[4]", "b")))
    assert (len(first.specs), first.last_partition_id) == (2, 1000)
    assert updated(first, _spec((1, "BUCKET[4]", "b"), b=1007)) is first
    second = updated(first, _spec((2, "identity", "data"), (1, "bucket[4]", "b")))
    ids = {part["name"]: part["field-id"] for part in (second.specs.get(2) or {})["fields"]}
    assert ids == {"data": 1001, "b": 1000}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (_spec((9, "identity", "x")), "column 9"),
        (_spec((1, "day", "x")), "cannot apply day"),
        (_spec((1, "zorder", "x")), "not a transform"),
        (_spec((1, "bucket[0]", "x")), "width"),
        (_spec((1, "identity", "x"), (2, "identity", "x")), "second time"),
        (_spec((1, "bucket[2]", "data")), "name of a column"),
        (_spec((1, "bucket[2]", "x"), (2, "bucket[2]", "y"), x=1000), "all or to none"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(spec: dict[str, Any], said: str) -> None:
    assert said in refused(table(), spec).message


def test_the_first_format_has_partition_field_ids_without_gaps() -> None:
    base = table(1, snapshots=0)
    assert "[1000]" in refused(base, _spec((1, "identity", "id"), id=1001)).message
    after = updated(
        base, _spec((1, "identity", "id")), {"action": "set-default-spec", "spec-id": 1}
    )
    written = json.loads(after.to_json())
    assert written["partition-spec"] == written["partition-specs"][1]["fields"]
    assert "last-sequence-number" not in written


def test_sort_orders_start_at_one_and_unsorted_is_zero() -> None:
    after = updated(table(), _order(1), _order(2), _order(1))
    assert [order["order-id"] for order in after.sort_orders] == [0, 1, 2]
    back = {"action": "set-default-sort-order", "sort-order-id": -1}
    assert updated(table(), _order(2), back).default_sort_order_id == 1
    assert "column 9" in refused(table(), _order(9)).message
    unknown = {"action": "set-default-sort-order", "sort-order-id": 4}
    assert "not a known order" in refused(table(), unknown).message


@pytest.mark.parametrize("what", ["spec", "sort-order"])
def test_minus_one_needs_something_added(what: str) -> None:
    found = refused(table(), {"action": f"set-default-{what}", f"{what}-id": -1})
    assert "-1" in found.message


def test_what_is_in_use_cannot_be_removed() -> None:
    assert refused(table(), {"action": "remove-schemas", "schema-ids": [0]})
    assert refused(table(), {"action": "remove-partition-specs", "spec-ids": [0]})
    more = updated(table(), _spec((1, "identity", "id")))
    assert len(updated(more, {"action": "remove-partition-specs", "spec-ids": [1]}).specs) == 1


def test_a_stale_snapshot_may_be_tried_again_a_wrong_one_may_not() -> None:
    stale = refused(table(), _add(3, 2, parent=2))
    assert (stale.status, stale.code) == (Status.RETRYABLE, Code.EXPECTATION_FAILED)
    assert refused(table(), _add(2, 3, parent=1)).status is Status.REJECTED
    assert refused(table(), _add(3, 1)).status is Status.REJECTED
    assert updated(table(), _add(3, 2)).last_sequence_number == 2
    assert refused(table(1, snapshots=0), _add(3, 1)).status is Status.REJECTED


def test_row_ids_only_grow() -> None:
    base = table(3)
    rows = {"first-row-id": 10, "added-rows": 5}
    after = updated(base, _add(3, 3, parent=2, **rows))
    assert after.next_row_id == 15
    assert refused(after, _add(4, 4, parent=3, **rows)).status is Status.RETRYABLE
    assert "first-row-id" in refused(base, _add(3, 3, parent=2)).message
    lone = {"first-row-id": 10}
    assert "added-rows" in refused(base, _add(3, 3, parent=2, **lone)).message
    far = {"first-row-id": 2**63 - 1, "added-rows": 1}
    assert "row ids up to" in refused(base, _add(3, 3, parent=2, **far)).message


def test_a_rollback_is_logged_at_the_time_of_the_log() -> None:
    after = updated(table(), main_at(1))
    assert after.snapshot_log.rows.last() == {"timestamp-ms": TIME_MS, "snapshot-id": 1}
    assert after.current_snapshot_id == 1


def test_intermediate_snapshots_leave_no_trace_in_the_log_or_its_removals() -> None:
    after = updated(table(), _add(3, 3, 2), main_at(3), _add(4, 4, 3), main_at(4))
    assert [row.value["snapshot-id"] for row in after.snapshot_log.rows] == [1, 2, 4]
    less = updated(after, {"action": "remove-snapshots", "snapshot-ids": [3]})
    assert [row.value["snapshot-id"] for row in less.snapshot_log.rows] == [1, 2, 4]


def test_a_removed_snapshot_takes_the_history_before_it_along() -> None:
    base = table(snapshots=4)
    tagged = {"action": "set-snapshot-ref", "ref-name": "t", "type": "tag", "snapshot-id": 2}
    statistics = {
        "action": "set-partition-statistics",
        "partition-statistics": {
            "snapshot-id": 2,
            "statistics-path": "s3://x",
            "file-size-in-bytes": 1,
        },
    }
    base = updated(base, tagged, statistics)
    after = updated(base, {"action": "remove-snapshots", "snapshot-ids": [2, 99]})
    assert [row.value["snapshot-id"] for row in after.snapshot_log.rows] == [3, 4]
    assert (list(after.refs), len(after.partition_statistics)) == (["main"], 0)
    third = after.snapshots.get(3)
    assert third is not None
    assert third["parent-snapshot-id"] == 2


def test_times_may_go_back_a_minute_and_no_more() -> None:
    early = 1_705_398_002_000 - 60_001
    assert (
        "before" in refused(table(), _add(3, 3, 2, **{"timestamp-ms": early}), main_at(3)).message
    )
    assert updated(table(), _add(3, 3, 2, **{"timestamp-ms": early + 1}), main_at(3))
    far = TIME_MS + 60_001
    assert (
        "after now" in refused(table(), _add(3, 3, 2, **{"timestamp-ms": far}), main_at(3)).message
    )


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ({"ref-name": "main", "type": "tag"}, "must be a branch"),
        ({"ref-name": "t", "type": "tag", "min-snapshots-to-keep": 1}, "not for tags"),
        ({"ref-name": "b", "type": "branch", "max-ref-age-ms": 0}, "between 1"),
        ({"ref-name": "b", "type": "leaf"}, "'branch' or 'tag'"),
        ({"ref-name": "", "type": "branch"}, "empty"),
    ],
)
def test_a_ref_that_cannot_be_is_refused(ref: dict[str, Any], said: str) -> None:
    update = {"action": "set-snapshot-ref", "snapshot-id": 1, **ref}
    assert said in refused(table(), update).message


def test_main_can_go_and_its_history_stays() -> None:
    after = updated(table(), {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert after.current_snapshot_id is None
    assert "current-snapshot-id" not in json.loads(after.to_json())
    assert len(after.snapshot_log.rows) == 2


def test_without_main_a_removed_snapshot_leaves_the_rest_of_its_history() -> None:
    """The log ends at the current snapshot, where there is one."""
    gone = {"action": "remove-snapshot-ref", "ref-name": "main"}
    removed = {"action": "remove-snapshots", "snapshot-ids": [1]}
    after = updated(table(), gone, removed)
    assert [row.value["snapshot-id"] for row in after.snapshot_log.rows] == [2]


def test_older_members_of_updates_are_read_where_they_stand_alone() -> None:
    both = {"action": "set-properties", "updates": {"a": "new"}, "updated": {"a": "old"}}
    assert updated(table(), both).properties["a"] == "new"
    asked = {"action": "add-schema", "schema": schema(), "last-column-id": "x"}
    assert "last-column-id" in refused(table(), asked).message


def test_a_table_keeps_its_uuid_and_its_format() -> None:
    other = {"action": "assign-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}
    assert "cannot become" in refused(table(), other).message
    back = {"action": "upgrade-format-version", "format-version": 1}
    assert "go back" in refused(table(), back).message
    third = updated(table(), {"action": "upgrade-format-version", "format-version": 3})
    assert json.loads(third.to_json())["next-row-id"] == 0


def test_keys_and_statistics_are_kept_once() -> None:
    key = {"key-id": "k", "encrypted-key-metadata": "AA=="}
    after = updated(
        table(),
        {"action": "add-encryption-key", "encryption-key": key},
        {"action": "add-encryption-key", "encryption-key": {**key, "encrypted-by-id": "x"}},
    )
    assert json.loads(after.to_json())["encryption-keys"] == [key]
    assert not updated(after, {"action": "remove-encryption-key", "key-id": "k"}).encryption_keys
    file = {
        "snapshot-id": 1,
        "statistics-path": "s3://x",
        "file-size-in-bytes": 1,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    twice = [
        {"action": "set-statistics", "statistics": {**file, "file-size-in-bytes": n}}
        for n in (1, 2)
    ]
    base = updated(table(), *twice)
    assert list(base.statistics) == [{**file, "file-size-in-bytes": 2}]
    assert not updated(base, {"action": "remove-statistics", "snapshot-id": 1}).statistics


def test_a_new_table_is_built_within_the_transaction() -> None:
    uuid = "00000000-0000-4000-8000-00000000000a"
    made = updated(None, {"action": "assign-uuid", "uuid": uuid}, *create_updates())
    assert (made.uuid, made.format_version, len(made.metadata_log)) == (uuid, 2, 0)
    assert made.metadata_location.startswith(f"{LOCATION}/metadata/00000-")
    third = updated(
        None, *create_updates(), {"action": "upgrade-format-version", "format-version": 3}
    )
    assert third.format_version == 3
    assert third.uuid == updated(None, *create_updates()).uuid
    for i, update in enumerate(create_updates()):
        if update["action"] in {"add-schema", "add-spec", "add-sort-order", "set-location"}:
            rest = [u for j, u in enumerate(create_updates()) if j != i]
            assert refused(None, *rest).status is Status.REJECTED


def test_requirements_fail_together_and_in_order() -> None:
    wishes = [
        {"type": "assert-table-uuid", "uuid": "nonsense"},
        {"type": "assert-default-spec-id", "default-spec-id": 0},
        {"type": "assert-ref-snapshot-id", "ref": "dev", "snapshot-id": 4},
        {"type": "Assert-Last-Assigned-Field-Id", "last-assigned-field-id": 9},
    ]
    decided = decide({EVENTS: table()}, change([], wishes))
    assert not isinstance(decided, tuple)
    assert [item.requirement for item in decided.failed] == [wishes[0], wishes[2], wishes[3]]
    assert [item.actual for item in decided.failed] == [
        {"uuid": table().uuid},
        {"snapshot-id": None},
        {"last-assigned-field-id": 2},
    ]


def test_tables_of_other_formats_hold_their_names() -> None:
    name = ("analytics", "lance")
    create = decide({}, change(create_updates(), [{"type": "assert-create"}], name))
    assert not isinstance(create, tuple)
    assert create.failed[0].actual == {"uuid": "lance-uuid"}
    alter = decide({}, change([], (), name))
    assert not isinstance(alter, tuple)
    assert (alter.code, "not an Iceberg table" in alter.message) == (Code.NO_SUCH_TABLE, True)
