"""Tasks that start when maintenance has removed the versions that they were planned to read."""

from __future__ import annotations

import json
import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction
from pyspark.errors import PythonException
from pyspark.sql.datasource import DataSourceReader, InputPartition

from commitlog.adapters.storage import store_for
from commitlog.client.rows import excerpts
from commitlog.client.rows.excerpts import Excerpt
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY
from commitlog.errors import NoSuchVersion, Unavailable
from commitlog.spark import compaction
from commitlog.spark.change_stream import ChangeReader, change_schema
from commitlog.spark.compaction import _rewrite, on_executors
from commitlog.spark.files import target_of
from commitlog.spark.log_source import LogReader
from commitlog.spark.merge_files import (
    ADDRESS,
    DELETE,
    ROW_ID,
    MergePart,
    MergeTask,
    match,
    merge_rows,
    with_table_types,
)
from commitlog.spark.options import parse_changes, parse_log, parse_read
from commitlog.spark.source import TableReader, table_schema
from tests.service import SCHEMA, Service, rows, service

T = "ns$t"
BASE = {"kafka.bootstrap.servers": "h:1"}


class Here:
    """Reaches a log in this process, and from a pickle none."""

    def __init__(self, world: Service | None) -> None:
        self.world = world

    def __call__(self, _: object) -> Any:
        """Return the client."""
        assert self.world is not None, "executors don't reach the log"
        return self.world.client

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the client here."""
        return Here, (None,)


def expired(world: Service) -> None:
    """Have the log delete all versions but the head."""
    world.client.expire_versions(T, retain_versions=1)


def thinned(world: Service) -> None:
    """Remove manifests that the log can make again."""
    store = store_for(str(world.location(T)))
    for file in list(store.files(VERSIONS_DIRECTORY)):
        store.delete(file.path)


@pytest.fixture(params=[expired, thinned])
def late(request: Any, tmp_path: Path) -> Iterator[tuple[Service, Callable[[], None]]]:
    with service(tmp_path) as world:
        client = world.client
        client.create_table(T, SCHEMA, policy="latest", stable_row_ids=True)
        for number in range(4):
            client.append(T, rows(number, number + 10))
        client.delete(T, "id = 2")
        client.update(T, {"name": "'b'"}, "id = 3")
        client.append(T, rows(9))

        def remove() -> None:
            request.param(world)
            excerpts.opened.cache_clear()  # as a worker that starts now

        yield world, remove


def read_late(reader: DataSourceReader, remove: Callable[[], None]) -> list[dict[str, Any]]:
    """Plan, then remove, then read, as executors get it."""
    parts: list[InputPartition] = [pickle.loads(pickle.dumps(p)) for p in reader.partitions()]
    sent: Any = pickle.loads(pickle.dumps(reader))
    remove()
    return [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize(("given", "ids"), [
    ({"rowsPerPartition": "1"}, [0, 1, 3, 10, 11, 12, 13]),
    ({"filter": "id > 10"}, [11, 12, 13]),
    ({"columns": "id"}, [0, 1, 3, 10, 11, 12, 13]),
])  # fmt: skip
def test_rows_are_read_of_a_version_that_has_no_manifest_any_more(
    late: tuple[Service, Callable[[], None]], given: dict[str, str], ids: list[int]
) -> None:
    """A job failed whose tasks began some seconds after it, beside busy writers."""
    world, remove = late
    options = parse_read({**BASE, "table": T, "versionAsOf": "7", **given})
    reader = TableReader(options, table_schema(options, Here(world)), Here(world))
    assert sorted(row["id"] for row in read_late(reader, remove)) == ids


def test_changes_are_read_of_versions_that_have_no_manifests_any_more(
    late: tuple[Service, Callable[[], None]],
) -> None:
    world, remove = late
    options = parse_changes({**BASE, "table": T, "read": "changes", "startingVersion": "2"})
    reader = ChangeReader(options, change_schema(options, Here(world)), Here(world))
    found = read_late(reader, remove)
    told = [(row["_commit_version"], row["_change_type"], row["id"]) for row in found]
    inserted = [(2 + n, "insert", m) for n in range(4) for m in (n, n + 10)]
    assert sorted(told) == sorted([
        *inserted, (6, "delete", 2), (7, "update_preimage", 3), (7, "update_postimage", 3),
        (8, "insert", 9),
    ])  # fmt: skip


def test_changes_of_all_tables_are_read_so_too(late: tuple[Service, Callable[[], None]]) -> None:
    world, remove = late
    reader = LogReader(parse_log({**BASE, "read": "changes"}), Here(world))
    found = read_late(reader, remove)
    assert len(found) == 12
    assert [row["row"] for row in found if row["_change_type"] == "delete"] == [
        '{"id": 2, "name": "a"}'
    ]


@pytest.mark.parametrize("kind", ["data", "_deletions"])
def test_files_that_are_gone_are_no_riddle(tmp_path: Path, kind: str) -> None:
    """Lance's error named a file and the places in its sources: no table, no version, no advice."""
    with service(tmp_path) as world:
        world.client.create_table(T, SCHEMA)
        world.client.append(T, rows(1, 2))
        world.client.delete(T, "id = 2")

        def remove() -> None:
            shutil.rmtree(world.location(T) / kind)
            excerpts.opened.cache_clear()

        known: Any = parse_read({**BASE, "table": T})
        changes = parse_changes({**BASE, "table": T, "read": "changes", "startingVersion": "3"})
        here = Here(world)
        readers = (
            TableReader(known, table_schema(known, here), here),
            ChangeReader(changes, change_schema(changes, here), here),
            LogReader(parse_log({**BASE, "read": "changes"}), here),
        )
        planned: Any = [pickle.loads(pickle.dumps((one, one.partitions()))) for one in readers]
        remove()
        told = rf"version [23] of ns\$t is gone: .*ot found: .*{kind}/.*hold"
        for reader, parts in planned:
            with pytest.raises(NoSuchVersion, match=told) as caught:
                list(reader.read(parts[-1]))
            assert ".rs" not in str(caught.value)


