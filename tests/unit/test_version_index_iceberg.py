"""Iceberg commits stand in the same timeline: snapshots, references, what refused ones required."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from commitlog.codecs.iceberg_changes import read_changes
from commitlog.core.log.replica import Decided
from commitlog.errors import InvalidRequest
from commitlog.model.operations import CreateTable, IcebergChange, Summary
from commitlog.model.records import (
    Code,
    FailedRequirement,
    OperationResult,
    Outcome,
    Status,
    Submitted,
    Transaction,
)
from consumers import history
from consumers.views.version_index import IndexPosition, VersionIndex
from consumers.views.version_index.rows import no_recordings

T = ("ns", "facts")
SCHEMA = {
    "type": "struct",
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {
            "id": 2,
            "name": "place",
            "type": {"type": "struct", "fields": [{"id": 3, "name": "city", "type": "string"}]},
        },
    ],
}
CREATE = IcebergChange(
    T,
    json.dumps([{"type": "assert-create"}]),
    json.dumps(
        [
            {"action": "add-schema", "schema": SCHEMA},
            {"action": "set-properties", "updates": {"owner": "ann"}},
        ]
    ),
)


def append(snapshot_id: int, parent: int | None, ref: str = "main", kind: str = "branch") -> Any:
    summary = {"operation": "append", "added-records": "5", "total-records": str(5 * snapshot_id)}
    summary |= {"total-data-files": "2", "total-files-size": "90", "added-files-size": "45"}
    snapshot = {"snapshot-id": snapshot_id, "timestamp-ms": 1, "manifest-list": "s3://m"}
    snapshot |= {"summary": summary, "parent-snapshot-id": parent}
    reference = {"action": "set-snapshot-ref", "ref-name": ref, "type": kind}
    updates = [
        {"action": "add-snapshot", "snapshot": snapshot},
        reference | {"snapshot-id": snapshot_id},
    ]
    return IcebergChange(T, json.dumps([{"type": "assert-ref-snapshot-id"}]), json.dumps(updates))


def step(number: int, operation: IcebergChange, snapshot_id: int = -1, **fields: Any) -> Decided:
    record = Transaction(f"id-{number}", (operation,), principal=f"writer-{number % 2}")
    result = OperationResult(
        T,
        "life",
        "IcebergChange",
        location="/t/facts",
        metadata_location=f"/t/facts/metadata/0000{number}-x.metadata.json",
        snapshot_id=snapshot_id,
    )
    given: dict[str, Any] = {"status": Status.COMMITTED, "results": (result,)} | fields
    outcome = Outcome(number, record.transaction_id, number, time_ms=1000 * number, **given)
    return Decided(Submitted(0, number, 0, record), outcome, number)


FAILED = (
    FailedRequirement(T, '{"type": "assert-ref-snapshot-id"}', '{"snapshot-id": 8}'),
    FailedRequirement(T, '{"type": "assert-table-uuid"}', '{"uuid": "life"}'),
)
DECIDED = [
    step(1, CREATE),
    step(2, append(7, None), 7),
    step(3, append(8, 7, "v1", "tag"), 8),
    step(
        4,
        append(9, 7),
        status=Status.RETRYABLE,
        code=Code.EXPECTATION_FAILED,
        results=(),
        failed_requirements=FAILED,
        message="main moved",
    ),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("iceberg")
    with VersionIndex(root) as index:
        index.apply(DECIDED, IndexPosition(0, len(DECIDED)), recordings=no_recordings)
        index.publish()
    return root


def test_commits_and_refusals_stand_in_the_tables_history(root: Path) -> None:
    rows = history.history(root, "ns$facts")
    assert [(row["operation"], row["snapshot_id"], row["status"]) for row in rows] == [
        ("append", None, "retryable"),
        ("append", 8, "committed"),
        ("append", 7, "committed"),
        ("create", None, "committed"),
    ]
    assert rows[1]["rows_added"] == 5
    timeline = history.timeline(root)
    assert [row["operations"] for row in timeline] == [["append"]] * 3 + [["create"]]
    (table,) = history.query(root, "FROM tables")
    assert (table["format"], table["snapshot_id"], table["commits"]) == ("iceberg", 8, 3)
    assert str(table["metadata_location"]).endswith("00003-x.metadata.json")


def test_who_asks_for_its_fragments_is_told_that_it_has_none(root: Path) -> None:
    asked: tuple[Callable[[], object], ...] = (
        lambda: history.blame(root, "ns$facts"),
        lambda: history.blame(root, "ns$facts", 0),
        lambda: history.diff(root, "ns$facts", 1, 2),
    )
    for ask in asked:
        with pytest.raises(InvalidRequest, match=r"Iceberg table.*`commitlog history 'ns\$facts'`"):
            ask()


def test_rows_and_bytes_of_all_snapshots_of_a_change_count() -> None:
    """pyiceberg's overwrite is a deletion and an append; others delete by position."""
    said = (
        {"operation": "delete", "deleted-records": "3", "deleted-data-files": "1"},
        {"operation": "append", "added-records": "2", "added-files-size": "45"},
        {"operation": "overwrite", "added-position-deletes": "4", "removed-position-deletes": "1"},
    )
    updates = [
        {"action": "add-snapshot", "snapshot": {"snapshot-id": number, "summary": one}}
        for number, one in enumerate(said)
    ]
    summary = read_changes(IcebergChange(T, "[]", json.dumps(updates))).summary
    assert summary == Summary(rows_added=2, rows_removed=6, bytes_added=45, fragments_removed=1)


