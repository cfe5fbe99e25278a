"""Mapping Arrow batches on the executors, without pandas.

PySpark refuses `DataFrame.mapInArrow` where pandas isn't installed, though neither the driver nor
the workers use it on the way. Installed, it makes every process that opens a table start slower:
pyarrow loads it. So the question whether it is there is left out for this one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
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
    with _lock:
        check = getattr(functions, CHECK, None)
        setattr(functions, CHECK, _is_not_needed)
        try:
            return frame.mapInArrow(with_plain_errors(function), schema)
        finally:
            setattr(functions, CHECK, check)


def _is_not_needed() -> None:
    pass
