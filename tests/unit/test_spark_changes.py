"""Changes of tables and the log as streams, driven as Spark drives them, over a whole service."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import lance
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, ReadMaxRows
from pyspark.sql.types import StructType

from commitlog.core.log.chain import BEGINNING, ChainPlace
from commitlog.errors import CorruptLog, InvalidRequest, InvalidTransaction, NoSuchVersion
from commitlog.model.operations import DeleteTableVersions
from commitlog.model.records import Outcome, Status
from commitlog.spark import changes, log_source
from commitlog.spark.change_stream import ChangeReader, ChangeStream, change_schema
from commitlog.spark.changes import parts_of
from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.log_positions import (
    beginning,
    decided_in,
    outcomes_end,
    stretches,
)
from commitlog.spark.log_rows import LOG_SCHEMA
from commitlog.spark.log_source import LogReader, LogStream
from commitlog.spark.options import parse_changes, parse_log
from commitlog.spark.versions import TableVersions
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"
BASE = {"kafka.bootstrap.servers": "h:1"}
Row = tuple[str, int, int, str]
"""Kind, version, id, name."""


@pytest.fixture
def world(running: Service) -> Service:
    return running


def stream(world: Service, **given: str) -> ChangeStream:
    options = parse_changes({**BASE, "table": TABLE, "read": "changes", **given})
    schema = change_schema(options, lambda _: world.client)
    return ChangeStream(options, schema, lambda _: world.client)


def batch(source: Any, start: Any, end: Any) -> list[Row]:
    return [
        (row["_change_type"], row["_commit_version"], row["id"], row["name"])
        for part in source.partitions(start, end)
        for found in source.read(part)
        for row in found.to_pylist()
    ]


def drain(source: Any, start: Any = None, limit: Any = None) -> list[list[Row]]:
    """Run micro-batches until there is nothing more."""
    at = source.initialOffset() if start is None else start
    batches = []
    while (end := source.latestOffset(at, limit or source.getDefaultReadLimit())) != at:
        # Spark keeps an offset as JSON.
        end = json.loads(json.dumps(end))
        batches.append(batch(source, at, end))
        at = end
    return batches


def make_history(world: Service, *, stable: bool, policy: str = "every") -> None:
    world.client.create_table(TABLE, SCHEMA, stable_row_ids=stable, policy=policy)
    world.client.append(TABLE, rows(1, 2, 3))
    world.client.append(TABLE, rows(4, 5))
    world.client.update(TABLE, {"name": "'z'"}, "id = 2 OR id = 4")
    world.client.delete(TABLE, "id = 5")
    world.client.merge_insert(TABLE, rows(1, 9, name="m"), "id")


@pytest.mark.parametrize("policy", ["every", "latest"])
def test_every_change_is_told_with_images_where_row_ids_are_stable(
    world: Service, policy: str
) -> None:
    make_history(world, stable=True, policy=policy)
    [found] = drain(stream(world, startingVersion="1"))
    assert Counter(found) == Counter(
        [
            *(("insert", 2, i, "a") for i in (1, 2, 3)),
            *(("insert", 3, i, "a") for i in (4, 5)),
            *(("update_preimage", 4, i, "a") for i in (2, 4)),
            *(("update_postimage", 4, i, "z") for i in (2, 4)),
            ("delete", 5, 5, "a"),
            ("update_preimage", 6, 1, "a"),
            ("update_postimage", 6, 1, "m"),
            ("insert", 6, 9, "m"),
        ]
    )


def test_without_stable_row_ids_an_update_is_a_deletion_and_an_insertion(world: Service) -> None:
    make_history(world, stable=False)
    [found] = drain(stream(world, startingVersion="4"))
    assert Counter(found) == Counter(
        [
            *(("delete", 4, i, "a") for i in (2, 4)),
            *(("insert", 4, i, "z") for i in (2, 4)),
            ("delete", 5, 5, "a"),
            ("delete", 6, 1, "a"),
            ("insert", 6, 1, "m"),
            ("insert", 6, 9, "m"),
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True])
def test_changes_put_together_are_the_table(world: Service, stable: bool) -> None:
    make_history(world, stable=stable)
    for number in range(20, 30):
        world.client.append(TABLE, rows(number))
    world.client.open(TABLE).optimize.compact_files()
    compacted = world.client.table(TABLE).version
    assert versions_of(world, compacted) == ["Rewrite", []]
    overwrite = lance.LanceOperation.Overwrite(SCHEMA, _written(world, 3, 4, 5, 6, 77))
    overwritten = world.client.submit(TABLE, overwrite).result().raise_for_conflict().version
    world.client.submit(TABLE, lance.LanceOperation.Restore(6)).result().raise_for_conflict()
    state: Counter[tuple[int, str]] = Counter()
    for found in drain(stream(world, startingVersion="earliest"), limit=ReadMaxFiles(1)):
        for kind, version, number, name in found:
            assert version != overwritten or kind in ("delete", "insert")
            gone = kind in ("delete", "update_preimage")
            state[number, name] += -1 if gone else 1
    table = lance.dataset(world.client.table(TABLE).location).to_table().to_pylist()
    assert +state == Counter((row["id"], row["name"]) for row in table)
    assert min(state.values()) >= 0


def versions_of(world: Service, version: int) -> list[Any]:
    """Return what made a version, and what it changed."""
    versions = TableVersions(world.client.runtime(), world.client.table(TABLE))
    return [versions.read(version).operation, parts_of(versions, version)]


def _written(world: Service, *ids: int) -> list[Any]:
    return list(lance.fragment.write_fragments(rows(*ids), str(world.location(TABLE))))


def test_rows_whose_columns_are_replaced_in_place_are_updates(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2, 3))
    world.client.delete(TABLE, "id = 3")
    dataset = lance.dataset(world.client.table(TABLE).location)
    given = pa.table({"id": [1, 2], "name": ["a", "new"]})
    image, fields = dataset.get_fragments()[0].update_columns(given.to_reader(), "id", "id")
    update = lance.LanceOperation.Update(
        updated_fragments=[image], fields_modified=fields, update_mode="rewrite_columns"
    )
    ticket = world.client.submit(TABLE, update, read_version=dataset.version)
    version = ticket.result().raise_for_conflict().version
    assert drain(stream(world, startingVersion=str(version))) == [
        [("update_preimage", version, 2, "a"), ("update_postimage", version, 2, "new")]
    ]


def test_values_that_equal_nothing_are_no_change(world: Service) -> None:
    schema = pa.schema([("id", pa.int64()), ("share", pa.float64()), ("name", pa.string())])
    world.client.create_table(TABLE, schema)
    nan = float("nan")
    world.client.append(TABLE, {"id": [1, 2, 3], "share": [nan, nan, 0.0], "name": ["a"] * 3})
    dataset = lance.dataset(world.client.table(TABLE).location)
    given = pa.table({"id": [2, 3], "share": [nan, -0.0], "name": ["new", "a"]})
    image, fields = dataset.get_fragments()[0].update_columns(given.to_reader(), "id", "id")
    update = lance.LanceOperation.Update(
        updated_fragments=[image], fields_modified=fields, update_mode="rewrite_columns"
    )
    ticket = world.client.submit(TABLE, update, read_version=dataset.version)
    version = ticket.result().raise_for_conflict().version
    [found] = drain(stream(world, startingVersion=str(version)))
    assert sorted((kind, number) for kind, _, number, _ in found) == [
        ("update_postimage", 2), ("update_postimage", 3),
        ("update_preimage", 2), ("update_preimage", 3),
    ]  # fmt: skip


def test_columns_that_come_and_go_change_no_row(world: Service) -> None:
    make_history(world, stable=False)
    before = world.client.table(TABLE).version
    world.client.open(TABLE).add_columns({"twice": "id * 2"})
    world.client.open(TABLE).drop_columns(["twice"])
    assert world.client.table(TABLE).version == before + 2
    assert drain(stream(world, startingVersion=str(before + 1))) == [[]]


def test_the_stream_begins_with_what_is_there(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2))
    world.client.append(TABLE, rows(3))
    source = stream(world, maxFilesPerTrigger="1")
    start = source.initialOffset()
    first = source.latestOffset(start, source.getDefaultReadLimit())
    assert batch(source, start, first) == [("insert", 3, 1, "a"), ("insert", 3, 2, "a")]
    world.client.delete(TABLE, "id = 1")
    # A query that starts again has nothing but the offset.
    assert drain(stream(world, maxFilesPerTrigger="1"), first) == [
        [("insert", 3, 3, "a")],
        [("delete", 4, 1, "a")],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [ReadMaxRows(1), ReadMaxRows(4), ReadMaxFiles(2)])
def test_limits_cut_batches_and_lose_nothing(world: Service, limit: Any) -> None:
    make_history(world, stable=True)
    whole = drain(stream(world, startingVersion="1"), limit=ReadAllAvailable())
    cut = drain(stream(world, startingVersion="1"), limit=limit)
    assert len(cut) > len(whole) == 1
    assert [row for found in cut for row in found] == whole[0]


def test_available_now_ends_where_the_table_was(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1))
    source = stream(world, startingVersion="1")
    source.prepareForTriggerAvailableNow()
    present = stream(world)
    present.prepareForTriggerAvailableNow()
    world.client.append(TABLE, rows(2))
    assert drain(source) == drain(present) == [[("insert", 2, 1, "a")]]


def test_a_stream_starts_at_a_time_or_at_the_end(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    outcomes = [world.client.append(TABLE, rows(number)) for number in range(3)]
    at = outcomes[1].time_ms
    options = replace(
        parse_changes({**BASE, "table": TABLE, "read": "changes"}), starting_time_ms=at
    )
    source = ChangeStream(options, StructType(), lambda _: world.client)
    expected = min(o.version for o in outcomes if o.time_ms >= at)
    assert source.initialOffset()["version"] == expected
    assert drain(stream(world, startingVersion="latest")) == []


def test_a_batch_reads_a_range_of_changes(world: Service) -> None:
    make_history(world, stable=True)
    options = parse_changes(
        {**BASE, "table": TABLE, "read": "changes", "startingVersion": "4", "endingVersion": "5"}
    )
    schema = change_schema(options, lambda _: world.client)
    reader = ChangeReader(options, schema, lambda _: world.client)
    found = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    assert {row["_commit_version"] for row in found} == {4, 5}


def test_what_cannot_be_told_is_an_error(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    start = stream(world).initialOffset()
    with pytest.raises(InvalidRequest, match="version 9 of .* is in the future"):
        stream(world, startingVersion="9").initialOffset()
    world.client.drop_table(TABLE)
    world.client.create_table(TABLE, SCHEMA)
    with pytest.raises(InvalidRequest, match="Start the query with a new checkpoint"):
        stream(world).latestOffset(start, ReadAllAvailable())
    source = CommitLogDataSource({**BASE, "table": TABLE})
    with pytest.raises(InvalidRequest, match="Set .option.'read', 'changes'"):
        source.streamReader(StructType()).initialOffset()
    with pytest.raises(InvalidRequest, match="Did you mean 'changes'"):
        CommitLogDataSource({**BASE, "read": "change"}).schema()


def test_versions_that_were_deleted_cannot_be_told(world: Service) -> None:
    make_history(world, stable=False)
    table = world.client.table(TABLE)
    deletion = DeleteTableVersions(table.table_id, ((2, 3),))
    world.client.submit(None, deletion).result().raise_for_conflict()
    with pytest.raises(NoSuchVersion, match="was deleted"):
        drain(stream(world, startingVersion="2"))


def test_the_earliest_changes_are_those_after_the_last_gap(world: Service) -> None:
    make_history(world, stable=False)
    table = world.client.table(TABLE)
    world.client.submit(
        None, DeleteTableVersions(table.table_id, ((1, 1), (3, 3)))
    ).result().raise_for_conflict()
    # The changes of version 4 can't be told: nothing says what the table was before.
    [found] = drain(stream(world, startingVersion="earliest"))
    assert {version for _, version, _, _ in found} == {5, 6}
    options = parse_changes({**BASE, "table": TABLE, "read": "changes"})
    reader = ChangeReader(
        options, change_schema(options, lambda _: world.client), lambda _: world.client
    )
    read = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    assert {row["_commit_version"] for row in read} == {5, 6}


def test_older_versions_have_nulls_in_columns_that_came_later(world: Service) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
    world.client.create_table(TABLE, schema)
    world.client.append(TABLE, {"id": [1], "name": ["a"]})
    world.client.alter_columns(TABLE, {"path": "id", "name": "key"})
    source = stream(world, startingVersion="1")
    # Spark ends a query that finds a null in a column without nulls.
    assert source.schema["key"].nullable
    start = source.initialOffset()
    [found] = [
        row
        for part in source.partitions(start, source.latestOffset(start))
        for found in source.read(part)
        for row in found.to_pylist()
    ]
    assert (found["key"], found["name"]) == (None, "a")


def test_an_overwrite_may_give_a_column_the_field_id_of_another(world: Service) -> None:
    pair = pa.schema([("id", pa.int64()), ("first", pa.string()), ("last", pa.string())])
    world.client.create_table(TABLE, pair)
    world.client.append(TABLE, {"id": [1], "first": ["a"], "last": ["z"]})
    swapped = pa.schema([pair.field(name) for name in ("id", "last", "first")])
    data = pa.table({"id": [2], "last": ["y"], "first": ["b"]}, schema=swapped)
    written = lance.fragment.write_fragments(data, world.location(TABLE), mode="overwrite")
    overwrite = lance.LanceOperation.Overwrite(swapped, list(written))
    world.client.submit(TABLE, overwrite).result().raise_for_conflict()
    source = stream(world, startingVersion="1")
    start = source.initialOffset()
    found = [
        (row["_change_type"], row["first"], row["last"])
        for part in source.partitions(start, source.latestOffset(start))
        for batch in source.read(part)
        for row in batch.to_pylist()
    ]
    assert found == [("insert", "a", "z"), ("delete", "a", "z"), ("insert", "b", "y")]


def test_a_stream_that_began_before_a_column_got_another_type_says_what_to_do(
    world: Service,
) -> None:
    world.client.create_table(TABLE, pa.schema([("id", pa.int32()), ("name", pa.string())]))
    source = stream(world, startingVersion="1")
    world.client.alter_columns(TABLE, {"path": "id", "data_type": pa.int64()})
    world.client.append(TABLE, {"id": [2**40], "name": ["a"]})
    with pytest.raises(InvalidTransaction, match=r"'id' as int32: .* start the query again"):
        drain(source)
    assert drain(stream(world, startingVersion="1")) == [[("insert", 3, 2**40, "a")]]


def test_a_column_with_the_name_of_a_changes_own_can_be_left_out(world: Service) -> None:
    world.client.create_table(TABLE, pa.schema([("id", pa.int64()), ("_change_type", pa.int8())]))
    world.client.append(TABLE, {"id": [1], "_change_type": [2]})
    with pytest.raises(InvalidRequest, match="has a column '_change_type' of its own"):
        stream(world)
    with pytest.raises(InvalidRequest, match="has a column '_change_type' of its own"):
        stream(world, columns="_change_type,id")
    source = stream(world, columns="id", startingVersion="2")
    assert source.schema.names == ["id", "_change_type", "_commit_version", "_commit_timestamp"]
    start = source.initialOffset()
    [part] = source.partitions(start, source.latestOffset(start))
    [found] = source.read(part)
    assert found.select(["id", "_change_type"]).to_pylist() == [{"id": 1, "_change_type": "insert"}]


def test_small_versions_share_a_task(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that begins a year late would have a task for each version of the year."""
    monkeypatch.setattr(changes, "PARTS_PER_TASK", 3)
    monkeypatch.setattr(changes, "ROWS_PER_TASK", 10)
    world.client.create_table(TABLE, SCHEMA)
    for count in (1, 1, 1, 1, 9, 12, 1):
        world.client.append(TABLE, rows(*range(count)))
    source = stream(world, startingVersion="2")
    start = source.initialOffset()
    end = source.latestOffset(start)
    plain = TableVersions.read
    with patch.object(TableVersions, "read", autospec=True, side_effect=plain) as read:
        tasks = [pickle.loads(pickle.dumps(one)).parts for one in source.partitions(start, end)]
    assert read.call_count == 8, "each version once"
    assert [[part.rows for part in parts] for parts in tasks] == [[1, 1, 1], [1, 9], [12], [1]]
    assert [version for _, version, *_ in batch(source, start, end)] == [
        *(2, 3, 4, 5), *([6] * 9), *([7] * 12), 8,
    ]  # fmt: skip
    everything = LogReader(parse_log({**BASE, "read": "changes"}), lambda _: world.client)
    assert [len(one.parts) for one in everything.partitions()] == [3, 2, 1, 1]  # type: ignore[attr-defined]