def test_what_made_nothing_is_not_in_a_tables_history(tmp_path: Path) -> None:
    made, again = (CreateTable(T, life, "/x", (), exist_ok=True) for life in ("one", "two"))
    result = OperationResult(T, "one", "CreateTable", version=1, location="/x")
    told = [
        Decided(
            Submitted(0, number, 0, Transaction(f"id-{number}", (operation,))),
            Outcome(
                number,
                f"id-{number}",
                number,
                Status.COMMITTED,
                time_ms=number,
                results=(result,) if answers is None else (),
                answers=answers,
            ),
            number,
        )
        for number, operation, answers in ((1, made, None), (2, again, None), (3, made, 1))
    ]
    with VersionIndex(tmp_path) as index:
        index.apply(told, IndexPosition(0, len(told)), recordings=no_recordings)
        index.publish()
    assert [row["version"] for row in history.history(tmp_path, "ns$facts")] == [1]


@pytest.mark.parametrize(
    ("snapshots", "name"),
    [
        (["append"], "append"),
        (["append", "append"], "append"),
        (["delete", "append"], "overwrite"),
        (["overwrite", "append"], "overwrite"),
        (["delete"], "delete"),
    ],
)
def test_a_change_of_several_snapshots_is_called_what_they_do_together(
    snapshots: list[str], name: str
) -> None:
    updates = [
        {"action": "add-snapshot", "snapshot": {"snapshot-id": n, "summary": {"operation": one}}}
        for n, one in enumerate(snapshots)
    ]
    assert read_changes(IcebergChange(T, "[]", json.dumps(updates))).name == name


def test_a_refused_one_says_all_that_it_required(root: Path) -> None:
    (row,) = history.transaction(root, "id-4")
    failed: Any = row["failed_requirements"]
    assert [(one["requirement"], one["actual"]) for one in failed] == [
        (one.requirement, one.actual) for one in FAILED
    ]
    assert failed[0]["principal"] == "writer-0"
    (snapshot,) = history.query(root, "FROM snapshots WHERE snapshot_id = 9")
    assert (snapshot["status"], snapshot["parent_id"]) == ("retryable", 7)


def test_branches_and_tags_name_snapshots(root: Path) -> None:
    refs = history.query(root, "SELECT name, kind, snapshot_id FROM refs")
    assert refs == [
        {"name": "main", "kind": "branch", "snapshot_id": 7},
        {"name": "v1", "kind": "tag", "snapshot_id": 8},
    ]
    (tag,) = history.query(root, "FROM tags")
    assert tag["name"] == "v1"
    (at,) = history.query(root, "FROM table_at_tag('ns$facts', 'v1')")
    assert (at["snapshot_id"], at["parent_id"], at["principal"]) == (8, 7, "writer-1")
    assert history.query(root, "FROM table_at_tag('ns$facts', 'v2')") == []


def test_schemas_properties_and_growth_are_known(root: Path) -> None:
    (schema,) = history.query(root, "SELECT fields FROM schemas")
    assert schema["fields"] == ["id long not null", "place struct", "place.city string"]
    (owner,) = history.query(root, "SELECT key, value, scope FROM properties")
    assert owner == {"key": "owner", "value": "ann", "scope": "properties"}
    rows = history.growth(root, "ns$facts")
    assert [(row["snapshot_id"], row["rows"], row["bytes"]) for row in rows] == [
        (7, 35, 90),
        (8, 40, 90),
    ]


def test_totals_of_a_snapshot_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    said = append(7, None)
    odd = replace(said, updates=said.updates.replace('"35"', '"many"').replace('"90"', '"9e400"'))
    decided = [DECIDED[0], step(2, odd, 7), step(3, append(8, 7), 8)]
    with VersionIndex(tmp_path) as index:
        index.apply(decided, IndexPosition(0, len(decided)), recordings=no_recordings)
        index.publish()
    rows = history.growth(tmp_path, "ns$facts")
    assert [(row["snapshot_id"], row["rows"], row["bytes"]) for row in rows] == [
        (7, None, None),
        (8, 40, 90),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "7",
        "[1, null, [], {}]",
        '[{"action": "add-snapshot"}, {"action": "add-snapshot", "snapshot": 3}]',
        '[{"action": "add-snapshot", "snapshot": {"snapshot-id": true}}]',
        '[{"action": "add-snapshot", "snapshot": {"snapshot-id": 99999999999999999999}}]',
        '[{"action": "add-schema", "schema": {"fields": {"id": 1}}}]',
        '[{"action": "add-schema", "schema": {"fields": [{"id": 1, "type": {"fields": 2}}]}}]',
        '[{"action": "set-snapshot-ref"}, {"action": "set-properties", "updates": []}]',
        '[{"action": "remove-properties", "removals": 5}]',
        "[" * 100_000,
    ],
)
def test_rubbish_is_left_out(text: str) -> None:
    changes = read_changes(IcebergChange(T, text, text))
    assert not changes.snapshots
