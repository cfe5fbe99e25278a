"""What Spark does with an Iceberg catalogue: `URI JAR FOLDER`. Prints what it found, as JSON.

Runs in a Python that has only PySpark.
"""

import json
import sys

from pyspark.sql import SparkSession


def main() -> None:
    """Run the statements."""
    uri, jar, folder = sys.argv[1:]
    settings = {
        "spark.jars": jar,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.log": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.log.type": "rest",
        "spark.sql.catalog.log.uri": uri,
        "spark.sql.catalog.log.cache-enabled": "false",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[1]").appName("iceberg")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")

    def rows(query: str) -> list[list[object]]:
        return [list(row) for row in spark.sql(query).collect()]

    found: dict[str, object] = {}
    spark.sql("CREATE NAMESPACE log.spark")
    spark.sql("CREATE TABLE log.spark.t (id BIGINT, name STRING) PARTITIONED BY (bucket(2, id))")
    spark.sql("INSERT INTO log.spark.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    spark.sql("ALTER TABLE log.spark.t ADD COLUMN more INT")
    spark.sql("ALTER TABLE log.spark.t SET TBLPROPERTIES ('said' = 'so')")
    spark.sql("INSERT INTO log.spark.t VALUES (4, 'd', 40)")
    spark.sql("UPDATE log.spark.t SET name = 'z' WHERE id = 1")
    spark.sql("DELETE FROM log.spark.t WHERE id = 2")
    found["t"] = rows("SELECT * FROM log.spark.t ORDER BY id")
    spark.sql("CREATE TABLE log.spark.copy AS SELECT id, name FROM log.spark.t WHERE id > 1")
    found["copy"] = rows("SELECT * FROM log.spark.copy ORDER BY id")
    # Spark would take the catalogue's name in the new name for a namespace.
    spark.sql("ALTER TABLE log.spark.copy RENAME TO spark.moved")
    found["tables"] = sorted(str(row[1]) for row in rows("SHOW TABLES IN log.spark"))
    found["snapshots"] = len(rows("SELECT * FROM log.spark.t.snapshots"))
    (first,) = rows("SELECT snapshot_id FROM log.spark.t.snapshots ORDER BY committed_at LIMIT 1")
    found["first"] = rows(f"SELECT count(*) FROM log.spark.t VERSION AS OF {first[0]}")
    spark.sql("CREATE VIEW log.spark.v AS SELECT id FROM log.spark.t WHERE id > 1")
    found["first-view"] = rows("SELECT * FROM log.spark.v ORDER BY id")
    spark.sql("CREATE OR REPLACE VIEW log.spark.v AS SELECT id + 1 AS n FROM log.spark.t")
    found["second-view"] = rows("SELECT * FROM log.spark.v ORDER BY n")
    spark.sql("CREATE VIEW log.spark.gone AS SELECT * FROM log.spark.v")
    found["views"] = sorted(str(row[1]) for row in rows("SHOW VIEWS IN log.spark"))
    spark.sql("DROP VIEW log.spark.gone")
    spark.sql("DROP VIEW IF EXISTS log.spark.never")
    found["views-left"] = [str(row[1]) for row in rows("SHOW VIEWS IN log.spark")]
    spark.sql("DROP TABLE log.spark.moved PURGE")
    found["left"] = sorted(str(row[1]) for row in rows("SHOW TABLES IN log.spark"))
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
