"""Indices that are committed behind what others did: coverage, generations, fragment reuse."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from pyroaring import BitMap

from commitlog.codecs.manifest_file import encode_manifest, manifest_name
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX
from commitlog.errors import TransactionRejected
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection, MemWalIndexDetails
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.operations import RegisterTable
from commitlog.model.records import Status
from tests.lance_messages import to_transaction_bytes
from tests.operations_world import (
    T,
    committed,
    manifest,
    message,
    opened,
    submit,
    three_fragments,
)
from tests.service import Service, ids_of, rows

SHARD = uuid.UUID(int=1).bytes


@pytest.fixture(params=[False, True], ids=["addresses", "stable_row_ids"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Make a table of three fragments."""
    with three_fragments(tmp_path, stable_row_ids=request.param) as made:
        yield made


def index_of_names(running: Service) -> Transaction:
    """Return a CreateIndex on `name` for all fragments, as of version 4."""
    index = opened(running).create_index_uncommitted(
        "name", "BTREE", name="by_name", fragment_ids=[0, 1, 2]
    )
    operation = LanceOperation.CreateIndex([index], [])
    encoded = to_transaction_bytes(operation, read_version=4, uuid=str(uuid.uuid4()))
    return Transaction.FromString(encoded.message)


def patched(running: Service) -> LanceOperation.Update:
    """Return an Update that rewrites the column `name` of fragment 1 in place."""
    fragment = opened(running).get_fragments()[1]
    data = pa.table({"id": [4, 6], "name": ["new", "new"]})
    image, fields = fragment.update_columns(data, "id", "id")
    return LanceOperation.Update(
        updated_fragments=[image], fields_modified=fields, update_mode="rewrite_columns"
    )


def entry(running: Service, name: str) -> IndexMetadata:
    """Return the head's index of this name."""
    state, _ = manifest(running, opened(running).version)
    found = IndexSection.FromString(state.index_section or b"").indices
    return next(index for index in found if index.name == name)


def named_new(running: Service) -> list[int]:
    """Return which rows an equality on the indexed column finds."""
    table = opened(running).to_table(filter="name = 'new'")
    return sorted(table["id"].to_pylist())


def test_a_fragment_that_was_patched_meanwhile_is_not_covered(running: Service) -> None:
    create = index_of_names(running)
    committed(running, patched(running))
    committed(running, create.SerializeToString())
    covered = BitMap.deserialize(entry(running, "by_name").fragment_bitmap)
    assert list(covered) == [0, 2]
    assert named_new(running) == [4, 6]
    running.client.open(T).optimize.optimize_indices()
    assert named_new(running) == [4, 6]


def test_an_index_of_unknown_coverage_is_made_again_after_a_patch(running: Service) -> None:
    create = index_of_names(running)
    create.create_index.new_indices[0].ClearField("fragment_bitmap")
    committed(running, patched(running))
    outcome = submit(running, create.SerializeToString())
    assert outcome.status is Status.RETRYABLE
    assert outcome.conflict is not None
    assert outcome.conflict.rule == "create_index_update_index_coverage_unknown"


def test_a_new_mem_wal_takes_in_what_was_compacted_meanwhile(running: Service) -> None:
    running.client.open(T).initialize_mem_wal()
    again = message(running)
    index = again.create_index.new_indices.add(name=MEM_WAL_INDEX, index_version=0)
    index.uuid.uuid = uuid.uuid4().bytes
    index.index_details.type_url = "/lance.table.MemWalIndexDetails"
    details = MemWalIndexDetails(num_shards=2)
    index.index_details.value = details.SerializeToString()
    state = message(running)
    state.update_mem_wal_state.compacted_sstables.add(generation=5).shard_id.uuid = SHARD
    committed(running, state.SerializeToString())
    committed(running, again.SerializeToString())
    standing = MemWalIndexDetails.FromString(entry(running, MEM_WAL_INDEX).index_details.value)
    [compacted] = standing.compacted_sstables
    assert (compacted.shard_id.uuid, compacted.generation, standing.num_shards) == (SHARD, 5, 2)
    index_list, _ = manifest(running, opened(running).version)
    assert len(IndexSection.FromString(index_list.index_section or b"").indices) == 1
    ordinary = index_of_names(running)
    outcome = submit(running, ordinary.SerializeToString())
    assert outcome.status is Status.INCOMPATIBLE, "the MemWAL's state changed under it"


def test_a_compaction_that_defers_its_indices_is_carried_on(tmp_path: Path) -> None:
    # Lance has a fragment reuse index only where rows are found by address.
    with three_fragments(tmp_path, stable_row_ids=False) as running:
        native = running.client.open(T)
        native.create_scalar_index("name", "BTREE", name="by_name")
        native.optimize.compact_files(target_rows_per_fragment=100, defer_index_remap=True)
        check_carried(running)


def check_carried(running: Service) -> None:
    """Reserve, append and delete; the fragment reuse index stays, and filters are right."""
    assert entry(running, FRAGMENT_REUSE_INDEX)
    reserve = message(running)
    reserve.reserve_fragments.num_fragments = 2
    committed(running, reserve.SerializeToString())
    running.client.append(T, rows(50, name="new"))
    running.client.delete(T, "id = 0")
    assert entry(running, FRAGMENT_REUSE_INDEX)
    assert named_new(running) == [50]
    assert ids_of(opened(running)) == [*range(1, 12), 50]
    opened(running).validate()  # type: ignore[no-untyped-call]


def test_a_table_with_an_unknown_feature_is_refused_by_its_name(
    running: Service, tmp_path: Path
) -> None:
    for bit, name in ((13, "independent covering fields"), (40, "bit 40")):
        folder = tmp_path / f"foreign-{bit}"
        dataset = lance.write_dataset(rows(1), str(folder))
        state, _ = manifest(running, 4)
        state.version = dataset.version + 1
        state.reader_feature_flags |= 1 << bit
        path = folder / "_versions" / manifest_name(state.version)
        path.write_bytes(encode_manifest(state, None))
        found = f"_versions/{path.name}"
        incarnation = str(uuid.uuid4())
        register = RegisterTable(("ns", "u"), incarnation, str(folder), state.version, found)
        outcome = running.client.submit(None, register).result()
        assert outcome.status is Status.REJECTED
        assert name in outcome.message
        with pytest.raises(TransactionRejected, match=name):
            outcome.raise_for_conflict()