def test_a_stream_has_no_end(world: Service) -> None:
    given = {**BASE, "table": TABLE, "read": "changes", "endingVersion": "3"}
    with pytest.raises(InvalidRequest, match="endingVersion.*a stream has no end"):
        CommitLogDataSource(given).streamReader(StructType()).initialOffset()


def test_a_batch_of_the_log_has_no_start() -> None:
    """It read the whole log, as if it hadn't been told to start at the end."""
    for wanted in ("log", "changes"):
        given = {**BASE, "read": wanted, "startingPosition": "latest"}
        with pytest.raises(InvalidRequest, match="a batch reads the whole log"):
            CommitLogDataSource(given).reader(StructType())


def log_rows(source: Any, start: Any, end: Any) -> list[dict[str, Any]]:
    found = [b for part in source.partitions(start, end) for b in source.read(part)]
    return pa.Table.from_batches(found, LOG_SCHEMA).to_pylist() if found else []


def test_the_log_is_rows_in_batches_that_lose_nothing(world: Service) -> None:
    make_history(world, stable=False)
    options = parse_log({**BASE, "read": "log", "maxRowsPerTrigger": "3"})
    source = LogStream(options, lambda _: world.client)
    at = source.initialOffset()
    found: list[dict[str, Any]] = []
    while (end := source.latestOffset(at, source.getDefaultReadLimit())) != at:
        end = json.loads(json.dumps(end))
        rows_now = log_rows(source, at, end)
        assert len(rows_now) <= 3
        # What is run again is the same.
        assert log_rows(LogStream(options, lambda _: world.client), at, end) == rows_now
        found, at = found + rows_now, end
    assert [row["sequence"] for row in found] == list(range(1, len(found) + 1))
    last = found[-1]["operations"][0]
    assert (last["table"], last["operation"], last["version"]) == (TABLE, "Update", 6)
    assert [row["previous_hash"] for row in found[1:]] == [row["hash"] for row in found[:-1]]
    reader = LogReader(parse_log({**BASE, "read": "log"}), lambda _: world.client)
    whole = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    assert whole == found


