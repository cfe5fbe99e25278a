"""What differs between the supported versions of PySpark, and what they get wrong.

The Python data source API grew from release to release, and the sink relies on properties of tasks
that Spark does not document. So other versions are refused when this package is imported.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

try:
    import pyspark
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "commitlog.spark needs PySpark: pip install 'lance-commitlog[spark]'", name="pyspark"
    ) from None

OLDEST, NEWEST = (4, 1), (4, 3)
SUPPORTED = "PySpark 4.1, 4.2 or 4.3"
HAS_READ_LIMITS = (4, 2)
"""The version from which Spark asks a stream of a Python data source for a limited batch."""


def check_version(version: str) -> tuple[int, int]:
    """Return the release of a PySpark; ImportError unless it is supported."""
    found = re.match(r"(\d+)\.(\d+)", version)
    release = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= release <= NEWEST:
        raise ImportError(
            f"commitlog.spark needs {SUPPORTED}, and PySpark {version} is installed: run"
            " `pip install 'pyspark>=4.1,<4.4'`."
        )
    return release


RELEASE = check_version(pyspark.__version__)

# Only a supported PySpark has what follows.
from pyspark.errors import AnalysisException  # noqa: E402
from pyspark.logger import PySparkLogger  # noqa: E402
from pyspark.sql import DataFrame  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402
from pyspark.sql.pandas.types import to_arrow_schema  # noqa: E402
from pyspark.sql.readwriter import DataFrameWriter  # noqa: E402
from pyspark.sql.streaming.readwriter import DataStreamWriter  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from commitlog.errors import InvalidTransaction  # noqa: E402

if RELEASE >= HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:  # type: ignore[no-redef]
        """How much a batch takes; Spark 4.1 knows no limits."""

        def __init__(self, maximum: int = 0) -> None:
            self.max_rows = self.max_files = maximum

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All there is."""

    class ReadMaxFiles(ReadLimit):  # type: ignore[no-redef]
        """So many files."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """So many rows."""

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark 4.1 itself asks for the last offset once."""


__all__ = [
    "RELEASE",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxFiles",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema_of",
    "asked_about",
    "check_limits",
    "check_version",
    "is_connect",
    "write_in_any_thread",
]


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """Return Spark's columns as Arrow has them, with instants in UTC."""
    if RELEASE < (4, 2):
        return to_arrow_schema(schema)
    return to_arrow_schema(schema, timezone="UTC")


def is_connect(session: Any) -> bool:
    """Return True for a session of Spark Connect, which has no JVM."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


def check_limits(**limits: int | None) -> None:
    """Reject limits of a stream's batches where Spark does not ask for them.

    Raises:
        InvalidTransaction: names the option.
    """
    for name, value in limits.items():
        if value is not None and RELEASE < HAS_READ_LIMITS:
            raise InvalidTransaction(
                f"option {name!r} needs PySpark 4.2 or later", field=name, value=value,
                advice="Leave it out: a batch then takes everything available",
            )  # fmt: skip


def asked_about(frame: DataFrame, condition: str, columns: Sequence[str]) -> set[str]:
    """Return which columns of a frame a condition is about, however it writes their case."""
    if not condition:
        return set()
    _ = frame.select(f.expr(condition)).schema  # what is wrong with it is said
    found = set()
    with _unlogged():
        for name in columns:
            try:
                _ = frame.drop(name).select(f.expr(condition)).schema
            except AnalysisException:
                found.add(name)
    return found


@contextmanager
def _unlogged() -> Iterator[None]:
    """Have PySpark log no error for what this thread asks it."""
    log, thread = PySparkLogger.getLogger("SQLQueryContextLogger"), threading.get_ident()

    def is_another(record: logging.LogRecord) -> bool:
        return record.thread != thread

    log.addFilter(is_another)
    try:
        yield
    finally:
        log.removeFilter(is_another)


def write_in_any_thread() -> None:
    """Have `writeStream.start()` and `write.save()` find Python sources in every thread.

    Spark looks them up in the session that is active in the calling thread of its JVM. A Python
    thread has a JVM thread of its own, in which none is, so both end in
    DATA_SOURCE_NOT_FOUND; so the frame's own session is made the active one meanwhile.
    """
    streams, batches = DataStreamWriter, DataFrameWriter
    for writer, name in ((streams, "start"), (streams, "toTable"), (batches, "save")):
        plain = getattr(writer, name)
        if not hasattr(plain, "__wrapped__"):
            setattr(writer, name, _with_its_session(plain))


def _with_its_session(plain: Any) -> Any:
    @functools.wraps(plain)
    def start(self: DataStreamWriter | DataFrameWriter, *args: Any, **options: Any) -> Any:
        session: Any = self._spark
        sessions = session._jvm.SparkSession
        before = sessions.getActiveSession()
        sessions.setActiveSession(session._jsparkSession)
        try:
            return plain(self, *args, **options)
        finally:
            if before.isDefined():
                sessions.setActiveSession(before.get())
            else:
                sessions.clearActiveSession()

    return start
