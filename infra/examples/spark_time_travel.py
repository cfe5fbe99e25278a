"""Reads a table as it was, and what changed since, in SQL.

commitlog up --root DIR
python infra/examples/spark_time_travel.py --bootstrap-servers HOST:PORT
"""

from __future__ import annotations

import argparse

import pyarrow as pa
from pyspark.sql import SparkSession

from commitlog import CommitLog
from commitlog.spark import CommitLogDataSource, local_session

TABLE = "shop$prices"
SCHEMA = pa.schema([("item", pa.string()), ("price", pa.int64())])


def run(spark: SparkSession, options: dict[str, str]) -> dict[str, list[dict[str, object]]]:
    """Return the table now, before, and the changes between."""
    reach = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    views = {
        "now": f"OPTIONS ({reach}, table '{TABLE}')",
        "before": f"OPTIONS ({reach}, table '{TABLE}', versionAsOf '2')",
        "changes": f"OPTIONS ({reach}, table '{TABLE}', read 'changes', startingVersion '3')",
    }
    found = {}
    for name, how in views.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING commitlog {how}")
        columns = "item, price, _change_type" if name == "changes" else "item, price"
        rows = spark.sql(f"SELECT {columns} FROM {name} ORDER BY {columns}")
        found[name] = [row.asDict() for row in rows.collect()]
    return found


def prepare(log: CommitLog) -> None:
    """Make a table with a history."""
    log.create_table(TABLE, SCHEMA, stable_row_ids=True)
    log.append(TABLE, pa.table({"item": ["pen", "cup"], "price": [2, 5]}, schema=SCHEMA))
    log.update(TABLE, {"price": "price + 1"}, "item = 'cup'")
    log.delete(TABLE, "item = 'pen'")


def main() -> None:
    """Make the table and run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    servers = parser.parse_args().bootstrap_servers
    prepare(CommitLog.connect(servers))
    spark = local_session("time travel")
    spark.dataSource.register(CommitLogDataSource)
    for name, rows in run(spark, {"kafka.bootstrap.servers": servers}).items():
        print(name, *rows, sep="\n  ")
    spark.stop()


if __name__ == "__main__":
    main()
