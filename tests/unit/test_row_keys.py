"""Does who remembers where keys are find what a search finds, and do what pylance does?"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows import row_keys
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.row_groups import BaseScan, scan_base
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import ROW_ADDRESS, ROW_ID, Prepared, Search, prepare_delete, scan
from commitlog.errors import InvalidTransaction
from commitlog.lancepb.table_pb2 import Manifest
from tests.properties.test_row_groups import INFO

STEPS = 40
READS_MAX = 20
KINDS = ("append", "append", "delete", "delete", "merge", "compact", "restore", "column")


def key(number: int | None, kind: pa.DataType) -> Any:
    if number is None:
        return None
    return number if pa.types.is_integer(kind) else f"key {number}"


def rows(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Table:
    keys = pa.array([key(number, kind) for number in numbers], kind)
    return pa.table({"id": keys, "a": pa.array(numbers, pa.int64())})


def info_of(dataset: lance.LanceDataset) -> TableInfo:
    """Describe a table as the log would."""
    message: Any = dataset._ds
    manifest = Manifest.FromString(message.serialized_manifest())
    return replace(
        INFO,
        location=dataset.uri,
        version=dataset.version,
        stable_row_ids=dataset.has_stable_row_ids,
        fields=tuple(field.SerializeToString() for field in manifest.fields),
    )


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


@pytest.mark.slow
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
    monkeypatch.setattr(row_keys, "UNSORTED_MAX", chance.choice([1, 20, 1000]))
    known = KnownKeys(searches_first=0)
    start = rows(list(range(30)), kind)
    dataset = lance.write_dataset(start, tmp_path / "t", enable_stable_row_ids=has_stable_ids)
    for step in range(STEPS):
        wanted = {key(number, kind) for number in chance.sample(range(60), 8)}
        scan = BaseScan(tuple(dataset.schema.names), {"id": pa.array(sorted(wanted), kind)})
        found = known.read(info_of(dataset), dataset, scan)
        said = [row for row in found.to_pylist() if row["id"] in wanted]
        searched = scan_base(dataset, scan).to_pylist()
        assert sorted(said, key=lambda row: row[ROW_ADDRESS]) == searched, f"step {step}"
        if chance.random() < 0.3:
            dataset = written(dataset, known, chance)
        else:
            dataset = changed(dataset, chance.choice(KINDS), chance)


def written(
    dataset: lance.LanceDataset, known: KnownKeys, chance: random.Random
) -> lance.LanceDataset:
    """Return a table's next version, which the process itself wrote that remembers its keys."""
    info, of = info_of(dataset), dataset.schema.field("id").type
    data = rows(chance.sample(range(60), chance.randint(1, 12)), of)
    data = data.select(dataset.schema.names)
    fragments = lance.fragment.write_fragments(data, dataset, max_rows_per_file=5)
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    known.wrote(info, Prepared(operation, dataset.version, written=data, added=fragments))
    return lance.dataset(dataset.uri)


def test_keys_that_a_process_wrote_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = lance.write_dataset(rows(list(range(30)), pa.int64()), tmp_path / "t")
    known = KnownKeys(searches_first=0)
    assert place_of(3, known, dataset) == [3]
    monkeypatch.setattr(row_keys, "read_column", None)
    later = written(dataset, known, random.Random(0))
    twin = KnownKeys(searches_first=0)
    found = [place_of(number, known, later) for number in range(60)]
    monkeypatch.undo()
    assert found == [place_of(number, twin, later) for number in range(60)]


def test_a_table_without_a_place_is_searched(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(list(range(30)), pa.int64()), tmp_path / "t")
    scan = BaseScan(("id",), {"id": pa.array([3, 99])})
    known = KnownKeys(80, searches_first=0)
    for name in ("one", "two"):
        found = known.read(replace(INFO, incarnation=name), dataset, scan)
        assert found.column("id").to_pylist() == [3]
    assert [one for one, _ in known._tables] == ["two"]
    small = KnownKeys(40, searches_first=0)
    assert small.read(INFO, dataset, scan).column("id").to_pylist() == [3]
    assert not small._tables or not next(iter(small._tables.values())).count


