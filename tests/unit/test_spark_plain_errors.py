"""What Spark shows of an error: the error alone if it is ours, and all calls of a bug."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from commitlog.errors import InvalidRequest, NoSuchTable
from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.plain_errors import plain_errors


def deep(error: Exception, calls: int = 10) -> None:
    if calls:
        deep(error, calls - 1)
    try:
        raise KeyError("what a library said")
    except KeyError as cause:
        raise error from cause


@plain_errors
class Reader:
    def plan(self, error: Exception) -> list[int]:
        deep(error)
        return []

    def read(self, error: Exception | None) -> Iterator[int]:
        yield 1
        if error is not None:
            deep(error)
        yield 2


def said(error: BaseException) -> list[str]:
    return "".join(traceback.format_exception(error)).splitlines()


def test_an_error_is_shown_without_calls() -> None:
    reader: Reader = pickle.loads(pickle.dumps(Reader()))
    for ours in (NoSuchTable("no table t. Did you mean u?"), InvalidRequest("no", field="table")):
        with pytest.raises(type(ours)) as caught:
            reader.plan(ours)
        *calls, last = said(caught.value)
        assert last == f"{type(ours).__module__}.{type(ours).__name__}: {ours}"
        assert not [line for line in calls if "deep" in line or "KeyError" in line]
        found = reader.read(ours)
        assert next(found) == 1
        with pytest.raises(type(ours)) as caught:
            next(found)
        assert not [line for line in said(caught.value) if "deep" in line or "KeyError" in line]


def test_a_bug_keeps_its_calls_and_rows_stay_rows() -> None:
    with pytest.raises(ValueError, match="odd") as caught:
        Reader().plan(ValueError("odd"))
    text = "\n".join(said(caught.value))
    assert text.count("in deep") > 1
    assert "what a library said" in text
    assert list(Reader().read(None)) == [1, 2]


def test_a_refused_stream_has_a_reader_that_says_so() -> None:
    """Without one, Spark's last line was an UnboundLocalError of its own."""
    given = {"kafka.bootstrap.servers": "h:1", "table": "a$b"}
    reader: Any = CommitLogDataSource(given).streamReader(StructType())
    for ask in (reader.initialOffset, reader.latestOffset, lambda: reader.partitions({}, {})):
        with pytest.raises(InvalidRequest, match="a stream reads changes, or the log") as caught:
            ask()
        assert "Set .option('read', 'changes')" in said(caught.value)[-1]
