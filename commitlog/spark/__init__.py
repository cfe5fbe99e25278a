"""Spark: format `commitlog` for streams and batches, and a local session."""

from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.session import local_session

__all__ = ["CommitLogDataSource", "local_session"]