def test_stretches_cut_the_log_and_each_is_checked_again(world: Service) -> None:
    make_history(world, stable=False)
    cut = list(stretches(world.log, 0, BEGINNING, outcomes_end(world.log, 0), outcomes_max=2))
    sequences = [[d.outcome.sequence for d in decided_in(world.log, s)] for s, _ in cut]
    assert [n for found in sequences for n in found] == list(range(1, 1 + sum(map(len, sequences))))
    assert max(map(len, sequences)) == 2
    forged = replace(cut[1][0], start=replace(cut[1][0].start, hash=bytes(32)))
    with pytest.raises(CorruptLog, match="is broken at sequence 3"):
        list(decided_in(world.log, forged))
    assert list(beginning(world.log)) == [0]


def test_a_limit_is_shared_by_the_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one, busy for ever, would keep the others from being read."""
    ends = {0: 10**9, 1: 7, 2: 0}

    def walk(log: Any, partition: int, start: ChainPlace, end: int, **_: float) -> Any:
        for offset in range(start.outcomes_offset, end):
            yield (
                Outcome(offset + 1, "", 0, Status.COMMITTED),
                replace(BEGINNING, outcomes_offset=offset + 1),
            )

    monkeypatch.setattr(log_source, "walk", walk)
    monkeypatch.setattr(log_source, "beginning", lambda log: dict.fromkeys(ends, BEGINNING))
    monkeypatch.setattr(log_source, "outcomes_end", lambda log, partition: ends[partition])
    source = LogStream(parse_log({**BASE, "read": "log", "maxRowsPerTrigger": "9"}), MagicMock())
    at, read = source.initialOffset(), []
    for _ in range(3):
        at = source.latestOffset(at, ReadMaxRows(9))
        read.append([at[name]["offset"] for name in ("0", "1", "2")])
    assert read == [[3, 3, 0], [6, 6, 0], [9, 7, 0]]
    assert source.latestOffset(at, ReadMaxRows(1))["0"]["offset"] == 10


def test_a_task_keeps_few_transactions(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stretch is 20,000 outcomes, whose transactions may have a megabyte of rows each."""
    make_history(world, stable=False)
    [(stretch, _)] = stretches(
        world.log, 0, BEGINNING, outcomes_end(world.log, 0), outcomes_max=100
    )
    read = world.log.read_transactions
    positions: list[int] = []

    def one_by_one(*given: Any, **more: Any) -> Any:
        reader = read(*given, **more)
        poll = reader.poll

        def polled(*, records_max: int = 1, timeout_seconds: float = 0.1) -> Any:
            found = poll(records_max=1, timeout_seconds=timeout_seconds)
            positions.extend(one.offset for one in found)
            return found

        monkeypatch.setattr(reader, "poll", polled)
        return reader

    monkeypatch.setattr(world.log, "read_transactions", one_by_one)
    for decided in decided_in(world.log, stretch):
        assert positions[-1] == decided.submitted.offset
    assert positions == list(range(7))


