"""Rows and heads are pure functions of what was decided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commitlog.core.replica import Decided
from commitlog.model.operations import (
    AlterProperties,
    CreateNamespace,
    CreateTable,
    CreateTableVersion,
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
    KeyAbsent,
    LogRecord,
    Malformed,
    OperationResult,
    Outcome,
    ProtocolVersion,
    Status,
    Submitted,
    TableAbsent,
    Transaction,
)
from consumers.version_index.heads import COLUMNS, Head, fold
from consumers.version_index.rows import rows_of
from consumers.version_index.schema import EVENTS, LEADERS, TABLES, Relation

T = ("ns", "t")
APPEND = LanceCommit(
    T, "Append", 1, b"m", summary=Summary(rows_added=5, bytes_added=50, data_files=("a", "b"))
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
    rows = getattr(rows_of([one]), relation)
    return [dict(zip([c.name for c in columns], row, strict=True)) for row in rows]


@pytest.mark.parametrize("relation", [*EVENTS, LEADERS, TABLES], ids=lambda r: r.name)
def test_every_column_is_documented_and_named_once(relation: Relation) -> None:
    names = [column.name for column in relation.columns]
    assert len(names) == len(set(names))
    assert all(column.comment for column in relation.columns)
    assert set(relation.order) <= set(names)


def test_a_head_has_the_columns_of_tables() -> None:
    assert tuple(column.name for column in TABLES.columns) == COLUMNS


def test_a_commit_has_its_version_and_what_it_was_rebased_over() -> None:
    made = result("Append", 4, read_version=3, rebased_over=2)
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
    files = named("data_files", one)
    assert [(file["path"], file["version"]) for file in files] == [("a", 4), ("b", 4)]


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
    assert [file["status"] for file in named("data_files", one)] == ["retryable"] * 2


def test_a_repeated_request_makes_no_version_again() -> None:
    one = decided(transaction(APPEND), answers=1, results=(result("Append", 4),))
    (operation,) = named("operations", one)
    assert (operation["status"], operation["version"]) == ("repeated", None)
    assert not fold({}, [one])


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


def test_expectations_and_properties() -> None:
    change = AlterProperties(T, upserts=(("a", "1"),), removals=("b",))
    record = transaction(change, expects=(TableAbsent(("x",)), KeyAbsent(T, b"\1", 3)))
    one = decided(record, results=(result("AlterProperties"),))
    assert [(p["key"], p["value"]) for p in named("properties", one)] == [("a", "1"), ("b", None)]
    expected = [(e["kind"], e["version"], e["detail"]) for e in named("expectations", one)]
    assert expected == [("TableAbsent", None, None), ("KeyAbsent", 3, "01")]
    assert not named("properties", replace(one, outcome=replace(one.outcome, results=())))


def folded(*steps: tuple[Operation, OperationResult]) -> dict[str, Head]:
    heads: dict[str, Head] = {}
    for sequence, (operation, made) in enumerate(steps, start=1):
        fold(heads, [decided(transaction(operation), results=(made,), sequence=sequence)])
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
