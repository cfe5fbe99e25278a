"""Streams of changes that had read versions which a restore took back, and others replaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lance
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from commitlog.errors import InvalidRequest, NoSuchVersion
from commitlog.model.operations import DeleteTableVersions
from commitlog.spark.change_stream import ChangeStream, Offset, change_schema
from commitlog.spark.options import parse_changes
from commitlog.spark.versions import TableVersions
from tests.service import SCHEMA, Service, rows, service

T = "shop$orders"
HEAD = 3
"""Of the version as of which the log is restored."""
OTHER = r"this query has read another version 4 of shop\$orders.*restored.*new checkpoint"


def stream(made: Service, **given: str) -> ChangeStream:
    base = {"kafka.bootstrap.servers": "h:1", "table": T, "read": "changes"}
    options = parse_changes({**base, **given})
    return ChangeStream(
        options, change_schema(options, lambda _: made.client), lambda _: made.client
    )


def told(source: ChangeStream, start: Offset, end: Offset) -> list[tuple[int, int]]:
    """Return version and id of each change."""
    return [
        (row["_commit_version"], row["id"])
        for part in source.partitions(start, end)
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]


def end_of(source: ChangeStream, start: Offset, limit: Any = None) -> Offset:
    """Return where a batch ends, as a checkpoint keeps it."""
    found: Offset = json.loads(json.dumps(source.latestOffset(start, limit or ReadAllAvailable())))
    return found


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path) as running:
        running.client.create_table(T, SCHEMA)
        for version in range(2, HEAD + 1):
            running.client.append(T, rows(version))
        yield running


@contextmanager
def taken_back(made: Service) -> Iterator[None]:
    """Let what is committed meanwhile be lost: log and files are then as they were before."""
    ends = {
        (name, number): partition.end
        for name, topic in made.cluster.topics.items()
        for number, partition in enumerate(topic.partitions)
    }
    tables, saved = made.root / "tables", made.root / "saved"
    shutil.copytree(tables, saved)
    yield
    made.running.pop().stop()
    for (name, number), end in ends.items():
        made.cluster.truncate(name, number, end)
    shutil.rmtree(tables)
    saved.rename(tables)
    made.start(made.root / "again").await_leading()


def test_a_stream_notices_that_a_version_it_read_is_another_one_now(made: Service) -> None:
    """It left out the first rows of the new versions, without a word."""
    source = stream(made, startingVersion="1")
    before = end_of(source, source.initialOffset())
    with taken_back(made):
        two = [
            fragment
            for number in (40, 41)
            for fragment in lance.fragment.write_fragments(rows(number), str(made.location(T)))
        ]
        made.client.submit(T, lance.LanceOperation.Append(two)).result().raise_for_conflict()
        after = end_of(source, before)
        halfway = stream(made)
        half = end_of(halfway, before, ReadMaxRows(1))
        assert halfway.reportLatestOffset() == after
        assert told(source, before, half) == [(4, 40)]
        assert told(source, before, after) == [(4, 40), (4, 41)]
        assert source.reportLatestOffset() == after
    for ended in (after, half):
        with pytest.raises(InvalidRequest, match=r"up to version 4 .* the head is 3.*restored"):
            stream(made).latestOffset(ended, ReadAllAvailable())
        with pytest.raises(InvalidRequest, match=r"up to version 4 .* the head is 3.*restored"):
            stream(made).partitions(before, ended)
    made.client.append(T, rows(42))
    for ended in (after, half):
        # Nothing more came: a query that ends by itself would end well.
        with pytest.raises(InvalidRequest, match=OTHER):
            stream(made).latestOffset(ended, ReadAllAvailable())
        # A batch that Spark had planned and didn't note as done.
        with pytest.raises(InvalidRequest, match=OTHER):
            stream(made).partitions(before, ended)
    made.client.append(T, rows(50))
    for limit in (ReadAllAvailable(), ReadMaxRows(1)):
        with pytest.raises(InvalidRequest, match=OTHER):
            stream(made).latestOffset(after, limit)
    # The query's own process, which outlived the restore.
    with pytest.raises(InvalidRequest, match=OTHER):
        source.partitions(after, end_of(source, after))
    # What was read before the restore's position is as it was.
    again = stream(made)
    assert told(again, before, end_of(again, before)) == [(4, 42), (5, 50)]


def test_a_checkpoint_of_a_former_release_goes_on(made: Service) -> None:
    source = stream(made, startingVersion="2")
    start = end_of(source, source.initialOffset(), ReadMaxRows(1))
    del start["stands_on"]
    source = stream(made)
    end = end_of(source, start)
    assert told(source, start, end) == [(3, 3)]
    del end["stands_on"]
    source = stream(made)
    assert told(source, start, end) == [(3, 3)]
    # Spark would run an empty batch if the same place were written in another way.
    assert end_of(source, end) == end == source.reportLatestOffset()
    made.client.append(T, rows(4))
    assert told(source, end, end_of(source, end)) == [(4, 4)]


def test_a_version_that_was_deleted_keeps_no_stream_from_going_on(made: Service) -> None:
    source = stream(made)
    start = end_of(source, source.initialOffset())
    made.client.append(T, rows(4))
    made.client.open(T).optimize.compact_files()
    compacted = made.client.table(T).version
    behind = {**start, "version": compacted, "stands_on": "a version that is gone"}
    deletion = DeleteTableVersions(made.client.table(T).table_id, ((1, compacted - 1),))
    made.client.submit(None, deletion).result().raise_for_conflict()
    # A compaction changes no row, so its changes can be told without the version before.
    source = stream(made)
    assert told(source, behind, end_of(source, behind)) == []
    with pytest.raises(NoSuchVersion, match="Start at a later version"):
        source.partitions(start, end_of(source, start))


def test_a_stream_that_waits_reads_no_manifest(made: Service) -> None:
    """Spark asks about a hundred times a second."""
    source = stream(made)
    at = source.latestOffset(source.initialOffset(), ReadAllAvailable())
    with patch.object(TableVersions, "read", autospec=True) as read:
        assert source.latestOffset(at, ReadAllAvailable()) == at
        assert source.latestOffset() == at, "as Spark 4.1 asks"
        assert source.reportLatestOffset() == at
    assert not read.called


def test_a_first_version_that_is_gone_before_all_of_it_was_read_says_what_to_do(
    made: Service,
) -> None:
    """A limited stream may read its first rows for longer than their version stays."""
    source = stream(made)
    half = end_of(source, source.initialOffset(), ReadMaxRows(1))
    made.client.append(T, rows(5))
    made.client.expire_versions(T, retain_versions=1)
    with pytest.raises(NoSuchVersion, match=r"rows of version 3 .*deleted.*new checkpoint.*hold"):
        stream(made).latestOffset(half, ReadMaxRows(1))
    with pytest.raises(NoSuchVersion, match=r"rows of version 3 .*deleted.*new checkpoint.*hold"):
        told(stream(made), half, {**half, "version": 4, "part": 0, "snapshot": False})
