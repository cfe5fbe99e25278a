"""Lets Spark find format `commitlog` by itself.

Spark looks for top-level modules named `pyspark_*` and registers their `DefaultSource`, so that
SQL and plain `spark.read.format("commitlog")` work without a line of Python.
"""

from commitlog.spark.datasource import CommitLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
