"""Do deletes and merges for which Lance opens no version do what they do with Lance?"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import write_fragments

from commitlog.adapters import lance_datasets
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.direct import delete_directly, merge_directly
from commitlog.client.rows.key_numbers import number_of_text, numbers_of
from commitlog.client.rows.merging import MergeOptions, prepare_merge
from commitlog.client.rows.opening import Opened
from commitlog.client.rows.row_keys import KnownKeys
from commitlog.client.rows.rows import Prepared, prepare_delete, remove_files
from commitlog.client.rows.single_rows import FILE_BYTES_MAX, single_value
from commitlog.codecs.lance_objects import to_transaction
from commitlog.codecs.lance_operations import to_lance_operation
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.unit.test_row_keys import PREDICATES, content, info_of, rows

STEPS = 30
KINDS = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.timestamp("us"), pa.timestamp("ns", "UTC")),
)


def knowing() -> Opened:
    """Return what opens tables and reads keys from the first operation on."""

    def no_runtime() -> Any:
        raise AssertionError("every version has its file")

    opened = Opened(no_runtime)
    opened.keys = KnownKeys(searches_first=0)
    return opened


def described(dataset: lance.LanceDataset) -> TableInfo:
    return replace(info_of(dataset), readable_version=dataset.version)


def message_of(prepared: Prepared) -> Transaction:
    if isinstance(prepared.operation, Transaction):
        return prepared.operation
    return to_transaction(prepared.operation, read_version=1, uuid="").message


def comparable(prepared: Prepared) -> Any:
    """Return what a delete says, but for the name and kind of its deletion files."""
    body = message_of(prepared).delete
    images = []
    for image in sorted(body.updated_fragments, key=lambda image: image.id):
        assert image.deletion_file.read_version == prepared.read_version
        count = image.deletion_file.num_deleted_rows
        image.ClearField("deletion_file")
        images.append((image.SerializeToString(deterministic=True), count))
    removed = sorted(body.deleted_fragment_ids)
    return images, removed, body.predicate, prepared.affected, prepared.counts


@pytest.mark.slow
@pytest.mark.parametrize("predicate", PREDICATES)
def test_a_delete_takes_the_rows_that_lance_takes(tmp_path: Path, predicate: str) -> None:
    numbers = [*range(5), None, *range(5, 18), 5]
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "a": pa.array(numbers, pa.int64()),
            "text": [f"key {number}" for number in numbers],
            "small": pa.array([n and n * 15 for n in numbers], pa.uint8()),
            "Mixed": pa.array(numbers, pa.int64()),
            "user": pa.array(numbers, pa.int64()),
        }
    )
    dataset = lance.write_dataset(table, tmp_path / "t", max_rows_per_file=7)
    dataset.delete("a = 17")
    info = described(dataset)
    made = delete_directly(info, knowing(), predicate, None)
    if made is not None:
        assert comparable(made) == comparable(prepare_delete(info, dataset, predicate))


def test_a_delete_by_a_number_is_direct(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(list(range(9)), pa.int64()), tmp_path / "t")
    info, opened = described(dataset), knowing()
    made = delete_directly(info, opened, "id IN (3, 4, 3, 99)", "two rows")
    assert made is not None
    assert made.counts == {"deleted": 2}
    assert made.operation.delete.predicate == "two rows"
    [name] = os.listdir(tmp_path / "t" / "_deletions")
    assert name.endswith(".bin")
    remove_files(info, made)
    assert not os.listdir(tmp_path / "t" / "_deletions")


def test_zero_is_not_null(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows([0, 1, None], pa.int64()), tmp_path / "t")
    info, opened = described(dataset), knowing()
    assert delete_directly(info, opened, "id = 0", None) is None
    assert delete_directly(info, opened, "id = 1", None) is not None


def test_a_gate_is_asked(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows([0, 1], pa.int64()), tmp_path / "t")
    with lance_datasets.behind(lambda _place, _bases, _is_read: None):
        assert delete_directly(described(dataset), knowing(), "id = 1", None) is None


def test_a_version_whose_files_are_gone_is_left_to_lance(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows([0, 1, 2], pa.int64()), tmp_path / "t")
    info, opened = described(dataset), knowing()
    assert delete_directly(info, opened, "id = 1", None) is not None
    dataset.delete("id = 0")
    deleted = described(dataset)
    for name in os.listdir(tmp_path / "t" / "_deletions"):
        os.remove(tmp_path / "t" / "_deletions" / name)
    assert delete_directly(deleted, opened, "id = 1", None) is None
    for name in os.listdir(tmp_path / "t" / "_versions"):
        os.remove(tmp_path / "t" / "_versions" / name)
    assert delete_directly(info, opened, "id = 1", None) is None


def test_another_schema_is_left_to_lance(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows([0, 1, 2], pa.int64()), tmp_path / "t")
    before = described(dataset)
    dataset.add_columns({"b": "a + 1"})
    later = described(dataset)
    assert delete_directly(later, knowing(), "id = 1", None) is not None
    stale = replace(before, version=later.version, readable_version=later.version)
    assert delete_directly(stale, knowing(), "id = 1", None) is None


@pytest.mark.slow
@pytest.mark.parametrize("has_stable_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("has_nulls", [False, True], ids=["whole", "nulls"])
def test_histories_are_those_of_lance(
    tmp_path: Path, has_stable_ids: bool, has_nulls: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, opened = random.Random(seed), knowing()
    start = rows([*range(20), *range(5), *([None] if has_nulls else [])], pa.int64())
    dataset, twin = (
        lance.write_dataset(start, tmp_path / name, enable_stable_row_ids=has_stable_ids)
        for name in ("t", "twin")
    )
    directly = 0
    for step in range(STEPS):
        info = described(dataset)
        of = chance.sample(range(40), chance.choice([1, 1, 1, 5]))
        made: Prepared | None
        if chance.random() < 0.5:
            where = f"id IN ({','.join(map(str, of))})"
            made = delete_directly(info, opened, where, None)
            by_lance = prepare_delete(described(twin), twin, where)
            ours = made or prepare_delete(info, dataset, where)
        else:
            source = rows(of, pa.int64()).set_column(1, "a", pa.array([step + 100] * len(of)))
            options = MergeOptions(when_not_matched_insert_all=chance.random() < 0.7)
            made = merge_directly(info, opened, source, ["id"], options)
            by_lance = prepare_merge(described(twin), twin, source, ["id"], options)
            ours = made or prepare_merge(info, dataset, source, ["id"], options)
        directly += made is not None
        assert ours.counts == by_lance.counts, f"step {step}"
        taken = [sum(map(len, one.affected.values())) for one in (ours, by_lance)]
        assert taken[0] == taken[1], f"step {step}"
        for at, prepared in ((dataset, ours), (twin, by_lance)):
            operation = to_lance_operation(message_of(prepared))
            lance.LanceDataset.commit(at, operation, read_version=at.version)
        dataset, twin = lance.dataset(dataset.uri), lance.dataset(twin.uri)
        if chance.random() < 0.2:
            older = chance.randint(1, dataset.version)
            act = chance.choice(["compact", "restore"])
            for one in (dataset, twin):
                if act == "compact":
                    one.optimize.compact_files()
                else:
                    older_one: Any = one.checkout_version(older)
                    older_one.restore()
            dataset, twin = lance.dataset(dataset.uri), lance.dataset(twin.uri)
            if dataset.version != twin.version:
                return  # their fragments differ, so one of them had nothing to compact
        assert content(dataset) == content(twin), f"step {step}"
    assert directly >= STEPS // 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_the_value_of_a_single_row_is_the_one_that_lance_reads(
    tmp_path: Path, kind: pa.DataType, storage: Any
) -> None:
    bits = kind.bit_width
    is_signed = not pa.types.is_unsigned_integer(kind)
    numbers = [0, 1, 77, 2 ** (bits - 1) - 1, *([-1, -(2 ** (bits - 1))] if is_signed else [])]
    if not is_signed:
        numbers.append(2**bits - 1)
    whole = pa.uint64() if kind == pa.uint64() else pa.int64()
    values: list[Any] = [pa.array([n], whole).cast(kind, safe=False) for n in numbers]
    nested = pa.array([{"a": 5, "b": ["x", "y"]}])
    first = pa.table({"s": nested, "key": values[0], "text": ["one"]})
    dataset = lance.write_dataset(first, tmp_path / "t", data_storage_version=storage)
    [field_id] = [field.id() for field in dataset.lance_schema.fields() if field.name() == "key"]
    for number, value in [*zip(numbers, values, strict=True), (None, pa.nulls(1, kind))]:
        table = pa.table({"s": nested, "key": value, "text": ["one"]})
        encoded = written(table, dataset)
        found = single_value(dataset.uri, encoded, field_id, kind)
        if number is None:
            assert found is None
        elif storage == "2.2":
            assert found == number & (1 << 64) - 1
        else:
            assert found in (None, number & (1 << 64) - 1)
        encoded.physical_rows = 2
        assert single_value(dataset.uri, encoded, field_id, kind) is None


TEXTS = ("key-77", "", "x", "é\0\n", "𝄞" * 40, "x" * 127, "x" * 128, "y" * 30_000, "z" * 70_000)


def written(rows: pa.Table, dataset: lance.LanceDataset) -> DataFragment:
    """Write rows for a dataset; return the fragment as an append names it."""
    [fragment] = write_fragments(rows, dataset)
    operation = lance.LanceOperation.Append([fragment])
    [encoded] = to_transaction(operation, read_version=1, uuid="").message.append.fragments
    return encoded


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("compression", [{}, {"lance-encoding:compression": "zstd"}], ids=str)
@pytest.mark.parametrize("storage", ["2.0", "2.1", "2.2"])
def test_the_text_of_a_single_row_is_the_one_that_lance_reads(
    tmp_path: Path, kind: pa.DataType, compression: dict[str, str], storage: Any
) -> None:
    nested = pa.array([{"a": 5, "b": ["x", "y"]}])
    field = pa.field("key", kind, metadata=compression)
    schema = pa.schema([pa.field("s", nested.type), field, pa.field("text", pa.string())])
    first = pa.table([nested, pa.array(["a"], kind), ["one"]], schema=schema)
    dataset = lance.write_dataset(first, tmp_path / "t", data_storage_version=storage)
    [field_id] = [field.id() for field in dataset.lance_schema.fields() if field.name() == "key"]
    for text in (*TEXTS, None):
        value = pa.array([text], kind)
        encoded = written(pa.table([nested, value, ["one"]], schema=schema), dataset)
        found = single_value(dataset.uri, encoded, field_id, kind)
        known = numbers_of(value)
        assert known is not None
        is_read = text is not None and len(text) < FILE_BYTES_MAX and storage == "2.2"
        assert found in ({known[0]} if is_read else {None, known[0]}), text
        assert found is None or text is not None
        encoded.physical_rows = 2
        assert single_value(dataset.uri, encoded, field_id, kind) is None


def test_no_other_bytes_are_taken_for_a_text(tmp_path: Path) -> None:
    table = pa.table({"id": ["key-7"], "other": [1.5]})
    dataset = lance.write_dataset(table, tmp_path / "t", data_storage_version="2.2")
    encoded = written(table, dataset)
    path = tmp_path / "t" / "data" / encoded.files[0].path
    whole = path.read_bytes()
    seen = set()
    for position in range(len(whole)):
        for bit in (0, 4):
            changed = bytes((whole[position] ^ 1 << bit,))
            path.write_bytes(whole[:position] + changed + whole[position + 1 :])
            seen.add(single_value(dataset.uri, encoded, 0, pa.string()))
        path.write_bytes(whole[:position])
        assert single_value(dataset.uri, encoded, 0, pa.string()) is None
    # Only a changed text is another one.
    changes = [(at, 1 << bit) for at in range(5) for bit in (0, 4)]
    texts = [bytearray(b"key-7"), *(bytearray(b"key-7") for _ in changes)]
    for text, (at, bit) in zip(texts[1:], changes, strict=True):
        text[at] ^= bit
    assert seen <= {None, *(number_of_text(text.decode()) for text in texts)}


def test_no_other_bytes_are_taken_for_a_value(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([1 << 40], pa.int64()), "at": [datetime(2026, 1, 1)]})
    dataset = lance.write_dataset(table, tmp_path / "t")
    encoded = written(table, dataset)
    path = tmp_path / "t" / "data" / encoded.files[0].path
    whole = path.read_bytes()
    seen = set()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes((whole[position] ^ 1,)) + whole[position + 1 :])
        seen.add(single_value(dataset.uri, encoded, 0, pa.int64()))
        path.write_bytes(whole[:position])
        assert single_value(dataset.uri, encoded, 0, pa.int64()) is None
    # Only a changed value is another one.
    assert seen <= {None, 1 << 40, *((1 << 40) ^ (1 << 8 * byte) for byte in range(8))}
    os.remove(path)
    assert single_value(dataset.uri, encoded, 0, pa.int64()) is None


def test_values_that_were_replaced_in_place_are_not_found(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows([0, 1, 2], pa.int64()), tmp_path / "t")
    opened = knowing()
    assert delete_directly(described(dataset), opened, "id = 1", None) is not None
    [fragment] = dataset.get_fragments()
    changed = pa.table({"a": pa.array([1], pa.int64()), "id": pa.array([7], pa.int64())})
    image, modified = fragment.update_columns(changed, "a", "a")
    operation = lance.LanceOperation.Update(
        updated_fragments=[image], fields_modified=modified, update_mode="rewrite_columns"
    )
    dataset = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    info = described(dataset)
    for predicate, count in (("id = 1", 0), ("id = 7", 1), ("id = 2", 1)):
        made = delete_directly(info, opened, predicate, None)
        assert made is None or made.counts == {"deleted": count}, predicate
        made = delete_directly(info, knowing(), predicate, None)
        assert made is None or made.counts == {"deleted": count}, predicate
