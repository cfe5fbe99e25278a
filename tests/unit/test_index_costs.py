"""What the rows of the version index cost: as much as their record, whatever is in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from commitlog.codecs.field_names import PARENTS_SHOWN_MAX
from commitlog.codecs.iceberg_changes import _fields
from commitlog.core.log.replica import Decided
from commitlog.lancepb.file_pb2 import Field
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction as LanceTransaction
from commitlog.model.operations import CreateTable, DropNamespace, Operation, target
from commitlog.model.records import OperationResult, Outcome, Status, Submitted, Transaction
from consumers import history
from consumers.servers.page import questions
from consumers.servers.page.questions import LINEAGES_MAX
from consumers.views.version_index.contents import _lance_fields, _origins
from consumers.views.version_index.heads import IndexedLife, fold
from consumers.views.version_index.operation_results import Told, operations_done

LONG, COLUMNS, LEVELS = "n" * 100_000, 300, 5_000


def iceberg_names() -> list[str]:
    columns = [{"id": n, "name": f"c{n}", "type": "int"} for n in range(2, COLUMNS + 2)]
    outer = {"id": 1, "name": LONG, "type": {"type": "struct", "fields": columns}}
    return [one.name for one in _fields([outer])]


def lance_names() -> list[Any]:
    outer = Field(name=LONG, id=1, parent_id=-1, logical_type="struct")
    columns = (Field(name=f"c{n}", id=n, parent_id=1) for n in range(2, COLUMNS + 2))
    return [row[3] for row in _lance_fields((), [outer, *columns])]


@pytest.mark.parametrize("names_of", [iceberg_names, lance_names])
def test_a_long_name_of_a_struct_is_not_repeated_for_each_column(names_of: Any) -> None:
    names = names_of()
    assert (len(names), names[0]) == (COLUMNS + 1, LONG)
    assert names[1] == f"{LONG[:PARENTS_SHOWN_MAX]}….c2"
    assert sum(map(len, names[1:])) < COLUMNS * (PARENTS_SHOWN_MAX + 10)


def test_a_schema_of_thousands_of_levels_is_told() -> None:
    """A leader refuses it, and a refused attempt is told too."""
    schema: Any = "int"
    for level in range(LEVELS, 0, -1):
        inside = [{"id": level, "name": "a", "type": schema}, {"id": -level, "name": "b"}]
        schema = {"type": "struct", "fields": inside}
    fields = list(_fields(schema["fields"]))
    assert [one.field_id for one in fields] == [*range(1, LEVELS + 1), *range(-LEVELS, 0)]
    assert (fields[1].name, fields[1].parent_id, fields[-1].name) == ("a.a", 1, "b")


@pytest.mark.parametrize("count", [10, 2_001])
def test_fragments_are_not_named_a_million_times_as_what_others_were_made_of(count: int) -> None:
    update, rewrite = LanceTransaction(), LanceTransaction()
    update.update.removed_fragment_ids.extend(range(count))
    rewrite.rewrite.old_fragments.extend(DataFragment(id=one) for one in range(count))
    for message in (update, rewrite):
        origins = _origins(message, range(count, 2 * count))
        assert sum(map(len, origins.values())) == (count**2 if count == 10 else 0)


def test_the_page_asks_of_so_many_operations_what_came_before_them() -> None:
    at = {"partition": 0, "sequence": 7}
    one: dict[str, Any] = {
        **at,
        "table_name": "t",
        "incarnation": "i",
        "read_version": 1,
        "version": 2,
    }
    asked = list[str]()

    def ask(sql: str, parameters: Sequence[object]) -> history.Rows:
        asked.append(sql)
        if " FROM transactions" in sql:
            return history.Rows([dict(at)])
        count = 1_000 if " FROM operations WHERE tr" in sql else 0
        return history.Rows(dict(one) for _ in range(count))

    [row] = questions.transaction(ask, transaction_id="x")
    details: Any = row["details"]
    lineages = [one["lineage"] for one in details]
    assert len(lineages) == 1_000
    assert [found is not None for found in lineages] == [n < LINEAGES_MAX for n in range(1_000)]
    assert len(asked) < LINEAGES_MAX + 10


def test_the_rows_of_many_attempts_are_sorted_out_at_once() -> None:
    reads = 0

    class Counted(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            nonlocal reads
            reads += 1
            return super().__getitem__(name)

    attempts: list[dict[str, Any]] = [
        {"partition": 0, "sequence": n, "properties": None} for n in range(100)
    ]
    rows = [Counted(partition=0, sequence=n, number=i) for n in range(100) for i in range(20)]

    def run(sql: str, parameters: Sequence[object]) -> history.Rows:
        if "transaction_of" in sql:
            return history.Rows(attempts)
        return history.Rows(rows if "operations_of" in sql else [])

    found = history.attempts(run, "x")
    assert reads <= 2 * len(rows)
    for number, row in enumerate(found):
        assert row["details"] == rows[20 * number : 20 * number + 20]
        assert (row["changed"], row["conflict"]) == ([], None)


def test_a_row_of_dropped_namespaces_looks_at_all_lives_once() -> None:
    looks = 0

    class Lives(dict[str, IndexedLife]):
        def values(self) -> Any:
            nonlocal looks
            looks += 1
            return super().values()

    def told(sequence: int, *operations: Operation) -> Told:
        results = (OperationResult(target(one), "i-x", type(one).__name__) for one in operations)
        outcome = Outcome(sequence, "x", 0, Status.COMMITTED, results=tuple(results))
        record = Transaction("x", operations)
        one = Decided(Submitted(0, sequence, 0, record), outcome, sequence)
        return one, tuple(operations_done(one))

    names = ("n1$t", "n1$m$t", "n2$t", "n3$t", "n1", "n11$t", "t")
    lives = Lives({name: IndexedLife(name, name, "lance", 0) for name in names})
    made = CreateTable(("n1", "x"), "i-x", "/x", ())
    drops = [DropNamespace((f"n{number}",), cascade=True) for number in (1, 2)]
    changed = fold(lives, [told(1, *drops, made, drops[0], drops[1])])
    assert changed == {"n1$t", "n1$m$t", "n2$t", "i-x"}
    assert {name for name, one in lives.items() if one.ended_by} == changed
    assert looks == 2
