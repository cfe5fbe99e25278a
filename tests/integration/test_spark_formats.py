"""Delta's and Iceberg's own jars beside this format, in one session of PySpark 4.1.

`pip install --target FOLDER 'pyspark==4.1.*'`, then COMMITLOG_TEST_PYSPARK=FOLDER and
COMMITLOG_TEST_FORMATS=1; Spark fetches the jars from Maven Central.
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
    pytest.mark.timeout(900),
]

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("COMMITLOG_TEST_PYSPARK", "")
IS_ASKED_FOR = bool(FOLDER and os.environ.get("COMMITLOG_TEST_FORMATS"))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
SECONDS = 840
PROGRAM = """
import json, sys
from commitlog.spark import CommitLogDataSource, local_session, merge
servers, log, folder = sys.argv[1:]
options = {"kafka.bootstrap.servers": servers, "log": log}
jars = "io.delta:delta-spark_4.1_2.13:4.1.0,"
jars += "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"
extensions = "io.delta.sql.DeltaSparkSessionExtension,"
extensions += "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
spark = local_session("formats", conf={
    "spark.jars.packages": jars,
    "spark.sql.extensions": extensions,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.ice.type": "hadoop",
    "spark.sql.catalog.ice.warehouse": folder + "/ice",
})
spark.dataSource.register(CommitLogDataSource)
reach = ", ".join(f"`{k}` '{v}'" for k, v in options.items())
def lance_t():
    read = spark.read.format("commitlog").options(**options, table="s$t").load()
    read.createOrReplaceTempView("lance_t")
spark.sql("CREATE TABLE delta_t (id BIGINT, name STRING) USING delta")
spark.sql("CREATE TABLE ice.db.t (id BIGINT, name STRING) USING iceberg")
spark.sql("INSERT INTO delta_t VALUES (1, 'delta'), (2, 'old')")
spark.sql("INSERT INTO ice.db.t VALUES (3, 'iceberg')")
rows = spark.createDataFrame([(2, "lance")], "id long, name string")
rows.write.format("commitlog").options(**options, table="s$t").mode("append").save()
# From each format into the others.
merge(spark.table("ice.db.t"), "s$t", "id", options=options)
lance_t()
spark.sql("MERGE INTO delta_t d USING (SELECT id, name FROM lance_t) s ON d.id = s.id"
          " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
spark.sql("INSERT INTO ice.db.t SELECT id, name FROM delta_t WHERE id = 1")
refused = {}
for name, statement in {
    "create": f"CREATE TABLE made USING commitlog OPTIONS ({reach}, table 's$t')",
    "use": "SELECT * FROM made",
    "update": "UPDATE lance_t SET name = 'x'",
    "delete": "DELETE FROM lance_t WHERE id = 2",
    "merge": "MERGE INTO lance_t t USING delta_t s ON t.id = s.id WHEN MATCHED THEN DELETE",
    "version": "SELECT * FROM lance_t VERSION AS OF 1",
}.items():
    try:
        spark.sql(statement).collect()
        refused[name] = ""
    except Exception as error:
        refused[name] = str(error)[:300]
def rows(table):
    return [[r.id, r.name] for r in spark.table(table).orderBy("id").collect()]
print(json.dumps({"delta": rows("delta_t"), "iceberg": rows("ice.db.t"),
                  "lance": rows("lance_t"), "refused": refused}), flush=True)
spark.stop()
"""


@pytest.mark.skipif(not IS_ASKED_FOR, reason="COMMITLOG_TEST_FORMATS isn't set")
def test_three_formats_in_one_session(broker: Any, tmp_path: Path) -> None:
    with led_log(tmp_path, broker.bootstrap_servers) as name:
        with CommitLog.connect(broker.bootstrap_servers, log=name) as client:
            client.create_table("s$t", SCHEMA)
        lines = lines_of(
            [sys.executable, "-c", PROGRAM, broker.bootstrap_servers, name, str(tmp_path)],
            cwd=tmp_path,
            env={"PYTHONPATH": os.pathsep.join([FOLDER, str(REPOSITORY)])},
            seconds=SECONDS,
        )
    found = json.loads(lines[-1])
    assert found["lance"] == [[2, "lance"], [3, "iceberg"]]
    assert found["delta"] == [[1, "delta"], [2, "lance"], [3, "iceberg"]]
    assert found["iceberg"] == [[1, "delta"], [3, "iceberg"]]
    # Delta's session catalog makes the name, and knows no Python data source when it is used.
    assert found["refused"].pop("create") == ""
    assert "not a valid Spark SQL Data Source" in found["refused"]["use"]
    assert all(found["refused"].values()), found["refused"]
