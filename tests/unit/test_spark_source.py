"""Which version is read, and what of it; without Spark, over a whole service."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
from pyspark.sql.types import CalendarIntervalType, LongType, StructField, StructType

from commitlog.adapters.lance_refs import GUARD_TAG, guard_from_cleanup
from commitlog.errors import InvalidRequest, NoSuchTable, NoSuchVersion, Unavailable
from commitlog.model.operations import DeclareTable
from commitlog.spark import changes
from commitlog.spark.arrow import BATCH_BYTES
from commitlog.spark.change_stream import ChangeReader, ChangeStream, change_schema
from commitlog.spark.datasource import CommitLogDataSource
from commitlog.spark.options import Connection, ReadOptions, parse_changes, parse_read
from commitlog.spark.source import (
    PARTITION_BYTES,
    TableReader,
    batch_bytes,
    fitting,
    grouped,
    table_schema,
)
from commitlog.spark.versions import TableVersions, VersionWanted
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    return running


def versions(world: Service) -> TableVersions:
    return TableVersions(world.client.runtime(), world.client.table(TABLE))


def options(**given: str) -> ReadOptions:
    return parse_read({"table": TABLE, "kafka.bootstrap.servers": "h:1", **given})


def read(world: Service, **given: str) -> list[Any]:
    def connect(_: Connection) -> Any:
        return world.client

    wanted = options(**given)
    reader = TableReader(wanted, table_schema(wanted, connect), connect)
    # As they reach a task.
    sent, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return [row for part in parts for batch in sent.read(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("policy", ["every", "latest"])
def test_a_version_is_found_by_time_position_and_tag(world: Service, policy: str) -> None:
    world.client.create_table(TABLE, SCHEMA, policy=policy)
    outcomes = [world.client.append(TABLE, rows(number)) for number in range(5)]
    other = world.client.create_table("shop$other", SCHEMA)
    world.client.open(TABLE).tags.create("third", 3)
    found = versions(world)
    for outcome in outcomes:
        position = VersionWanted(position=outcome.sequence)
        assert found.resolve(position) == outcome.version
        newest = [o.version for o in outcomes if o.time_ms <= outcome.time_ms][-1]
        assert found.resolve(VersionWanted(time_ms=outcome.time_ms)) == newest
    assert found.resolve(VersionWanted(position=other.sequence)) == 6
    assert found.resolve(VersionWanted(tag="third")) == 3
    assert found.resolve(VersionWanted()) == 6
    assert found.read(1).operation == "Overwrite"
    assert found.read(4).operation == "Append"


@pytest.mark.slow
def test_a_time_finds_the_versions_that_are_left(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    times = [0]
    for number in range(8):
        time.sleep(0.002)
        times.append(world.client.append(TABLE, rows(number)).time_ms)
    table = world.client.table(TABLE)
    for gone in (((3, 4),), ((2, 2), (6, 7)), ((1, 8),)):
        # What the leader would say once records had deleted these.
        left = TableVersions(world.client.runtime(), replace(table, deleted=gone))
        living = [v for v in range(1, 10) if not left.is_deleted(v)]
        assert left.first() == living[0]
        for version in range(2, 10):
            at = times[version - 1]
            later = [v for v in living if v > 1 and times[v - 1] > at]
            assert left.first_after(at) == min(later, default=10)
            if before := [v for v in living if v <= version]:
                assert left.resolve(VersionWanted(time_ms=at)) == max(before)
            else:
                with pytest.raises(NoSuchVersion, match="its oldest is 9"):
                    left.resolve(VersionWanted(time_ms=at))


def manifests_of(place: Path) -> dict[int, Path]:
    return {2**64 - 1 - int(p.stem): p for p in (place / "_versions").glob("*.manifest")}


def test_a_time_finds_a_version_of_a_table_that_began_with_a_later_one(
    world: Service, tmp_path: Path
) -> None:
    """Lance had cleaned up the older versions, and each time came to one of them."""
    place, times = tmp_path / "given.lance", []
    for number in range(9):
        lance.write_dataset(rows(number), place, mode="append" if number else "create")
        time.sleep(0.002)
        times.append(time.time_ns() // 1_000_000)
        time.sleep(0.002)  # a version of the same millisecond would be the one at that time
    for version, path in manifests_of(place).items():
        if version not in (4, 7, 8, 9):  # Lance keeps what tags name
            path.unlink()
    world.client.register_table(TABLE, str(place))
    found = versions(world)
    assert found.first() == 4
    at = [found.resolve(VersionWanted(time_ms=times[version - 1])) for version in range(4, 10)]
    assert at == [4, 4, 4, 7, 8, 9]
    assert [found.first_after(times[version - 1]) for version in range(3, 10)] == [
        4, 7, 7, 7, 8, 9, 10,
    ]  # fmt: skip
    with pytest.raises(NoSuchVersion, match=r"no version at .*; its oldest is 4"):
        found.resolve(VersionWanted(time_ms=times[2]))
    assert found.first_told() == 8, "behind the last gap"
    for number in range(20, 23):
        world.client.append(TABLE, rows(number))
    # The log can make this manifest again, so it is no gap.
    manifests_of(place)[11].unlink()
    assert versions(world).first_told() == 8


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (VersionWanted(version=9), "has no version 9; its head is 2"),
        (VersionWanted(tag="x"), "has no tag 'x'"),
        (VersionWanted(time_ms=1), "at 1970-01-01T00:00:00.001.* its oldest is 1, of 20"),
        (options(timestampAsOf="0001-01-01T00:00+14:00").version, "at 0001-01-01T00:00"),
        (VersionWanted(position=1), "no version at position 1"),
    ],
)
def test_a_version_that_is_not_there_is_named(
    world: Service, wanted: VersionWanted, says: str
) -> None:
    world.client.create_table("shop$before", SCHEMA)
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1))
    with pytest.raises(NoSuchVersion, match=says):
        versions(world).resolve(wanted)


@pytest.mark.parametrize("beyond", [1, 2, 1000])
def test_a_position_in_the_future_is_an_error(world: Service, beyond: int) -> None:
    """It said that the log's position was 0."""
    world.client.create_table(TABLE, SCHEMA)
    newest = world.client.append(TABLE, rows(1)).sequence
    with pytest.raises(InvalidRequest, match=f"is in the future: the log's position is {newest}"):
        versions(world).resolve(VersionWanted(position=newest + beyond))


