"""Does a group of writes come to what they come to one by one?"""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from commitlog.adapters.row_contract import present
from commitlog.client.accepted import row_writes
from commitlog.client.accepted.row_reading import Given, read_write, read_writes
from commitlog.client.accepted.row_writes import encode_write
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.data import arrow_stream
from commitlog.client.rows.row_groups import (
    BaseScan,
    Group,
    MergedGroup,
    RowsUnusable,
    Write,
    base_scan,
    scan_base,
)
from commitlog.client.rows.rows_at import rows_at
from commitlog.codecs.lance_schema import schema_fields
from commitlog.model.operations import RowsMode
from commitlog.model.table import Policy

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.string())])
FIELDS = tuple(f.SerializeToString() for f in schema_fields(SCHEMA)[0])
INFO = TableInfo(
    table_id=("t",),
    incarnation="i-t",
    location="/t",
    version=1,
    readable_version=1,
    policy=Policy.EVERY,
    primary_key=("id",),
    properties={},
    stable_row_ids=False,
    fields=FIELDS,
)
Row = dict[str, Any]


class Model:
    """A table as a list of rows, changed by one write after the other."""

    def __init__(self, rows: list[Row]) -> None:
        """Start with rows."""
        self.rows = [dict(row) for row in rows]

    def apply(self, mode: str, rows: list[Row], **settings: Any) -> tuple[int, int, int]:
        """Return how many rows were inserted, updated and deleted."""
        if mode == "append":
            self.rows += [{"id": None, "a": None, "b": None} | row for row in rows]
            return len(rows), 0, 0
        if mode == "delete":
            keys = {row["id"] for row in rows}
            left = [row for row in self.rows if row["id"] is None or row["id"] not in keys]
            deleted, self.rows = len(self.rows) - len(left), left
            return 0, 0, deleted
        inserted = updated = 0
        for new in rows:
            matching = [row for row in self.rows if row["id"] == new["id"]]
            for row in matching if settings["update_all"] else ():
                limit = settings["update_if"]
                holds = row["a"] is not None and new.get("a") is not None and new["a"] > row["a"]
                if not limit or holds:
                    row.update(new)
                    updated += 1
            if not matching and settings["insert_all"]:
                self.rows.append({"a": None, "b": None} | new)
                inserted += 1
        return inserted, updated, 0


def random_write(chance: random.Random, number: int) -> tuple[str, list[Row], dict[str, Any]]:
    """Return a write of any mode; every value is told from all others."""
    mode = chance.choice(["append", "upsert", "upsert", "upsert", "delete"])
    columns = ["id", *chance.choice([["a", "b"], ["a", "b"], ["a"], ["b"], []])]
    if mode == "delete":
        columns = ["id"]
    keys = chance.sample(range(12), chance.randint(1, 5))
    rows: list[Row] = []
    for at, key in enumerate(keys):
        whole = {"id": key, "a": chance.randint(0, 9), "b": f"{number}.{at}"}
        rows.append({name: whole[name] for name in columns})
    if mode == "append":
        for row in rows:
            row["id"] = None if chance.random() < 0.1 else row["id"]
    settings: dict[str, Any] = {}
    if mode == "upsert":
        update, insert = chance.choice([(True, True), (True, False), (False, True)])
        limited = update and "a" in columns and chance.random() < 0.3
        condition = "source.a > target.a" if limited else ""
        settings = {"update_all": update, "insert_all": insert, "update_if": condition}
    return mode, rows, settings


def as_writes(writes: list[tuple[str, list[Row], dict[str, Any]]]) -> list[Write]:
    """Return writes as a row writer reads them: many at once, each as it would be alone."""
    alone = [as_write(*write) for write in writes]
    given = [Given(one.operation, arrow_stream(one.rows), False) for one in alone]
    read = read_writes(INFO, given)
    for one, other in zip(alone, read, strict=True):
        assert isinstance(other, Write)
        assert other.rows.equals(one.rows, check_metadata=True)
        assert list(other.keys) == list(one.keys)
    return [one for one in read if isinstance(one, Write)]


def as_write(mode: str, rows: list[Row], settings: dict[str, Any]) -> Write:
    """Return a write as a row writer reads it."""
    source = pa.Table.from_pylist(rows, schema=pa.schema([SCHEMA.field(n) for n in rows[0]]))
    on = () if mode == "append" else ("id",)
    operation, payload = encode_write(INFO, source, RowsMode(mode), on or None, **settings)
    return read_write(INFO, operation, payload)


