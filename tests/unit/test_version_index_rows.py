"""Rows and heads are pure functions of what was decided."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from commitlog.core.log.replica import Decided
from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.errors import CorruptLog
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment, IndexMetadata, IndexSection, Manifest
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.limits import TIME_MS_MAX
from commitlog.model.operations import (
    AlterProperties,
    AppliedWrite,
    ApplyRows,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
    DeleteTableVersions,
    DropNamespace,
    DropTable,
    LanceCommit,
    Operation,
    RenameTable,
    Summary,
)
from commitlog.model.records import (
    Code,
    Conflict,
    FragmentImage,
    KeyAbsent,
    LogRecord,
    Malformed,
    OperationResult,
    Outcome,
    ProtocolVersion,
    Recording,
    Status,
    Submitted,
    TableAbsent,
    Transaction,
)
from commitlog.spark.log_rows import log_row
from consumers.views.version_index.heads import COLUMNS, IndexedLife, fold
from consumers.views.version_index.operation_results import read
from consumers.views.version_index.relation import Relation
from consumers.views.version_index.rows import rows_of
from consumers.views.version_index.schema import EVENTS, FRAGMENT_CHANGES, LEADERS, TABLES

T = ("ns", "t")
FRAGMENT = DataFragment(physical_rows=5)
FRAGMENT.files.add(path="a", file_size_bytes=20)
FRAGMENT.files.add(path="b", file_size_bytes=30)
MESSAGE = LanceMessage(append=LanceMessage.Append(fragments=[FRAGMENT]))
APPEND = LanceCommit(
    T,
    "Append",
    1,
    MESSAGE.SerializeToString(),
    summary=Summary(rows_added=5, bytes_added=50, data_files=("a", "b")),
)


def decided(record: LogRecord, **fields: object) -> Decided:
    outcome = Outcome(1, record.transaction_id, 7, Status.COMMITTED, time_ms=1000, epoch=2)
    return Decided(Submitted(0, 7, 1000, record), replace(outcome, **fields), 9)  # type: ignore[arg-type]


def transaction(*operations: Operation, **fields: object) -> Transaction:
    made = Transaction("id-1", operations, principal="ann", submitted_at_ms=900)
    return replace(made, **fields)  # type: ignore[arg-type]


def result(operation: str, version: int = 0, **fields: object) -> OperationResult:
    return replace(OperationResult(T, "life-1", operation, version), **fields)  # type: ignore[arg-type]


def named(relation: str, one: Decided) -> list[dict[str, object]]:
    columns = next(r for r in EVENTS if r.name == relation).columns
    rows = rows_of(read([one]))[relation]
    return [dict(zip([c.name for c in columns], row, strict=True)) for row in rows]


@pytest.mark.parametrize("relation", [*EVENTS, LEADERS, TABLES], ids=lambda r: r.name)
def test_every_column_is_documented_and_named_once(relation: Relation) -> None:
    names = [column.name for column in relation.columns]
    assert len(names) == len(set(names))
    assert all(column.comment for column in relation.columns)
    assert set(relation.order) <= set(names)


def test_a_head_has_the_columns_of_tables() -> None:
    assert tuple(column.name for column in TABLES.columns) == COLUMNS


@pytest.mark.parametrize(
    ("said_ms", "kept_us"),
    [(0, None), (1, 1000), (-(2**62), None), (2**62, None), (TIME_MS_MAX, TIME_MS_MAX * 1000)],
)
def test_a_writers_clock_may_say_anything(said_ms: int, kept_us: int | None) -> None:
    """A writer says it, and a database holds no times of more than 64 bits."""
    one = decided(transaction(APPEND, submitted_at_ms=said_ms), results=(result("Append", 2),))
    [row] = named("transactions", one)
    assert row["submitted_at"] == log_row(one)["submitted_at"] == kept_us


def test_a_commit_has_its_version_and_what_it_was_rebased_over() -> None:
    made = result("Append", 4, read_version=3, rebased_over=2, first_fragment_id=3)
    one = decided(transaction(APPEND), results=(made,))
    (operation,) = named("operations", one)
    assert operation["version"] == 4
    assert operation["read_version"] == 1
    assert operation["built_on"] == 3
    assert operation["rebased_over"] == 2
    assert operation["time"] == 1_000_000
    (row,) = named("transactions", one)
    assert (row["versions"], row["operations"], row["tables"]) == ([4], ["Append"], ["ns$t"])
    assert (row["transaction_offset"], row["outcome_offset"], row["code"]) == (7, 9, None)
    (fragment,) = named("fragment_changes", one)
    assert (fragment["fragment_id"], fragment["version"], fragment["removed"]) == (3, 4, False)
    assert (fragment["physical_rows"], fragment["deleted_rows"]) == (5, 0)
    assert (fragment["files"], fragment["bytes"]) == (["a", "b"], 50)


def test_a_refused_transaction_has_rows_without_a_version() -> None:
    conflict = Conflict(T, "winner", 4, "Delete", "append_delete", fragments=(3,), advice="Redo")
    one = decided(
        transaction(APPEND),
        status=Status.RETRYABLE,
        code=Code.CONFLICT,
        message="lost",
        conflict=conflict,
    )
    (operation,) = named("operations", one)
    assert (operation["status"], operation["version"]) == ("retryable", None)
    assert operation["message"] == "lost"
    (collision,) = named("collisions", one)
    assert (collision["operation"], collision["winner_version"]) == ("Append", 4)
    assert (collision["fragments"], collision["principal"]) == ([3], "ann")
    assert [file["status"] for file in named("refused_files", one)] == ["retryable"] * 2


def test_a_repeated_request_makes_no_version_again() -> None:
    one = decided(transaction(APPEND), answers=1, results=(result("Append", 4),))
    (operation,) = named("operations", one)
    assert (operation["status"], operation["version"]) == ("repeated", None)
    assert not fold({}, read([one]))


def test_results_beyond_the_operations_have_rows_too() -> None:
    dropped = result("DropTable")
    cascade = DropNamespace(("ns",), cascade=True)
    end = OperationResult(("ns",), "", "DropNamespace")
    operations = named("operations", decided(transaction(cascade), results=(end, dropped)))
    assert [(o["operation"], o["table_name"]) for o in operations] == [
        ("DropNamespace", "ns"),
        ("DropTable", "ns$t"),
    ]
    assert operations[1]["name_after"] is None


def test_records_that_are_no_transactions_have_rows() -> None:
    (broken,) = named("transactions", decided(Malformed("x", "bytes", b""), status=Status.REJECTED))
    assert (broken["kind"], broken["operations"]) == ("malformed", [])
    (rules,) = named("transactions", decided(ProtocolVersion("y", 1, 1, 1, 1)))
    assert (rules["kind"], rules["operations"]) == ("protocol", ["ProtocolVersion"])


def test_ranges_of_versions_that_a_record_deleted() -> None:
    record = transaction(DeleteTableVersions(T, ((1, 3), (7, 7))))
    one = decided(record, results=(result("DeleteTableVersions"),))
    found = [(row["first_version"], row["last_version"]) for row in named("expiries", one)]
    assert found == [(1, 3), (7, 7)]
    told = {(row["table_name"], row["principal"]) for row in named("expiries", one)}
    assert told == {("ns$t", "ann")}
    assert not named("expiries", replace(one, outcome=replace(one.outcome, results=())))


def test_ranges_of_small_writes_that_a_record_applied() -> None:
    writes = (AppliedWrite(5, 0, inserted=2, updated=1), AppliedWrite(9, 0, refused="no_column"))
    record = transaction(ApplyRows(T, "life-1", 4, 9, writes), APPEND)
    one = decided(record, results=(result("ApplyRows"), result("Append", 3)))
    (row,) = named("applied_rows", one)
    assert (row["after"], row["through"], row["version"]) == (4, 9, 3)
    assert (row["writes"], row["refused"]) == (1, 1)
    assert (row["inserted"], row["updated"], row["deleted"]) == (2, 1, 0)
    refused = decided(record, status=Status.REJECTED)
    assert not named("applied_rows", refused)


def test_expectations_and_properties() -> None:
    change = AlterProperties(T, upserts=(("a", "1"),), removals=("b",))
    record = transaction(change, expects=(TableAbsent(("x",)), KeyAbsent(T, b"\1", 3)))
    one = decided(record, results=(result("AlterProperties"),))
    assert [(p["key"], p["value"]) for p in named("properties", one)] == [("a", "1"), ("b", None)]
    expected = [(e["kind"], e["version"], e["detail"]) for e in named("expectations", one)]
    assert expected == [("TableAbsent", None, None), ("KeyAbsent", 3, "01")]
    assert not named("properties", replace(one, outcome=replace(one.outcome, results=())))


def folded(*steps: tuple[Operation, OperationResult]) -> dict[str, IndexedLife]:
    heads: dict[str, IndexedLife] = {}
    for sequence, (operation, made) in enumerate(steps, start=1):
        one = decided(transaction(operation), results=(made,), sequence=sequence)
        fold(heads, read([one]))
    return heads


CREATE = (CreateTable(T, "life-1", "/x", ()), result("CreateTable", 1, location="/x"))


def test_a_head_follows_its_table_through_a_rename_to_its_end() -> None:
    heads = folded(
        CREATE,
        (APPEND, result("Append", 2)),
        (RenameTable(T, ("ns", "u")), result("RenameTable")),
        (DropTable(("ns", "u")), replace(result("DropTable"), table=("ns", "u"))),
    )
    head = heads["life-1"]
    assert (head.table_name, head.former_names, head.version) == ("ns$u", ["ns$t"], 2)
    assert (head.created_sequence, head.ended_sequence, head.ended_by) == (1, 4, "DropTable")
    assert (head.commits, head.rows_added, head.location) == (2, 5, "/x")


def test_dropping_a_namespace_ends_what_is_in_it() -> None:
    end = OperationResult(("ns",), "", "DropNamespace")
    heads = folded(CREATE, (DropNamespace(("ns",), cascade=True), end))
    assert heads["life-1"].ended_by == "DropNamespace"


def test_creating_what_exists_already_makes_no_version() -> None:
    again = CreateTable(T, "life-2", "/y", (), exist_ok=True)
    heads = folded(CREATE, (again, result("CreateTable", 1, location="/x")))
    assert (heads["life-1"].sequence, heads["life-1"].commits, len(heads)) == (1, 1, 1)
    (row,) = named("operations", decided(transaction(again), results=(result("CreateTable", 1),)))
    assert (row["status"], row["version"]) == ("repeated", None)


def test_a_staged_version_has_the_name_of_its_operation() -> None:
    staged = CreateTableVersion(T, 2, "_versions/x", 9, operation="Merge")
    made = result("Merge", 2, read_version=1)
    (row,) = named("operations", decided(transaction(staged), results=(made,)))
    assert (row["operation"], row["version"], row["read_version"]) == ("Merge", 2, 1)


def test_a_namespace_is_no_table() -> None:
    made = OperationResult(("ns",), "", "CreateNamespace")
    assert not folded((CreateNamespace(("ns",)), made))


def deleting() -> LanceMessage:
    """Delete rows of fragments 1, 2 and 5, and all of 3."""
    message = LanceMessage()
    for one in (1, 2, 5):
        image = message.delete.updated_fragments.add(id=one, physical_rows=10)
        image.deletion_file.num_deleted_rows = 4
        image.deletion_file.id = one
    message.delete.updated_fragments[2].deletion_file.num_deleted_rows = 10
    message.delete.deleted_fragment_ids.append(3)
    return message


def test_a_rebased_delete_leaves_what_the_outcome_says() -> None:
    rebased = DataFragment(id=1, physical_rows=10)
    rebased.deletion_file.num_deleted_rows = 6
    rebased.deletion_file.id = 77
    images = (FragmentImage(1, rebased.SerializeToString()), FragmentImage(2, None))
    delete = LanceCommit(T, "Delete", 3, deleting().SerializeToString())
    one = decided(transaction(delete), results=(result("Delete", 5, images=images),))
    rows = {row["fragment_id"]: row for row in named("fragment_changes", one)}
    assert [one for one, row in sorted(rows.items()) if row["removed"]] == [2, 3, 5]
    assert (rows[1]["deleted_rows"], rows[1]["physical_rows"]) == (6, None)
    assert rows[1]["deletion_file"] == "_deletions/1-0-77.arrow"


def test_an_update_built_here_leaves_its_new_fragments_too() -> None:
    message = LanceMessage()
    message.update.updated_fragments.extend(deleting().delete.updated_fragments)
    message.update.removed_fragment_ids.append(3)
    message.update.new_fragments.add(physical_rows=8).files.add(path="a", file_size_bytes=9)
    message.update.new_fragments.add(physical_rows=1)
    update = LanceCommit(T, "Update", 3, message.SerializeToString())
    one = decided(transaction(update), results=(result("Update", 5, first_fragment_id=6),))
    rows = {row["fragment_id"]: row for row in named("fragment_changes", one)}
    assert [one for one, row in sorted(rows.items()) if row["removed"]] == [3, 5]
    assert [(one, rows[one]["deleted_rows"]) for one in (1, 2)] == [(1, 4), (2, 4)]
    assert [rows[one]["physical_rows"] for one in (6, 7)] == [8, 1]
    assert (rows[6]["files"], rows[6]["bytes"]) == (["a"], 9)
    assert rows[6]["made_from"] == [1, 2, 3, 5]


def test_what_is_recorded_outside_the_outcome_is_read() -> None:
    delta = ManifestDelta(
        5,
        0,
        0,
        0,
        None,
        0,
        "x.txn",
        removed=(2,),
        fragments=((9, FRAGMENT.SerializeToString()),),
        header=Manifest(fields=[Field(name="id", id=0, parent_id=-1)]).SerializeToString(),
        index_section=IndexSection(indices=[IndexMetadata(name="by_id")]).SerializeToString(),
    ).to_bytes()
    recording = Recording(hashlib.sha256(delta).digest(), len(delta), None)
    message = LanceMessage()
    message.rewrite.groups.add(
        old_fragments=[DataFragment(id=2)], new_fragments=[DataFragment(id=9)]
    )
    rewrite = LanceCommit(T, "Rewrite", 4, message.SerializeToString())
    one = decided(transaction(rewrite), results=(result("Rewrite", 5, delta=recording),))
    rows = rows_of(read([one]), lambda outcome: {recording.sha256: delta})
    names = [column.name for column in FRAGMENT_CHANGES.columns]
    gone, new = (dict(zip(names, row, strict=True)) for row in rows["fragment_changes"])
    assert (gone["fragment_id"], gone["removed"]) == (2, True)
    assert (new["fragment_id"], new["made_from"], new["files"]) == (9, [2], ["a", "b"])
    assert [row[9] for row in rows["field_changes"]] == [0]
    assert [row[7] for row in rows["index_changes"]] == ["by_id"]
    with pytest.raises(CorruptLog, match="missing or differs"):
        rows_of(read([one]))


def test_settings_of_lance_are_properties_with_a_scope() -> None:
    message = LanceMessage()
    message.update_config.config_updates.update_entries.add(key="a", value="1")
    message.update_config.config_updates.update_entries.add(key="b")
    message.update_config.table_metadata_updates.replace = True
    message.update_config.upsert_values["old"] = "form"
    configure = LanceCommit(T, "UpdateConfig", 1, message.SerializeToString())
    one = decided(transaction(configure), results=(result("UpdateConfig", 2),))
    found = [(p["scope"], p["key"], p["value"]) for p in named("properties", one)]
    assert found == [
        ("config", "old", "form"),
        ("config", "a", "1"),
        ("config", "b", None),
        ("table_metadata", None, None),
    ]