def test_a_time_in_the_future_is_refused_unless_a_version_has_it(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.client.create_table(TABLE, SCHEMA)
    newest_ms = world.client.append(TABLE, rows(1)).time_ms
    beyond_9999 = options(timestampAsOf="9999-12-31T23:59:59-12:00").version
    for wanted in (VersionWanted(time_ms=time.time_ns() // 1_000_000 + 60_000), beyond_9999):
        with pytest.raises(InvalidRequest, match="is in the future"):
            versions(world).resolve(wanted)
    found = versions(world)
    monkeypatch.setattr("commitlog.spark.versions.time", SimpleNamespace(time_ns=lambda: 0))
    assert found.resolve(VersionWanted(time_ms=newest_ms)) == 2
    with pytest.raises(InvalidRequest, match="is in the future"):
        found.resolve(VersionWanted(time_ms=newest_ms + 1))


def test_a_version_is_found_by_the_time_that_pylance_shows(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    made = {world.client.append(TABLE, rows(n)).time_ms: n + 1 for n in range(1, 17)}
    shown = {one["version"]: one["timestamp"] for one in world.client.open(TABLE).versions()}
    for version in made.values():  # the last one of each millisecond
        moment = shown[version]
        assert isinstance(moment, datetime)
        if moment.microsecond == 999_999:  # or the end of a second, which is taken as it is
            continue
        wanted = options(timestampAsOf=moment.astimezone().isoformat()).version
        assert versions(world).resolve(wanted) == version


def test_the_guard_and_tags_of_branches_are_no_tags_of_a_table(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    location = world.client.table(TABLE).location
    guard_from_cleanup(location, {"lance.auto_cleanup.interval": "1"})
    dataset = lance.dataset(location)
    dataset.create_branch("b")
    dataset.tags.create("of_branch", ("b", 1))
    for tag in ("x", GUARD_TAG, "of_branch"):
        with pytest.raises(NoSuchVersion, match=f"has no tag '{tag}'; it has none"):
            versions(world).resolve(VersionWanted(tag=tag))


def test_fragments_are_read_without_deleted_rows(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2))
    world.client.append(TABLE, rows(3))
    world.client.delete(TABLE, "id = 1")
    assert read(world, columns="id") == [{"id": 2}, {"id": 3}]
    assert read(world, versionAsOf="2") == [{"id": 1, "name": "a"}, {"id": 2, "name": "a"}]
    assert read(world, versionAsOf="1") == []
    with pytest.raises(InvalidRequest, match="no column 'nmae'"):
        read(world, columns="nmae")


def test_a_column_may_be_called_as_lance_calls_all(world: Service) -> None:
    """Lance took it for all columns, and said that `id` came twice."""
    schema = pa.schema([pa.field("*", pa.int64()), pa.field("id", pa.int64())])
    world.client.create_table(TABLE, schema)
    world.client.append(TABLE, pa.table({"*": [7], "id": [1]}, schema=schema))
    assert read(world) == [{"*": 7, "id": 1}]
    assert read(world, columns="id,*") == [{"id": 1, "*": 7}]
    assert read(world, columns="*") == [{"*": 7}]


def test_changes_have_a_column_that_is_called_as_lance_calls_all(world: Service) -> None:
    schema = pa.schema([pa.field("*", pa.int64()), pa.field("id", pa.int64())])
    world.client.create_table(TABLE, schema)
    world.client.append(TABLE, pa.table({"*": [7], "id": [1]}, schema=schema))
    given = parse_changes({"kafka.bootstrap.servers": "h:1", "table": TABLE, "read": "changes"})
    for columns, shown in ((None, [7]), (StructType(), [])):
        reads = columns or change_schema(given, lambda _: world.client)
        reader = ChangeReader(given, reads, lambda _: world.client)
        found = [batch for part in reader.partitions() for batch in reader.read(part)]
        assert sum(batch.num_rows for batch in found) == 1
        assert [batch["*"][0].as_py() for batch in found if shown] == shown


def test_rows_are_counted_without_their_columns(world: Service) -> None:
    """With an empty schema of the caller's, a read had no rows at all."""
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2, 3))
    reader = TableReader(options(filter="id > 1"), StructType(), lambda _: world.client)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert [(batch.num_rows, batch.num_columns) for batch in batches] == [(2, 0)]


def test_batches_of_large_rows_have_few(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch had 16,384 images, whatever their size."""
    for module in ("arrow", "source"):
        monkeypatch.setattr(f"commitlog.spark.{module}.BATCH_BYTES", 1024**2)
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(*range(64), name="x" * 100_000))
    reader = TableReader(
        options(), table_schema(options(), lambda _: world.client), lambda _: world.client
    )
    (part,) = reader.partitions()
    batches = list(reader.read(part))
    assert sum(batch.num_rows for batch in batches) == 64
    assert max(batch.nbytes for batch in batches) < 2 * 1024**2


def test_rows_of_small_fragments_share_batches_of_the_usual_size(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fragment's rows were a batch, which the JVM takes 0.1 ms for."""
    world.client.create_table(TABLE, SCHEMA)
    for number in range(6):
        world.client.append(TABLE, rows(number, name="x" * 1_000))
    wished = parse_changes({"kafka.bootstrap.servers": "h:1", "table": TABLE, "read": "changes"})

    def of_table(**given: str) -> TableReader:
        wanted = options(**given)
        return TableReader(
            wanted, table_schema(wanted, lambda _: world.client), lambda _: world.client
        )

    def of_changes() -> ChangeReader:
        schema = change_schema(wished, lambda _: world.client)
        return ChangeReader(wished, schema, lambda _: world.client)

    def sizes(reader: TableReader | ChangeReader) -> list[int]:
        (part,) = reader.partitions()
        batches = list(reader.read(part))
        assert [row["id"] for batch in batches for row in batch.to_pylist()] == [*range(6)]
        return [batch.num_rows for batch in batches]

    assert sizes(of_table()) == sizes(of_changes()) == [6]
    assert sizes(of_table(batchRows="4")) == [4, 2]
    monkeypatch.setattr("commitlog.spark.arrow.BATCH_BYTES", 2_500)
    assert sizes(of_table()) == sizes(of_changes()) == [2, 2, 2]


def test_a_task_reads_the_small_fragments_of_a_version_by_one_scan(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a scan of its own, which made changes of 10,000 take three times as long."""
    world.client.create_table(TABLE, SCHEMA)
    for number in range(5):
        world.client.append(TABLE, rows(number))
    world.client.delete(TABLE, "id = 3")
    scanned, scans = changes._scan, list[int]()

    def scan(dataset: Any, fragments: tuple[int, ...], columns: list[str]) -> Any:
        scans.append(len(fragments))
        return scanned(dataset, fragments, columns)

    monkeypatch.setattr(changes, "_scan", scan)
    given = parse_changes({"kafka.bootstrap.servers": "h:1", "table": TABLE, "read": "changes"})
    schema = change_schema(given, lambda _: world.client)
    stream = ChangeStream(given, schema, lambda _: world.client)
    start = stream.initialOffset()
    # A limited batch still ends within a version.
    for limit, ids in ((ReadAllAvailable(), [0, 1, 2, 4]), (ReadMaxFiles(3), [0, 1, 2])):
        (part,) = stream.partitions(start, stream.latestOffset(start, limit))
        assert [row["id"] for found in stream.read(part) for row in found.to_pylist()] == ids
    assert scans == [4, 3]


def test_files_of_lance_2_0_are_read_without_a_warning_for_each(
    world: Service, capfd: pytest.CaptureFixture[str]
) -> None:
    """Lance doesn't limit their batches by bytes, and says so of each fragment."""
    path = str(world.root / "old.lance")
    dataset = lance.write_dataset(rows(1), path, data_storage_version="2.0")
    capfd.readouterr()
    assert list(dataset.scanner(batch_size_bytes=batch_bytes(dataset)).to_batches())
    assert "batch_size_bytes" not in capfd.readouterr().err
    newer = lance.write_dataset(rows(1), path, mode="overwrite", data_storage_version="2.1")
    assert batch_bytes(newer) == BATCH_BYTES


def test_more_text_than_a_batch_holds_asks_for_fewer_rows() -> None:
    """What Lance says of 75 texts of 30 MB."""
    said = "External error: LanceError(Arrow): Offset overflow error: 2250000000, field.rs:922:21"

    def batches(text: str) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        raise OSError(text)

    for text, kind, match in (
        (said, InvalidRequest, "16384 rows .* 2 GiB .* such as 256"),
        ("gone", OSError, "^gone$"),
    ):
        found = fitting(batches(text), 16384)
        assert next(found).num_rows == 1
        with pytest.raises(kind, match=match):
            next(found)


def test_a_predicate_chooses_rows(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2))
    world.client.append(TABLE, rows(3, name="it's"))
    assert read(world, filter="id >= 2 -- not 1", columns="name") == [
        {"name": "a"}, {"name": "it's"},
    ]  # fmt: skip
    assert read(world, filter="name = 'it''s'", versionAsOf="2") == []
    for wrong in ("id > 2 LIMIT 1", "ids > 2", "id >"):
        with pytest.raises(InvalidRequest, match=f"(?s)can't evaluate '{wrong}'.*columns id, name"):
            read(world, filter=wrong)


def test_a_table_that_is_only_declared_is_neither_read_nor_written(
    world: Service, tmp_path: Path
) -> None:
    name = ("shop", "orders")
    declared = DeclareTable(name, str(uuid4()), str(tmp_path / "tables" / "declared.lance"))
    world.client.submit(None, declared).result().raise_for_conflict()

    class Source(CommitLogDataSource):
        connect = staticmethod(lambda _: world.client)

    given = {"table": TABLE, "kafka.bootstrap.servers": "h:1"}
    columns = StructType([StructField("id", LongType())])
    for use in (
        lambda: Source(given).schema(),
        lambda: Source(given).reader(columns),
        lambda: Source({**given, "read": "changes"}).schema(),
        lambda: Source(given).writer(columns, False),
    ):
        with pytest.raises(NoSuchVersion, match=r"shop\$orders is declared and has no version yet"):
            use()


def test_small_fragments_are_one_tasks(world: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there are many: one task read a table of 20,000 fragments with a row each."""

    def parts(**given: str) -> list[tuple[int, ...]]:
        wanted = options(**given)
        reader = TableReader(wanted, StructType(), lambda _: world.client)
        return [part.fragment_ids for part in reader.partitions()]  # type: ignore[attr-defined]

    world.client.create_table(TABLE, SCHEMA)
    assert parts() == [()]
    for _ in range(5):
        world.client.append(TABLE, rows(1, 2))
    assert parts() == [(0, 1, 2, 3, 4)]
    monkeypatch.setattr("commitlog.spark.source.OPEN_BYTES", PARTITION_BYTES // 3)
    assert parts() == [(0, 1), (2, 3), (4,)]
    monkeypatch.undo()
    assert parts(rowsPerPartition="5") == [(0, 1), (2, 3), (4,)]
    assert parts(rowsPerPartition="1") == [(0,), (1,), (2,), (3,), (4,)]
    assert read(world, columns="id", rowsPerPartition="5") == [{"id": 1}, {"id": 2}] * 5
    assert grouped([(0, 9, 5), (1, 9, 5), (2, 9, 50), (3, 9, 1)], 100, 12) == [(0, 1), (2,), (3,)]


@pytest.mark.slow
def test_what_is_not_there_is_said_before_a_task_starts(world: Service) -> None:
    class Here(CommitLogDataSource):
        connect = staticmethod(lambda _: world.client)

    world.client.create_table(TABLE, SCHEMA)
    given = {"kafka.bootstrap.servers": "h:1", "table": "shop$ordres"}
    columns = StructType([StructField("id", LongType())])
    for ask in (
        lambda: Here(given).schema(),
        lambda: Here(given).writer(columns, False),
        lambda: Here(given).streamWriter(columns, False),
        lambda: Here({**given, "read": "changes"}).schema(),
    ):
        with pytest.raises(NoSuchTable, match=r"Did you mean shop\$orders"):
            ask()
    interval = StructType([StructField("id", CalendarIntervalType())])
    with pytest.raises(InvalidRequest, match="'id' is interval, which tables cannot hold"):
        Here({**given, "table": TABLE}).writer(interval, False)
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1", "table": TABLE, "timeoutSeconds": "1"}
    with pytest.raises(Unavailable, match="127.0.0.1:1"):
        CommitLogDataSource(nowhere).writer(columns, False)
