"""Small batches of Spark as rows in the log: each lands once, and equals what files come to."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from commitlog import CommitLog
from commitlog.spark import Batch, each_batch, merge
from consumers.tools.row_stream import apply_on_spark
from consumers.tools.row_writer import RowWriter, RowWriterOptions
from tests.properties.test_row_groups import SCHEMA as MODELLED
from tests.properties.test_row_groups import Model, random_write
from tests.spark_world import SparkWorld, finish

pytestmark = [
    pytest.mark.spark,
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@contextmanager
def row_writer(world: SparkWorld) -> Iterator[None]:
    """Run a row writer, as `commitlog up` does."""
    with CommitLog.connect(world.bootstrap_servers, log=world.log) as client:
        stop = threading.Event()
        thread = threading.Thread(target=RowWriter(client).run, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(60)


@pytest.fixture(scope="module", autouse=True)
def rows_are_applied(world: SparkWorld) -> Iterator[None]:
    with row_writer(world):
        yield


def rows(*ids: int, name: str = "a", op: str = "u") -> list[dict[str, object]]:
    return [{"id": number, "name": name, "op": op} for number in ids]


def operations(world: SparkWorld, table: str) -> list[str]:
    """Return what the log did to a table, in order, leaving out what row writers did."""
    made = [row for row in world.log_rows(table) if row["answers"] is None]
    found = [op["operation"] for row in made for op in row["operations"] if op["table"] == table]
    return [name for name in found if name in {"WriteRows", "Append", "Update"}]


def writers(world: SparkWorld, table: str) -> dict[str, set[str]]:
    """Return in whose names each kind of change came."""
    found: dict[str, set[str]] = {}
    for row in world.log_rows(table):
        for op in row["operations"]:
            if op["table"] == table:
                found.setdefault(op["operation"], set()).add(row["principal"])
    return found


def test_small_batches_of_a_stream_are_rows_in_the_log_once(world: SparkWorld) -> None:
    world.create("r$events", SCHEMA, primary_key="id")

    def run() -> None:
        frame = world.files("r-events", rows(1, 2), rows(3), rows(4, 5)).select("id", "name")
        sink = frame.writeStream.format("commitlog")
        sink = sink.options(**world.options, table="r$events", rows="log")
        sink = sink.option("checkpointLocation", str(world.checkpoint("r-events")))
        finish(sink.trigger(availableNow=True).start())

    run()
    # As if the driver had died after the log's answer and before Spark noted the batch.
    for name in ("2", ".2.crc"):
        (world.checkpoint("r-events") / "commits" / name).unlink()
    run()
    assert [row["id"] for row in world.rows("r$events")] == [1, 2, 3, 4, 5]
    assert operations(world, "r$events").count("WriteRows") == 3


def test_a_batch_that_is_too_large_for_a_record_goes_into_files(world: SparkWorld) -> None:
    world.create("r$large", SCHEMA)
    text = "repeat(md5(cast(id AS string)), 5) AS name"
    large = world.spark.range(0, 40_000, 1, 4).selectExpr("id", text)
    sink = large.write.format("commitlog").options(**world.options, table="r$large", rows="log")
    sink.mode("append").save()
    assert operations(world, "r$large") == ["Append"]
    assert len(world.rows("r$large")) == 40_000
    # Each task's rows are small, and all of them are not.
    parts = world.spark.range(0, 10_000, 1, 4).selectExpr("id", text)
    sink = parts.write.format("commitlog").options(**world.options, table="r$large", rows="log")
    sink.mode("append").save()
    assert operations(world, "r$large") == ["Append", "Append"]
    assert len(world.rows("r$large")) == 50_000


def test_a_merge_of_a_batch_comes_to_what_files_come_to(world: SparkWorld) -> None:
    content = (rows(1, 2, 3), rows(2, 4, name="b") + rows(3, op="d") + rows(9, op="d"))

    def run(table: str, **options: str) -> None:
        world.create(table, SCHEMA, primary_key="id")

        def write(batch: Batch, frame: DataFrame) -> None:
            batch.append(table + "log", frame.select("id", "name"))
            batch.merge(table, frame, on="id", delete_where="op = 'd'")

        world.create(table + "log", SCHEMA)
        sink = world.files(table, *content).writeStream
        sink = sink.foreachBatch(each_batch(write, {**world.options, **options}))
        sink = sink.option("checkpointLocation", str(world.checkpoint(table)))
        finish(sink.trigger(availableNow=True).start())

    run("r$byfiles")
    run("r$bylog", rows="log", principal="etl")
    assert writers(world, "r$bylog")["WriteRows"] == {"etl"}
    assert writers(world, "r$byfiles")["Update"] == {"spark"}
    for suffix in ("", "log"):
        assert world.rows("r$bylog" + suffix) == world.rows("r$byfiles" + suffix)
    assert [row["id"] for row in world.rows("r$bylog")] == [1, 2, 4]
    assert operations(world, "r$bylog").count("WriteRows") == 3
    source = world.spark.createDataFrame([(1, "c"), (7, "c")], "id long, name string")
    merged = merge(source, "r$bylog", "id", options={**world.options, "rows": "log"})
    assert (merged.updated, merged.inserted, merged.deleted) == (1, 1, 0)
    assert merged.outcome is not None
    assert [row["id"] for row in world.rows("r$bylog")] == [1, 2, 4, 7]
    # A key that is null matches nothing; such rows are merged by files.
    nameless = world.spark.createDataFrame([(None, "d")], "id long, name string")
    options = {**world.options, "rows": "log", "principal": "nameless"}
    merged = merge(nameless, "r$bylog", "id", options=options)
    assert merged.inserted == 1
    assert merged.outcome is not None
    [last] = [r for r in world.log_rows("r$bylog") if r["sequence"] == merged.outcome.sequence]
    assert last["principal"] == "nameless"


def test_row_writers_of_both_kinds_apply_each_range_once(world: SparkWorld) -> None:
    """Executors look for the rows of groups, beside a row writer that needs no Spark."""
    table, seed = "r$both", 5
    chance, model, errors = random.Random(seed), Model([]), []
    world.create(table, MODELLED, primary_key="id")
    stop = threading.Event()
    client = CommitLog.connect(world.bootstrap_servers, log=world.log)

    def run() -> None:
        try:
            options = RowWriterOptions(age_seconds=0.02, writes_max=3)
            apply_on_spark(world.spark, client, world.options, stop, options, fragments_per_task=1)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        tickets, counts = [], []
        for number in range(40):
            mode, rows, settings = random_write(chance, number)
            given = {}
            if mode == "upsert":
                given = {
                    "when_matched_update_all": settings["update_all"],
                    "when_matched_update_all_filt": settings["update_if"] or None,
                    "when_not_matched_insert_all": settings["insert_all"],
                }
            tickets.append(world.client.write_rows(table, rows, mode=mode, **given))
            counts.append(model.apply(mode, rows, **settings))
            if number % 8 == 7:
                tickets[-1].result(200)
        outcomes = [ticket.result(200) for ticket in tickets]
    finally:
        stop.set()
        thread.join(100)
        client.close()
    assert not errors

    def sorted_rows(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
        return sorted(tuple(repr(row[name]) for name in MODELLED.names) for row in rows)

    found = world.client.open(table).to_table().to_pylist()
    assert sorted_rows(found) == sorted_rows(model.rows), f"seed {seed}"
    assert [(o.inserted, o.updated, o.deleted) for o in outcomes] == counts, f"seed {seed}"