def test_a_transaction_that_was_given_up_is_no_riddle(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_history(world, stable=False)
    cut = list(stretches(world.log, 0, BEGINNING, outcomes_end(world.log, 0), outcomes_max=2))
    read = world.log.read_transactions
    # What compaction leaves once the archive has the first transactions.
    later = lambda partition, offset, **more: read(partition, max(offset, 3), **more)  # noqa: E731
    monkeypatch.setattr(world.log, "read_transactions", later)
    with pytest.raises(CorruptLog, match=r"outcome 1 .* Spark reads no archive.*commitlog verify"):
        list(decided_in(world.log, cut[0][0]))
    assert [d.outcome.sequence for d in decided_in(world.log, cut[2][0])] == [5, 6]


def test_changes_of_all_tables_are_one_stream(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    other = pa.schema([("note", pa.string())])
    world.client.create_table("shop$audit", other)
    with world.client.transact() as both:
        both.append(TABLE, rows(1))
        both.append("shop$audit", pa.table({"note": ["x"]}))
    options = parse_log({**BASE, "read": "changes"})
    source = LogStream(options, lambda _: world.client)
    start = source.initialOffset()
    end = source.latestOffset(start, ReadAllAvailable())
    found = [
        (row["table"], row["_change_type"], json.loads(row["row"]))
        for part in source.partitions(start, end)
        for b in source.read(part)
        for row in b.to_pylist()
    ]
    assert found == [
        (TABLE, "insert", {"id": 1, "name": "a"}),
        ("shop$audit", "insert", {"note": "x"}),
    ]


def all_changes(world: Service) -> list[tuple[str, str, int, Any]]:
    reader = LogReader(parse_log({**BASE, "read": "changes"}), lambda _: world.client)
    return [
        (row["table"], row["_change_type"], row["_commit_version"], json.loads(row["row"])["id"])
        for part in reader.partitions()
        for found in reader.read(part)
        for row in found.to_pylist()
    ]


def test_a_log_without_changes_has_none(world: Service) -> None:
    """Spark hands a reader that names no partitions one of its own, which it couldn't read."""
    world.client.create_table(TABLE, SCHEMA)
    reader = LogReader(parse_log({**BASE, "read": "changes"}), lambda _: world.client)
    [part] = reader.partitions()
    assert list(reader.read(part)) == []


def test_a_table_that_stood_already_changes_no_row(world: Service) -> None:
    """The rows of its newest version came again with each `create_table(…, exist_ok=True)`."""
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1))
    world.client.create_table(TABLE, SCHEMA, exist_ok=True)
    assert all_changes(world) == [(TABLE, "insert", 2, 1)]
    reader = LogReader(parse_log({**BASE, "read": "log"}), lambda _: world.client)
    found = [row for p in reader.partitions() for b in reader.read(p) for row in b.to_pylist()]
    made = [(one["operation"], one["version"]) for row in found for one in row["operations"]]
    assert made == [("CreateTable", 1), ("Append", 2), ("CreateTable", None)]


