"""Streams of changes that read a column which is renamed, dropped or replaced meanwhile."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from commitlog.errors import InvalidRequest
from commitlog.spark import change_stream
from commitlog.spark.change_stream import ChangeStream, Offset, change_schema
from commitlog.spark.options import parse_changes
from commitlog.spark.renames import first_rename
from commitlog.spark.versions import TableVersions
from tests.service import Service

T = "shop$orders"
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("place", pa.struct([("x", pa.int32())]))]
)


@pytest.fixture
def world(running: Service) -> Service:
    running.client.create_table(T, SCHEMA)
    running.client.append(T, {"id": [1], "name": ["a"], "place": [{"x": 1}]})
    return running


def stream(world: Service, **given: str) -> ChangeStream:
    base = {"kafka.bootstrap.servers": "h:1", "table": T, "read": "changes", "startingVersion": "1"}
    options = parse_changes({**base, **given})
    schema = change_schema(options, lambda _: world.client)
    return ChangeStream(options, schema, lambda _: world.client)


def batch(source: ChangeStream, start: Offset, limit: ReadLimit) -> tuple[list[Any], Offset]:
    """Return a batch's rows without what every change has, and where it ends."""
    end = json.loads(json.dumps(source.latestOffset(start, limit)))
    found = [
        tuple(value for name, value in row.items() if not name.startswith("_"))
        for part in source.partitions(start, end)
        for found in source.read(part)
        for row in found.to_pylist()
    ]
    return found, end


@pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMaxRows(1), None])
def test_a_stream_stops_before_the_version_that_renames_what_it_reads(
    world: Service, limit: ReadLimit | None
) -> None:
    """It went on with nulls, though the values were there."""
    source = stream(world)
    at = source.initialOffset()
    world.client.alter_columns(T, {"path": "name", "name": "title"})
    world.client.append(T, {"id": [2], "title": ["b"], "place": [{"x": 2}]})
    told = r"version 3 of shop\$orders renamed column 'name'.*to 'title'.*Start the query again"
    if limit is None:  # Spark 4.1 names no limit, so its batch can't end before the version
        with pytest.raises(InvalidRequest, match=told):
            source.partitions(at, source.latestOffset())
        return
    found, at = batch(source, at, limit)
    assert found == [(1, "a", {"x": 1})]
    for _ in range(2):
        with pytest.raises(InvalidRequest, match=told):
            source.latestOffset(at, limit)
    again = stream(world)
    rows: list[Any] = []
    while again.latestOffset(at, limit) != at:
        found, at = batch(again, at, limit)
        rows += found
    assert rows == [(2, "b", {"x": 2})]


def test_a_field_of_a_struct_may_be_renamed_too(world: Service) -> None:
    source = stream(world)
    world.client.alter_columns(T, {"path": "place.x", "name": "y"})
    world.client.append(T, {"id": [2], "name": ["b"], "place": [{"y": 2}]})
    found, at = batch(source, source.initialOffset(), ReadAllAvailable())
    assert found == [(1, "a", {"x": 1})]
    with pytest.raises(InvalidRequest, match=r"version 3 .* renamed column 'place.x'"):
        source.latestOffset(at, ReadAllAvailable())
    assert batch(stream(world), at, ReadAllAvailable())[0] == [(2, "b", {"y": 2})]


def test_a_column_that_the_stream_leaves_out_may_be_renamed(world: Service) -> None:
    source = stream(world, columns="id")
    at = source.initialOffset()
    world.client.alter_columns(T, {"path": "name", "name": "title"})
    world.client.append(T, {"id": [2], "title": ["b"], "place": [None]})
    assert batch(source, at, ReadAllAvailable())[0] == [(1,), (2,)]


def test_a_column_that_was_dropped_or_has_its_name_again_is_read_by_name(world: Service) -> None:
    source = stream(world)
    at = source.initialOffset()
    world.client.drop_columns(T, ["place"])
    world.client.append(T, {"id": [2], "name": ["b"]})
    found, at = batch(source, at, ReadAllAvailable())
    assert found == [(1, "a", {"x": 1}), (2, "b", None)]
    world.client.alter_columns(T, {"path": "name", "name": "title"})
    world.client.alter_columns(T, {"path": "title", "name": "name"})
    world.client.append(T, {"id": [3], "name": ["c"]})
    assert batch(source, at, ReadAllAvailable())[0] == [(3, "c", None)]


def test_a_column_that_was_dropped_has_each_version_read_once(world: Service) -> None:
    source = stream(world)
    at = source.initialOffset()
    world.client.drop_columns(T, ["place"])
    for number in range(2, 12):
        world.client.append(T, {"id": [number], "name": ["b"]})
    versions = TableVersions(world.client.runtime(), world.client.table(T))
    with patch.object(TableVersions, "read", autospec=True, side_effect=TableVersions.read) as read:
        assert (
            first_rename(versions, source._columns(), at["version"], versions.info.version) is None
        )
    assert read.call_count == versions.info.version
    with patch.object(change_stream, "first_rename", side_effect=first_rename) as looked:
        end = source.latestOffset(at, ReadAllAvailable())
        assert len(source.partitions(at, end)) == looked.call_count == 1
        # What another process planned may have been planned for other columns.
        assert len(stream(world).partitions(at, end)) == 1
    assert looked.call_count == 2