def result(base: pa.Table, merged: MergedGroup) -> list[Row]:
    """Return the rows of a table after a group."""
    gone = set(merged.gone.to_pylist())
    assert len(gone) == len(merged.gone), "each row goes once"
    kept = [row for row in base.to_pylist() if row["_rowaddr"] not in gone]
    return [{name: row[name] for name in SCHEMA.names} for row in [*kept, *merged.rows.to_pylist()]]


def in_order(rows: list[Row]) -> list[tuple[str, ...]]:
    return sorted(tuple(repr(row[name]) for name in SCHEMA.names) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_a_group_comes_to_what_its_writes_come_to_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    start = [
        {"id": chance.choice([None, *range(12)]), "a": chance.choice([None, 3, 5]), "b": f"s{n}"}
        for n in range(chance.randint(0, 15))
    ]
    model = Model(start)
    writes = [random_write(chance, number) for number in range(chance.randint(1, 25))]
    base = pa.Table.from_pylist(start, schema=SCHEMA)
    addresses = pa.array(range(100, 100 + len(start)), pa.uint64())
    base = base.append_column("_rowaddr", addresses).append_column("_rowid", addresses)
    group = as_writes(writes)
    merged = Group(INFO, base).apply(group)
    for (mode, rows, settings), write in zip(writes, group, strict=True):
        counts = model.apply(mode, rows, **settings)
        assert (write.inserted, write.updated, write.deleted) == counts, (seed, mode, rows)
        assert write.refused is None
    assert in_order(result(base, merged)) == in_order(model.rows), f"seed {seed}"
    moved = merged.sources["_rowaddr"].to_pylist()
    assert len(moved) == merged.moved
    assert set(moved) <= set(merged.gone.to_pylist())
    ids = {start[a - 100]["id"] for a in moved}
    assert {row["id"] for row in merged.rows.slice(0, merged.moved).to_pylist()} == ids


@pytest.mark.slow
def test_only_rows_that_may_have_a_groups_keys_are_read() -> None:
    """Whatever there is besides: a table may have ten million rows."""
    table = pa.table(
        {"id": range(60_000), "a": [n % 2 for n in range(60_000)], "b": ["x"] * 60_000}
    )
    dataset = lance.write_dataset(table.cast(SCHEMA), "memory://base")
    rows = pa.table({"id": range(0, 40_000, 2), "b": ["y"] * 20_000})
    settings: dict[str, Any] = {"update_all": True, "insert_all": True}
    operation, payload = encode_write(INFO, rows, RowsMode.UPSERT, **settings)
    scan = base_scan(INFO, [read_write(INFO, operation, payload)])
    assert scan is not None
    assert scan_base(dataset, scan)["id"].to_pylist() == rows["id"].to_pylist()
    # Of a key of several columns each one narrows it.
    both = rows.slice(0, 100).append_column("a", pa.array([0] * 100, pa.int64()))
    operation, payload = encode_write(INFO, both, RowsMode.UPSERT, ("a", "id"), **settings)
    scan = base_scan(INFO, [read_write(INFO, operation, payload)])
    assert scan is not None
    assert scan_base(dataset, scan).num_rows == 100


def test_a_group_reads_a_column_that_is_called_as_lance_calls_all() -> None:
    """Lance took it for all columns, and said that `id` came twice."""
    dataset = lance.write_dataset(pa.table({"*": [7, 8], "id": [1, 2]}), "memory://star")
    for keys in ({}, {"*": pa.array([7])}):
        found = scan_base(dataset, BaseScan(("*", "id"), keys)).select(["*", "id"])
        assert found.slice(0, 1).to_pylist() == [{"*": 7, "id": 1}]
    assert rows_at(dataset, ["*", "id"], [1])["*"].to_pylist() == [8]


def test_a_bad_condition_refuses_its_write_alone() -> None:
    base = pa.table({"id": [1], "a": [1], "b": ["x"]}, schema=SCHEMA)
    address = pa.array([7], pa.uint64())
    base = base.append_column("_rowaddr", address).append_column("_rowid", address)
    bad = {"update_all": True, "insert_all": True, "update_if": "source.a > 1"}
    group = [
        as_write("upsert", [{"id": 1, "a": 2, "b": "y"}], bad),
        as_write("delete", [{"id": 1}], {}),
    ]
    # As other programs may write it.
    group[0].operation = replace(group[0].operation, update_if="source.nothing > 1")
    merged = Group(INFO, base).apply(group)
    assert group[0].refused is not None
    assert (group[0].updated, group[1].deleted) == (0, 1)
    assert merged.rows.num_rows == 0


def test_the_schema_of_rows_is_that_of_the_table() -> None:
    assert INFO.schema.equals(SCHEMA)
    assert present(SCHEMA, SCHEMA) == SCHEMA


def outcome_of(one: Write | RowsUnusable) -> Any:
    """Return what can be compared of a write that was read."""
    if isinstance(one, RowsUnusable):
        return one.code, one.problem
    return one.rows.to_pylist(), list(one.keys), one.operation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_writes_that_are_read_together_are_what_each_is_alone(seed: int) -> None:
    """Also those that are broken, or say what isn't so."""
    chance = random.Random(seed)
    given = [broken(chance, as_given(chance, number)) for number in range(chance.randint(1, 20))]
    together = [outcome_of(one) for one in read_writes(INFO, given)]
    assert together == [outcome_of(read_alone(one)) for one in given], f"seed {seed}"


def read_alone(one: Given) -> Write | RowsUnusable:
    try:
        return read_write(INFO, one.operation, one.payload, is_stale=one.is_stale)
    except RowsUnusable as refused:
        return refused


def as_given(chance: random.Random, number: int) -> Given:
    mode, rows, settings = random_write(chance, number)
    source = pa.Table.from_pylist(rows, schema=pa.schema([SCHEMA.field(n) for n in rows[0]]))
    on = None if mode == "append" else ("id",)
    return Given(*encode_write(INFO, source, RowsMode(mode), on, **settings), False)


def broken(chance: random.Random, one: Given) -> Given:
    """Return a write as it was, or as another program may have written it."""
    operation, payload, _ = one
    assert payload is not None
    rows = pa.ipc.open_stream(payload).read_all()
    kind = chance.randrange(14)
    if kind == 0:
        payload = None
    elif kind == 1:
        return one._replace(is_stale=True)
    elif kind == 2:
        return one._replace(operation=replace(operation, rows=operation.rows + 1))
    elif kind == 3:
        return one._replace(payload=payload + b"x")
    elif kind == 4:  # what comes behind the end
        payload += payload
    elif kind == 5:
        payload = payload[: chance.randrange(len(payload))]
    elif kind == 6:  # in several batches
        payload = arrow_stream(pa.concat_tables([rows.slice(0, 1), rows.slice(1)]))
    elif kind == 7:
        at = chance.randrange(len(payload))
        payload = payload[:at] + bytes([payload[at] ^ 1 << chance.randrange(8)]) + payload[at + 1 :]
    elif kind == 8:
        columns = (replace(operation.columns[0], field_id=7), *operation.columns[1:])
        return one._replace(operation=replace(operation, columns=columns))
    elif kind == 9 and "b" in rows.schema.names:
        bad = pa.array([b"\xff"] * rows.num_rows).view(pa.string())
        payload = arrow_stream(rows.set_column(rows.schema.get_field_index("b"), "b", bad))
    elif kind == 10:
        twice = pa.concat_tables([rows, rows.slice(0, 1)]).combine_chunks()
        payload = arrow_stream(twice)
        operation = replace(operation, rows=twice.num_rows)
    elif kind == 11:  # with metadata of its own
        payload = arrow_stream(rows.replace_schema_metadata({"a": "b"}))
    elif kind == 12 and "b" in rows.schema.names:
        at = rows.schema.get_field_index("b")
        payload = arrow_stream(rows.set_column(at, "b", rows["b"].dictionary_encode()))
    sha256 = hashlib.sha256(payload).digest() if payload is not None else operation.sha256
    return Given(replace(operation, sha256=sha256), payload, False)


NUMBERS = pa.schema(
    [
        pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"}),
        ("flag", pa.bool_()),
        ("small", pa.uint8()),
        ("half", pa.float16()),
        ("x", pa.float64()),
    ]
)


@pytest.mark.parametrize("mode", list(RowsMode))
@pytest.mark.parametrize("start", range(10))
def test_numbers_are_written_as_any_rows_are(
    mode: RowsMode, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is quick leaves the same bytes, also of parts of a table."""
    fields = tuple(one.SerializeToString() for one in schema_fields(NUMBERS)[0])
    given = pa.table(
        {
            "id": range(20),
            "flag": [number % 3 == 0 for number in range(20)],
            "small": range(20),
            "half": np.arange(20, dtype=np.float16),
            "x": [number / 7 for number in range(20)],
        },
        schema=NUMBERS.with_metadata({"a": "b"}),
    )
    rows = given.slice(start, 1 + start * start % 10)
    found = []
    for quick in (True, False):
        info = replace(INFO, fields=fields)
        monkeypatch.setattr(row_writes, "is_as_written", lambda batch, quick=quick: quick)
        for data in (
            rows,
            rows.to_batches()[0],
            rows.select(["id", "x"]),
            rows.select(["x", "id"]),
        ):
            found.append((quick, encode_write(info, data, mode)))
    both = [[made for of, made in found if of is quick] for quick in (True, False)]
    assert both[0] == both[1]
    assert len(both[0]) == 4
