"""A chain of manifests built here, beside the same transactions committed by pylance alone."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from lance.fragment import RowIdSequence, write_fragments

from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, encode_manifest, manifest_name
from commitlog.core.lance.direct import direct_delta
from commitlog.core.manifest.manifest_state import ManifestDelta, NotDirect, apply_delta
from commitlog.lancepb.transaction_pb2 import Transaction
from tests.conformance.lance_history import assert_same_version, head, read_version, validate
from tests.lance_messages import to_transaction_bytes

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("place", pa.struct([pa.field("x", pa.float64()), pa.field("y", pa.float64())])),
        pa.field("tags", pa.list_(pa.string())),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": list(ids),
            "name": [f"n{i}" for i in ids],
            "place": [{"x": float(i), "y": None} for i in ids],
            "tags": [["a"] * (i % 3) for i in ids],
        },
        schema=SCHEMA,
    )


class Twins:
    """Two datasets with one history: pylance writes one, we write the other."""

    def __init__(self, folder: Path, *, stable_row_ids: bool) -> None:
        self.theirs, self.ours = folder / "pylance", folder / "ours"
        lance.write_dataset(
            rows(0, 60),
            str(self.theirs),
            max_rows_per_file=20,
            enable_stable_row_ids=stable_row_ids,
        )
        self.next_id = 60
        self.opened().create_scalar_index("id", "BTREE")
        self.state, _ = head(self.theirs)
        shutil.copytree(self.theirs, self.ours)

    def opened(self) -> lance.LanceDataset:
        return lance.dataset(str(self.theirs))

    def commit(self, operation: lance.LanceOperation.BaseOperation) -> None:
        dataset = self.opened()
        transaction = lance.Transaction(
            dataset.version, operation, str(uuid.uuid4()), {"by": "twins"}
        )
        message = to_transaction_bytes(transaction).message
        lance.LanceDataset.commit(dataset, transaction)
        theirs, recorded = head(self.theirs)
        assert recorded == Transaction.FromString(message)
        self.build(message)
        assert_same_version(self.state, theirs)

    def compact(self, target_rows_per_fragment: int = 1000) -> None:
        """Have pylance compact its table, and build each version that this makes."""
        before = self.state.version
        self.opened().optimize.compact_files(target_rows_per_fragment=target_rows_per_fragment)
        for version in range(before + 1, self.opened().version + 1):
            theirs, transaction = read_version(self.theirs, version)
            self.build(transaction.SerializeToString())
            assert_same_version(self.state, theirs)

    def build(self, message: bytes) -> None:
        delta = direct_delta(self.state, Transaction.FromString(message), timestamp_ms=1_700_000)
        assert ManifestDelta.from_bytes(delta.to_bytes()) == delta
        apply_delta(self.state, delta)
        for folder in ("data", "_deletions", "_indices"):
            if (self.theirs / folder).exists():
                shutil.copytree(self.theirs / folder, self.ours / folder, dirs_exist_ok=True)
        name = manifest_name(self.state.version)
        path = self.ours / VERSIONS_DIRECTORY / name
        path.write_bytes(encode_manifest(self.state, message))

    def assert_same_rows(self) -> None:
        ours, theirs = lance.dataset(str(self.ours)), lance.dataset(str(self.theirs))
        assert ours.version == theirs.version == self.state.version
        validate(ours)
        columns = None if not len(theirs.get_fragments()) else ["id", "name", "place", "tags"]
        left = ours.to_table(columns=columns, with_row_id=True)
        assert left.equals(theirs.to_table(columns=columns, with_row_id=True))
        _, transaction = head(self.ours)
        assert transaction == head(self.theirs)[1]
        if not transaction.rewrite.rewritten_indices:  # for which pylance has no constructor
            assert ours.read_transaction(ours.version) == theirs.read_transaction(theirs.version)


def append(twins: Twins, chance: random.Random) -> lance.LanceOperation.BaseOperation:
    count = chance.randint(1, 30)
    fragments = write_fragments(
        rows(twins.next_id, count),
        str(twins.theirs),
        max_rows_per_file=chance.choice([7, 1000]),
        schema=SCHEMA,
        mode="append",
    )
    twins.next_id += count
    return lance.LanceOperation.Append(fragments)


def delete(twins: Twins, chance: random.Random) -> lance.LanceOperation.BaseOperation:
    dataset = lance.dataset(str(twins.theirs))
    fragments = dataset.get_fragments()
    updated, removed = [], []
    for fragment in chance.sample(fragments, min(len(fragments), chance.randint(0, 3))):
        predicate = chance.choice(["id % 5 = 1", "id % 2 = 0", "true"])
        after = fragment.delete(predicate)
        if after is None:
            removed.append(fragment.fragment_id)
        elif after.deletion_file is not None:
            updated.append(after)
    return lance.LanceOperation.Delete(updated, removed, "chance")


def merge(twins: Twins, chance: random.Random) -> lance.LanceOperation.BaseOperation:
    """Replace some rows, all of a fragment now and then, and insert others."""
    dataset = lance.dataset(str(twins.theirs))
    start = chance.randrange(twins.next_id)
    source = rows(start, min(chance.randint(1, 40), twins.next_id + 5 - start))
    twins.next_id = max(twins.next_id, start + source.num_rows)
    builder = dataset.merge_insert("id").when_matched_update_all()
    if chance.random() < 0.7:
        builder = builder.when_not_matched_insert_all()
    transaction, _ = builder.execute_uncommitted(source)
    assert isinstance(transaction.operation, lance.LanceOperation.Update)
    return transaction.operation


def update_config(twins: Twins, chance: random.Random) -> lance.LanceOperation.BaseOperation:
    def some(replace: bool) -> lance.LanceOperation.UpdateMap:
        keys = chance.sample("abcd", 2)
        values = {key: chance.choice([None, "1", "2"]) for key in keys}
        return lance.LanceOperation.UpdateMap(values, replace)

    return lance.LanceOperation.UpdateConfig(
        config_updates=chance.choice([None, some(False), some(True)]),
        table_metadata_updates=chance.choice([None, some(False), some(True)]),
        schema_metadata_updates=chance.choice([None, some(False), some(True)]),
        field_metadata_updates=chance.choice(
            [None, {1: some(False)}, {0: some(True), 3: some(True)}]
        ),
    )


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("seed", range(6))
def test_a_history_of_our_manifests_equals_pylances(
    tmp_path: Path, seed: int, stable_row_ids: bool
) -> None:
    chance = random.Random(seed)
    twins = Twins(tmp_path, stable_row_ids=stable_row_ids)
    for _ in range(12):
        makes = [append, append, delete, delete, update_config, None]
        make = chance.choice(makes if stable_row_ids else [*makes, merge, merge])
        if make is None:
            twins.compact(chance.choice([25, 1000]))
        else:
            twins.commit(make(twins, chance))
        twins.assert_same_rows()


def test_new_fragments_without_ids_beside_an_index_are_left_to_pylance(tmp_path: Path) -> None:
    """It lets no index cover them; here one did, and lost their rows."""
    twins = Twins(tmp_path, stable_row_ids=True)
    old = twins.opened().get_fragments()[:2]
    moved = pa.concat_tables([fragment.to_table(with_row_id=True) for fragment in old])
    [new] = write_fragments(moved.drop_columns("_rowid"), str(twins.theirs), schema=SCHEMA)
    new.row_id_meta = RowIdSequence(moved["_rowid"].to_pylist()).to_inline_metadata()
    group = lance.LanceOperation.RewriteGroup([fragment.metadata for fragment in old], [new])
    with pytest.raises(NotDirect, match="the id that it doesn't have yet"):
        twins.commit(lance.LanceOperation.Rewrite([group], []))


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable_row_ids"])
def test_a_table_emptied_by_a_delete_goes_on_with_new_ids(
    tmp_path: Path, stable_row_ids: bool
) -> None:
    chance = random.Random(0)
    twins = Twins(tmp_path, stable_row_ids=stable_row_ids)
    everything = [f.fragment_id for f in lance.dataset(str(twins.theirs)).get_fragments()]
    twins.commit(lance.LanceOperation.Delete([], everything, "true"))
    twins.assert_same_rows()
    twins.commit(append(twins, chance))
    twins.assert_same_rows()
    assert min(twins.state.fragments) == 3


def test_a_fragment_written_in_another_file_format_mixes_formats(tmp_path: Path) -> None:
    twins = Twins(tmp_path, stable_row_ids=False)
    fragments = write_fragments(
        rows(60, 5), str(tmp_path / "elsewhere"), schema=SCHEMA, data_storage_version="2.1"
    )
    shutil.copytree(tmp_path / "elsewhere" / "data", twins.theirs / "data", dirs_exist_ok=True)
    twins.commit(lance.LanceOperation.Append(fragments))
    twins.assert_same_rows()


def test_a_primary_key_is_set_by_field_metadata(tmp_path: Path) -> None:
    twins = Twins(tmp_path, stable_row_ids=False)
    key: dict[str, str | None] = {
        "lance-schema:unenforced-primary-key": "true",
        "ARROW:extension:name": "own",
    }
    updates = {0: lance.LanceOperation.UpdateMap(key)}
    twins.commit(lance.LanceOperation.UpdateConfig(field_metadata_updates=updates))
    twins.assert_same_rows()
    assert twins.state.header.fields[0].unenforced_primary_key


INDICES = ("BTREE", "BITMAP", "LABEL_LIST", "NGRAM", "ZONEMAP", "BLOOMFILTER", "INVERTED")
COLUMNS = {"LABEL_LIST": "tags", "NGRAM": "name", "INVERTED": "name"}


@pytest.mark.parametrize("stable_row_ids", [False, True], ids=["addresses", "stable_row_ids"])
@pytest.mark.parametrize("kind", INDICES)
def test_a_compaction_takes_indices_of_each_kind_along(
    tmp_path: Path, kind: Any, stable_row_ids: bool
) -> None:
    twins = Twins(tmp_path, stable_row_ids=stable_row_ids)
    column = COLUMNS.get(kind, "id")
    twins.opened().create_scalar_index(column, kind, name="another")
    lance.write_dataset(rows(60, 5), str(twins.theirs), mode="append")  # which no index covers
    twins.opened().delete("id % 7 = 3")
    twins.state, _ = head(twins.theirs)
    shutil.rmtree(twins.ours)
    shutil.copytree(twins.theirs, twins.ours)
    if stable_row_ids and kind in ("NGRAM", "ZONEMAP", "BLOOMFILTER"):
        with pytest.raises(NotDirect, match="index 'another' may hold addresses of rows"):
            twins.compact()
        return
    twins.compact()
    twins.assert_same_rows()
    assert len(twins.state.fragments) == 2, "what no index covers stays apart"
