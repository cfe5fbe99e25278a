"""The Spark sink and source on a real Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark_world import ON_SPARK, LogWorld, SparkWorld

pytestmark = ON_SPARK

TABLE = "nyc$events"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("note", pa.string()),
    ]
)
COLUMNS = [
    "id",
    "timestamp_seconds(id) AS at",
    "array(cast(id AS double), cast(1 AS double)) AS vector",
]


def put_files(folder: Path, *contents: range) -> None:
    folder.mkdir()
    for position, ids in enumerate(contents):
        path = folder / f"{position}.json"
        path.write_text("".join(json.dumps({"id": i}) + "\n" for i in ids))
        os.utime(path, (1_600_000_000 + position,) * 2)


def ids(world: LogWorld, table: str) -> list[int]:
    return [row["id"] for row in world.rows(table)]


def batches(spark: SparkSession, options: dict[str, str]) -> dict[str, Any]:
    """Append, overwrite and read the table `batches`; return what came of it."""
    options = {**options, "table": "batches"}
    frame = spark.range(100).repartition(3).selectExpr(*COLUMNS)

    def write(mode: str, **more: str) -> None:
        frame.write.format("commitlog").options(**options, **more).mode(mode).save()

    def read(**more: str) -> DataFrame:
        return spark.read.format("commitlog").options(**options, **more).load()

    write("append")
    write("append", txnAppId="job", txnVersion="7")
    write("append", txnAppId="job", txnVersion="7")
    after = read().count()
    write("overwrite", rowsPerFile="10")
    rows = read().orderBy("id").limit(2).collect()
    return {
        "after": after,
        "rows": [[row.id, row.at.timestamp(), row.vector, row.note] for row in rows],
        "now": read().count(),
        "old": read(versionAsOf="2").count(),
        "narrow": read(columns="id,note").columns,
        "workers": spark.range(1).rdd.map(lambda _: __import__("pyspark").__file__).first(),
    }


def check_batches(told: dict[str, Any], world: LogWorld) -> None:
    assert (told["after"], told["now"], told["old"]) == (200, 100, 100)
    assert told["rows"] == [[0, 0.0, [0.0, 1.0], None], [1, 1.0, [1.0, 1.0], None]]
    assert told["narrow"] == ["id", "note"]
    assert told["workers"] == pyspark.__file__, "an archive without bytecode is slower to import"
    assert world.batches("batches") == [None, 7, None]
    assert len(world.client.open("batches").get_fragments()) >= 10
    assert ids(world, "batches") == list(range(100))


def test_batches_append_overwrite_and_read(world: SparkWorld) -> None:
    world.create("batches", SCHEMA)
    check_batches(batches(world.spark, world.options), world)


def test_what_cannot_work_fails_before_an_executor_starts(
    world: SparkWorld, tmp_path: Path
) -> None:
    world.create(TABLE, SCHEMA)
    spark, reach = world.spark, {**world.options, "table": TABLE}
    frame = spark.range(3).selectExpr(*COLUMNS)

    def fails(says: str, action: Callable[[], object]) -> None:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            action()
        assert says in str(caught.value), str(caught.value)[-500:]

    def save(frame: DataFrame, **more: str) -> Callable[[], None]:
        options = {**reach, **more}
        return lambda: frame.write.format("commitlog").options(**options).mode("append").save()

    def update() -> None:
        put_files(tmp_path / "input", range(3))
        source = spark.readStream.schema("id long").json(str(tmp_path / "input"))
        sink = source.writeStream.format("commitlog").options(**reach)
        sink = sink.outputMode("update").option("checkpointLocation", str(tmp_path / "c"))
        sink.start()

    fails("Rename it to 'at'", save(frame.selectExpr("id", "at AS att")))
    fails(
        "'id' of nyc$events is int64 and cannot hold string",
        save(frame.selectExpr("cast(id AS string) AS id")),
    )
    fails("Did you mean 'txnAppId'", save(frame, txnAppIdd="x"))
    fails("txnAppId and txnVersion belong together", save(frame, txnAppId="x"))
    fails("cannot name a table", save(frame, table="nyc$"))
    fails("it may not be null", save(frame.selectExpr("nullif(id, 1) AS id", "at")))
    fails("foreachBatch", update)
    assert world.batches(TABLE) == []
    assert ids(world, TABLE) == []
