"""The Spark format on a real Spark, over a real log: sink, `foreachBatch`, MERGE, source."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from commitlog.errors import InvalidTransaction
from commitlog.spark import Batch, each_batch, merge, show_repeats, upsert
from commitlog.spark.progress import METRIC
from tests.spark_world import ON_SPARK, SparkWorld, finish
from tests.waiting import wait_until

pytestmark = ON_SPARK

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*ids: int, name: str = "a", op: str = "u") -> list[dict[str, Any]]:
    return [{"id": number, "name": name, "op": op} for number in ids]


def test_a_batch_that_spark_forgot_is_in_the_table_once(world: SparkWorld) -> None:
    world.create("s$events", SCHEMA, primary_key="id")

    def run(*last: int) -> Any:
        frame = world.files("events", rows(1, 2), rows(3), rows(*last)).select("id", "name")
        sink = frame.writeStream.format("commitlog").options(**world.options, table="s$events")
        checkpoint = world.checkpoint("events")
        query = sink.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        started = query.start()
        finish(started)
        return started

    listener = show_repeats(world.spark, world.options)
    try:
        first = run(4, 5)
        version = world.client.table("s$events").version
        # As if the driver had died after the log's commit and before Spark noted the batch; and
        # then the source has other rows.
        for name in ("2", ".2.crc"):
            (world.checkpoint("events") / "commits" / name).unlink()
        again = run(4, 5, 6)
        shown = wait_until(
            lambda: again.recentProgress[0].observedMetrics.get(METRIC), "the repeat's progress"
        )
    finally:
        listener.close()
    assert (shown.committed_rows, shown.rows, shown.differs) == (2, 3, True)
    assert shown.message.endswith("this batch (3 rows for s$events) was not written")
    assert METRIC in json.loads(again.lastProgress.json)["observedMetrics"]
    assert [progress.observedMetrics for progress in first.recentProgress] == [{}, {}, {}]
    assert [row["id"] for row in world.rows("s$events")] == [1, 2, 3, 4, 5]
    assert world.client.table("s$events").version == version == 4
    made = [row for row in world.log_rows("s$events") if row["application_id"]]
    assert [(row["application_sequence"], row["answers"] is None) for row in made] == [
        (0, True), (1, True), (2, True), (2, False),
    ]  # fmt: skip
    noted = json.loads((world.checkpoint("events") / "metadata").read_text())["id"]
    assert {(row["application_id"], row["application_run"]) for row in made} == {(noted, noted)}


def test_complete_mode_replaces_the_rows(world: SparkWorld) -> None:
    world.create("s$counts", pa.schema([("id", pa.int64()), ("count", pa.int64())]))
    frame = world.files("counts", rows(1, 2), rows(2, 3)).groupBy("id").count()
    sink = frame.writeStream.format("commitlog").options(**world.options, table="s$counts")
    sink = sink.outputMode("complete").option("checkpointLocation", str(world.checkpoint("counts")))
    finish(sink.trigger(availableNow=True).start())
    assert world.rows("s$counts") == [{"id": i, "count": n} for i, n in ((1, 1), (2, 2), (3, 1))]
    operations = [row["operations"][0]["operation"] for row in world.log_rows("s$counts")]
    assert operations == ["CreateTable", "Overwrite", "Overwrite"]


def test_a_fixed_id_with_a_fresh_checkpoint_fails_loudly(world: SparkWorld) -> None:
    world.create("s$fixed", SCHEMA)

    def run(checkpoint: str) -> None:
        frame = world.files("fixed", rows(1), rows(2)).select("id", "name")
        sink = frame.writeStream.format("commitlog").options(**world.options, table="s$fixed")
        sink = sink.option("txnAppId", "mine")
        sink = sink.option("checkpointLocation", str(world.checkpoint(checkpoint)))
        finish(sink.trigger(availableNow=True).start())

    run("fixed-1")
    with pytest.raises(StreamingQueryException, match="a checkpoint was lost"):
        run("fixed-2")
    assert [row["id"] for row in world.rows("s$fixed")] == [1, 2]


def test_an_error_is_a_few_lines_that_end_with_what_to_do(world: SparkWorld) -> None:
    """They were the last of twenty, below calls of ours."""
    world.create("s$wrong", SCHEMA)

    def write(columns: str) -> None:
        sink = world.spark.range(1).selectExpr(columns).write.format("commitlog")
        sink.options(**world.options, table="s$wrong").mode("append").save()

    def refused(act: Any, *given: str) -> str:
        with pytest.raises(PySparkException) as caught:
            act(*given)
        lines = [line for line in str(caught.value).splitlines() if "SQLSTATE" not in line]
        assert len(lines) <= 5, lines
        return lines[-1]

    assert "NoSuchTable: the log has no table s$rong. Did you mean s$wrong?" in refused(
        world.read, "s$rong"
    )
    assert "Convert the column first." in refused(write, "array(id) AS id")
    assert "Correct the value" in refused(write, "id + 0.5D AS id")


def test_many_tables_in_one_batch_are_one_record(world: SparkWorld) -> None:
    world.create("s$log", SCHEMA)
    world.create("s$heads", SCHEMA, primary_key="id")

    def write(batch: Batch, frame: DataFrame) -> None:
        batch.append("s$log", frame.select("id", "name"))
        batch.merge("s$heads", frame, on="id", delete_where="op = 'd'")

    def run() -> None:
        contents = (rows(1, 2, 3), rows(2, name="b") + rows(3, op="d"))
        sink = world.files("many", *contents).writeStream
        sink = sink.foreachBatch(each_batch(write, world.options))
        sink = sink.option("checkpointLocation", str(world.checkpoint("many")))
        finish(sink.trigger(availableNow=True).start())

    run()
    (world.checkpoint("many") / "commits" / "1").unlink()
    (world.checkpoint("many") / "commits" / ".1.crc").unlink()
    run()
    assert [row["id"] for row in world.rows("s$log")] == [1, 2, 2, 3, 3]
    assert world.rows("s$heads") == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    history = world.client.open("s$heads").get_transactions(10)
    assert [world.client.outcome(made.uuid).versions() for made in history if made][:2] == [
        {"s$log": 3, "s$heads": 3},
        {"s$log": 2, "s$heads": 2},
    ]


def test_a_large_source_is_merged_by_the_executors(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_here(*_: object) -> None:
        raise AssertionError("the driver wrote files")

    # Executors have modules of their own.
    monkeypatch.setattr("commitlog.spark.merge_files.write_files", not_here)
    monkeypatch.setattr("commitlog.spark.merge_files.delete_rows", not_here)
    world.create("s$large", SCHEMA, primary_key="id", stable_row_ids=True)
    for start in (0, 10, 20):
        data = {"id": list(range(start, start + 10)), "name": ["a"] * 10}
        world.client.append("s$large", pa.table(data, schema=SCHEMA))
    source = world.spark.range(5, 35, 2).selectExpr("id", "'b' AS name", "id >= 25 AS gone")
    merged = merge(
        source, "s$large", "id", options=world.options, delete_where="Gone", rows_in_driver=0
    )
    assert (merged.updated, merged.inserted, merged.deleted) == (10, 0, 3)
    expected = [(i, "b" if 5 <= i < 25 and i % 2 else "a") for i in range(30)]
    found = [(row["id"], row["name"]) for row in world.rows("s$large")]
    assert found == [(i, name) for i, name in expected if i < 25 or i % 2 == 0]
    doubled = world.spark.createDataFrame([(1, "x"), (1, "y")], "id long, name string")
    with pytest.raises(InvalidTransaction, match="duplicate keys"):
        merge(doubled, "s$large", "id", options=world.options, rows_in_driver=0)


def test_a_source_that_a_driver_may_not_collect_is_merged_by_the_executors(
    world: SparkWorld,
) -> None:
    """A thousand pictures ended the job, with Spark's words about a setting."""
    world.create("s$pictures", pa.schema([("id", pa.int64()), ("data", pa.binary())]))
    pictures = "id", "cast(repeat('x', 50000) AS binary) AS data"
    conf = world.spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", "2m")
    try:
        for first in (0, 100):
            source = world.spark.range(first, first + 200).selectExpr(*pictures)
            merge(source, "s$pictures", "id", options=world.options)
    finally:
        conf.set("spark.driver.maxResultSize", "1g")
    found = world.read("s$pictures").selectExpr(
        "count(*)", "count(DISTINCT id)", "sum(length(data))"
    )
    assert [tuple(row) for row in found.collect()] == [(300, 300, 300 * 50_000)]


