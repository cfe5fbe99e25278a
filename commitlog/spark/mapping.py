"""Mapping Arrow batches on the executors, without pandas.

PySpark refuses `DataFrame.mapInArrow` where pandas isn't installed, though neither the driver nor
the workers use it on the way. Installed, it makes every process that opens a table start slower:
pyarrow loads it. So the question whether it is there is left out for this one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas import functions
from pyspark.sql.types import StructType

from commitlog.spark.plain_errors import with_plain_errors

CHECK = "require_minimum_pandas_version"

_lock = threading.Lock()


def map_arrow(
    frame: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str | StructType,
) -> DataFrame:
    """Return what a function makes of a frame's batches, as `DataFrame.mapInArrow` does."""
    names = frame.columns
    if "*" in names:  # which Spark would take for all columns
        function = partial(_renamed, function=function, names=names)
        frame = frame.toDF(*(f"column{at}" for at in range(len(names))))
    with _lock:
        check = getattr(functions, CHECK, None)
        setattr(functions, CHECK, _is_not_needed)
        try:
            return frame.mapInArrow(with_plain_errors(function), schema)
        finally:
            setattr(functions, CHECK, check)


def task_each(spark: SparkSession, count: int) -> DataFrame:
    """Return the numbers below a count as `id`, each in a task of its own.

    There is no shuffle: a lost executor would take its files along, and numbers whose hashes meet
    would share a task, while others have none.
    """
    return spark.range(0, count, 1, count)


def _renamed(
    batches: Iterable[pa.RecordBatch],
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    yield from function(batch.rename_columns(list(names)) for batch in batches)


def _is_not_needed() -> None:
    pass
