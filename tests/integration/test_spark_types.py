"""Every type that Spark has, by every way that Spark writes, read back by everybody."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import lance
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from commitlog.adapters.row_values import is_blob
from commitlog.errors import InvalidTransaction
from commitlog.spark import Batch, each_batch, merge, upsert
from tests.spark_kinds import KINDS
from tests.spark_world import ON_SPARK, SparkWorld, finish

pytestmark = ON_SPARK

_numbers = itertools.count()


BLOB = f"c{next(at for at, kind in enumerate(KINDS) if is_blob(kind.column))}"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("legacy", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        *(pa.field(f"c{at}", kind.column) for at, kind in enumerate(KINDS)),
    ]
)


def source(world: SparkWorld) -> DataFrame:
    """Return a row of values and a row of nulls."""
    columns = [
        f"cast(CASE WHEN id = 1 THEN {kind.value} END AS {kind.spark}) AS c{at}"
        for at, kind in enumerate(KINDS)
    ]
    blob = "CASE WHEN id = 1 THEN x'0102' END AS legacy"
    return world.spark.range(1, 3).selectExpr("id", blob, *columns)


def all_of(dataset: lance.LanceDataset) -> pa.Table:
    """Return all rows, with the bytes of blobs."""
    return dataset.scanner(blob_handling="all_binary").to_table()


def table(world: SparkWorld, schema: pa.Schema = SCHEMA, **options: Any) -> str:
    name = f"types$t{next(_numbers)}"
    world.create(name, schema, **options)
    return name


def append(world: SparkWorld, name: str, frame: DataFrame) -> None:
    writer = frame.write.format("commitlog").options(**world.options, table=name)
    writer.mode("append").save()


def overwrite(world: SparkWorld, name: str, frame: DataFrame) -> None:
    writer = frame.write.format("commitlog").options(**world.options, table=name)
    writer.mode("overwrite").save()


def insert(world: SparkWorld, name: str, frame: DataFrame) -> None:
    frame.createOrReplaceTempView("given")
    reach = ", ".join(f"`{key}` '{value}'" for key, value in world.options.items())
    made = name.replace("$", "_")
    world.spark.sql(f"CREATE TABLE {made} USING commitlog OPTIONS ({reach}, table '{name}')")
    world.spark.sql(f"INSERT INTO {made} SELECT * FROM given")


def in_driver(world: SparkWorld, name: str, frame: DataFrame) -> None:
    merge(frame, name, "id", options=world.options)


def on_executors(world: SparkWorld, name: str, frame: DataFrame) -> None:
    merge(frame, name, "id", options=world.options, rows_in_driver=0)


def streamed(world: SparkWorld, name: str, frame: DataFrame, **how: Any) -> None:
    """Write the frame's rows as a stream's one batch, by the sink or a `foreachBatch` function."""
    rows = world.root / name
    frame.write.parquet(str(rows))
    sink = world.spark.readStream.schema(frame.schema).parquet(str(rows)).writeStream
    sink = sink.option("checkpointLocation", str(world.checkpoint(name)))
    if how:
        sink = sink.foreachBatch(how["by"])
    else:
        sink = sink.format("commitlog").options(**world.options, table=name)
    finish(sink.trigger(availableNow=True).start())


def by_each_batch(world: SparkWorld, name: str, frame: DataFrame) -> None:
    def write(batch: Batch, rows: DataFrame) -> None:
        batch.append(name, rows)

    each_batch(write, {**world.options, "txnAppId": name})(frame, 0)


def by_upsert(world: SparkWorld, name: str, frame: DataFrame) -> None:
    upsert(name, "id", {**world.options, "txnAppId": name})(frame, 0)


Write = Callable[[SparkWorld, str, DataFrame], None]
WAYS: list[Write] = [append, overwrite, insert, in_driver, on_executors, by_each_batch, by_upsert]


@contextmanager
def ansi(world: SparkWorld, enabled: bool) -> Iterator[None]:
    world.spark.conf.set("spark.sql.ansi.enabled", str(enabled).lower())
    try:
        yield
    finally:
        world.spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("write", WAYS, ids=[way.__name__ for way in WAYS])
def test_every_type_is_written_and_read_back_by_everybody(world: SparkWorld, write: Write) -> None:
    name = table(world)
    write(world, name, source(world))
    stored = [b"\x01\x02", *(kind.stored for kind in KINDS)]
    location = world.client.table(name).location
    for dataset in (lance.dataset(location), world.client.open(name)):
        rows = all_of(dataset).sort_by("id").to_pylist()
        assert [list(row.values()) for row in rows] == [[1, *stored], [2, *[None] * len(stored)]]
    columns = ["id", *(f"c{at}" for at, kind in enumerate(KINDS) if kind.duckdb)]
    found = duckdb.from_arrow(all_of(lance.dataset(location)).select(columns)).order("id")
    same, none = found.to_arrow_table().to_pylist()
    assert list(none.values()) == [2, *[None] * (len(columns) - 1)]
    for column, kind in ((f"c{at}", kind) for at, kind in enumerate(KINDS) if kind.duckdb):
        expected = kind.stored if kind.duckdb is True else kind.duckdb
        assert same[column] == expected, (kind, same[column])
    [row, nothing] = world.read(name).orderBy("id").collect()
    read = row.asDict(recursive=True)
    for at, kind in enumerate(KINDS):
        expected = kind.stored if kind.read is None else kind.read
        value = read[f"c{at}"]
        if isinstance(value, datetime) and kind.spark == "timestamp":
            value = value.astimezone(UTC)
        assert value == expected, (kind, value)
    assert read["legacy"] == b"\x01\x02"
    assert list(nothing) == [2, *[None] * len(stored)]
    if write is append:
        [change] = world.read(name, read="changes").filter("id = 1").collect()
        assert [change[column] for column in ("legacy", BLOB)] == [b"\x01\x02", b"\x00\xff"]


def test_a_stream_writes_every_type(world: SparkWorld) -> None:
    name = table(world)
    streamed(world, name, source(world).drop("c29", "c30"))
    [row, _] = all_of(lance.dataset(world.client.table(name).location)).sort_by("id").to_pylist()
    assert row["c29"] is row["c30"] is None, "Parquet has no place for times and intervals"
    kept = [at for at in range(len(KINDS)) if at not in (29, 30)]
    assert [row[f"c{at}"] for at in kept] == [KINDS[at].stored for at in kept]


REFUSED = [
    ("4294967297L", pa.int32(), "4294967297"),
    ("1.5D", pa.int32(), "1.5"),
    ("1e300D", pa.float32(), "infinite"),
    ("array(1e300D, 1D)", pa.list_(pa.float32(), 2), "infinite"),
    ("array(1e5F, 1F)", pa.list_(pa.float16(), 2), "infinite"),
    ("array(1, null)", pa.list_(pa.field("item", pa.int32(), nullable=False)), "null"),
    ("100000000L", pa.decimal128(10, 2), "100000000"),
    ("0.125BD", pa.decimal128(10, 2), "0.125"),
    ("timestamp_ntz'2013-07-01 00:00:00.5'", pa.timestamp("s"), "2013"),
    ("'7'", pa.int32(), "cannot hold"),
    ("true", pa.int8(), "cannot hold"),
]


@pytest.mark.parametrize("enabled", [True, False], ids=["ansi", "legacy"])
def test_a_value_that_does_not_fit_is_refused_whatever_spark_would_cast(
    world: SparkWorld, enabled: bool
) -> None:
    schema = pa.schema([("id", pa.int32()), *((f"c{at}", r[1]) for at, r in enumerate(REFUSED))])
    name = table(world, schema)
    with ansi(world, enabled):
        # Spark itself would refuse most of them, if it were asked to cast, unless ANSI is off.
        for at, (value, _, says) in enumerate([] if enabled else REFUSED):
            frame = world.spark.range(1, 2).selectExpr("id", f"{value} AS c{at}")
            with pytest.raises(InvalidTransaction, match=f"column 'c{at}.*{says}"):
                in_driver(world, name, frame)
        one = world.spark.range(1, 2).selectExpr("id", "1L AS c6", "7 AS c0")
        for way in (append, in_driver, on_executors):
            way(world, name, one)
        overflow = world.spark.range(1, 2).selectExpr("id + 4294967296 AS id", "8 AS c0")
        for way in (append, in_driver, on_executors):
            with pytest.raises(Exception, match="4294967297"):
                way(world, name, overflow)
    rows = lance.dataset(world.client.table(name).location).to_table(columns=["id", "c0", "c6"])
    assert rows.to_pylist() == [{"id": 1, "c0": 7, "c6": Decimal(1)}]


@pytest.mark.parametrize("way", [in_driver, on_executors, by_upsert])
def test_columns_that_a_source_lacks_are_kept(world: SparkWorld, way: Write) -> None:
    point = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    schema = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("p", point), ("t", pa.string())])
    rows = [{"id": i, "n": i, "p": {"x": i, "y": i}, "t": f"t{i}"} for i in range(6)]
    name = table(world, schema)
    world.client.append(name, pa.Table.from_pylist(rows[:3], schema))
    world.client.append(name, pa.Table.from_pylist(rows[3:], schema))
    plain = str(world.root / f"{name}-plain")
    lance.write_dataset(pa.Table.from_pylist(rows, schema), plain)
    frame = world.spark.range(4, 8).selectExpr("named_struct('y', 9) AS p", "id", "40L AS n")
    given = pa.table({"id": [4, 5, 6, 7], "n": pa.array([40] * 4, pa.int32()),
                      "p": pa.array([{"y": 9}] * 4, pa.struct([("y", pa.int32())]))})  # fmt: skip
    builder = lance.dataset(plain).merge_insert("id").when_matched_update_all()
    builder.when_not_matched_insert_all().execute(given)
    way(world, name, frame)
    ours, theirs = lance.dataset(world.client.table(name).location), lance.dataset(plain)
    assert ours.to_table().sort_by("id").equals(theirs.to_table().sort_by("id"))
    assert ours.schema.equals(theirs.schema)
    append(world, name, world.spark.range(8, 9).selectExpr("id"))
    assert world.read(name).filter("id = 8").collect()[0].asDict() == {
        "id": 8, "n": None, "p": None, "t": None,
    }  # fmt: skip


def test_executors_join_keys_as_pylance_does(world: SparkWorld) -> None:
    kinds = {"id": pa.float64(), "tags": pa.list_(pa.int32()), "name": pa.string()}
    schema = pa.schema(list(kinds.items()))
    name, plain = table(world, schema), str(world.root / "keys-plain")

    def rows_of(ids: list[float | None], names: str) -> pa.Table:
        return pa.table({"id": ids, "tags": [[7]] * len(ids), "name": list(names)}, schema)

    rows = rows_of([0.0, 1.5, float("nan"), None, 1.5], "abcde")
    given = rows_of([-0.0, 1.5, float("nan"), None], "wxyz")
    for part in (rows[:3], rows[3:]):  # A key of two fragments.
        world.client.append(name, part)
        lance.write_dataset(part, plain, mode="append")
    builder = lance.dataset(plain).merge_insert(["id", "tags"]).when_matched_update_all()
    builder.when_not_matched_insert_all().execute(given)
    source = world.spark.createDataFrame(given)
    merged = merge(source, name, ["id", "tags"], options=world.options, rows_in_driver=0)
    assert (merged.updated, merged.inserted) == (3, 2)
    ours, theirs = (
        sorted(repr(row) for row in lance.dataset(location).to_table().to_pylist())
        for location in (world.client.table(name).location, plain)
    )
    assert ours == theirs


def test_nanoseconds_are_cut_off_where_spark_reads_them(world: SparkWorld) -> None:
    schema = pa.schema([("id", pa.timestamp("ns")), ("name", pa.string())])
    name = table(world, schema)
    ids = pa.array([1_000, 1_001], pa.timestamp("ns"))
    world.client.append(name, pa.table([ids, ["a", "b"]], schema=schema))
    micro = datetime(1970, 1, 1, 0, 0, 0, 1)
    assert [row.id for row in world.read(name).collect()] == [micro, micro]
    changes = world.read(name, read="changes").collect()
    assert [row.id for row in changes] == [micro, micro]
    # Of the two, one alone is a value that Spark can give.
    frame = world.spark.sql("SELECT timestamp_ntz'1970-01-01 00:00:00.000001' AS id, 'c' AS name")
    for way in (in_driver, on_executors):
        way(world, name, frame)
    found = lance.dataset(world.client.table(name).location).to_table().sort_by("id")
    assert found["id"].cast(pa.int64()).to_pylist() == [1_000, 1_001]
    assert found["name"].to_pylist() == ["c", "b"]


@pytest.mark.parametrize("way", [append, in_driver, on_executors])
def test_what_may_not_be_null_may_be_in_what_is_null(world: SparkWorld, way: Write) -> None:
    """As in Avro, whose records have fields without nulls; and `array()` is of no nulls."""
    point = pa.struct([("x", pa.int32())])
    columns = [("id", pa.int32()), ("p", point), ("l", pa.list_(point)), ("e", pa.list_(point))]
    name = table(world, pa.schema(columns))
    some = "named_struct('x', 7)"
    frame = world.spark.range(2).selectExpr(
        "cast(id AS int) AS id", f"if(id = 0, {some}, null) AS p",
        f"array({some}, if(id = 0, {some}, null)) AS l", "array() AS e",
    )  # fmt: skip
    way(world, name, frame)
    found = lance.dataset(world.client.table(name).location).to_table().sort_by("id").to_pylist()
    assert found == [
        {"id": 0, "p": {"x": 7}, "l": [{"x": 7}, {"x": 7}], "e": []},
        {"id": 1, "p": None, "l": [{"x": 7}, None], "e": []},
    ]


@pytest.mark.parametrize("way", [append, in_driver, on_executors])
def test_types_without_a_column_of_their_own_fit_by_their_parts(
    world: SparkWorld, way: Write
) -> None:
    parts = pa.struct([(part, pa.binary()) for part in ("metadata", "value")])
    name = table(world, pa.schema([("id", pa.int32()), ("v", parts), ("n", pa.string())]))
    way(world, name, world.spark.sql("SELECT 1 AS id, parse_json('true') AS v, null AS n"))
    [row] = lance.dataset(world.client.table(name).location).to_table().to_pylist()
    # Variant's specification: a version and an empty dictionary; the one byte of a primitive true.
    variant = {"metadata": b"\x01\x00\x00", "value": b"\x04"}
    assert row == {"id": 1, "v": variant, "n": None}