def test_a_column_may_be_called_as_spark_calls_all(world: SparkWorld) -> None:
    """Spark refused the merge ("Invalid usage of '*' in MapInArrow"), and Lance the read."""
    world.create("s$star", pa.schema([("*", pa.int64()), ("id", pa.int64())]))
    rows = world.spark.createDataFrame([(7, 1), (8, 2)], "`*` long, id long")
    merge(rows, "s$star", on="*", options=world.options, rows_in_driver=0)
    found = world.read("s$star").orderBy("id")
    assert [tuple(row) for row in found.collect()] == [(7, 1), (8, 2)]
    reader = world.spark.read.format("commitlog").options(**world.options, table="s$star")
    assert reader.schema(StructType([])).load().count() == 2


def test_streams_and_batches_start_in_any_python_thread(world: SparkWorld) -> None:
    world.create("s$threads", SCHEMA)
    frame = world.files("threads", rows(1, 2)).select("id", "name")

    def start() -> Any:
        sink = frame.writeStream.format("commitlog").options(**world.options, table="s$threads")
        sink = sink.option("checkpointLocation", str(world.checkpoint("threads")))
        return sink.trigger(availableNow=True).start()

    def write() -> None:
        job = world.spark.createDataFrame([(3, "c")], "id long, name string").write
        job.format("commitlog").options(**world.options, table="s$threads").mode("append").save()

    with ThreadPoolExecutor(1) as pool:
        finish(pool.submit(start).result())
        pool.submit(write).result()
    assert [row["id"] for row in world.rows("s$threads")] == [1, 2, 3]


