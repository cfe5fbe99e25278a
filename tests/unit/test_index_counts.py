"""Are rows and bytes counted by fragments, whoever commits and however?"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import lance
import pyarrow as pa
import pytest

from commitlog.adapters.memory import MemoryLog
from commitlog.model.operations import (
    AppliedWrite,
    ApplyRows,
    LanceCommit,
    RowsMode,
    WriteRows,
)
from commitlog.model.records import OperationResult
from consumers import history
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.views.version_index import run_index
from consumers.views.version_index.counting import Counting
from consumers.views.version_index.operation_results import DoneOperation, what_of_rows
from tests.service import SCHEMA, Service, rows, service

T = "ns$t"


def counted(running: Service, root: Path) -> list[tuple[object, ...]]:
    """Bring the index up to the log, and return what each operation on the table counts."""
    stop = threading.Event()
    run_index(
        MemoryLog(running.cluster),
        root,
        stop=stop,
        on_progress=lambda done, total: stop.set() if done >= total else None,
    )
    found = history.query(
        root,
        "SELECT operation, rows_added, rows_removed, bytes_added > 0 AS wrote FROM operations"
        " WHERE table_name = ? AND version IS NOT NULL ORDER BY sequence",
        [T],
    )
    return [tuple(row.values()) for row in found]


@pytest.mark.slow
def test_each_way_to_write_counts_and_a_compaction_adds_no_rows(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table(T, SCHEMA)
        log.append(T, rows(*range(10)))
        log.open(T).insert(rows(10, 11))  # native: nobody says how many
        log.open(T).delete("id < 3")
        log.delete(T, "id = 3")
        assert counted(running, tmp_path)[1:] == [
            ("Append", 10, 0, True),
            ("Append", 2, 0, True),
            ("Delete", 0, 3, False),
            ("Delete", 0, 1, False),
        ]
        log.compact(T)
        log.open(T).update({"id": "id + 100"}, "id = 4")
        lance.write_dataset(rows(1), log.open(T), mode="overwrite")
        # The index begins anew, and so asks its own rows what fragments had.
        found = counted(running, tmp_path)[5:]
        compacted = [one for one in found if one[0] in ("Rewrite", "ReserveFragments")]
        assert ("Rewrite", 0, 0, True) in compacted
        (rewrite,) = history.query(
            tmp_path,
            "SELECT fragments_added AS added, fragments_removed AS removed FROM operations"
            " WHERE operation = 'Rewrite' AND version IS NOT NULL",
        )
        assert rewrite == {"added": 1, "removed": 2}
        others = [one for one in found if one not in compacted]
        assert others == [("Update", 1, 1, True), ("Overwrite", 1, 8, True)]
        (table,) = history.query(
            tmp_path, "SELECT rows_added - rows_removed AS n FROM tables WHERE table_name = ?", [T]
        )
        assert table["n"] == log.open(T).count_rows() == 1


@pytest.mark.slow
def test_a_registered_table_counts_what_it_has(tmp_path: Path) -> None:
    made = lance.write_dataset(pa.table({"id": pa.array([1, 2, 3], pa.int64())}), tmp_path / "x")
    made.delete("id = 2")
    with service(tmp_path) as running:
        running.client.register_table(T, str(tmp_path / "x"))
        assert counted(running, tmp_path)[0][:3] == ("RegisterTable", 2, 0)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [False, True])
def test_of_an_undropped_table_what_it_had_is_not_counted_again(
    tmp_path: Path, restarts: bool
) -> None:
    with service(tmp_path) as running:
        log = running.client
        log.create_table(T, SCHEMA)
        log.append(T, rows(1, 2, 3))
        log.delete(T, "id = 2")
        if restarts:
            counted(running, tmp_path)
        log.drop_table(T)
        log.undrop(T)
        assert counted(running, tmp_path)[3:] == [("RegisterTable", 0, 0, False)]
        log.delete(T, "id = 1")
        assert counted(running, tmp_path)[4:] == [("Delete", 0, 1, False)]
        (table,) = history.query(tmp_path, "SELECT rows_added, rows_removed FROM tables")
        assert table == {"rows_added": 3, "rows_removed": 2}


def test_fragments_of_few_tables_are_kept() -> None:
    asked: list[list[str]] = []

    def load(tables: list[str]) -> list[tuple[object, ...]]:
        asked.append(tables)
        return [(table, number, 5, 1, 70) for table in tables for number in range(3)]

    counting = Counting(load, fragments_max=4)
    for table in ("a", "b", "a", "c", "a"):
        counting.prepare([(None, (_delete(table),))])  # type: ignore[list-item]
    assert asked == [["a"], ["b"], ["c"]]
    one = _delete("a")
    counting.count(one, [(0, 0, 0, 0, "t", "a", 2, 1, True, None, None, None, None, None, None)])
    assert one.counts == (0, 4, 0, 0, 0, 1)


def _delete(table: str) -> DoneOperation:
    operation = LanceCommit(("t",), "Delete", 1, b"")
    result = OperationResult(("t",), table, "Delete", 2)
    return DoneOperation(0, "Delete", "t", "committed", operation, result)


def test_writes_of_rows_say_in_words_what_they_wrote() -> None:
    write = WriteRows(
        table=("t",),
        mode=RowsMode.UPSERT,
        rows=2,
        columns=(),
        schema_digest=b"",
        sha256=b"",
        size=10,
    )
    assert what_of_rows(write) == "2 rows to upsert"
    assert what_of_rows(replace(write, rows=1, mode=RowsMode.DELETE)) == "1 row to delete"
    done = ApplyRows(
        table=("t",),
        incarnation="life",
        after=4,
        through=9,
        writes=(
            AppliedWrite(5, 0, inserted=1, updated=1),
            AppliedWrite(7, 0, deleted=3),
            AppliedWrite(9, 0, refused="no_such_column"),
        ),
    )
    assert what_of_rows(done) == (
        "2 writes applied, rows: 1 inserted, 1 updated, 3 deleted; 1 refused"
    )
    assert what_of_rows(LanceCommit(("t",), "Append", 1, b"")) is None


@pytest.mark.slow
def test_what_maintenance_has_to_do_and_did_can_be_asked(tmp_path: Path) -> None:
    def due(running: Service) -> list[tuple[object, ...]]:
        counted(running, tmp_path)
        found = history.query(tmp_path, "SELECT table_name, act, reason FROM maintenance_due")
        return [tuple(row.values()) for row in found]

    with service(tmp_path) as running:
        log = running.client
        for name in (T, "small"):
            log.create_table(name, SCHEMA)
        for number in range(16):
            log.append("small", rows(number))
        log.append(T, rows(*range(10)))
        log.delete(T, "id < 4")
        assert due(running) == [
            (T, "compact", "4 of 10 rows are deleted"),
            ("small", "compact", "16 fragments have fewer than 4,096 rows"),
        ]
        health = history.query(
            tmp_path,
            "SELECT table_name, rows, deleted_rows, deleted_share, fragments, small_fragments"
            " FROM health ORDER BY table_name",
        )
        assert [tuple(row.values()) for row in health] == [
            (T, 6, 4, 0.4, 1, 1),
            ("small", 16, 0, 0.0, 16, 16),
        ]
        acts = Maintenance(log).look()
        assert due(running) == []
        done = history.query(
            tmp_path,
            "SELECT table_name, reason, try FROM maintenance_done WHERE operation = 'Rewrite'"
            " ORDER BY table_name",
        )
        told = [(act.table, act.reason, 1) for act in acts if act.kind == "compact"]
        assert [tuple(row.values()) for row in done] == told
        assert len(told) == 2
