"""Compaction as a Spark job: the driver plans and commits, executors rewrite the fragments.

The plan is pylance's own, as of one version, and each of its groups is one task. A task returns
the names of its files, and the driver commits one Rewrite like `CommitLog.compact`. If
Spark runs a task again, it writes other files, and only one of its results comes back. No
transaction names the other files, so `commitlog orphans` lists them.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import lance
from lance.optimize import CompactionTask, RewriteResult
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from commitlog.adapters.places import bound
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.excerpts import Excerpt
from commitlog.client.rows.lost_files import files_stay
from commitlog.client.upkeep import Kept, RewriteGroups, rewrite_here
from commitlog.errors import CommitLogError, Unavailable
from commitlog.spark.connection import connect as connect_to
from commitlog.spark.files import Connect
from commitlog.spark.mapping import of_each_number
from commitlog.spark.options import parse_reach

MESSAGE_MAX = 300
OURS = f"{CommitLogError.__module__}."


def compact(
    spark: SparkSession,
    table: str,
    *,
    options: Mapping[str, str],
    connect: Connect = connect_to,
    **how: Any,
) -> Kept:
    """Compact a table by a Spark job, beside its writers.

    `options` are the connection options of format `commitlog`. The others are those of
    `CommitLog.compact`: `target_rows_per_fragment`, `timeout`, `attempts_max`, and so on.

    Raises:
        RetryableConflict: others won `attempts_max` times in a row.
        Unavailable: Spark gave up, or there was no time left; nothing was submitted.
    """
    log = connect(parse_reach(options, use="compact"))
    kept: Kept = log.compact(table, rewrite=on_executors(spark), **how)
    return kept


def on_executors(spark: SparkSession) -> RewriteGroups:
    """Return what rewrites groups of fragments as a Spark job; a single one in the driver."""

    def rewrite(
        info: TableInfo,
        dataset: lance.LanceDataset,
        tasks: Sequence[CompactionTask],
        deadline: float,
    ) -> list[RewriteResult]:
        if len(tasks) == 1:
            return rewrite_here(info, dataset, tasks, deadline)
        location, whole = bound(info.location), Excerpt.whole(dataset)
        groups = [_json(task) for task in tasks]
        work = partial(_rewrite, groups=groups, table=info.name, location=location, whole=whole)
        try:
            with _cancelled_at(spark, deadline):
                found = of_each_number(spark, len(groups), work)
        except (Py4JError, PySparkException) as error:
            raise Unavailable(
                f"the Spark job that compacts {info.name} failed or ran out of time, and nothing"
                f" was submitted: {_said(error)}. Look at Spark's logs"
            ) from error
        from_json = RewriteResult.from_json  # type: ignore[attr-defined]
        return [from_json(made) for made in found]

    return rewrite


def _said(error: Exception) -> str:
    """Return the end of what Spark says; of an error of ours on an executor, all that it says."""
    text = str(error)
    found = text.rfind(OURS)
    return text[found + len(OURS) if found >= 0 else -MESSAGE_MAX :].strip().rstrip(".")


def _rewrite(
    number: int, *, groups: Sequence[str], table: str, location: str, whole: Excerpt
) -> str:
    """Rewrite the group of fragments of this number; runs on an executor."""
    task = CompactionTask.from_json(groups[number])  # type: ignore[attr-defined]
    with files_stay(table, whole.version):
        return _json(task.execute(whole.open(location)))


def _json(made: Any) -> str:
    """Return a task, or what it came to; pylance's type stubs don't know the method."""
    text: str = made.json()
    return text


@contextlib.contextmanager
def _cancelled_at(spark: SparkSession, deadline: float) -> Iterator[None]:
    """Cancel what this thread has Spark do, once there is no time left."""
    tag = f"commitlog-{uuid.uuid4()}"
    timer = threading.Timer(max(deadline - time.monotonic(), 0.0), spark.interruptTag, [tag])
    timer.daemon = True
    spark.addTag(tag)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        spark.removeTag(tag)