@pytest.mark.parametrize("kind", ["data", "_deletions"])
def test_a_merge_and_a_compaction_name_the_version_whose_files_are_gone(
    tmp_path: Path, kind: str
) -> None:
    with service(tmp_path) as world:
        world.client.create_table(T, SCHEMA)
        world.client.append(T, rows(1, 2))
        world.client.append(T, rows(3))
        world.client.delete(T, "id = 2")
        info = world.client.table(T)
        dataset = world.client.opened.plain(info, info.version)
        plan: Any = Compaction.plan(dataset, {"target_rows_per_fragment": 100})
        task, [rewritten] = merging(world, info.version), plan.tasks
        work = rewriting(dataset, rewritten)
        # Its key was found, and the row is read again, for a condition.
        given = {"id": [1], "name": ["c"], DELETE: [False], ADDRESS: [0], ROW_ID: [0]}
        some = replace(task, update_where="target.name = 'a'")
        shutil.rmtree(world.location(T) / kind)
        excerpts.opened.cache_clear()
        told = rf"version 4 of ns\$t is gone: .*ot found: .*{kind}/.*hold"
        for attempt in (
            lambda: merged(task, [1], [0, 1]),
            lambda: merge_rows([pa.record_batch(given)], some),
            lambda: work(0),
        ):
            with pytest.raises(NoSuchVersion, match=told) as caught:
                attempt()
            assert ".rs" not in str(caught.value)


def test_a_compaction_says_what_its_executors_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error had the last 300 characters of Spark's, in which neither table nor version was."""
    told = f"commitlog.errors.NoSuchVersion: a file of version 3 of {T} is gone: {'x' * 400}."
    failed = PythonException(f"An exception was thrown\nTraceback:\n  File\n{told}\n")
    monkeypatch.setattr(compaction, "of_each_number", Mock(side_effect=failed))
    with service(tmp_path) as world:
        world.client.create_table(T, SCHEMA)
        for number in range(4):
            world.client.append(T, rows(number))
        info = world.client.table(T)
        dataset = world.client.opened.plain(info, info.version)
        plan: Any = Compaction.plan(dataset, {"target_rows_per_fragment": 2})
        with pytest.raises(Unavailable, match=r"submitted: NoSuchVersion: .* of ns\$t .*x\. Look"):
            on_executors(Mock())(info, dataset, plan.tasks, time.monotonic() + 60)


def test_a_reader_is_sent_without_what_only_its_tasks_need(
    late: tuple[Service, Callable[[], None]],
) -> None:
    """All tasks would carry the parts of all."""
    world, _ = late
    options = parse_read({**BASE, "table": T, "rowsPerPartition": "1"})
    reader = TableReader(options, table_schema(options, Here(world)), Here(world))
    parts: list[Any] = list(reader.partitions())
    assert len(parts) > 1
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(reader)).partitions()
    assert [len(part.excerpt.fragments) for part in parts] == [1] * len(parts)


def merging(world: Service, version: int) -> MergeTask:
    """Return what a task of a merge with a version is sent."""
    info = world.client.table(T)
    target = target_of(info, T, info.schema, rows_per_file=1000, bytes_per_file=1 << 30)
    whole = Excerpt.whole(world.client.opened.plain(info, version))
    task: MergeTask = pickle.loads(
        pickle.dumps(MergeTask(target, whole, ("id",), info.stable_row_ids))
    )
    return task


def merged(task: MergeTask, ids: list[int], fragments: list[int]) -> MergePart:
    """Return what a task does of a merge."""
    given = pa.table({"id": ids, "name": ["c"] * len(ids), DELETE: [False] * len(ids)})
    batches = with_table_types(given.to_batches(), task)
    matched = match(pa.Table.from_batches(batches), task, fragments)
    return merge_rows(matched.combine_chunks().to_batches(), task)


def test_a_merge_reads_and_deletes_rows_of_it(late: tuple[Service, Callable[[], None]]) -> None:
    world, remove = late
    task = merging(world, 7)
    remove()
    part = merged(task, [3, 50], [0, 1, 2, 3, 4, 5])
    assert (part.updated, part.inserted) == (1, 1)
    assert sum(len(one) for _, one in part.affected) > 0


def rewriting(dataset: lance.LanceDataset, task: Any) -> Callable[[int], str]:
    """Return what an executor does of a compaction."""
    whole = Excerpt.whole(dataset)
    return partial(_rewrite, groups=[task.json()], table=T, location=str(dataset.uri), whole=whole)


def test_a_compaction_rewrites_fragments_of_it(late: tuple[Service, Callable[[], None]]) -> None:
    world, remove = late
    dataset = world.client.opened.plain(world.client.table(T), 7)
    tasks: Any = Compaction.plan(dataset, {"target_rows_per_fragment": 100}).tasks
    [task] = tasks
    work = rewriting(dataset, task)
    remove()
    assert json.loads(work(0))["new_fragments"]
