"""What one task of a MERGE does, without Spark, over a whole service."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog.adapters.row_contract import present
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.excerpts import Excerpt
from commitlog.errors import InvalidTransaction
from commitlog.model.records import Outcome
from commitlog.spark import merge_files
from commitlog.spark.arrow import put_together
from commitlog.spark.files import target_of
from commitlog.spark.merge import COUNTED, NothingToDo, update_of
from commitlog.spark.merge_files import (
    ADDRESS,
    DELETE,
    MergePart,
    MergeTask,
    match,
    merge_rows,
    with_table_types,
)
from commitlog.spark.wanted import Merge, check_condition
from tests.service import SCHEMA, Service, rows

TABLE = "shop$orders"


@pytest.fixture
def world(running: Service) -> Service:
    return running


def source(*rows: tuple[int | None, str | None], deletes: tuple[int, ...] = ()) -> pa.Table:
    given = {
        "id": pa.array([row[0] for row in rows], pa.int64()),
        "name": pa.array([row[1] for row in rows], pa.string()),
        DELETE: pa.array([row[0] in deletes for row in rows], pa.bool_()),
    }
    return pa.table(given)


def task_for(info: TableInfo, **how: Any) -> MergeTask:
    target = target_of(info, TABLE, info.schema, rows_per_file=1000, bytes_per_file=1 << 30)
    excerpt = Excerpt(info.version, b"by its path")
    return MergeTask(target, excerpt, ("id",), info.stable_row_ids, **how)


def parts_of(world: Service, given: pa.Table, *, tasks: int = 1, **how: Any) -> list[MergePart]:
    """Do the merge in so many tasks: rows of a fragment, and of a new key, go to one of them."""
    info = world.client.table(TABLE)
    task = task_for(info, **how)
    dataset = world.client.opened.plain(info, info.version)
    task = replace(task, given=present(given.schema, info.schema).serialize().to_pybytes())
    given = pa.Table.from_batches(with_table_types(given.to_batches(), task))
    matched = match(given, task, [f.fragment_id for f in dataset.get_fragments()])
    homes = [
        (address >> 32 if address is not None else hash(repr(key))) % tasks
        for address, key in zip(
            matched[ADDRESS].to_pylist(), matched["id"].to_pylist(), strict=True
        )
    ]
    parts = []
    for number in range(tasks):
        mine = matched.filter(pa.array([home == number for home in homes], pa.bool_()))
        parts.append(merge_rows(mine.combine_chunks().to_batches(), task))
    return parts


def commit(world: Service, parts: list[MergePart], **how: bool) -> Outcome:
    info = world.client.table(TABLE)
    prepared = update_of(info, task_for(info, **how), parts)
    ticket = world.client.submit(
        TABLE,
        prepared.operation,
        read_version=prepared.read_version,
        affected_rows=prepared.affected,
        inserted_keys=prepared.keys,
    )
    return ticket.result().raise_for_conflict()


def contents(world: Service) -> dict[int, str]:
    found = world.client.open(TABLE).to_table().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row["name"] for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("tasks", [1, 3])
def test_rows_are_updated_inserted_and_deleted(world: Service, stable: bool, tasks: int) -> None:
    world.client.create_table(TABLE, SCHEMA, primary_key="id", stable_row_ids=stable)
    world.client.append(TABLE, rows(1, 2, 3))
    world.client.append(TABLE, rows(4, 5, 6))
    world.client.append(TABLE, rows(7))
    before = _row_ids(world)
    given = source((6, "x"), (2, "x"), (9, "new"), (7, "-"), (1, "-"), deletes=(7, 1))
    parts = parts_of(world, given, tasks=tasks)
    commit(world, parts)
    assert contents(world) == {2: "x", 3: "a", 4: "a", 5: "a", 6: "x", 9: "new"}
    assert sum(part.updated for part in parts) == 2
    assert sum(part.inserted for part in parts) == 1
    assert sum(part.deleted for part in parts) == 2
    assert [number for part in parts for number in part.removed] == [2]
    if stable:
        after = _row_ids(world)
        assert {key: after[key] for key in (2, 6)} == {key: before[key] for key in (2, 6)}
        assert after[9] not in before.values()


def _row_ids(world: Service) -> dict[int, int]:
    scanner = world.client.open(TABLE).scanner(columns=["id"], with_row_id=True)
    found = scanner.to_table()
    return dict(zip(found["id"].to_pylist(), found["_rowid"].to_pylist(), strict=True))


def test_matched_and_unmatched_rows_can_be_left_alone(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2))
    given = source((1, "x"), (3, "x"))
    commit(world, parts_of(world, given, update=False), update=False)
    assert contents(world) == {1: "a", 2: "a", 3: "x"}
    commit(world, parts_of(world, source((2, "y"), (8, "y")), insert=False), insert=False)
    assert contents(world) == {1: "a", 2: "y", 3: "x"}


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("tasks", [1, 3])
def test_only_rows_for_which_a_condition_holds_are_updated(
    world: Service, stable: bool, tasks: int
) -> None:
    """A condition that is null doesn't hold; new rows and deletions don't ask it."""
    world.client.create_table(TABLE, SCHEMA, stable_row_ids=stable)
    for ids, name in (((1, 2, 3), "m"), ((4, 5), "m"), ((6,), None), ((7,), "z")):
        data = pa.table({"id": ids, "name": [name] * len(ids)}, schema=SCHEMA)
        world.client.append(TABLE, data)
    given = source(
        (5, "x"), (1, "a"), (2, "x"), (4, "n"), (6, "x"), (7, "a"), (3, None), (9, "a"),
        deletes=(7,),
    )  # fmt: skip
    parts = parts_of(world, given, tasks=tasks, update_where="source.name > target.name")
    commit(world, parts)
    expected = {1: "m", 2: "x", 3: "m", 4: "n", 5: "x", 6: None, 9: "a"}
    assert contents(world) == expected
    assert [sum(getattr(part, name) for part in parts) for name in COUNTED] == [1, 3, 1]
    with pytest.raises(NothingToDo):
        commit(world, parts_of(world, source((1, "a")), update_where="false"))


def test_a_condition_may_name_what_the_source_lacks(world: Service) -> None:
    columns = [("id", pa.int64()), ("at", pa.struct([("day", pa.date32()), ("n", pa.int64())]))]
    schema = pa.schema([*columns, ("name", pa.string())])
    world.client.create_table(TABLE, schema)
    held = [{"day": None, "n": 5}, {"day": None, "n": 1}]
    world.client.append(TABLE, pa.table({"id": [1, 2], "at": held, "name": ["a", "b"]}, schema))
    given = source((1, "x"), (2, "x"))
    commit(world, parts_of(world, given, update_where="Target.at.n < 3 -- new"))
    assert contents(world) == {1: "a", 2: "x"}


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("source.nme > target.name", "nme"),
        ("source.name >", "can't be evaluated"),
        ("true) OR (false", "closes a bracket"),
        ("source.id > 1 source.id", "can't be evaluated"),
        (" ", "is empty"),
    ],
)
def test_a_condition_that_no_rows_can_be_held_against_is_refused(condition: str, said: str) -> None:
    with pytest.raises(InvalidTransaction, match=said):
        check_condition(condition, SCHEMA, SCHEMA, ("id",))
    with pytest.raises(InvalidTransaction, match="no effect with update=False"):
        Merge.of("id", update=False, update_where=condition)


def test_a_task_sends_no_more_keys_than_a_merge_names(
    world: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge_files, "KEYS_MAX", 2)
    world.client.create_table(TABLE, SCHEMA)
    few, many = source((1, "x"), (2, "x")), source((3, "x"), (4, "x"), (5, "x"))
    info = world.client.table(TABLE)
    for given, names in ((few, True), (many, False)):
        parts = parts_of(world, given)
        assert [part.keys is not None for part in parts] == [names]
        prepared = update_of(info, task_for(info), parts)
        assert (prepared.keys is not None) == names
        commit(world, parts)
    assert sorted(contents(world)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("at_most", "joins"), [(1, 4), (3, 2), (100, 1)])
def test_rows_of_many_fragments_are_joined_together(
    world: Service, monkeypatch: pytest.MonkeyPatch, at_most: int, joins: int
) -> None:
    world.client.create_table(TABLE, SCHEMA, primary_key="id")
    world.client.append(TABLE, rows(1, 2))
    for key in (3, 4, 5):
        world.client.append(TABLE, rows(key))
    joined: list[int] = []

    def watched(*given: Any) -> Iterator[pa.RecordBatch]:
        for batch in put_together(*given):
            joined.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(merge_files, "put_together", watched)
    monkeypatch.setattr(merge_files, "JOINED_ROWS", at_most)
    commit(world, parts_of(world, source((4, "x"))))
    assert (len(joined), sum(joined)) == (joins, 5)
    joined.clear()
    commit(world, parts_of(world, source(*((key, "y") for key in (5, 1, 9)))))
    assert max(joined) >= 3  # as many as the source has
    assert contents(world) == {1: "y", 2: "a", 3: "a", 4: "x", 5: "y", 9: "y"}


def test_a_null_key_matches_nothing(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, pa.table({"id": [None, 1], "name": ["a", "a"]}, schema=SCHEMA))
    commit(world, parts_of(world, source((None, "x"), (None, "y"))))
    found = world.client.open(TABLE).to_table()["name"].to_pylist()
    assert sorted(found) == ["a", "a", "x", "y"]


@pytest.mark.parametrize("key", [1, 5], ids=["matched", "new"])
def test_a_key_that_comes_twice_is_named_and_nothing_is_committed(world: Service, key: int) -> None:
    world.client.create_table(TABLE, SCHEMA)
    world.client.append(TABLE, rows(1, 2))
    parts = parts_of(world, source((key, "x"), (2, "x"), (key, "y")))
    with pytest.raises(InvalidTransaction, match=f'"id": {key}'):
        commit(world, parts)


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("tasks", [1, 3])
def test_all_rows_of_a_key_that_the_table_has_twice_are_changed(
    world: Service, stable: bool, tasks: int
) -> None:
    world.client.create_table(TABLE, SCHEMA, stable_row_ids=stable)
    for ids in ((1, 1, 2), (1, 4, 4), (3, 5)):
        world.client.append(TABLE, rows(*ids))
    given = source((1, "x"), (9, "new"), (4, "-"), (3, "x"), deletes=(4,))
    parts = parts_of(world, given, tasks=tasks)
    commit(world, parts)
    found = world.client.open(TABLE).to_table().to_pylist()
    assert sorted((row["id"], row["name"]) for row in found) == [
        (1, "x"), (1, "x"), (1, "x"), (2, "a"), (3, "x"), (5, "a"), (9, "new"),
    ]  # fmt: skip
    assert [sum(getattr(part, name) for part in parts) for name in COUNTED] == [1, 4, 2]
    with pytest.raises(InvalidTransaction, match='duplicate keys, such as {"id": 1}'):
        commit(world, parts_of(world, source((1, "y"), (1, "z"))))


def test_keys_are_joined_as_lance_compares_them(world: Service) -> None:
    """Zero and minus zero are two keys, and NaN is one."""
    schema = pa.schema([("id", pa.float64()), ("name", pa.string())])
    world.client.create_table(TABLE, schema)
    keys = [0.0, 1.5, math.nan]
    world.client.append(TABLE, pa.table({"id": keys, "name": ["a"] * 3}, schema=schema))
    given = pa.table({"id": [-0.0, math.nan, 1.5], "name": ["x", "y", "z"]}, schema=schema)
    parts = parts_of(world, given.append_column(DELETE, pa.array([False] * 3)))
    commit(world, parts)
    found = world.client.open(TABLE).to_table().to_pylist()
    assert sorted((str(row["id"]), row["name"]) for row in found) == [
        ("-0.0", "x"), ("0.0", "a"), ("1.5", "z"), ("nan", "y"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.list_(pa.int32()), ([1, None], [1, 2], None)),
        (pa.struct([("x", pa.float64())]), ({"x": 0.0}, {"x": -0.0}, None)),
        (pa.map_(pa.string(), pa.int32()), ([("a", 1)], [("a", 2)], None)),
    ],
    ids=["list", "struct", "map"],
)
def test_keys_may_be_nested(world: Service, kind: pa.DataType, values: tuple[Any, ...]) -> None:
    schema = pa.schema([("id", kind), ("name", pa.string())])
    world.client.create_table(TABLE, schema)
    here, new, null = values
    held = pa.table({"id": pa.array([here, null], kind), "name": ["a", "b"]}, schema=schema)
    world.client.append(TABLE, held)
    given = {"id": pa.array([new, here, null], kind), "name": ["x", "y", "z"]}
    flags = pa.array([False] * 3)
    commit(world, parts_of(world, pa.table(given, schema=schema).append_column(DELETE, flags)))
    found = world.client.open(TABLE).to_table()
    rows = zip(found["id"].to_pylist(), found["name"].to_pylist(), strict=True)
    expected = [(here, "y"), (new, "x"), (null, "b"), (null, "z")]
    assert sorted(map(repr, rows)) == sorted(map(repr, expected))


def test_nothing_to_do_is_no_commit(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA)
    info = world.client.table(TABLE)
    parts = parts_of(world, source((1, "x")), insert=False)
    with pytest.raises(NothingToDo):
        update_of(info, task_for(info), parts)


def test_an_upsert_of_the_same_new_key_conflicts(world: Service) -> None:
    world.client.create_table(TABLE, SCHEMA, primary_key="id")
    world.client.append(TABLE, rows(1))
    first = parts_of(world, source((5, "x")))
    info = world.client.table(TABLE)
    prepared = update_of(info, task_for(info), first)
    world.client.merge_insert(TABLE, rows(5, name="other"), "id")
    ticket = world.client.submit(
        TABLE,
        prepared.operation,
        read_version=prepared.read_version,
        affected_rows=prepared.affected,
        inserted_keys=prepared.keys,
    )
    assert ticket.result().status == "retryable"


def test_keys_of_another_type_are_the_tables_keys(world: Service) -> None:
    world.client.create_table(TABLE, pa.schema([("id", pa.int16()), ("name", pa.string())]))
    world.client.append(TABLE, pa.table({"id": pa.array([1], pa.int16()), "name": ["a"]}))
    info = world.client.table(TABLE)
    task = task_for(info)
    given = source((1, "x"))
    fitted = pa.Table.from_batches(with_table_types(given.to_batches(), task))
    dataset = world.client.opened.plain(info, info.version)
    numbers = [f.fragment_id for f in dataset.get_fragments()]
    commit(world, [merge_rows(match(fitted, task, numbers).to_batches(), task)])
    assert contents(world) == {1: "x"}


POINT = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.int32())])
WIDE = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("point", POINT),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)
BLOB = lance.blob_field("blob2")
WIDE_BLOBS = WIDE.append(BLOB)


@pytest.mark.slow
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("insert", [False, True], ids=["", "insert"])
def test_a_source_that_lacks_columns_leaves_what_pylance_leaves(
    world: Service, tmp_path: Path, stable: bool, insert: bool
) -> None:
    world.client.create_table(TABLE, WIDE_BLOBS, stable_row_ids=stable)
    info: Any = world.client.table(TABLE)
    plain = str(tmp_path / "plain")
    for start in (0, 3):
        data: list[dict[str, Any]] = [
            {
                "id": i,
                "name": f"n{i}",
                "point": None if i % 2 else {"x": i, "y": i},
                "v": [i, i],
                "blob": None if i == 4 else bytes([i]) * 10,
            }
            for i in range(start, start + 3)
        ]
        blobs = lance.blob_array([None if row["id"] == 5 else b"2" * row["id"] for row in data])
        table = pa.Table.from_pylist(data, WIDE).append_column(BLOB, blobs)
        world.client.append(TABLE, table)
        lance.write_dataset(
            table,
            plain,
            mode="append" if start else "create",
            enable_stable_row_ids=stable,
            data_storage_version=info.data_storage_version,
        )
    half = pa.struct([pa.field("y", pa.int32())])
    ids = [0, 1, 4, 5, 8]
    for given in (
        {"id": ids, "name": ["new"] * 5},
        {"id": ids, "point": pa.array([{"y": 9}, {"y": 9}, None, None, {"y": 9}], half)},
        {"id": ids},
    ):
        part = pa.table(given)
        builder = lance.dataset(plain).merge_insert("id").when_matched_update_all()
        (builder.when_not_matched_insert_all() if insert else builder).execute(part)
        flagged = part.append_column(DELETE, pa.array([False] * 5, pa.bool_()))
        commit(world, parts_of(world, flagged, tasks=2, insert=insert), insert=insert)
        found = [
            dataset.scanner(blob_handling="all_binary", with_row_id=stable).to_table()
            for dataset in (world.client.open(TABLE), lance.dataset(plain))
        ]
        ours, theirs = (table.sort_by("id") for table in found)
        assert ours.drop_columns(["_rowid"] if stable else []).equals(
            theirs.drop_columns(["_rowid"] if stable else [])
        )
        assert world.client.open(TABLE).schema.equals(lance.dataset(plain).schema)
        if stable and not insert:
            assert ours["_rowid"].equals(theirs["_rowid"])
