"""Mapping Arrow batches on the executors, without pandas.

PySpark refuses `DataFrame.mapInArrow` where pandas isn't installed, though neither the driver nor
the workers use it on the way. Installed, it makes every process that opens a table start slower:
pyarrow loads it. So the question whether it is there is left out for this one call.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas import functions
from pyspark.sql.types import StructType

from commitlog.spark.plain_errors import with_plain_errors

CHECK = "require_minimum_pandas_version"

Value = TypeVar("Value")
Batches = Iterable[pa.RecordBatch]

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


def of_each_task(frame: DataFrame, function: Callable[[Batches], Value]) -> list[Value]:
    """Return what a function makes of each task's batches: any value that can be pickled."""
    rows = map_arrow(frame, partial(_pickled, function=function), "value binary").collect()
    return [pickle.loads(bytes(row.value)) for row in rows]


def of_each_number(
    spark: SparkSession, count: int, function: Callable[[int], Value]
) -> list[Value]:
    """Return what a function makes of each number below a count, each in a task of its own."""
    found = of_each_task(task_each(spark, count), partial(_of_numbers, function=function))
    return [value for values in found for value in values]


def task_each(spark: SparkSession, count: int) -> DataFrame:
    """Return the numbers below a count as `id`, each in a task of its own.

    There is no shuffle: a lost executor would take its files along, and numbers whose hashes meet
    would share a task, while others have none.
    """
    return spark.range(0, count, 1, count)


def _pickled(batches: Batches, function: Callable[[Batches], Value]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"value": [pickle.dumps(function(batches))]})


def _of_numbers(batches: Batches, function: Callable[[int], Value]) -> list[Value]:
    return [function(number) for batch in batches for number in batch.column("id").to_pylist()]


def _renamed(
    batches: Iterable[pa.RecordBatch],
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    names: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    yield from function(batch.rename_columns(list(names)) for batch in batches)


def _is_not_needed() -> None:
    pass
