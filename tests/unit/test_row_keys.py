"""Does a row writer that remembers where keys are find what a search finds?"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog.client.row_groups import BaseScan, scan_base
from commitlog.client.rows import ROW_ADDRESS
from consumers.tools import row_keys
from consumers.tools.row_keys import KnownKeys
from tests.properties.test_row_groups import INFO

STEPS = 40
KINDS = ("append", "append", "delete", "delete", "merge", "compact", "restore", "column")


def key(number: int, kind: pa.DataType) -> Any:
    return number if pa.types.is_integer(kind) else f"key {number}"


def rows(numbers: list[int], kind: pa.DataType) -> pa.Table:
    keys = pa.array([key(number, kind) for number in numbers], kind)
    return pa.table({"id": keys, "a": pa.array(numbers, pa.int64())})


def changed(dataset: lance.LanceDataset, kind: str, chance: random.Random) -> lance.LanceDataset:
    """Return a table's next version."""
    of = dataset.schema.field("id").type
    numbers = chance.sample(range(60), chance.randint(1, 12))
    if kind == "append":
        dataset.insert(rows(numbers, of))
    elif kind == "delete":
        dataset.delete(f"a IN ({', '.join(map(str, numbers))})")
    elif kind == "merge":
        merge = dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
        merge.execute(rows(numbers, of))
    elif kind == "compact":
        dataset.optimize.compact_files()
    elif kind == "restore":
        older: Any = dataset.checkout_version(chance.randint(1, dataset.version))
        if "id" in older.schema.names:
            older.restore()
    elif kind == "column":  # other keys in the same fragments
        is_text = pa.types.is_string(of)
        dataset.drop_columns(["id"])
        dataset.add_columns({"id": "concat('key ', a)" if is_text else "cast(a + 1 as bigint)"})
    return lance.dataset(dataset.uri)


@pytest.mark.parametrize("has_stable_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_what_is_remembered_is_what_a_search_finds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: pa.DataType,
    has_stable_ids: bool,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    monkeypatch.setattr(row_keys, "SEARCHES_FIRST", 0)
    monkeypatch.setattr(row_keys, "UNSORTED_MAX", chance.choice([1, 20, 1000]))
    known = KnownKeys()
    start = rows(list(range(30)), kind)
    dataset = lance.write_dataset(start, tmp_path / "t", enable_stable_row_ids=has_stable_ids)
    for step in range(STEPS):
        wanted = {key(number, kind) for number in chance.sample(range(60), 8)}
        scan = BaseScan(tuple(dataset.schema.names), {"id": pa.array(sorted(wanted), kind)})
        found = known.read(INFO, dataset, scan)
        said = [row for row in found.to_pylist() if row["id"] in wanted]
        searched = scan_base(dataset, scan).to_pylist()
        assert sorted(said, key=lambda row: row[ROW_ADDRESS]) == searched, f"step {step}"
        dataset = changed(dataset, chance.choice(KINDS), chance)


def test_a_table_without_a_place_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_keys, "SEARCHES_FIRST", 0)
    dataset = lance.write_dataset(rows(list(range(30)), pa.int64()), tmp_path / "t")
    scan = BaseScan(("id",), {"id": pa.array([3, 99])})
    known = KnownKeys(rows_max=40)
    for name in ("one", "two"):
        found = known.read(replace(INFO, incarnation=name), dataset, scan)
        assert found.column("id").to_pylist() == [3]
    assert [one for one, _ in known._tables] == ["two"]
    small = KnownKeys(rows_max=20)
    assert small.read(INFO, dataset, scan).column("id").to_pylist() == [3]
    assert not small._tables or not next(iter(small._tables.values())).count
