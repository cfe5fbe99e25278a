"""Functions for `foreachBatch`, without Spark: how long a batch is tried."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from commitlog import CommitLog
from commitlog.client.commits import execution
from commitlog.client.leader.row_tickets import RowsApplied, RowsOutcome
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows import direct
from commitlog.client.rows.rows import Prepared
from commitlog.errors import InvalidTransaction, RetryableConflict, TransactionRejected
from commitlog.model.records import Application, Outcome, Status
from commitlog.spark import Batch, batches, each_batch, merge, upsert
from commitlog.spark.files import write_files
from commitlog.spark.merge import COUNTED, _Execution
from commitlog.spark.merge_files import DELETE
from commitlog.spark.options import parse_batches
from tests.service import SCHEMA, applying, ids_of, rows, service

OPTIONS = {"kafka.bootstrap.servers": "h:1"}


class Conflicting:
    """A batch whose tables others change so many times first."""

    left = 0
    repeat = None
    seconds: ClassVar[list[float]] = []
    """How long each commit may take."""

    def __init__(self, *_: object) -> None:
        """Take what a batch takes."""

    def commit(self, application: Application, timeout: float) -> None:
        """Commit, or lose to another writer."""
        Conflicting.left -= 1
        Conflicting.seconds.append(timeout)
        if Conflicting.left >= 0:
            raise RetryableConflict("others came first", Outcome(0, "", 0, Status.RETRYABLE))


def batch_that_deletes(log: CommitLog, table: str) -> tuple[Batch, TableInfo]:
    """Return a batch in which one of the two rows of a new table goes, as `merge` adds it.

    The number of the rows' fragment is all that names it.
    """
    log.create_table(table, SCHEMA)
    log.append(table, rows(1, 3))
    batch = Batch(log, parse_batches(OPTIONS))
    info = log.table(table)
    batch._parts.append((info, direct.delete(info, log.opened, "id = 1")))
    return batch, info


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that passes only while a batch waits."""
    clock = SimpleNamespace(now=0.0)
    sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)  # noqa: E731
    time = SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep)
    monkeypatch.setattr(batches, "time", time)
    monkeypatch.setattr(batches, "Batch", Conflicting)
    return clock


def test_a_batch_is_tried_until_its_time_is_up(clock: Any) -> None:
    calls: list[object] = []
    run = each_batch(
        lambda batch, frame: calls.append(batch),
        {**OPTIONS, "txnAppId": "a", "timeoutSeconds": "3600"},
        connect=MagicMock(),
    )
    Conflicting.left = 1500
    run(MagicMock(), 0)
    assert len(calls) == 1501
    Conflicting.left = 10**6
    before = clock.now
    with pytest.raises(RetryableConflict):
        run(MagicMock(), 1)
    assert 3600 <= clock.now - before < 3602


def test_a_batch_may_be_computed_for_longer_than_its_commit_may_take(clock: Any) -> None:
    """Its commit had a second then, and it wasn't tried again."""
    run = each_batch(
        lambda batch, frame: setattr(clock, "now", clock.now + 500),
        {**OPTIONS, "txnAppId": "a", "timeoutSeconds": "60"},
        connect=MagicMock(),
    )
    Conflicting.left, Conflicting.seconds = 3, []
    run(MagicMock(), 0)
    assert len(Conflicting.seconds) == 4
    assert 55 < min(Conflicting.seconds) <= max(Conflicting.seconds) == 60


