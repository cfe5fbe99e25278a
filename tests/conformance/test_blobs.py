"""Blob columns by every path, beside plain pylance in each storage version that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog import InvalidTransaction
from tests.namespace_world import World

LEGACY = pa.field("b", pa.large_binary(), metadata={b"lance-encoding:blob": b"true"})
VERSIONS = ("2.0", "2.1", "2.2", "2.3")
LARGE, DEDICATED = 200_000, 5_000_000
UPSERT = "on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


def schema_of(*, legacy: bool) -> pa.Schema:
    blob = LEGACY if legacy else lance.blob_field("b")
    return pa.schema([pa.field("id", pa.int64()), blob, pa.field("n", pa.int32())])


def rows_of(ids: list[int], mark: int, *, legacy: bool, size: int = 10) -> pa.Table:
    """Return rows whose blobs are small, large, empty and null."""
    values = [
        None if i % 5 == 4 else b"" if i % 5 == 3 else bytes([mark, i % 250]) * size for i in ids
    ]
    schema = schema_of(legacy=legacy)
    blobs = pa.array(values, pa.large_binary()) if legacy else lance.blob_array(values)
    numbers = pa.array([mark * 10 + i for i in ids], pa.int32())
    return pa.table([pa.array(ids, pa.int64()), blobs, numbers], schema=schema)


@dataclass
class Writes:
    """How one path writes."""

    append: Callable[[pa.Table], Any]
    merge: Callable[[pa.Table], Any]
    update: Callable[[str, str], Any]
    delete: Callable[[str], Any]


def by_client(world: World, table: str) -> Writes:
    log = world.log
    return Writes(
        lambda rows: log.append(table, rows).raise_for_conflict(),
        lambda rows: log.merge_insert(table, rows, "id").raise_for_conflict(),
        lambda value, where: log.update(table, {"n": value}, where).raise_for_conflict(),
        lambda where: log.delete(table, where).raise_for_conflict(),
    )


def by_pylance(open_: Callable[[], lance.LanceDataset]) -> Writes:
    def merge(rows: pa.Table) -> Any:
        builder = open_().merge_insert("id").when_matched_update_all()
        return builder.when_not_matched_insert_all().execute(rows)

    return Writes(
        lambda rows: lance.write_dataset(rows, open_(), mode="append"),
        merge,
        lambda value, where: open_().update({"n": value}, where),
        lambda where: open_().delete(where),
    )


def by_http(world: World, table: str) -> Writes:
    def good(answer: tuple[int, Any]) -> Any:
        assert answer[0] == 200, answer
        return answer[1]

    place = f"/v1/table/{table}"
    return Writes(
        lambda rows: good(world.rows(f"{place}/insert", rows)),
        lambda rows: good(world.rows(f"{place}/merge_insert?{UPSERT}", rows)),
        lambda value, where: good(
            world.post(f"{place}/update", {"predicate": where, "updates": [["n", value]]})
        ),
        lambda where: good(world.post(f"{place}/delete", {"predicate": where})),
    )


def contents(dataset: lance.LanceDataset) -> list[dict[str, Any]]:
    """Return all rows with the bytes of their blobs, read in both ways."""
    read = dataset.scanner(blob_handling="all_binary", with_row_address=True).to_table()
    rows: list[dict[str, Any]] = read.sort_by("id").to_pylist()
    addresses = [row.pop("_rowaddr") for row in rows]
    taken = dataset.take_blobs("b", addresses=addresses)
    values = [None if file is None else file.readall() for file in taken]
    assert values == [row["b"] for row in rows]
    return rows


def made(world: World, where: Path, version: Any, legacy: bool) -> tuple[str, str]:
    """Register a table of a storage version; return its name, and a twin that pylance keeps."""
    table, plain = f"{world.fresh_name()}$t", str(where / "plain")
    ours = world.tables_root / f"of {table}"
    for place in (str(ours), plain):
        lance.write_dataset(rows_of([], 0, legacy=legacy), place, data_storage_version=version)
    world.log.register_table(table, str(ours)).raise_for_conflict()
    return table, plain


@pytest.mark.parametrize("path", ["client", "native", "http"])
@pytest.mark.parametrize(
    ("version", "legacy"),
    [(version, True) for version in VERSIONS] + [("2.2", False), ("2.3", False)],
)
def test_blobs_are_what_plain_pylance_leaves(
    world: World, tmp_path: Path, version: str, legacy: bool, path: str
) -> None:
    table, plain = made(world, tmp_path, version, legacy)

    def open_ours() -> lance.LanceDataset:
        return world.log.open(table)

    by_path = {
        "client": by_client(world, table),
        "native": by_pylance(open_ours),
        "http": by_http(world, table),
    }
    ours = by_path[path]
    theirs = by_pylance(lambda: lance.dataset(plain))

    def both(work: Callable[[Writes], Any]) -> None:
        work(ours)
        work(theirs)
        assert contents(open_ours()) == contents(lance.dataset(plain))
        assert open_ours().schema.equals(lance.dataset(plain).schema, check_metadata=True)

    def rows(ids: list[int], mark: int, size: int = 10) -> pa.Table:
        return rows_of(ids, mark, legacy=legacy, size=size)

    both(lambda p: p.append(rows([0, 1, 2, 3, 4], 1)))
    both(lambda p: p.append(rows([5, 6, 7, 8], 2, LARGE)))
    both(lambda p: p.append(rows([10], 3).drop_columns(["b"])))
    both(lambda p: p.update("n + 1", "id in (1, 4, 6)"))
    both(lambda p: p.merge(rows([2, 7, 11], 4, LARGE)))
    both(lambda p: p.merge(rows([1, 5, 12], 5).drop_columns(["b"])))
    both(lambda p: p.delete("id in (0, 6)"))
    for dataset in (open_ours(), lance.dataset(plain)):
        dataset.optimize.compact_files()
    both(lambda p: p.append(rows([20, 21], 6)))
    both(lambda p: p.update("n + 1", "id > 1"))
    assert len(contents(open_ours())) == 12


@pytest.mark.parametrize("path", ["client", "native", "http"])
def test_a_column_of_nulls_becomes_one_of_blobs_as_in_pylance(
    world: World, tmp_path: Path, path: str
) -> None:
    table, plain = f"{world.fresh_name()}$t", str(tmp_path / "plain")
    ours = str(world.tables_root / f"of {table}")
    for place in (ours, plain):
        numbers = pa.table({"id": pa.array([1], pa.int64())})
        lance.write_dataset(numbers, place, data_storage_version="2.2").add_columns(LEGACY)
    world.log.register_table(table, ours).raise_for_conflict()

    def open_ours() -> lance.LanceDataset:
        return world.log.open(table)

    by_path = {"client": by_client(world, table), "native": by_pylance(open_ours)}
    writes = by_path.get(path) or by_http(world, table)
    for writer in (writes, by_pylance(lambda: lance.dataset(plain))):
        writer.append(rows_of([2, 4], 1, legacy=True).drop_columns(["n"]))
        writer.merge(rows_of([1, 5], 2, legacy=True).drop_columns(["n"]))
    assert open_ours().schema.equals(lance.dataset(plain).schema, check_metadata=True)
    assert contents(open_ours()) == contents(lance.dataset(plain))


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "v2"])
def test_tables_of_our_own_store_blobs_as_pylance_does(
    world: World, tmp_path: Path, legacy: bool
) -> None:
    table = f"{world.fresh_name()}$t"
    first = rows_of([1, 2, 3, 4], 1, legacy=legacy, size=DEDICATED)
    plain = str(tmp_path / "plain")
    world.log.create_table(table, first.schema).raise_for_conflict()
    assert world.log.open(table).schema.equals(
        lance.write_dataset(first, plain).schema, check_metadata=True
    )
    world.log.append(table, first).raise_for_conflict()
    assert world.log.table(table).schema.equals(lance.dataset(plain).schema)
    assert contents(world.log.open(table)) == contents(lance.dataset(plain))
    more = rows_of([6], 2, legacy=legacy)
    with world.log.transact() as t:
        t.append(table, {"id": [5], "b": [b"five"], "n": [5]})
        t.append(table, more)
    with world.log.transact() as t:
        t.merge_insert(table, [{"id": 2, "b": b"two"}], "id")
    found = {row["id"]: row["b"] for row in contents(world.log.open(table))}
    assert (found[2], found[5], found[6]) == (b"two", b"five", more["b"].to_pylist()[0]
                                              if legacy else bytes([2, 6]) * 10)  # fmt: skip
    again = f"/v1/table/{table}_http"
    assert world.rows(f"{again}/create", first)[0] == 200
    assert contents(world.log.open(f"{table}_http")) == contents(lance.dataset(plain))


def test_what_cannot_be_a_blob_is_refused(world: World, tmp_path: Path) -> None:
    table, _ = made(world, tmp_path, "2.2", False)
    log = world.log
    log.append(table, rows_of([1], 1, legacy=False)).raise_for_conflict()
    for value, says in ((5, "5"), ("", "uri cannot be empty")):
        with pytest.raises(InvalidTransaction, match=says):
            log.append(table, {"id": [2], "b": [value]})
    with pytest.raises(InvalidTransaction, match="'b' of .* holds blobs"):
        log.update(table, {"b": b"x"}, "id = 1")
    (tmp_path / "secret").write_bytes(b"secret")
    outside = lance.blob_array([f"file://{tmp_path}/secret"])
    with pytest.raises(InvalidTransaction, match="External blob"):
        log.append(table, pa.table({"id": [3], "b": outside}))
    read = log.open(table).to_table()
    with pytest.raises(InvalidTransaction, match="column 'b'"):
        log.append(table, read)
    assert [row["id"] for row in contents(log.open(table))] == [1]


def test_no_blob_is_left_of_an_attempt_that_failed(world: World, tmp_path: Path) -> None:
    table, _ = made(world, tmp_path, "2.2", False)

    data = Path(world.log.table(table).location) / "data"

    def files() -> int:
        return len([p for p in data.rglob("*") if p.is_file()])

    def fail() -> None:
        with world.log.transact() as t:
            t.append(table, rows_of([1], 1, legacy=False, size=LARGE))
            assert files() == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert files() == 0
