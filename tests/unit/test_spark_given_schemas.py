"""What a query names with Spark's `.schema(…)`, of the log and of changes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from commitlog.errors import InvalidRequest, InvalidTransaction
from commitlog.spark.datasource import CommitLogDataSource
from tests.service import SCHEMA, Service, rows

T = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    running.client.create_table(T, SCHEMA)
    running.client.append(T, rows(7))
    return running


def given(**columns: Any) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def source(world: Service, **options: str) -> CommitLogDataSource:
    made = CommitLogDataSource({"kafka.bootstrap.servers": "h:1", **options})
    made.connect = lambda _: world.client
    return made


def batch(reader: Any) -> list[tuple[Any, ...]]:
    return told(reader, reader.partitions())


def stream(reader: Any) -> list[tuple[Any, ...]]:
    start = reader.initialOffset()
    return told(reader, reader.partitions(start, reader.latestOffset(start)))


def told(reader: Any, parts: Any) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for part in parts
        for found in reader.read(pickle.loads(pickle.dumps(part)))
        for row in found.to_pylist()
    ]


def test_the_log_and_all_changes_give_the_columns_that_are_named(world: Service) -> None:
    """Spark failed with "Return schema mismatch"."""
    narrow = given(status=StringType(), sequence=LongType())
    log, expected = source(world, read="log"), [("committed", number) for number in (1, 2, 3)]
    assert batch(log.reader(narrow)) == stream(log.streamReader(narrow)) == expected
    narrow = given(_commit_version=LongType(), table=StringType())
    changes = source(world, read="changes")
    assert batch(changes.reader(narrow)) == stream(changes.streamReader(narrow)) == [(2, T)]


def test_a_column_that_isnt_there_is_refused(world: Service) -> None:
    """A table's changes had nulls in it."""
    wrong = given(sequence=LongType(), statsu=StringType())
    for options in ({"read": "log"}, {"read": "changes"}, {"read": "changes", "table": T}):
        for read in (batch, stream):
            made = source(world, **options)
            with pytest.raises(InvalidRequest, match="no column '(sequence|statsu)'") as caught:
                read((made.reader if read is batch else made.streamReader)(wrong))
            assert caught.value.field == "schema"


def test_a_type_that_a_value_doesnt_fit_is_refused(world: Service) -> None:
    wrong = given(status=LongType())
    with pytest.raises(InvalidTransaction, match="a value of column 'status' as int64"):
        batch(source(world, read="log").reader(wrong))