def test_a_table_that_was_dropped_comes_back_with_its_changes_once(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1))
    world.client.append(TABLE, rows(2))
    world.client.drop_table(TABLE)
    world.client.undrop(TABLE)
    world.client.delete(TABLE, "id = 1")
    assert all_changes(world) == [
        (TABLE, "insert", 2, 1), (TABLE, "insert", 3, 2), (TABLE, "delete", 4, 1),
    ]  # fmt: skip


def test_tables_that_begin_with_a_later_version_keep_no_other_from_being_told(
    world: Service, tmp_path: Path
) -> None:
    """A dataset of which Lance cleaned up older versions ended the stream of all changes."""
    place = tmp_path / "given.lance"
    for number in (1, 2, 3):
        lance.write_dataset(rows(number), place, mode="append" if number > 1 else "create")
    for path in sorted((place / "_versions").glob("*.manifest"))[1:]:
        path.unlink()
    world.client.register_table(TABLE, str(place))
    clone = lance.LanceOperation.Clone(True, None, 3, str(place), None)
    world.client.submit("shop$clone", clone).result().raise_for_conflict()
    world.client.append(TABLE, rows(4))
    expected = [*(("shop$clone", "insert", 3, i) for i in (1, 2, 3)), (TABLE, "insert", 4, 4)]
    assert all_changes(world) == expected
    # The earliest changes of each alone are the same.
    [cloned] = drain(stream(world, table="shop$clone", startingVersion="earliest"))
    [registered] = drain(stream(world, startingVersion="earliest"))
    assert [(*row[:3],) for row in [*cloned, *registered]] == [row[1:] for row in expected]


def test_a_value_that_python_cannot_hold_is_text_among_all_changes(world: Service) -> None:
    world.client.create_table(TABLE, pa.schema([("day", pa.date32())]))
    late = pa.array([0, 10**7], pa.int32()).cast(pa.date32())
    world.client.append(TABLE, pa.table({"day": late}))
    reader = LogReader(parse_log({**BASE, "read": "changes"}), lambda _: world.client)
    found = [r for part in reader.partitions() for b in reader.read(part) for r in b.to_pylist()]
    assert [json.loads(row["row"])["day"] for row in found] == ["1970-01-01", "29349-01-26"]
