"""Which rows an upsert takes for the same, beside plain pylance: keys of odd types and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest

from commitlog import InvalidTransaction
from commitlog.client.commits import catalogue
from tests.namespace_world import World
from tests.service import applying
from tests.types.columns import plain

UPSERT = "on=k&when_matched_update_all=true&when_not_matched_insert_all=true"
MAP = pa.map_(pa.string(), pa.int32())
KEYS: list[tuple[pa.DataType, list[Any], list[Any]]] = [
    # A type, the keys that are there, those that are upserted.
    (pa.float64(), [0.0, 1.0, math.nan], [-0.0, 1.0, math.nan, -math.nan]),
    (pa.float32(), [0.0, -0.0], [-0.0, 0.0]),
    (pa.float16(), [0.0, 1.5], [1.5, -0.0]),
    (pa.int32(), [1, 2, None], [2, 3, None]),
    (pa.decimal256(76, 3), [Decimal("1.5"), None], [Decimal("1.50"), Decimal("-1.5")]),
    (pa.list_(pa.float32()), [[0.0, None], []], [[0.0, None], [-0.0, None], []]),
    (pa.struct([("x", pa.int8())]), [{"x": 1}, {"x": None}], [{"x": None}, {"x": 2}]),
    (MAP, [[("a", 1)], []], [[("a", 1)], [("a", None)], []]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", "b"], ["b", "c"]),
]


@pytest.fixture(scope="module")
def world(world: World) -> Iterator[World]:
    with applying(world.log):
        yield world


def client(world: World, table: str, rows: pa.Table) -> None:
    world.log.merge_insert(table, rows, "k").raise_for_conflict()


def by_rows(world: World, table: str, rows: pa.Table) -> None:
    world.log.write_rows(table, rows, mode="upsert", on="k").result(60).raise_for_conflict()


def http(world: World, table: str, rows: pa.Table) -> None:
    status, answer = world.rows(f"/v1/table/{table}/merge_insert?{UPSERT}", rows)
    assert status == 200, answer


def http_by_index(world: World, table: str, rows: pa.Table) -> None:
    options = f"{UPSERT}&use_index=true"
    status, answer = world.rows(f"/v1/table/{table}/merge_insert?{options}", rows)
    assert (status, answer["num_inserted_rows"]) == (200, 2), answer


def branch_by_index(world: World, table: str, rows: pa.Table) -> None:
    world.open(table.split("$")).create_branch("dev")
    options = f"{UPSERT}&use_index=true&branch=dev".replace("on=k", "on=K")
    status, answer = world.rows(f"/v1/table/{table}/merge_insert?{options}", rows)
    assert (status, answer["num_inserted_rows"]) == (200, 2), answer


def handle(world: World, table: str, rows: pa.Table) -> None:
    merged(world.log.open(table), rows)


def handle_of_a_stream(world: World, table: str, rows: pa.Table) -> None:
    merged(world.log.open(table), rows.to_reader())


def handle_by_another_case(world: World, table: str, rows: pa.Table) -> None:
    merged(world.log.open(table), rows, "K")


def plain_client(world: World, table: str, rows: pa.Table) -> None:
    merged(world.open(table.split("$")), rows)


def merged(dataset: lance.LanceDataset, rows: Any, on: str | list[str] = "k") -> None:
    builder = dataset.merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
    builder.execute(rows)


PATHS: dict[str, Callable[[World, str, pa.Table], None]] = {
    "client": client,
    "table of rows": client,
    "rows": by_rows,
    "http": http,
    "plain client": plain_client,
}


def contents(dataset: lance.LanceDataset) -> list[Any]:
    table = dataset.to_table()
    return sorted(zip(plain(table["k"]), plain(table["x"]), strict=True), key=repr)


@pytest.mark.parametrize(
    ("declared", "kind", "held", "given"),
    [(False, *KEYS[0]), *((True, *key) for key in KEYS)],
    ids=str,
)
def test_keys_are_equal_where_pylance_finds_them_equal(
    world: World, tmp_path: Path, declared: bool, kind: pa.DataType, held: Any, given: Any
) -> None:
    schema = pa.schema([pa.field("k", kind), pa.field("x", pa.int32())])
    first, second = (
        pa.table([pa.array(keys, kind), pa.array(range(mark, mark + len(keys)), pa.int32())],
                 schema=schema)
        for mark, keys in ((0, held), (100, given))
    )  # fmt: skip
    twin = lance.write_dataset(first, tmp_path / "twin")
    merged(twin, second)
    expected = contents(lance.dataset(tmp_path / "twin"))
    for path, write in PATHS.items():
        if path == "rows" and None in given:
            continue  # A write of rows needs keys: the next test.
        table = f"{world.fresh_name()}$t"
        world.log.create_table(
            table,
            schema,
            primary_key="k" if declared else None,
            properties={"rows": "log"} if path == "table of rows" else {},
        )
        world.log.append(table, first, by_log=False).raise_for_conflict()
        write(world, table, second)
        assert contents(world.log.open(table)) == expected, path


def test_keys_that_no_upsert_can_go_by_are_refused(world: World) -> None:
    schema = pa.schema([pa.field("k", pa.json_()), pa.field("x", pa.int32())])
    world.log.create_table("json$t", schema, properties={"rows": "log"})
    for work in (
        lambda: world.log.merge_insert("json$t", {"k": ["{}"], "x": [1]}, "k"),
        lambda: world.log.write_rows("json$t", {"k": ["{}"], "x": [1]}, mode="upsert", on="k"),
    ):
        with pytest.raises(InvalidTransaction, match="'k' of json\\$t is JSON, which cannot be"):
            work()
    world.log.create_table("nulls$t", pa.schema([pa.field("k", pa.int32())]))
    with pytest.raises(InvalidTransaction, match="key's column 'k' holds a null.*merge_insert"):
        world.log.write_rows("nulls$t", {"k": [1, None]}, mode="upsert", on="k")


def test_an_index_hides_no_row_whose_key_is_null(world: World) -> None:
    new = pa.table({"k": pa.array([1, 2, None], pa.int32()), "x": pa.array([7, 8, 9], pa.int32())})
    paths = client, http_by_index, branch_by_index, handle, handle_of_a_stream
    for path in (*paths, handle_by_another_case):
        table = f"{world.fresh_name()}$t"
        world.log.create_table(table, new.schema)
        world.log.append(table, new.slice(0, 1)).raise_for_conflict()
        world.log.open(table).create_scalar_index("k", "BTREE")
        path(world, table, new)
        found = world.open(table.split("$"))
        if path is branch_by_index:
            found = found.checkout_version(("dev", None))
        assert contents(found) == [(1, 7), (2, 8), (None, 9)], path


def test_rows_are_written_to_tables_of_the_oldest_files(world: World) -> None:
    kind, text = pa.struct([("p", pa.int32())]), pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("k", pa.int32()), ("s", kind), ("d", text)])
    with mock.patch.object(catalogue, "DATA_STORAGE_VERSION", "2.0"):
        world.log.create_table("old$t", schema, properties={"rows": "log"})
    # Files of 2.0 hold no struct that is null, and read a dictionary with a null among its values.
    world.log.append("old$t", {"k": [1, 2], "s": [{"p": 1}] * 2, "d": ["a", None]})
    world.log.append("old$t", {"k": [3]}).raise_for_conflict()
    world.log.merge_insert("old$t", {"k": [1, 2], "d": ["b", "c"]}, "k").raise_for_conflict()
    found = world.log.open("old$t").to_table().sort_by("k")
    assert found["s"].to_pylist() == [{"p": 1}, {"p": 1}, None]
    assert found["d"].to_pylist() == ["b", "c", None]


def test_no_request_brings_text_that_lance_cannot_read(world: World) -> None:
    offsets = pa.array([0, 2], pa.int32()).buffers()[1]
    text = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    rows = pa.table({"k": text})
    place = f"/v1/table/{world.fresh_name()}$t"
    status, answer = world.rows(f"{place}/create", rows)
    assert (status, "not UTF-8" in answer["error"]) == (400, True), answer
    assert world.rows(f"{place}/create", pa.table({"k": ["a"]}))[0] == 200
    for asked in ("insert", "insert?mode=overwrite", f"merge_insert?{UPSERT}"):
        status, answer = world.rows(f"{place}/{asked}", rows)
        assert (status, "not UTF-8" in answer["error"]) == (400, True), answer
    metadata = pa.schema([pa.field("k", pa.string())], metadata={b"\xff": b"x"})
    with pytest.raises(InvalidTransaction, match="cannot store this schema"):
        world.log.create_table("utf$t", metadata)
