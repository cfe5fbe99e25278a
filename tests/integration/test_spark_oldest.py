"""The oldest PySpark that is supported, where a folder of it is at hand.

`pip install --target FOLDER 'pyspark==4.1.*'`, then COMMITLOG_TEST_PYSPARK=FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from commitlog import CommitLog
from tests.child import lines_of
from tests.spark_world import led_log

pytestmark = [
    pytest.mark.broker,
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("COMMITLOG_TEST_PYSPARK", "")
SCHEMA = pa.schema(
    [("id", pa.int32()), ("name", pa.string()), ("at", pa.timestamp("ns", "UTC")),
     ("v", pa.list_(pa.float32(), 2))]
)  # fmt: skip
COPY = pa.schema([("id", pa.int32()), ("kind", pa.string())])
SECONDS = 540
PROGRAM = """
import json, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import pyspark
from commitlog.spark import CommitLogDataSource, each_batch, local_session, merge
servers, log, folder = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "log": log}
spark = local_session("oldest")
spark.dataSource.register(CommitLogDataSource)
columns = ["id", "name", "timestamp'2013-07-01' AS at", "array(1F, 0.5F) AS v"]
def frame(*ids, name="a"):
    rows = spark.createDataFrame([(i, name) for i in ids], "id long, name string")
    return rows.selectExpr(*columns)
def read(**more):
    return spark.read.format("commitlog").options(**{**options, "table": "s$old", **more}).load()
frame(1, 2).write.format("commitlog").options(**options, table="s$old").mode("append").save()
reach = ", ".join(f"`{k}` '{v}'" for k, v in options.items())
spark.sql(f"CREATE TABLE old USING commitlog OPTIONS ({reach}, table 's$old')")
spark.sql("INSERT INTO old VALUES (3, 'sql', null, null)")
refused = {}
def refusal(name, statement):
    try:
        spark.sql(statement).collect()
    except Exception as error:
        refused[name] = str(error)
refusal("insert", "INSERT INTO old SELECT * FROM old")
merge(frame(2, 4, name="m"), "s$old", "id", options=options)
part = frame(4, 5, name="x").select("id", "name")
merge(part, "s$old", "id", options=options, rows_in_driver=0)
add = each_batch(lambda batch, rows: batch.append("s$old", rows), {**options, "txnAppId": "a"})
add(frame(6), 0)
rows = [[r.id, r.name, r.v] for r in read().orderBy("id").collect()]
def copy():
    changes = spark.readStream.format("commitlog").options(**options, read="changes")
    changes = changes.option("table", "s$old").option("startingVersion", 1).load()
    sink = changes.selectExpr("id", "_change_type AS kind").writeStream.format("commitlog")
    sink = sink.options(**options, table="s$copy").option("checkpointLocation", folder + "/copy")
    with ThreadPoolExecutor(1) as pool:
        query = pool.submit(sink.trigger(availableNow=True).start).result()
    assert query.awaitTermination(120)
copy()
frame(7).write.format("commitlog").options(**options, table="s$old").mode("append").save()
copy()
kinds = [list(r) for r in read(table="s$copy").groupBy("kind").count().orderBy("kind").collect()]
outcomes = spark.read.format("commitlog").options(**options, read="log").load().count()
stream = spark.readStream.format("commitlog").options(**options, read="log").load()
query = (stream.select("sequence").writeStream.format("memory").queryName("seen")
         .option("checkpointLocation", folder + "/seen").trigger(availableNow=True).start())
assert query.awaitTermination(120)
limited = spark.readStream.format("commitlog").options(**options, table="s$old", read="changes")
try:
    query = limited.option("maxRowsPerTrigger", 1).load().writeStream.format("noop")
    query.option("checkpointLocation", folder + "/limit").start().awaitTermination(60)
except Exception as error:
    refused["limit"] = str(error)
print(json.dumps({"version": pyspark.__version__, "rows": rows, "kinds": kinds, "refused": refused,
                  "outcomes": outcomes, "seen": spark.table("seen").count()}), flush=True)
spark.stop()
"""


@pytest.mark.skipif(not FOLDER, reason="COMMITLOG_TEST_PYSPARK names no folder with PySpark 4.1")
def test_the_oldest_pyspark_reads_writes_and_streams(broker: Any, tmp_path: Path) -> None:
    with led_log(tmp_path, broker.bootstrap_servers) as name:
        with CommitLog.connect(broker.bootstrap_servers, log=name) as client:
            client.create_table("s$old", SCHEMA, stable_row_ids=True)
            client.create_table("s$copy", COPY)
        lines = lines_of(
            [sys.executable, "-c", PROGRAM, broker.bootstrap_servers, name, str(tmp_path)],
            cwd=tmp_path,
            env={"PYTHONPATH": os.pathsep.join([FOLDER, str(REPOSITORY)])},
            seconds=SECONDS,
        )
    found = json.loads(lines[-1])
    assert found["version"].startswith("4.1.")
    assert found["rows"] == [
        [1, "a", [1.0, 0.5]], [2, "m", [1.0, 0.5]], [3, "sql", None], [4, "x", [1.0, 0.5]],
        [5, "x", None], [6, "a", [1.0, 0.5]],
    ]  # fmt: skip
    kinds = dict(map(tuple, found["kinds"]))
    assert kinds == {"insert": 7, "update_preimage": 2, "update_postimage": 2}
    assert "INSERT INTO … WITH" in found["refused"]["insert"]
    assert "'maxRowsPerTrigger' needs PySpark 4.2" in found["refused"]["limit"]
    assert found["seen"] == found["outcomes"] > 7