def test_a_name_that_another_column_gets_means_its_values(tmp_path: Path) -> None:
    both = {"id": pa.array([1, 2, 3]), "other": pa.array([3, 5, 6])}
    dataset = lance.write_dataset(pa.table(both), tmp_path / "t")
    known = KnownKeys(searches_first=0)
    assert place_of(3, known, dataset) == [2]
    names: Any = ({"path": "id", "name": "was"}, {"path": "other", "name": "id"})
    dataset.alter_columns(*names)
    dataset = lance.dataset(dataset.uri)
    assert place_of(3, known, dataset) == [0]


def place_of(number: int, known: KnownKeys, dataset: lance.LanceDataset) -> list[int]:
    found = known.scan(info_of(dataset), dataset, [], f"id = {number}")
    assert found is not None
    return list(found[ROW_ADDRESS].to_pylist())


PREDICATES = (
    *("id = 5", "`id` = 5", " id=5 ", "(id = 5)", "5 = id", "ID = 5", "id = -1", "id = 99999"),
    *("id = 0x5", "id = 5.0", "id = '5'", "id == 5", "id in (5, 6)", "id IN (5,7,99)", "id in ()"),
    *("id = 5 and a > 3", "id = 5 AND a > 90", "id = 5 or a = 7", "id = 5 and a = 5 or a = 6"),
    *(
        "id = 5 and (a = 5 or a = 6)",
        "id = 5 and a is null",
        "not id = 5",
        "id = 5 and nothing = 3",
    ),
    *("id = 5 and a between 1", "id = 5 and a = 5) and (a = 5", "id = 5 -- and a = 3", "id = null"),
    *("id = 5 /* or", "id = 5 and text = 'x'", "text = 'key 5'", "text = ''", "text = 'it''s'"),
    *("text in ('key 5', 'it''s', 'Key 6')", "text = 'KEY 5'", "text = 5", 'text = "key 5"'),
    *("text = 'key 5' and a in (5, 6)", "text = 'key 5' and text <> 'or'", "text = 'a\\\\b'"),
    *(
        "id in (5, '6')",
        "id in (5, null)",
        "id = 5 and true",
        "true = 5",
        "`true` = 5",
        "`a b` = 5",
    ),
    *("id = 5000000000", "id = 99999999999999999999", "small = 5", "small = 300", "small = -5"),
    *("Mixed = 5", "mixed = 5", "`Mixed` = 5", "id = 5 and small = 5 and a = 5", "id = 5;"),
    *("id = 5 + 1", "id = 5 = true", "id in (5) = false", "id = 5 is null", "user = 'me'"),
)


@pytest.mark.slow
@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_predicate_means_what_it_means_to_lance(tmp_path: Path, predicate: str) -> None:
    texts = ["key 5", "it's", "Key 6", "", "a\\b", "KEY 5", *(f"key {n}" for n in range(14))]
    numbers = [*range(5), None, *range(5, 18), 5]
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "a": pa.array(numbers, pa.int64()),
            "text": texts,
            "small": pa.array([n and n * 15 for n in numbers], pa.uint8()),
            "Mixed": pa.array(numbers, pa.int64()),
            "true": pa.array(numbers, pa.int64()),
            "user": texts,
        }
    )
    dataset = lance.write_dataset(table, tmp_path / "t", max_rows_per_file=7)
    dataset.delete("a = 17")
    known, info = KnownKeys(searches_first=0), info_of(dataset)
    for columns in (["a"], []):

        def read(search: Search | None, columns: list[str] = columns) -> Any:
            try:
                found = scan(dataset, columns, predicate, info, search=search)
                return found.select([*columns, ROW_ADDRESS, ROW_ID]).to_pylist()
            except InvalidTransaction:
                return "refused"

        assert read(known.scan) == read(None)


@pytest.mark.parametrize(
    "behind", [" junk", " LIMIT 0", " a = 3", "; DROP", " 'x'", ", a = 3", " ORDER BY a"]
)
def test_a_predicate_with_something_behind_it_is_refused(tmp_path: Path, behind: str) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 5], "a": [1, 2]}), tmp_path / "t")
    info = info_of(dataset)
    for predicate in ("id = 5", "id > 0", "id = 5 and a = 2"):
        assert scan(dataset, [], f"{predicate} ; ", info).num_rows > 0
        assert scan(dataset, [], f"{predicate} -- the fifth", info).num_rows > 0
        with pytest.raises(InvalidTransaction, match="can't evaluate"):
            scan(dataset, [], predicate + behind, info)
    with pytest.raises(InvalidTransaction, match="can't evaluate"):
        scan(dataset, {"a": f"a + 1{behind}"}, None, info)