def test_a_merge_may_be_computed_for_longer_than_its_commit_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could never succeed: "120 s passed before this call appended anything"."""
    passed = 0.0
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + passed, sleep=time.sleep)
    for module in (execution, sys.modules[_Execution.__module__]):
        monkeypatch.setattr(module, "time", later)
    with service(tmp_path) as world:
        log = world.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1, 3))

        def computed(info: TableInfo) -> Prepared:
            nonlocal passed
            done = direct.delete(info, log.opened, "id = 1 OR id = 3")
            if not passed:
                log.delete("t", "id = 1")  # another writer is first
            passed += 500
            return replace(done, counts=dict.fromkeys(COUNTED, 0))

        assert _Execution(log, ("t",), timeout=60).merge(computed).outcome is not None
        assert ids_of(log.open("t")) == []


def test_options_that_a_merge_has_not_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="delete_wher"):
        upsert("shop$orders", "id", OPTIONS, delete_wher="gone")
    with pytest.raises(InvalidTransaction, match="'txnAppId' has no effect on `merge`"):
        merge(MagicMock(), "shop$orders", "id", options={**OPTIONS, "txnAppId": "job"})
    with pytest.raises(InvalidTransaction, match="'strictRepeats' has no effect on `merge`"):
        merge(MagicMock(), "shop$orders", "id", options={**OPTIONS, "strictRepeats": "true"})


def test_a_batch_changes_no_table_that_took_the_name_of_the_one_that_it_read(
    tmp_path: Path,
) -> None:
    table = "shop$orders"
    with service(tmp_path) as world:
        log = world.client
        batch, info = batch_that_deletes(log, table)
        deletions = Path(info.location, "_deletions")
        assert list(deletions.iterdir())
        log.drop_table(table)
        log.create_table(table, SCHEMA)
        log.append(table, rows(2))
        # Another stream of this process asks for the table.
        assert log.table(table).incarnation != info.incarnation
        with pytest.raises(TransactionRejected, match="dropped and created again"):
            batch.commit(Application("job", 0), timeout=30)
        assert ids_of(log.open(table)) == [2]
        assert list(deletions.iterdir()) == [], "what was refused leaves no files"


def test_a_batch_puts_no_rows_of_a_dropped_column_into_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its field id comes back; the function is called again and writes for the new columns."""
    table = "shop$orders"
    monkeypatch.setattr(
        batches, "write_frame", lambda frame, target: write_files(frame.to_batches(), target)
    )
    with service(tmp_path) as world:
        log = world.client
        log.create_table(table, SCHEMA)
        given = MagicMock(schema=from_arrow_schema(SCHEMA), to_batches=rows(1).to_batches)
        given.sparkSession.sparkContext.getLocalProperty.return_value = "query"
        calls: list[object] = []

        def write(batch: Batch, frame: Any) -> None:
            batch.append(table, frame)
            calls.append(batch)
            if len(calls) == 1:
                log.drop_columns(table, ["name"])
                for name in ("tag", "name"):
                    log.add_columns(table, pa.schema([(name, pa.string())]))

        run: Any = each_batch(write, {**OPTIONS, "txnAppId": "a"}, connect=lambda _: log)
        run(given, 0)
        [row] = log.open(table).to_table().to_pylist()
        assert len(calls) == 2
        assert row["name"] == rows(1)["name"][0].as_py()
        assert row["tag"] is None


def test_a_key_column_that_is_missing_is_looked_for_where_it_is_missing(tmp_path: Path) -> None:
    """The error named the table's columns, which the source's had to be compared with by eye."""
    with service(tmp_path) as world:
        world.client.create_table("t", pa.schema([("A b", pa.int64()), ("name", pa.string())]))
        frame = MagicMock(columns=["a B", "name", "op"])
        for on, said in (
            ("A b", r"the source has no key column 'A b'.* The source's columns are a B, name, op"),
            ("op", r"t has no key column 'op'.* The table's columns are A b, name\."),
        ):
            with pytest.raises(InvalidTransaction, match=said):
                merge(frame, "t", on, options=OPTIONS, connect=lambda _: world.client)


