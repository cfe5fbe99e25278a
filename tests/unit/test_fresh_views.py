"""Is a fresh view what a later version holds, whatever the table and its rows are?"""

from __future__ import annotations

import copy
import gc
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import lance
import pyarrow as pa
import pytest

from commitlog.client.accepted import fresh
from commitlog.client.accepted.row_reading import Given, read_writes
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.row_groups import RowsUnusable, Write
from commitlog.errors import InvalidRequest
from consumers.tools.rows.writer import RowWriter
from tests.service import Service, service

_POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("point", _POINT),
        ("path", pa.list_(_POINT)),
        ("vector", pa.list_(pa.float32(), 2)),
        ("counts", pa.map_(pa.string(), pa.int32())),
        ("word", pa.dictionary(pa.int8(), pa.string())),
    ]
)
BLOBS = pa.schema([pa.field("id", pa.int64()), lance.blob_field("c")])
T = "ns$t"


def full(id: int | None) -> dict[str, Any]:
    point = {"x": id, "y": None}
    counts = [("a", id), ("b", None)]
    nested = {"point": point, "path": [point, None], "vector": [0.5, id or 0], "counts": counts}
    return {"id": id, **nested, "word": "w"}


def empty(id: int) -> dict[str, Any]:
    return {**dict.fromkeys(SCHEMA.names), "id": id}


WRITES: list[tuple[str, list[dict[str, Any]]]] = [
    ("upsert", [full(2), empty(4)]),
    ("delete", [{"id": 1}]),
    ("upsert", [{"id": 3, "point": None, "path": []}]),
    ("append", [empty(5), full(6), full(None)]),
    ("upsert", [{"id": 5, "path": [{"x": 1, "y": "y"}], "word": "v"}]),
]


@pytest.fixture
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """A service with a table of three rows, and no row writer."""
    with service(tmp_path) as made:
        made.client.create_table(T, SCHEMA, stable_row_ids=getattr(request, "param", False))
        first = table_of([full(1), empty(2), full(3)])
        made.client.append(T, first).raise_for_conflict()
        yield made


def table_of(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([schema.field(name) for name in rows[0]]))


def content(dataset: lance.LanceDataset) -> list[str]:
    found = dataset.scanner(blob_handling="all_binary").to_table().to_pylist()
    return sorted(repr(sorted(row.items())) for row in found)


@pytest.mark.slow
def test_writes_that_are_too_large_together_are_read_in_parts(
    running: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, parts = running.client, []

    def at_most_two(info: TableInfo, given: Sequence[Given]) -> list[Write | RowsUnusable]:
        if len(given) > 2:
            raise MemoryError("the rows are too many bytes once they are decompressed")
        parts.append(len(given))
        return read_writes(info, given)

    for mode, rows in WRITES:
        ticket = client.write_rows(
            T, table_of(rows), mode=mode, on=None if mode == "append" else "id"
        )
        ticket.result(60, "accepted")
    whole = content(client.open(T, fresh=True))
    monkeypatch.setattr(fresh, "read_writes", at_most_two)
    assert content(client.open(T, fresh=True)) == whole
    assert parts == [2, 1, 2]
    monkeypatch.setattr(fresh, "read_writes", Mock(side_effect=MemoryError))
    with pytest.raises(MemoryError):
        client.open(T, fresh=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "running", [False, True], indirect=True, ids=["addresses", "stable_row_ids"]
)
def test_views_of_tables_branches_and_clones_hold_nested_rows_and_nulls(running: Service) -> None:
    client = running.client
    head = client.table(T)
    tables = [T, "ns$t@dev", "ns$c"]
    for name, branch in zip(tables[1:], ("dev", None), strict=True):
        clone = lance.LanceOperation.Clone(True, None, head.version, head.location, branch)
        client.submit(name, clone).result(60).raise_for_conflict()
    seen: list[tuple[str, Any, list[str]]] = []
    for number, (mode, rows) in enumerate(WRITES):
        for table in tables:
            on = None if mode == "append" else "id"
            ticket = client.write_rows(table, table_of(rows), mode=mode, on=on)
            ticket.result(60, "accepted")
            view, tag = client.open(table, fresh=True), f"after-{len(seen)}"
            client.tag(tag)
            seen.append((table, (view.position, tag), content(view)))
        if number == 2:
            RowWriter(client).drain(threading.Event())
    waits = {table: content(client.open(table, fresh=True)) for table in tables}
    RowWriter(client).drain(threading.Event())
    assert {table: content(client.open(table)) for table in tables} == waits
    assert len(set(map(str, waits.values()))) == 1, "as all were written alike"
    for table, positions, shown in seen:
        for position in positions:
            again = client.open(table, fresh=True, position=position)
            assert content(again) == shown, (table, position)


@pytest.mark.slow
def test_views_show_the_blobs_of_versions_below(running: Service) -> None:
    client = running.client
    client.create_table("ns$b", BLOBS, primary_key="id")
    values = [b"", None, b"\x00\xff", b"x" * 100_000, b"y" * 5_000_000]
    rows = pa.table([pa.array(range(5), pa.int64()), lance.blob_array(values)], schema=BLOBS)
    client.append("ns$b", rows).raise_for_conflict()
    for mode, id in (("append", 10), ("delete", 2)):
        client.write_rows("ns$b", [{"id": id}], mode=mode).result(60, "accepted")
    waits = content(client.open("ns$b", fresh=True))
    assert len(waits) == 5
    assert any("yyyy" in one for one in waits)
    RowWriter(client).drain(threading.Event())
    assert content(client.open("ns$b")) == waits


@pytest.mark.slow
def test_copies_of_a_view_are_read_only_and_keep_its_folder(running: Service) -> None:
    client = running.client
    client.write_rows(T, [empty(4)]).result(60, "accepted")
    view = client.open(T, fresh=True)
    position, folder = view.position, Path(view.uri)
    copies = [view.checkout_version(view.version), copy.copy(view), copy.deepcopy(view)]
    for made in copies:
        assert (made.position, made.count_rows()) == (position, 4)
        with pytest.raises(InvalidRequest, match="fresh view is read-only"):
            made.insert(table_of([empty(5)]))
        with pytest.raises(InvalidRequest, match="fresh view is read-only"):
            lance.write_dataset(table_of([empty(5)]), made, mode="append")
    del view, made, copies[2]
    gc.collect()
    assert folder.is_dir()
    copies.clear()
    gc.collect()
    assert not folder.exists()


def test_what_names_no_position_makes_no_view(running: Service) -> None:
    wrong: dict[Any, str] = {
        "no-such-tag": "no tag",
        "99": "beyond the end",
        "2999-01-01T00:00:00Z": "in the future",
    }
    for position, said in [*wrong.items(), ({0: 0}, "is no position")]:
        with pytest.raises(InvalidRequest, match=said) as error:
            running.client.scan(T, fresh=True, position=position)
        assert error.value.field == "position"
