"""Small batches of Spark as rows in the log: each lands once, and equals what files come to."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from commitlog import CommitLog
from commitlog.client.accepted.row_reading import read_write
from commitlog.client.accepted.row_writes import encode_write
from commitlog.client.rows.row_groups import BaseScan, base_scan, read_base
from commitlog.client.rows.rows import ROW_ADDRESS
from commitlog.errors import InvalidTransaction
from commitlog.model.operations import RowsMode
from commitlog.model.records import Code
from commitlog.spark import Batch, Merged, each_batch, merge, row_base
from commitlog.spark.row_base import base_on_executors
from consumers.tools.rows.stream import apply_on_spark
from consumers.tools.rows.writer import RowWriterOptions
from tests.properties.test_row_groups import SCHEMA as MODELLED
from tests.properties.test_row_groups import Model, random_write
from tests.service import applying
from tests.spark_world import ON_SPARK, SparkWorld, finish

pytestmark = ON_SPARK

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(scope="module", autouse=True)
def rows_are_applied(world: SparkWorld) -> Iterator[None]:
    """Run a row writer, as `commitlog up` does."""
    with CommitLog.connect(world.bootstrap_servers, log=world.log) as client, applying(client):
        yield


def rows(*ids: int, name: str = "a", op: str = "u") -> list[dict[str, object]]:
    return [{"id": number, "name": name, "op": op} for number in ids]


def operations(world: SparkWorld, table: str) -> list[str]:
    """Return what the log did to a table, in order, leaving out what row writers did."""
    made = [row for row in world.log_rows(table) if row["answers"] is None]
    found = [op["operation"] for row in made for op in row["operations"] if op["table"] == table]
    return [name for name in found if name in {"WriteRows", "Append", "Update"}]


def writers(world: SparkWorld, table: str) -> dict[str, set[str]]:
    """Return in whose names each kind of change came."""
    found: dict[str, set[str]] = {}
    for row in world.log_rows(table):
        for op in row["operations"]:
            if op["table"] == table:
                found.setdefault(op["operation"], set()).add(row["principal"])
    return found


def test_small_batches_of_a_stream_are_rows_in_the_log_once(world: SparkWorld) -> None:
    world.create("r$events", SCHEMA, primary_key="id")

    def run() -> None:
        frame = world.files("r-events", rows(1, 2), rows(3), rows(4, 5)).select("id", "name")
        sink = frame.writeStream.format("commitlog")
        sink = sink.options(**world.options, table="r$events", rows="log")
        sink = sink.option("checkpointLocation", str(world.checkpoint("r-events")))
        finish(sink.trigger(availableNow=True).start())

    run()
    # As if the driver had died after the log's answer and before Spark noted the batch.
    for name in ("2", ".2.crc"):
        (world.checkpoint("r-events") / "commits" / name).unlink()
    run()
    assert [row["id"] for row in world.rows("r$events")] == [1, 2, 3, 4, 5]
    assert operations(world, "r$events").count("WriteRows") == 3


def test_a_batch_that_is_too_large_for_a_record_goes_into_files(world: SparkWorld) -> None:
    world.create("r$large", SCHEMA)
    text = "repeat(md5(cast(id AS string)), 5) AS name"
    large = world.spark.range(0, 40_000, 1, 4).selectExpr("id", text)
    sink = large.write.format("commitlog").options(**world.options, table="r$large", rows="log")
    sink.mode("append").save()
    assert operations(world, "r$large") == ["Append"]
    assert len(world.rows("r$large")) == 40_000
    # Each task's rows are small, and all of them are not.
    parts = world.spark.range(0, 10_000, 1, 4).selectExpr("id", text)
    sink = parts.write.format("commitlog").options(**world.options, table="r$large", rows="log")
    sink.mode("append").save()
    assert operations(world, "r$large") == ["Append", "Append"]
    assert len(world.rows("r$large")) == 50_000


def test_a_merge_of_a_batch_comes_to_what_files_come_to(world: SparkWorld) -> None:
    content = (rows(1, 2, 3), rows(2, 4, name="b") + rows(3, op="d") + rows(9, op="d"))

    def run(table: str, **options: str) -> None:
        world.create(table, SCHEMA, primary_key="id")

        def write(batch: Batch, frame: DataFrame) -> None:
            batch.append(table + "log", frame.select("id", "name"))
            batch.merge(table, frame, on="id", delete_where="op = 'd'")

        world.create(table + "log", SCHEMA)
        sink = world.files(table, *content).writeStream
        sink = sink.foreachBatch(each_batch(write, {**world.options, **options}))
        sink = sink.option("checkpointLocation", str(world.checkpoint(table)))
        finish(sink.trigger(availableNow=True).start())

    run("r$byfiles")
    run("r$bylog", rows="log", principal="etl")
    assert writers(world, "r$bylog")["WriteRows"] == {"etl"}
    assert writers(world, "r$byfiles")["Update"] == {"spark"}
    for suffix in ("", "log"):
        assert world.rows("r$bylog" + suffix) == world.rows("r$byfiles" + suffix)
    assert [row["id"] for row in world.rows("r$bylog")] == [1, 2, 4]
    assert operations(world, "r$bylog").count("WriteRows") == 3
    source = world.spark.createDataFrame([(1, "c"), (7, "c")], "id long, name string")
    merged = merge(source, "r$bylog", "id", options={**world.options, "rows": "log"})
    assert (merged.updated, merged.inserted, merged.deleted) == (1, 1, 0)
    assert merged.outcome is not None
    assert [row["id"] for row in world.rows("r$bylog")] == [1, 2, 4, 7]
    # A key that is null matches nothing; such rows are merged by files.
    nameless = world.spark.createDataFrame([(None, "d")], "id long, name string")
    options = {**world.options, "rows": "log", "principal": "nameless"}
    merged = merge(nameless, "r$bylog", "id", options=options)
    assert merged.inserted == 1
    assert merged.outcome is not None
    [last] = [r for r in world.log_rows("r$bylog") if r["sequence"] == merged.outcome.sequence]
    assert last["principal"] == "nameless"


@pytest.mark.parametrize(
    ("settings", "limit"),
    [({"rows": "log"}, 100), ({}, 100), ({}, 0)],
    ids=["as rows", "in the driver", "on executors"],
)
def test_a_merge_leaves_newer_rows_alone(
    world: SparkWorld, settings: dict[str, str], limit: int, request: pytest.FixtureRequest
) -> None:
    table = f"r$newer{request.node.callspec.id.replace(' ', '')}"
    world.create(table, SCHEMA, primary_key="id")
    world.client.append(table, pa.table({"id": [1, 2, 3], "name": ["m"] * 3}, schema=SCHEMA))
    given = [(1, "a", False), (2, "z", False), (3, "a", True), (4, "a", False), (5, "a", True)]
    source = world.spark.createDataFrame(given, "id long, name string, gone boolean")

    def merged(condition: str) -> Merged:
        return merge(
            source,
            table,
            "id",
            options={**world.options, **settings},
            update_where=condition,
            delete_where="gone",
            rows_in_driver=limit,
        )

    with pytest.raises(InvalidTransaction, match="nme"):
        merged("source.nme > target.name")
    done = merged("source.name > target.name")
    assert (done.updated, done.inserted, done.deleted) == (1, 1, 1)
    found = [(row["id"], row["name"]) for row in world.rows(table)]
    assert found == [(1, "m"), (2, "z"), (4, "a")]


@pytest.mark.parametrize("is_ansi", ["true", "false"], ids=["ansi", "legacy"])
def test_row_writers_of_both_kinds_apply_each_range_once(world: SparkWorld, is_ansi: str) -> None:
    """Executors look for the rows of groups, beside a row writer that needs no Spark."""
    table, seed = f"r$both{is_ansi}", 5
    world.spark.conf.set("spark.sql.ansi.enabled", is_ansi)
    chance, model, errors = random.Random(seed), Model([]), []
    world.create(table, MODELLED, primary_key="id")
    stop = threading.Event()
    client = CommitLog.connect(world.bootstrap_servers, log=world.log)

    def run() -> None:
        try:
            options = RowWriterOptions(age_seconds=0.02, writes_max=3)
            apply_on_spark(world.spark, client, world.options, stop, options, fragments_per_task=1)
        except BaseException as error:
            errors.append(error)
            raise

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        tickets, counts = [], []
        for number in range(40):
            mode, rows, settings = random_write(chance, number)
            given = {}
            if mode == "upsert":
                given = {
                    "when_matched_update_all": settings["update_all"],
                    "when_matched_update_all_filt": settings["update_if"] or None,
                    "when_not_matched_insert_all": settings["insert_all"],
                }
            tickets.append(world.client.write_rows(table, rows, mode=mode, **given))
            counts.append(model.apply(mode, rows, **settings))
            if number % 8 == 7:
                tickets[-1].result(200)
        outcomes = [ticket.result(200) for ticket in tickets]
        found = world.client.open(table).to_table().to_pylist()
        left_over = dropped_while_both_apply(world, table)
    finally:
        stop.set()
        thread.join(100)
        client.close()
        world.spark.conf.unset("spark.sql.ansi.enabled")
    assert not errors

    def sorted_rows(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
        return sorted(tuple(repr(row[name]) for name in MODELLED.names) for row in rows)

    assert sorted_rows(found) == sorted_rows(model.rows), f"seed {seed}"
    assert [(o.inserted, o.updated, o.deleted) for o in outcomes] == counts, f"seed {seed}"
    found = world.client.open(table).to_table(columns=["id"]).column("id").to_pylist()
    assert sorted(one for one in found if one is not None and one >= 1_000) == left_over


def dropped_while_both_apply(world: SparkWorld, table: str) -> list[int]:
    """Drop a column of which rows were accepted; return the ids of the rows that were applied."""
    client, before = world.client, {}
    for number in range(1_000, 1_012):
        before[number] = client.write_rows(table, [{"id": number, "a": 1, "b": "x"}])
    client.open(table).drop_columns(["b"])
    after = {n: client.write_rows(table, [{"id": n, "a": 1}]) for n in range(2_000, 2_006)}
    came = {number: ticket.result(200) for number, ticket in before.items()}
    codes = {outcome.code for outcome in came.values()}
    assert codes <= {Code.NONE, Code.WRONG_SCHEMA}
    assert all(ticket.result(200).inserted == 1 for ticket in after.values())
    return sorted([*(n for n, outcome in came.items() if not outcome.code), *after])


@pytest.mark.parametrize("is_ansi", ["true", "false"], ids=["ansi", "legacy"])
def test_executors_find_what_the_driver_would_whatever_is_in_the_rows(
    world: SparkWorld, is_ansi: str
) -> None:
    """Nested keys and values, nulls, partial columns, and a column of blobs."""
    table = f"r$kinds{is_ansi}"
    key = pa.struct([("at", pa.timestamp("us", "UTC")), ("part", pa.decimal128(9, 2))])
    blob = pa.field("data", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    values = [("tags", pa.list_(pa.string())), ("more", pa.map_(pa.string(), pa.int8()))]
    schema = pa.schema([("k", key), ("n", pa.uint64()), *values, blob])
    plain = [schema.field(name) for name in ("k", "n", "tags", "more")]
    world.create(table, schema)
    for first in (0, 10):
        rows = [
            {
                "k": {"at": number, "part": None if number % 2 else Decimal(number) / 4},
                "n": 2**64 - 1 - number,
                "tags": [None, "x"] if number % 3 else None,
                "more": [("a", None)],
            }
            for number in range(first, first + 10)
        ]
        world.client.append(table, pa.Table.from_pylist(rows, schema=pa.schema(plain)))
    info = world.client.describe((table.split("$")[0], table.split("$")[1]), fresh=True)
    dataset = world.client.open(table)
    nested = pa.Table.from_pylist(rows[3:5], schema=pa.schema(plain)).select(["k", "tags"])
    numbers = pa.table({"n": pa.array([2**64 - 1, 2**64 - 13, 5], pa.uint64())})
    world.spark.conf.set("spark.sql.ansi.enabled", is_ansi)
    try:
        read = base_on_executors(world.spark, fragments_per_task=1)
        for given, on in ((nested, ["k"]), (numbers, ["n"])):
            write = read_write(info, *encode_write(info, given, RowsMode.DELETE, on))
            scan = base_scan(info, [write])
            assert scan is not None
            found = read(info, dataset, scan)
            assert found.equals(read_base(info, dataset, scan).sort_by(ROW_ADDRESS))
            assert found.num_rows >= 2
    finally:
        world.spark.conf.unset("spark.sql.ansi.enabled")


def test_a_group_is_applied_though_its_executors_die(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve such failures in a row had refused a write for which its rows weren't to blame."""
    world.create("r$dying", SCHEMA, primary_key="id")
    for number in range(3):
        world.client.append("r$dying", [{"id": number, "name": "a"}])

    def dies(number: int, **given: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(row_base, "_scan", dies)
    info = world.client.describe(("r", "dying"), fresh=True)
    scan = BaseScan(("id",), {"id": pa.array([1], pa.int64())})
    read = base_on_executors(world.spark, fragments_per_task=1)
    assert read(info, world.client.open("r$dying"), scan)["id"].to_pylist() == [1]