@pytest.mark.parametrize("computed", ["max(a) > 1", "row_number() over () > 1"])
def test_lances_own_values_are_no_part_of_a_refusal(tmp_path: Path, computed: str) -> None:
    dataset = lance.write_dataset(pa.table({"id": [1, 5], "a": [1, 2]}), tmp_path / "t")
    with pytest.raises(InvalidTransaction, match=r"logical expression \w+\. Use SQL over"):
        scan(dataset, [], computed, info_of(dataset))


@pytest.mark.slow
@pytest.mark.parametrize("has_stable_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string()], ids=str)
def test_a_merge_does_what_pylance_does(
    tmp_path: Path, kind: pa.DataType, has_stable_ids: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, known = random.Random(seed), KnownKeys(searches_first=0)
    numbers = [*range(20), *range(5), None, None]  # some keys twice, some null
    start = rows(numbers, kind)
    dataset = lance.write_dataset(start, tmp_path / "t", enable_stable_row_ids=has_stable_ids)
    twin = lance.write_dataset(start, tmp_path / "twin", enable_stable_row_ids=has_stable_ids)
    for step in range(STEPS):
        of = chance.sample(range(40), chance.randint(1, 6))
        source = rows(of, kind).set_column(1, "a", pa.array([step + 100] * len(of)))
        options = MergeOptions(when_not_matched_insert_all=chance.random() < 0.7)
        info = info_of(dataset)
        made = prepare_merge(info, dataset, source, ["id"], options, known)
        by_pylance = prepare_merge(info_of(twin), twin, source, ["id"], options)
        assert made.counts == by_pylance.counts, f"step {step}"
        assert type(made.operation) is type(by_pylance.operation)
        told = ("fields_modified", "fields_for_preserving_frag_bitmap", "update_mode")
        for name in told:
            assert getattr(made.operation, name) == getattr(by_pylance.operation, name), name
        taken = [sum(map(len, one.affected.values())) for one in (made, by_pylance)]
        assert taken[0] == taken[1] == made.counts["updated"]
        dataset = lance.LanceDataset.commit(dataset, made.operation, read_version=dataset.version)
        twin = lance.LanceDataset.commit(twin, by_pylance.operation, read_version=twin.version)
        if chance.random() < 0.3:
            where = f"a = {step + 100 - chance.randint(1, 5)}"
            for one in (dataset, twin):
                one.delete(where)
        if chance.random() < 0.1:
            for one in (dataset, twin):
                one.optimize.compact_files()
        dataset, twin = lance.dataset(dataset.uri), lance.dataset(twin.uri)
        assert content(dataset) == content(twin), f"step {step}"


def content(dataset: lance.LanceDataset) -> list[str]:
    return sorted(map(str, dataset.to_table().to_pylist()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's counts of reads")
def test_one_row_of_many_fragments_is_found_without_reading_them(tmp_path: Path) -> None:
    dataset = lance.write_dataset(
        rows(list(range(600)), pa.int64()), tmp_path / "t", max_rows_per_file=2
    )
    known, info = KnownKeys(searches_first=0), info_of(dataset)
    source = rows([299], pa.int64())

    def delete(known: KnownKeys | None) -> Prepared:
        search = known.scan if known else None
        return prepare_delete(info, dataset, "id = 299", search=search)

    def merge(known: KnownKeys | None) -> Prepared:
        return prepare_merge(info, dataset, source, ["id"], MergeOptions(), known)

    for act in (delete, merge):
        reads = []
        for who in (None, known):
            act(who)  # opens what it needs
            before = read_calls()
            act(who)
            reads.append(read_calls() - before)
        assert reads[1] <= READS_MAX < 300 <= reads[0], (act.__name__, reads)


def read_calls() -> int:
    """Return how often this process read from files so far."""
    said = Path("/proc/self/io").read_text()
    return int(dict(line.split(": ") for line in said.splitlines())["syscr"])
