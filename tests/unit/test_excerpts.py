"""Do changes for which only some fragments are opened do what pylance does to the whole table?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from commitlog.client.rows import direct, row_keys
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.opening import Opened
from commitlog.client.rows.rows import Prepared, prepare_delete
from commitlog.client.rows.updating import prepare_update
from commitlog.codecs.lance_operations import to_lance_operation
from commitlog.errors import CommitLogError, NoSuchVersion
from tests.unit.test_row_keys import content
from tests.unit.test_without_lance import described, knowing, message_of

STEPS = 25
NESTED = pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.list_(pa.string()))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("f", pa.float64()),
        pa.field("d", pa.dictionary(pa.int32(), pa.string())),
        pa.field("m", pa.decimal128(12, 2)),
        pa.field("s", NESTED),
    ]
)
VALUES = (
    {"f": "f + 1"},
    {"f": float("nan"), "name": "concat(name, '!')"},
    {"id": "id + 1000"},
    {"m": Decimal("7.25"), "f": None},
    {"s": {"x": 3, "y": ["z", None]}},
    {"name": None, "f": "f / 0"},
)
MERGES: tuple[dict[str, Any], ...] = (
    {},
    {"when_not_matched_insert_all": False},
    {"when_matched_update_all_filt": "target.f < source.f"},
    {"when_matched_delete": True},
    {"when_matched_update_all": False},
    {"when_not_matched_by_source_delete": True, "when_not_matched_by_source_delete_filt": "id = 3"},
)


def rows_of(numbers: list[int | None], mark: int) -> pa.Table:
    some = [n if n is not None and n % 3 != 0 else None for n in numbers]
    values: dict[str, list[Any]] = {
        "id": numbers,
        "name": [None if n is None else f"name {n}" for n in numbers],
        "f": [float("nan") if n == 4 else float(mark) for n in numbers],
        "d": [None if n is None else f"word {n % 4}" for n in some],
        "m": [None if n is None else Decimal(mark) / 4 for n in some],
        "s": [None if n is None else {"x": n, "y": ["a", None]} for n in some],
    }
    return pa.table(values, schema=SCHEMA)


class Act:
    """A change of rows, chosen at random: done by what is known, and by Lance alone."""

    def __init__(self, chance: random.Random, step: int) -> None:
        of = chance.sample(range(40), chance.choice([1, 1, 2, 6]))
        numbers = ",".join(map(str, of))
        names = ",".join(f"'name {n}'" for n in of)
        self.kind = chance.choice(["delete", "update", "update", "merge", "merge"])
        self.where = chance.choice(
            [f"id IN ({numbers})", f"id = {of[0]} AND f > 2", f"name IN ({names})", "f > 1e9"]
        )
        self.values = chance.choice(VALUES)
        self.on = chance.choice(["id", "id", "name"])
        self.options = MergeOptions(**chance.choice(MERGES))
        chosen = chance.choice([SCHEMA.names, SCHEMA.names, ["id", "name", "f"], ["name", "id"]])
        self.source = rows_of(list(of), step + 100).select(chosen)

    def __repr__(self) -> str:
        how = {
            "delete": self.where,
            "update": (self.values, self.where),
            "merge": (self.on, self.options, self.source.to_pylist()),
        }
        return f"{self.kind} {how[self.kind]}"

    def directly(self, dataset: lance.LanceDataset, opened: Opened) -> Prepared:
        info = described(dataset)
        if self.kind == "delete":
            return direct.delete(info, opened, self.where)
        if self.kind == "update":
            return direct.update(info, opened, self.values, self.where)
        return direct.merge(info, opened, self.source, [self.on], self.options)

    def by_lance(self, dataset: lance.LanceDataset) -> Prepared:
        info = described(dataset)
        if self.kind == "delete":
            return prepare_delete(info, dataset, self.where)
        if self.kind == "update":
            return prepare_update(info, dataset, self.values, self.where)
        return prepare_merge(info, dataset, self.source, [self.on], self.options)


def committed(dataset: lance.LanceDataset, made: Prepared) -> lance.LanceDataset:
    operation = to_lance_operation(message_of(made))
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def made(act: Any, *given: Any) -> Prepared | type[Exception]:
    try:
        done: Prepared = act(*given)
    except CommitLogError as error:
        return type(error)
    return done


def keys_of(prepared: Prepared) -> set[bytes]:
    hashes = b"" if prepared.keys is None else prepared.keys.hashes
    return {hashes[start : start + 16] for start in range(0, len(hashes), 16)}


@contextmanager
def whole_versions(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Note the versions that are opened whole."""
    found: list[int] = []
    newest = Opened.newest

    def noting(self: Opened, info: Any) -> lance.LanceDataset:
        found.append(info.version)
        return newest(self, info)

    with monkeypatch.context() as patched:
        patched.setattr(Opened, "newest", noting)
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["2.1", "2.2"])
@pytest.mark.parametrize("has_stable_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("indexed", [None, "id", "f"], ids=str)
def test_a_history_is_that_of_pylance(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    storage: Any,
    has_stable_ids: bool,
    indexed: str | None,
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, opened = random.Random(seed), knowing()
    start = rows_of([*range(24), *range(3), None], 1)
    dataset, twin = (
        lance.write_dataset(
            start,
            tmp_path / name,
            enable_stable_row_ids=has_stable_ids,
            data_storage_version=storage,
            max_rows_per_file=5,
        )
        for name in ("t", "twin")
    )
    if indexed is not None:
        for one in (dataset, twin):
            one.create_scalar_index(indexed, "BTREE")
    with whole_versions(monkeypatch) as whole:
        for step in range(STEPS):
            act = Act(chance, step)
            told = f"step {step}: {act}"
            ours, theirs = made(act.directly, dataset, opened), made(act.by_lance, twin)
            if isinstance(ours, type) or isinstance(theirs, type):
                assert ours == theirs, told
                continue
            assert ours.counts == theirs.counts, told
            # What replaces whole rows names the keys that it inserts, and Lance all of them.
            assert keys_of(ours) <= keys_of(theirs), told
            dataset, twin = committed(dataset, ours), committed(twin, theirs)
            assert content(dataset) == content(twin), told
            if chance.random() < 0.2:
                older, kind = chance.randint(1, dataset.version), chance.choice(["old", "small"])
                for one in (dataset, twin):
                    if kind == "small":
                        one.optimize.compact_files()
                    else:
                        before: Any = one.checkout_version(older)
                        before.restore()
                dataset, twin = lance.dataset(dataset.uri), lance.dataset(twin.uri)
                if dataset.version != twin.version:
                    break  # their fragments differ, so one of them had nothing to compact
    assert len(whole) < STEPS * 3 // 4


LEGACY = pa.field("b", pa.large_binary(), metadata={b"lance-encoding:blob": b"true"})


@pytest.mark.slow
@pytest.mark.parametrize("is_legacy", [False, True], ids=["blobs", "legacy_blobs"])
@pytest.mark.parametrize("has_stable_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("values", [{"n": "n + 1"}, {"b": b"new"}], ids=str)
def test_blobs_beside_what_is_updated_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_legacy: bool,
    has_stable_ids: bool,
    values: dict[str, Any],
) -> None:
    blob = LEGACY if is_legacy else lance.blob_field("b")
    schema = pa.schema([pa.field("id", pa.int64()), blob, pa.field("n", pa.int32())])
    held: list[bytes | None] = [None if i % 5 == 4 else bytes([i]) * i * 9_000 for i in range(12)]
    blobs = pa.array(held, pa.large_binary()) if is_legacy else lance.blob_array(held)
    start = pa.table([pa.array(range(12)), blobs, pa.array(range(12), pa.int32())], schema=schema)
    dataset, twin = (
        lance.write_dataset(
            start,
            tmp_path / name,
            enable_stable_row_ids=has_stable_ids,
            data_storage_version="2.1" if is_legacy else "2.2",
            max_rows_per_file=4,
        )
        for name in ("t", "twin")
    )
    opened = knowing()
    with whole_versions(monkeypatch) as whole:
        for where in ("id IN (1, 2, 9)", "id = 3 AND n = 3", "id = 77"):
            ours = made(direct.update, described(dataset), opened, values, where)
            theirs = made(prepare_update, described(twin), twin, values, where)
            if isinstance(ours, type) or isinstance(theirs, type):
                assert ours == theirs
                continue
            assert (ours.counts, len(ours.patches)) == (theirs.counts, len(theirs.patches))
            dataset, twin = committed(dataset, ours), committed(twin, theirs)
            read = [one.scanner(blob_handling="all_binary").to_table() for one in (dataset, twin)]
            assert read[0].sort_by("id").equals(read[1].sort_by("id"))
    assert not whole


def test_a_table_with_an_index_is_merged_in_place_as_lance_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = lance.write_dataset(rows_of([*range(9)], 1), tmp_path / "t", max_rows_per_file=3)
    dataset.create_scalar_index("id", "BTREE")
    source = rows_of([4], 2).select(["id", "f"])
    with whole_versions(monkeypatch) as whole:
        merge = direct.merge(described(dataset), knowing(), source, ["id"], MergeOptions())
    assert whole == [dataset.version]
    assert merge.operation.update_mode == "rewrite_columns"


@pytest.mark.parametrize("kind", ["update", "delete", "partial", "merge"])
def test_a_lost_file_of_another_fragment_is_not_needed(tmp_path: Path, kind: str) -> None:
    dataset = lance.write_dataset(
        rows_of([*range(9)], 1), tmp_path / "t", max_rows_per_file=3, enable_stable_row_ids=True
    )
    opened, act = knowing(), Act(random.Random(0), 0)
    act.kind, act.where, act.options = kind.replace("partial", "merge"), "id = 4", MergeOptions()
    act.on, act.values, act.source = "id", {"f": "f + 1"}, rows_of([4], 7)
    if kind == "partial":
        act.source = act.source.select(["id", "f"])
    assert sum(act.directly(dataset, opened).counts.values()) == 1
    first, second, _ = dataset.get_fragments()
    data = tmp_path / "t" / "data"
    (data / first.metadata.files[0].path).unlink()
    assert sum(act.directly(dataset, opened).counts.values()) == 1
    (data / second.metadata.files[0].path).unlink()
    if kind != "delete":
        with pytest.raises(NoSuchVersion, match="is gone"):
            act.directly(dataset, opened)


def test_new_files_are_written_without_the_fragments_that_are_there(tmp_path: Path) -> None:
    start = rows_of([*range(9)], 1)
    dataset = lance.write_dataset(
        start, tmp_path / "t", max_rows_per_file=3, enable_stable_row_ids=True
    )
    dataset.create_scalar_index("id", "BTREE")
    info, opened = described(dataset), knowing()
    found = opened.for_writing(info)
    assert not found.get_fragments()
    for file in (tmp_path / "t" / "_versions").iterdir():
        file.rename(tmp_path / file.name)
    # Its version was deleted, and Lance would look for its indices.
    deleted = replace(info, deleted=((dataset.version, dataset.version),))
    assert opened.for_writing(deleted) is found
    fragments = write_fragments(rows_of([20], 2), found)
    for file in tmp_path.glob("*.manifest"):
        file.rename(tmp_path / "t" / "_versions" / file.name)
    append = lance.LanceOperation.Append(fragments)
    dataset = lance.LanceDataset.commit(dataset, append, read_version=dataset.version)
    assert dataset.to_table(filter="id = 20").equals(rows_of([20], 2))
    assert dataset.count_rows() == 10


def test_values_of_a_large_table_are_searched_before_they_are_learned(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows_of([*range(120)], 1), tmp_path / "t", max_rows_per_file=1)
    opened = knowing()
    opened.keys = row_keys.KnownKeys()
    source = rows_of([4], 7).select(["id", "f"])
    found = []
    for _ in range(row_keys.SEARCHES_FIRST + 1):
        part = direct.narrowed(described(dataset), opened, "id", source["id"])
        found.append(part is not None)
        direct.merge(described(dataset), opened, source, ["id"], MergeOptions())
    assert found == [*[False] * row_keys.SEARCHES_FIRST, True]