def test_a_merge_notes_the_rows_of_its_source_however_many_they_match(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that the table has twice counted twice, until the first commit had deleted its rows."""
    given = rows(1, 7).append_column(DELETE, pa.array([True, False]))
    source = SimpleNamespace(local=given, columns=SCHEMA)
    monkeypatch.setattr(batches, "Source", lambda *_: nullcontext(source))
    with service(tmp_path) as world:
        log = world.client
        log.create_table("t", SCHEMA)
        log.append("t", rows(1, 2))
        log.append("t", rows(1, 3))
        found: list[Any] = []
        for _ in range(2):
            batch = Batch(log, parse_batches({**OPTIONS, "strictRepeats": "true"}))
            batch.merge("t", MagicMock(), "id", delete_where="name = 'a'")
            batch.commit(Application("job", 0), timeout=30)
            found.append(batch.repeat)
        first, repeat = found
        assert first is None
        assert repeat.rows == (2, 2)
        assert not repeat.is_other
        assert ids_of(log.open("t")) == [2, 3, 7]


@pytest.mark.parametrize("key", [None, "id"])
def test_a_batch_run_again_does_nothing_to_a_table_to_which_it_did_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """The repeat named only that table, so it was a second commit, which took a newer row away."""
    given = rows(1, 7).append_column(DELETE, pa.array([True, True]))
    source = SimpleNamespace(local=given, columns=SCHEMA)
    monkeypatch.setattr(batches, "Source", lambda *_: nullcontext(source))
    with service(tmp_path) as world:
        log = world.client
        for table in ("a", "b"):
            log.create_table(table, SCHEMA, primary_key=key)
            log.append(table, rows(2))
        log.append("a", rows(1))

        def run() -> Outcome | None:
            batch = Batch(log, parse_batches({**OPTIONS, "strictRepeats": "true"}))
            for table in ("a", "b"):
                batch.merge(table, MagicMock(), "id")
            return batch.commit(Application("job", 0), timeout=30)

        first = run()
        assert first is not None
        log.append("b", rows(7))
        again = run()
        assert again is not None
        assert again.answers == first.sequence
        assert ids_of(log.open("a")) == [2]
        assert ids_of(log.open("b")) == [2, 7]


@pytest.mark.parametrize("again", [(), ("b",), ("a", "b")])
@pytest.mark.parametrize("by", ["files", "log"])
def test_a_batch_whose_rows_went_elsewhere_when_it_ran_again_is_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, again: tuple[str, ...]
) -> None:
    """Tables without rows the first time got those of the second: half of each was committed."""
    monkeypatch.setattr(
        batches, "write_frame", lambda frame, target: write_files(frame.to_batches(), target)
    )
    with service(tmp_path) as world, applying(world.client):
        log = world.client
        for table in ("a", "b"):
            log.create_table(table, SCHEMA)

        def run(*filled: str, **given: str) -> Batch:
            batch = Batch(log, parse_batches({**OPTIONS, "rows": by, **given}))
            for table in ("a", "b"):
                frame: Any = rows(1) if table in filled else rows()
                given_rows = MagicMock(
                    schema=from_arrow_schema(SCHEMA), to_batches=frame.to_batches
                )
                batch.append(table, given_rows)
            batch.commit(Application("job", 0), timeout=30)
            return batch

        assert run("a").repeat is None
        repeat = run(*again).repeat
        assert repeat is not None
        assert repeat.is_other
        with pytest.raises(InvalidTransaction, match="committed before"):
            run(*again, strictRepeats="true")
        assert ids_of(log.open("a")) == [1]
        assert log.table("b").version == 1


def test_files_of_a_record_stay_if_only_its_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "shop$orders"
    with service(tmp_path) as world:
        log = world.client
        batch, _ = batch_that_deletes(log, table)
        submit = batch._submit

        def refused(*given: Any) -> Any:
            _, outcome = submit(*given)
            rows_of_it = RowsApplied(1, 0, 0, 0, 0, "rows_refused", "no such column")
            known = RowsOutcome(outcome.sequence, outcome.transaction_id, 0, Status.REJECTED)
            raise TransactionRejected("refused", replace(known, writes=(rows_of_it,)))

        monkeypatch.setattr(batch, "_submit", refused)
        with pytest.raises(TransactionRejected):
            batch.commit(Application("job", 0), timeout=30)
        assert ids_of(log.open(table)) == [3]
