"""More cases of the multi-table commit: each line of the document that the given ones leave out.

They have the given cases' format and fixtures, and run as those do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.iceberg_cases import DATA, World, over_memory, run_case
from tests.namespace_world import World as NamespaceWorld

Json = dict[str, Any]

UUIDS = {name: f["metadata"]["table-uuid"] for name, f in DATA["fixtures"].items()}
SET = {"action": "set-properties", "updates": {"x": "1"}}
SCHEMA = {
    "type": "struct",
    "schema-id": 7,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "ts", "required": False, "type": "timestamptz"},
        {"id": 4, "name": "more", "required": False, "type": "string"},
    ],
}
SORTED = {
    "transform": "identity",
    "source-id": 1,
    "direction": "asc",
    "null-order": "nulls-first",
}


def snapshot(number: int, **more: Any) -> Json:
    return {
        "action": "add-snapshot",
        "snapshot": {
            "snapshot-id": number,
            "timestamp-ms": 1705398600000,
            "summary": {"operation": "append"},
            "manifest-list": f"s3://bucket/metadata/snap-{number}.avro",
            "schema-id": 0,
            **more,
        },
    }


def ref(name: str, number: int, kind: str = "branch") -> Json:
    head = {"action": "set-snapshot-ref", "ref-name": name, "type": kind}
    return {**head, "snapshot-id": number}


def change(name: str, updates: Sequence[Any] = (SET,), requirements: Sequence[Any] = ()) -> Json:
    return {
        "identifier": {"namespace": ["analytics"], "name": name},
        "requirements": list(requirements),
        "updates": list(updates),
    }


def create(name: str, *more: Json, namespace: str = "analytics") -> Json:
    updates = [
        {"action": "assign-uuid", "uuid": "0199a000-0000-4000-8000-0000000000aa"},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "set-location", "location": f"s3://bucket/{name}"},
        {"action": "add-schema", "schema": SCHEMA},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-partition-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        *more,
    ]
    found = change(name, updates, [{"type": "assert-create"}])
    found["identifier"]["namespace"] = [namespace]
    return found


def ok(*changes: Json, checks: dict[str, dict[str, Any]] | None = None) -> tuple[Json, Json]:
    """A request, and its success; `checks` are values by table and pointer (None: absent)."""
    tables = {
        name: [
            {"pointer": pointer, "absent": True}
            if value is None
            else {"pointer": pointer, "equals": value}
            for pointer, value in values.items()
        ]
        for name, values in (checks or {}).items()
    }
    results = [one["identifier"] for one in changes]
    return {"table-changes": list(changes)}, {"status": 200, "results": results, "tables": tables}


_TYPES = {400: "BadRequestException", 404: "NoSuchTableException", 409: "CommitFailedException"}


def refused(status: int, *changes: Any, failed: Any = None) -> tuple[Json, Json]:
    """A request, and how it is refused; `failed` are the (table, requirement, actual)."""
    error: Json = {"type": _TYPES[status], "code": status}
    if failed is not None:
        error["failed-requirements"] = [
            {
                "identifier": {"namespace": ["analytics"], "name": name},
                "requirement": requirement,
                "actual": actual,
            }
            for name, requirement, actual in failed
        ]
    return {"table-changes": list(changes)}, {"status": status, "error": error}


def unmet(requirement: Json, actual: Json, table: str = "events") -> tuple[Json, Json]:
    wrong = (table, requirement, actual)
    return refused(409, change(table, requirements=[requirement]), failed=[wrong])


def bad(update: Any, table: str = "events") -> tuple[Json, Json]:
    return refused(400, change(table, [update]))


def defaulting(type_: Any, value: Any, member: str = "initial-default") -> tuple[Json, Json]:
    """A column whose default no reader of Iceberg's Java library could read back."""
    column = {"id": 9, "name": "d", "required": False, "type": type_, member: value}
    return bad({"action": "add-schema", "schema": {"type": "struct", "fields": [column]}}, "v3")


FITTING = (
    ("boolean", True),
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("float", 1.0),
    ("double", -2.5e300),
    ("decimal(4,2)", "1.50"),
    ("decimal(9, 0)", "-7"),
    ("string", ""),
    ("date", "2024-02-29"),
    ("time", "10:00:00.123456"),
    ("timestamp", "2020-01-01T00:00:00"),
    ("timestamptz", "2020-01-01T00:00:00.5+00:00"),
    ("timestamp_ns", "2020-01-01T00:00:00.123456789"),
    ("timestamptz_ns", "2020-01-01T00:00:00.123456789+00:00"),
    ("uuid", "550e8400-e29b-41d4-a716-446655440000"),
    ("fixed[2]", "0A0b"),
    ("binary", ""),
)
OTHER_UUID = {"type": "assert-table-uuid", "uuid": "00000000-0000-4000-8000-000000000000"}
SCHEMA_IS_0 = {"type": "assert-current-schema-id", "current-schema-id": 0}
SCHEMA_IS_9 = {"type": "assert-current-schema-id", "current-schema-id": 9}

