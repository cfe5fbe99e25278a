"""Spark: format `commitlog` for streams and batches, MERGE, `foreachBatch`, a local session."""

# First: it refuses a PySpark that the others cannot be imported with.
from commitlog.spark.pyspark_api import write_in_any_thread  # isort: split

from commitlog.spark.batches import Batch, BatchFunction, each_batch, upsert
from commitlog.spark.compaction import compact
from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.mapping import map_arrow
from commitlog.spark.merge import Merged, merge
from commitlog.spark.progress import RepeatsListener, show_repeats
from commitlog.spark.session import local_session
from commitlog.spark.statements import NotInSql, check_statements
from commitlog.spark.writers import check_writers

write_in_any_thread()
check_statements()
check_writers()

__all__ = [
    "Batch",
    "BatchFunction",
    "CommitLogDataSource",
    "Merged",
    "NotInSql",
    "RepeatsListener",
    "compact",
    "each_batch",
    "local_session",
    "map_arrow",
    "merge",
    "show_repeats",
    "upsert",
]