def test_a_batch_id_that_comes_with_other_rows_is_told(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.create("s$repeats", SCHEMA)
    spark = world.spark
    same, other = ([(i, "a") for i in ids] for ids in ([1, 2], [3, 4, 5]))
    options = {**world.options, "txnAppId": "repeats"}

    def write(batch: Batch, frame: DataFrame) -> None:
        batch.append("s$repeats", frame)

    run = each_batch(write, options)
    for given in (same, same, other):
        run(spark.createDataFrame(given, "id long, name string"), 0)
    assert [repeat.is_other for repeat in run.repeats] == [False, True]
    [record] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "version 2 of s$repeats (2 rows for s$repeats)" in record.getMessage()
    assert "(3 rows for s$repeats) was not written" in record.getMessage()
    strict = each_batch(write, {**options, "strictRepeats": "true"})
    with pytest.raises(InvalidTransaction, match="committed before"):
        strict(spark.createDataFrame(other, "id long, name string"), 0)
    assert [row["id"] for row in world.rows("s$repeats")] == [1, 2]


def test_a_batch_that_finds_work_in_one_more_table_when_repeated_is_answered(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("s$first", "s$later"):
        world.create(name, SCHEMA, primary_key="id")
    frame = world.spark.createDataFrame([(1, "a")], "id long, name string")

    def write(batch: Batch, rows: DataFrame) -> None:
        batch.merge("s$later", rows, on="id", insert=False)
        batch.append("s$first", rows)

    run: Any = each_batch(write, {**world.options, "txnAppId": "later"})
    run(frame, 0)
    world.client.append("s$later", pa.table({"id": [1], "name": ["x"]}, schema=SCHEMA))
    run(frame, 0)
    assert world.rows("s$first") == [{"id": 1, "name": "a"}]
    assert world.rows("s$later") == [{"id": 1, "name": "x"}]
    [repeat] = run.repeats
    assert (repeat.is_other, dict(repeat.versions)) == (False, {"s$first": 2, "s$later": 2})
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_upsert_is_one_line(world: SparkWorld) -> None:
    world.create("s$upserted", SCHEMA, primary_key="id")
    sink = world.files("upsert", rows(1, 2), rows(2, name="z")).select("id", "name").writeStream
    sink = sink.foreachBatch(upsert("s$upserted", "id", world.options))
    sink = sink.option("checkpointLocation", str(world.checkpoint("upsert")))
    finish(sink.trigger(availableNow=True).start())
    assert world.rows("s$upserted") == [{"id": 1, "name": "a"}, {"id": 2, "name": "z"}]


def test_reading_another_version_with_a_filter(world: SparkWorld) -> None:
    vector = pa.list_(pa.float32(), 2)
    nested = pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])
    schema = pa.schema([("id", pa.int64()), ("v", vector), ("n", nested)])
    world.create("s$read", schema)
    for start in (0, 3):
        data = [
            {"id": i, "v": [i, 0.5], "n": {"x": i, "tags": ["t"]}} for i in range(start, start + 3)
        ]
        world.client.append("s$read", pa.Table.from_pylist(data, schema))
    deleted = world.client.delete("s$read", "id = 1")
    world.client.open("s$read").tags.create("before", 2)
    assert world.read("s$read").count() == 5
    assert world.read("s$read", tag="before").count() == 3
    assert world.read("s$read", positionAsOf=deleted.sequence - 1).count() == 6
    row = world.read("s$read", versionAsOf=3).filter("id = 1").collect()[0]
    assert row.asDict(recursive=True) == {
        "id": 1, "v": [1.0, 0.5], "n": {"x": 1, "tags": ["t"]},
    }  # fmt: skip
    chosen = world.read("s$read", filter="id >= 2 AND id < 5", columns="id")
    assert sorted(row.id for row in chosen.collect()) == [2, 3, 4]
    assert chosen.filter("id > 3").union(chosen.filter("id = 2")).count() == 2