CASES: dict[str, tuple[Json, Json]] = {
    # Requirements: what each fails with, and what it passes on.
    "uuid-fails": unmet(OTHER_UUID, {"uuid": UUIDS["events"]}),
    "schema-fails": unmet(SCHEMA_IS_9, {"current-schema-id": 0}),
    "schema-holds": ok(change("events", requirements=[SCHEMA_IS_0])),
    "sort-order-fails": unmet(
        {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
        {"default-sort-order-id": 0},
    ),
    "field-id-holds": ok(
        change(
            "events",
            requirements=[{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 3}],
        )
    ),
    "ref-elsewhere": unmet(
        {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 111},
        {"snapshot-id": 123456789},
    ),
    "ref-missing": unmet(
        {"type": "assert-ref-snapshot-id", "ref": "nope", "snapshot-id": 111},
        {"snapshot-id": None},
    ),
    "ref-null-on-an-empty-main": ok(
        change(
            "empty",
            requirements=[{"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}],
        )
    ),
    "all-that-fails-in-order-of-tables-and-requirements": refused(
        409,
        change("event_counts", requirements=[SCHEMA_IS_9, OTHER_UUID]),
        change("empty", requirements=[SCHEMA_IS_0]),
        change("events", requirements=[OTHER_UUID]),
        failed=[
            ("event_counts", SCHEMA_IS_9, {"current-schema-id": 0}),
            ("event_counts", OTHER_UUID, {"uuid": UUIDS["event_counts"]}),
            ("events", OTHER_UUID, {"uuid": UUIDS["events"]}),
        ],
    ),
    "requirements-see-the-state-before": refused(
        409,
        change(
            "events",
            [
                {"action": "add-schema", "schema": SCHEMA},
                {"action": "set-current-schema", "schema-id": -1},
            ],
            [{"type": "assert-current-schema-id", "current-schema-id": 1}],
        ),
    ),
    "requirements-without-updates": ok(
        change("events", [], [SCHEMA_IS_0]),
        checks={"events": {"/last-updated-ms": 1705398500000}},
    ),
    "requirements-without-updates-fail": refused(409, change("events", [], [SCHEMA_IS_9])),
    "an-unknown-requirement": refused(400, change("events", requirements=[{"type": "assert-x"}])),
    "a-view's-requirement": refused(
        400,
        change("events", requirements=[{"type": "assert-view-uuid", "uuid": UUIDS["events"]}]),
    ),
    "a-requirement-that-is-no-object": refused(400, change("events", requirements=["x"])),
    "a-requirement-of-the-wrong-type": refused(
        400,
        change(
            "events",
            requirements=[{"type": "assert-current-schema-id", "current-schema-id": "0"}],
        ),
    ),
    "a-ref-requirement-without-ref": refused(
        400, change("events", requirements=[{"type": "assert-ref-snapshot-id", "snapshot-id": 1}])
    ),
    "create-with-another-requirement": refused(
        400, change("events", requirements=[{"type": "assert-create"}, SCHEMA_IS_0])
    ),
    # Which error wins.
    "400-before-404": refused(400, change("nope"), change("events", [{"action": "nonsense"}])),
    "400-before-409": refused(
        400, change("events", requirements=[SCHEMA_IS_9]), change("empty", [{"action": "x"}])
    ),
    "404-before-409": refused(404, change("events", requirements=[SCHEMA_IS_9]), change("nope")),
    "409-before-an-update-that-does-not-fit": refused(
        409, change("events", [ref("b", 42)], [SCHEMA_IS_9])
    ),
    "too-many-tables-before-404": refused(400, *(change(f"n{i}") for i in range(101))),
    "too-many-updates-before-404": refused(400, change("nope", [SET] * 1001)),
    # Creating within a transaction.
    "create-beside-a-change": ok(
        create("made", SET),
        change("events"),
        checks={
            "made": {
                "/table-uuid": "0199a000-0000-4000-8000-0000000000aa",
                "/current-schema-id": 0,
                "/schemas/0/fields/2/name": "more",
                "/last-column-id": 4,
                "/properties/x": "1",
                "/format-version": 2,
            },
            "events": {"/properties/x": "1"},
        },
    ),
    "create-beside-a-failure": refused(
        409, create("made"), change("events", requirements=[SCHEMA_IS_9])
    ),
    "create-of-one-that-exists": refused(
        409,
        create("events"),
        failed=[("events", {"type": "assert-create"}, {"uuid": UUIDS["events"]})],
    ),
    "create-in-an-unknown-namespace": refused(404, create("made", namespace="nowhere")),
    "create-without-a-schema": refused(
        400, change("made", [SET], [{"type": "assert-create"}]), change("events")
    ),
    # Updates.
    "the-document's-first-example-on-a-v1-table": ok(
        change("legacy", [snapshot(5), ref("main", 5)]),
        checks={"legacy": {"/current-snapshot-id": 5, "/last-sequence-number": None}},
    ),
    "upgrade-from-1-to-2": ok(
        change("legacy", [{"action": "upgrade-format-version", "format-version": 2}]),
        checks={"legacy": {"/format-version": 2, "/last-sequence-number": 0, "/schema": None}},
    ),
    "upgrade-to-the-same": ok(
        change("events", [{"action": "upgrade-format-version", "format-version": 2}]),
        checks={"events": {"/last-updated-ms": 1705398500000}},
    ),
    "no-way-back": bad({"action": "upgrade-format-version", "format-version": 1}),
    "assign-another-uuid": bad({"action": "assign-uuid", "uuid": OTHER_UUID["uuid"]}),
    "assign-rubbish": bad({"action": "assign-uuid", "uuid": "x"}),
    "set-location": ok(
        change("events", [{"action": "set-location", "location": "s3://bucket/moved/"}]),
        checks={"events": {"/location": "s3://bucket/moved"}},
    ),
    "set-no-location": bad({"action": "set-location", "location": ""}),
    "add-sort-order": ok(
        change(
            "events",
            [
                {"action": "add-sort-order", "sort-order": {"order-id": 9, "fields": [SORTED]}},
                {"action": "set-default-sort-order", "sort-order-id": -1},
            ],
        ),
        checks={"events": {"/default-sort-order-id": 1, "/sort-orders/1/fields/0": SORTED}},
    ),
    "sort-order-unknown": bad({"action": "set-default-sort-order", "sort-order-id": 8}),
    "sort-order-none-added": bad({"action": "set-default-sort-order", "sort-order-id": -1}),
    "sort-by-no-column": bad(
        {
            "action": "add-sort-order",
            "sort-order": {"order-id": 1, "fields": [{**SORTED, "source-id": 77}]},
        }
    ),
    "spec-none-added": bad({"action": "set-default-spec", "spec-id": -1}),
    "spec-of-no-column": bad(
        {
            "action": "add-partition-spec",
            "spec": {
                "spec-id": 1,
                "fields": [{"name": "p", "transform": "identity", "source-id": 77}],
            },
        }
    ),
    "a-schema-id-that-the-client-chose": bad({"action": "set-current-schema", "schema-id": 7}),
    "the-same-schema-again": ok(
        change(
            "events",
            [
                {"action": "add-schema", "schema": SCHEMA},
                {"action": "add-schema", "schema": SCHEMA},
                {"action": "set-current-schema", "schema-id": -1},
            ],
        ),
        checks={"events": {"/current-schema-id": 1, "/schemas/2": None, "/last-column-id": 4}},
    ),
    "main-is-no-tag": bad(ref("main", 111, "tag")),
    "a-ref-of-no-kind": bad(ref("b", 111, "bookmark")),
    "a-branch-with-limits": ok(
        change("events", [{**ref("b", 111), "min-snapshots-to-keep": 2, "max-ref-age-ms": 9}]),
        checks={"events": {"/refs/b/min-snapshots-to-keep": 2, "/refs/b/max-ref-age-ms": 9}},
    ),
    "main-goes-back": ok(
        change("events", [ref("main", 111)]),
        checks={"events": {"/current-snapshot-id": 111, "/snapshot-log/2/snapshot-id": 111}},
    ),
    "a-snapshot-twice": bad(snapshot(111, **{"sequence-number": 3})),
    "a-snapshot-without-manifests": bad(
        {"action": "add-snapshot", "snapshot": {"snapshot-id": 1, "timestamp-ms": 1}}
    ),
    "v3-without-row-ids": bad(snapshot(5, **{"sequence-number": 3}), "v3"),
    "v3-stale-row-ids": refused(
        409,
        change("v3", [snapshot(5, **{"sequence-number": 3, "first-row-id": 5, "added-rows": 1})]),
    ),
    "a-ref-that-is-not-there": ok(
        change("events", [{"action": "remove-snapshot-ref", "ref-name": "nope"}]),
        checks={"events": {"/last-updated-ms": 1705398500000}},
    ),
    "no-snapshots-removed": ok(
        change("events", [{"action": "remove-snapshots", "snapshot-ids": []}]),
        checks={
            "events": {"/last-updated-ms": 1705398500000, "/snapshots/1/snapshot-id": 123456789}
        },
    ),
    "the-metadata-log-names-the-file-before": ok(
        change("events"),
        checks={
            "events": {
                "/metadata-log/0/metadata-file": DATA["fixtures"]["events"]["metadata-location"],
                "/metadata-log/0/timestamp-ms": 1705398500000,
            }
        },
    ),
    "an-unknown-update": bad({"action": "drop-everything"}),
    "a-view's-update": bad({"action": "set-current-view-version", "view-version-id": 1}),
    "an-update-without-action": bad({"updates": {"x": "1"}}),
    "an-update-that-is-no-object": bad(7),
    "properties-that-are-no-object": bad({"action": "set-properties", "updates": ["x"]}),
    "a-property-that-is-no-string": bad({"action": "set-properties", "updates": {"x": 1}}),
    "removals-that-are-no-strings": bad({"action": "remove-properties", "removals": [1]}),
    "a-number-out-of-range": bad({"action": "remove-snapshots", "snapshot-ids": [2**63]}),
    # What would make the table's metadata unreadable for Java.
    "a-default-of-another-type": defaulting("int", "x"),
    "a-default-written-of-another-type": defaulting("int", 2**31, "write-default"),
    "a-default-that-is-null": defaulting("int", None),
    "a-default-that-is-true-for-a-long": defaulting("long", True),
    "a-default-without-a-fraction-for-a-double": defaulting("double", 1),
    "a-default-beyond-a-float": defaulting("float", 1e39),
    "a-default-of-another-scale": defaulting("decimal(4,2)", "1.5"),
    "a-default-on-no-day": defaulting("date", "2020-13-01"),
    "a-default-with-a-zone-where-none-is": defaulting("timestamp", "2020-01-01T00:00:00+00:00"),
    "a-default-without-a-zone": defaulting("timestamptz", "2020-01-01T00:00:00"),
    "a-default-of-another-zone": defaulting("timestamptz", "2020-01-01T00:00:00+02:00"),
    "a-default-of-another-length": defaulting("fixed[2]", "ab"),
    "a-default-of-half-a-byte": defaulting("binary", "abc"),
    "a-default-that-is-no-uuid": defaulting("uuid", "nope"),
    "a-default-of-a-variant": defaulting("variant", "x"),
    "a-default-within-a-list": defaulting(
        {
            "type": "list",
            "element-id": 10,
            "element-required": False,
            "element": {
                "type": "struct",
                "fields": [
                    {
                        "id": 11,
                        "name": "e",
                        "required": False,
                        "type": "int",
                        "write-default": "x",
                    }
                ],
            },
        },
        None,
        "note",
    ),
    "defaults-that-fit": ok(
        change(
            "v3",
            [
                {
                    "action": "add-schema",
                    "schema": {
                        "type": "struct",
                        "fields": [
                            {
                                "id": 10 + place,
                                "name": f"c{place}",
                                "required": False,
                                "type": kind,
                                "initial-default": value,
                                "write-default": value,
                            }
                            for place, (kind, value) in enumerate(FITTING)
                        ],
                    },
                }
            ],
        ),
        checks={"v3": {"/schemas/1/fields/0/initial-default": True}},
    ),
    "a-key-that-is-not-base64": bad(
        {
            "action": "add-encryption-key",
            "encryption-key": {"key-id": "k", "encrypted-key-metadata": "***"},
        },
        "v3",
    ),
    # The document itself.
    "one-table-one-of-another-name": ok(change("events"), change("event_counts")),
    "a-name-that-is-empty": refused(400, change("")),
    "a-name-with-a-slash": refused(400, change("a/b")),
    "a-name-that-is-a-number": refused(400, {**change("x"), "identifier": {"name": 1}}),
    "a-namespace-that-is-a-string": refused(
        400, {**change("x"), "identifier": {"namespace": "analytics", "name": "events"}}
    ),
    "a-namespace-that-is-empty": refused(
        400, {**change("x"), "identifier": {"namespace": [], "name": "events"}}
    ),
    "a-change-that-is-null": refused(400, None),
    "requirements-that-are-null": refused(400, {**change("events"), "requirements": None}),
    "updates-that-are-an-object": refused(400, {**change("events"), "updates": {}}),
}


@pytest.fixture(scope="module")
def served(world: NamespaceWorld) -> World:
    return over_memory(world)


@pytest.mark.parametrize("name", CASES)
def test_case(name: str, served: World) -> None:
    body, expected = CASES[name]
    given = list(DATA["fixtures"])
    case = {
        "given": given,
        "request": {"method": "POST", "path": "/v1/transactions/commit", "body": body},
        "expect": expected if expected["status"] == 200 else {**expected, "unchanged": given},
    }
    try:
        run_case(case, served)
        made = served.server.ask("GET", "/v1/namespaces/analytics/tables/made").status
        assert made == (200 if expected["status"] == 200 and "made" in expected["tables"] else 404)
    finally:
        served.forget_tables()
