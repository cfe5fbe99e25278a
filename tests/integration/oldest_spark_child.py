"""What PySpark 4.1 does with this format, beside Delta's and Iceberg's: `SERVERS LOG JARS FOLDER`.

Runs in a Python that imports this PySpark. Prints what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from commitlog.spark import CommitLogDataSource, each_batch, local_session, merge

SERVERS, LOG, JARS, FOLDER = sys.argv[1:]
OPTIONS = {"kafka.bootstrap.servers": SERVERS, "log": LOG}
REACH = ", ".join(f"`{name}` '{value}'" for name, value in OPTIONS.items())
TIMES = ["timestamp'2013-07-01' AS at", "timestamp_ntz'2013-07-01' AS day"]
COLUMNS = ["id", "name", *TIMES, "array(1F, 0.5F) AS v"]
REFUSED = {
    "insert": "INSERT INTO old SELECT * FROM old WHERE id > 100",
    "alter": "ALTER TABLE old ADD COLUMN x int",
    "create": f"CREATE TABLE made (id int) USING commitlog OPTIONS ({REACH}, table 's$new')",
    "select": f"CREATE TABLE made USING commitlog OPTIONS ({REACH}, table 's$old') AS SELECT 1",
    "update": "UPDATE old SET name = 'x'",
    "delete": "DELETE FROM old WHERE id = 1",
    "merge": "MERGE INTO old t USING old s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "truncate": "TRUNCATE TABLE old",
    "replace": "INSERT INTO old REPLACE WHERE id = 1 VALUES (1, 'x', null, null, null)",
    "like": "CREATE TABLE made LIKE old",
    "version": "SELECT * FROM old VERSION AS OF 1",
}
QUERY_SECONDS = 300
DELTA = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
SETTINGS = {
    "spark.jars": JARS,
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": f"{FOLDER}/ice",
}


def refused(spark: SparkSession, statements: dict[str, str]) -> dict[str, str]:
    """Return what each statement is refused with; nothing, if it isn't."""
    found = {}
    for name, statement in statements.items():
        try:
            spark.sql(statement).collect()
            found[name] = ""
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"[:4000]
    return found


def this_format(spark: SparkSession) -> dict[str, Any]:
    """Append, merge, stream and read; return what is there."""

    def frame(*ids: int, name: str = "a") -> DataFrame:
        rows = spark.createDataFrame([(i, name) for i in ids], "id long, name string")
        return rows.selectExpr(*COLUMNS)

    def append(rows: DataFrame) -> None:
        rows.write.format("commitlog").options(**OPTIONS, table="s$old").mode("append").save()

    def read(**more: str) -> DataFrame:
        return (
            spark.read.format("commitlog").options(**{**OPTIONS, "table": "s$old", **more}).load()
        )

    def copy() -> None:
        changes = spark.readStream.format("commitlog").options(**OPTIONS, read="changes")
        changes = changes.option("table", "s$old").option("startingVersion", 1)
        sink = changes.load().selectExpr("id", "_change_type AS kind").writeStream
        sink = sink.format("commitlog").options(**OPTIONS, table="s$copy")
        sink = sink.option("checkpointLocation", f"{FOLDER}/copy").trigger(availableNow=True)
        with ThreadPoolExecutor(1) as pool:
            query = pool.submit(sink.start).result()
        assert query.awaitTermination(QUERY_SECONDS)

    append(frame(1, 2))
    spark.sql(f"CREATE TABLE old USING commitlog OPTIONS ({REACH}, table 's$old')")
    spark.sql("INSERT INTO old VALUES (3, 'sql', null, null, null)")
    said = refused(spark, REFUSED)
    merge(frame(2, 4, name="m"), "s$old", "id", options=OPTIONS)
    part = frame(4, 5, name="x").select("id", "name")
    merge(part, "s$old", "id", options=OPTIONS, rows_in_driver=0)
    add = each_batch(lambda batch, rows: batch.append("s$old", rows), {**OPTIONS, "txnAppId": "a"})
    add(frame(6), 0)
    rows = [[r.id, r.name, r.v] for r in read().orderBy("id").collect()]
    copy()
    append(frame(7))
    copy()
    kinds = {r.kind: r["count"] for r in read(table="s$copy").groupBy("kind").count().collect()}
    outcomes = spark.read.format("commitlog").options(**OPTIONS, read="log").load().count()
    stream = spark.readStream.format("commitlog").options(**OPTIONS, read="log").load()
    sink = stream.select("sequence").writeStream.format("memory").queryName("seen")
    sink = sink.option("checkpointLocation", f"{FOLDER}/seen").trigger(availableNow=True)
    assert sink.start().awaitTermination(QUERY_SECONDS)
    limited = spark.readStream.format("commitlog").options(**OPTIONS, table="s$old", read="changes")
    try:
        noop = limited.option("maxRowsPerTrigger", 1).load().writeStream.format("noop")
        noop.option("checkpointLocation", f"{FOLDER}/limit").start().awaitTermination(QUERY_SECONDS)
    except Exception as error:
        said["limit"] = str(error)
    seen = spark.table("seen").count()
    return {
        "rows": rows,
        "times": [kind for _, kind in read(columns="at,day").dtypes],
        "kinds": kinds,
        "refused": said,
        "outcomes": outcomes,
        "seen": seen,
    }


