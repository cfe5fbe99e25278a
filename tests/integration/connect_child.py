"""What a client of Spark Connect does with this format: `SERVERS LOG FOLDER`.

Runs in a Python that also has pandas, which such clients need. Prints what it found, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from commitlog.errors import InvalidRequest
from commitlog.spark import CommitLogDataSource, compact, each_batch, merge, show_repeats, upsert
from commitlog.spark.audit import audit

SERVERS, LOG, FOLDER = sys.argv[1:]
OPTIONS = {"kafka.bootstrap.servers": SERVERS, "log": LOG}
QUERY_SECONDS = 300


def main() -> None:
    """Write in every way, read, and audit."""
    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    spark.dataSource.register(CommitLogDataSource)
    found: dict[str, Any] = {"session": type(spark).__module__}

    def read(table: str, **more: str) -> Any:
        options = {**OPTIONS, "table": table, **more}
        return spark.read.format("commitlog").options(**options).load()

    def streamed(name: str, function: Callable[[Any, int], None]) -> str:
        rows = spark.readStream.schema("id long, name string").json(f"{FOLDER}/source")
        query = (
            rows.writeStream.foreachBatch(function)
            .option("checkpointLocation", f"{FOLDER}/{name}")
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(QUERY_SECONDS)
        except Exception as error:
            return str(error)
        finally:
            query.stop()
        return ""

    def write(batch: Any, frame: DataFrame) -> None:
        batch.append("s$log", frame)
        batch.merge("s$t", frame, on="id")

    frame = spark.createDataFrame([(i, "a") for i in (1, 2)], "id long, name string")
    for _ in range(4):
        frame.write.format("commitlog").options(**OPTIONS, table="s$log").mode("append").save()
    frame.write.format("commitlog").options(**OPTIONS, table="s$t").mode("append").save()
    spark.createDataFrame([(3, "s"), (4, "s")], "id long, name string").write.json(
        f"{FOLDER}/source"
    )
    found["unnamed"] = streamed("unnamed", upsert("s$t", "id", OPTIONS))
    found["streamed"] = streamed("named", each_batch(write, {**OPTIONS, "txnAppId": "one"}))
    # The same batch again, as if Spark had died before it noted it.
    found["again"] = streamed("again", each_batch(write, {**OPTIONS, "txnAppId": "one"}))
    source = spark.createDataFrame(
        [(2, "m", False), (4, "m", True), (5, "m", False)], "id long, name string, Gone boolean"
    )
    merged = merge(source, "s$t", on="id", options=OPTIONS, delete_where="gone", rows_in_driver=0)
    found["merged"] = [merged.updated, merged.inserted, merged.deleted]
    found["rows"] = sorted([list(row) for row in read("s$t").collect()])
    kept = compact(spark, "s$log", options=OPTIONS, target_rows_per_fragment=4)
    assert kept.metrics is not None
    found["compacted"] = kept.metrics["fragments_removed"], kept.metrics["fragments_added"]
    found["log"] = sorted([list(row) for row in read("s$log").collect()])
    try:
        show_repeats(spark, OPTIONS)
    except InvalidRequest as error:
        found["repeats"] = str(error)
    [audited] = audit(spark, OPTIONS)
    found["outcomes"] = audited.outcomes
    found["differences"] = list(audited.differences)
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
