"""Changes and the log as sources, SQL, the audit and the examples, on a real Spark and log."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
from pyspark.sql.functions import spark_partition_id

from commitlog.spark.audit import audit
from commitlog.spark.mapping import task_each
from tests.spark_world import ON_SPARK, SparkWorld, finish

pytestmark = ON_SPARK

EXAMPLES = Path(__file__).resolve().parents[2] / "infra" / "examples"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
COPY = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("version", pa.int64())])


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows(*ids: int, name: str = "a") -> pa.Table:
    return pa.table({"id": list(ids), "name": [name] * len(ids)}, schema=SCHEMA)


def copy_changes(world: SparkWorld) -> None:
    """Write the changes of one table into another, each once."""
    changes = world.spark.readStream.format("commitlog").options(**world.options)
    changes = changes.option("table", "s$source").option("read", "changes")
    frame = changes.option("maxFilesPerTrigger", 2).load()
    sink = frame.selectExpr("id", "_change_type AS kind", "_commit_version AS version").writeStream
    sink = sink.format("commitlog").options(**world.options).option("table", "s$copy")
    sink = sink.option("checkpointLocation", str(world.checkpoint("copy")))
    finish(sink.trigger(availableNow=True).start())


def test_a_stream_of_changes_goes_on_where_it_was(world: SparkWorld) -> None:
    client = world.client
    client.create_table("s$source", SCHEMA, stable_row_ids=True)
    client.create_table("s$copy", COPY)
    client.append("s$source", rows(1, 2, 3))
    copy_changes(world)
    client.update("s$source", {"name": "'z'"}, "id = 2")
    client.delete("s$source", "id = 3")
    client.append("s$source", rows(4))
    copy_changes(world)
    commits = world.checkpoint("copy") / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    # As if the driver had died before it noted the batch: the same rows are read again.
    (commits / f"{newest}").unlink()
    (commits / f".{newest}.crc").unlink()
    copy_changes(world)
    found = [(row["id"], row["kind"], row["version"]) for row in world.rows("s$copy")]
    assert sorted(found) == [
        (1, "insert", 2), (2, "insert", 2), (2, "update_postimage", 3),
        (2, "update_preimage", 3), (3, "delete", 4), (3, "insert", 2), (4, "insert", 5),
    ]  # fmt: skip


def test_the_log_is_a_table_and_sql_finds_the_format_by_itself(world: SparkWorld) -> None:
    world.client.create_table("s$sql", SCHEMA)
    outcome = world.client.append("s$sql", rows(1, 2))
    spark = world.spark.newSession()
    reach = ", ".join(f"`{name}` '{value}'" for name, value in world.options.items())
    spark.sql(f"CREATE TABLE log_rows USING commitlog OPTIONS ({reach}, read 'log')")
    spark.sql(f"CREATE TABLE orders USING commitlog OPTIONS ({reach}, table 's$sql')")
    try:
        [made] = spark.sql(
            "SELECT sequence, op.version AS version, op.rows_added AS added FROM log_rows"
            " LATERAL VIEW explode(operations) AS op"
            " WHERE op.table = 's$sql' AND op.operation = 'Append'"
        ).collect()
        assert made.asDict() == {"sequence": outcome.sequence, "version": 2, "added": 2}
        assert spark.sql("SELECT count(*) AS n FROM orders").collect()[0].n == 2
        spark.sql("INSERT INTO orders VALUES (3, 'sql')")
        assert [row["id"] for row in world.rows("s$sql")] == [1, 2, 3]
    finally:
        spark.sql("DROP TABLE log_rows")
        spark.sql("DROP TABLE orders")


def test_each_partition_of_a_log_is_audited_by_a_task_of_its_own(world: SparkWorld) -> None:
    """Spark's hashes of 0 and 1 meet in two partitions, so one task had both and the other none."""
    for count in (1, 2, 4):
        places = task_each(world.spark, count).select(spark_partition_id()).collect()
        assert sorted(place for (place,) in places) == list(range(count))


def test_the_audit_decides_all_again_and_rebuilds_the_index(world: SparkWorld) -> None:
    world.client.create_table("s$audited", SCHEMA, primary_key="id")
    for number in range(5):
        world.client.merge_insert("s$audited", rows(number, number + 1), "id")
    told: list[tuple[int, int, int]] = []
    into = world.root / "audit"
    [found] = audit(
        world.spark,
        world.options,
        into=str(into),
        contents=True,
        on_progress=lambda *at: told.append(at),
    )
    assert found.differences == []
    assert found.outcomes == found.recomputed > 5
    assert told[-1][:2] == (0, found.outcomes)
    log = world.spark.read.parquet(str(into / "log"))
    assert log.count() == found.outcomes
    versions = world.spark.read.parquet(str(into / "versions")).filter("table = 's$audited'")
    assert sorted(row.version for row in versions.collect()) == [1, 2, 3, 4, 5, 6]


def test_changes_of_a_log_without_tables_named_are_all(world: SparkWorld) -> None:
    world.client.create_table("s$any", SCHEMA)
    world.client.append("s$any", rows(1))
    reader = world.spark.read.format("commitlog").options(**world.options)
    found = reader.option("read", "changes").load().filter("table = 's$any'").collect()
    assert [(row._change_type, row.row) for row in found] == [("insert", '{"id": 1, "name": "a"}')]


def test_the_examples_run(world: SparkWorld, tmp_path: Path) -> None:
    cdc = example("spark_cdc_upsert")
    world.client.create_table(cdc.TABLE, cdc.SCHEMA, primary_key="id")
    (tmp_path / "cdc").mkdir()
    assert cdc.run(world.spark, world.options, tmp_path / "cdc") == [
        {"id": 1, "name": "Ada"},
        {"id": 2, "name": "Bo"},
        {"id": 4, "name": "Dana"},
    ]
    many = example("spark_many_streams")
    world.client.create_table(many.TABLE, many.SCHEMA)
    (tmp_path / "many").mkdir()
    assert many.run(world.spark, world.options, tmp_path / "many") == [
        {"stream": number, "count": many.FILES * many.ROWS} for number in range(many.STREAMS)
    ]
    travel = example("spark_time_travel")
    travel.prepare(world.client)
    assert travel.run(world.spark, world.options) == {
        "now": [{"item": "cup", "price": 6}],
        "before": [{"item": "cup", "price": 5}, {"item": "pen", "price": 2}],
        "changes": [
            {"item": "cup", "price": 5, "_change_type": "update_preimage"},
            {"item": "cup", "price": 6, "_change_type": "update_postimage"},
            {"item": "pen", "price": 2, "_change_type": "delete"},
        ],
    }
    training = example("spark_training_read")
    training.prepare(world.client)
    assert training.run(world.spark, world.options) == [
        {"label": 0, "rows": 4, "x": 3.0},
        {"label": 1, "rows": 4, "x": 4.0},
    ]