def three_formats(spark: SparkSession) -> dict[str, Any]:
    """Write from each format into the others; return what is in each."""

    def lance() -> None:
        read = spark.read.format("commitlog").options(**OPTIONS, table="s$t").load()
        read.createOrReplaceTempView("lance_t")

    def rows(table: str) -> list[list[Any]]:
        return [[r.id, r.name] for r in spark.table(table).orderBy("id").collect()]

    spark.sql("CREATE TABLE delta_t (id BIGINT, name STRING) USING delta")
    spark.sql("CREATE TABLE ice.db.t (id BIGINT, name STRING) USING iceberg")
    spark.sql("INSERT INTO delta_t VALUES (1, 'delta'), (2, 'old')")
    spark.sql("INSERT INTO ice.db.t VALUES (3, 'iceberg')")
    added = spark.createDataFrame([(2, "lance")], "id long, name string")
    added.write.format("commitlog").options(**OPTIONS, table="s$t").mode("append").save()
    merge(spark.table("ice.db.t"), "s$t", "id", options=OPTIONS)
    lance()
    spark.sql(
        "MERGE INTO delta_t d USING (SELECT id, name FROM lance_t) s ON d.id = s.id"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql("INSERT INTO ice.db.t SELECT id, name FROM delta_t WHERE id = 1")
    # Statements about the others' tables are theirs.
    spark.sql("UPDATE delta_t SET name = 'changed' WHERE id = 1")
    spark.sql("ALTER TABLE ice.db.t ADD COLUMN x INT")
    said = refused(spark, {
        "create": f"CREATE TABLE made USING commitlog OPTIONS ({REACH}, table 's$t')",
        "update": "UPDATE lance_t SET name = 'x'",
        "delete": "DELETE FROM lance_t WHERE id = 2",
        "merge": "MERGE INTO lance_t t USING delta_t s ON t.id = s.id WHEN MATCHED THEN DELETE",
        "version": "SELECT * FROM lance_t VERSION AS OF 1",
    })  # fmt: skip
    first = spark.sql("SELECT count(*) AS n FROM delta_t VERSION AS OF 1").collect()[0].n
    return {
        "delta": rows("delta_t"),
        "iceberg": rows("ice.db.t"),
        "lance": rows("lance_t"),
        "first": first,
        "refused": said,
    }


def main() -> None:
    """Run both, each in a session of its own."""
    spark = local_session("oldest", conf=SETTINGS)
    spark.dataSource.register(CommitLogDataSource)
    alone = this_format(spark)
    beside = spark.newSession()
    beside.conf.set("spark.sql.catalog.spark_catalog", DELTA)
    beside.dataSource.register(CommitLogDataSource)
    found = {"version": pyspark.__version__, "alone": alone, "formats": three_formats(beside)}
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
