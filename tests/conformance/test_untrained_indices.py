"""Vector indices that are made before there are rows to learn them from, as Lance makes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from commitlog.core.schema_check.index_entries import files_of
from commitlog.lancepb.table_pb2 import IndexMetadata
from commitlog.model.limits import UNTRAINED_INDICES_SINCE
from consumers.tools.maintenance.maintenance import Maintenance
from consumers.tools.verify import VerifyOptions, verify
from tests.service import Service, service

T = "shop$vectors"
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), 2))])
PQ: dict[str, Any] = {"num_partitions": 1, "num_sub_vectors": 1}


def vectors(first: int, count: int, value: float | None = 0.5) -> pa.Table:
    made = [None if value is None else [value + n, 1.0] for n in range(count)]
    return pa.table({"id": range(first, first + count), "v": made}, schema=SCHEMA)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Service]:
    with service(tmp_path / "root") as running:
        running.client.create_table(T, SCHEMA)
        yield running


def nearest(dataset: lance.LanceDataset) -> list[int]:
    found = dataset.to_table(nearest={"column": "v", "q": [3.4, 1.0], "k": 2})
    return sorted(found["id"].to_pylist())


def test_such_an_index_finds_all_rows_and_is_learned_later(made: Service) -> None:
    log = made.client
    log.create_index(T, "v", "IVF_PQ", **PQ)
    assert nearest(log.open(T)) == []
    log.append(T, vectors(0, 10))
    assert nearest(log.open(T)) == [2, 3]
    handle = log.open(T)
    handle.create_index("v", "IVF_PQ", replace=True, **PQ)  # ten rows aren't enough either
    log.append(T, vectors(10, 300))
    log.optimize(T)
    dataset = lance.dataset(log.table(T).location)
    assert dataset.stats.index_stats("v_idx")["num_indexed_rows"] == 310
    assert verify(made.log, 0, VerifyOptions(made.root, contents=True)).problems == []


def test_it_is_not_optimized_again_and_again(made: Service) -> None:
    """Each optimization of an index that can't be learned is a version that changes nothing."""
    made.client.create_index(T, "v", "IVF_PQ", **PQ)
    made.client.append(T, vectors(0, 1_200, None))
    maintenance = Maintenance(made.client)

    def kinds() -> list[str]:
        return [act.kind for act in maintenance.look()]

    assert [act.kind for act in maintenance.look(dry_run=True)] == ["optimize"]
    assert [kinds() for _ in range(3)] == [["optimize"], [], []]
    made.client.append(T, vectors(1_200, 1_200))
    assert [kinds() for _ in range(2)] == [["optimize"], []]
    stats = made.client.open(T).stats.index_stats("v_idx")
    assert stats["num_unindexed_rows"] == 0


@pytest.mark.parametrize(
    ("covered", "protocol", "needed"),
    [
        (BitMap().serialize(), UNTRAINED_INDICES_SINCE, []),
        (BitMap().serialize(), UNTRAINED_INDICES_SINCE - 1, [("index.idx", 0)]),
        (BitMap([0]).serialize(), UNTRAINED_INDICES_SINCE, [("index.idx", 0)]),
        (b"", UNTRAINED_INDICES_SINCE, [("index.idx", 0)]),  # it doesn't say what it covers
    ],
)
def test_others_and_those_of_older_logs_need_their_file(
    covered: bytes, protocol: int, needed: list[tuple[str, int]]
) -> None:
    index = IndexMetadata(fragment_bitmap=covered)
    index.index_details.type_url = "/lance.index.pb.VectorIndexDetails"
    assert list(files_of(index, protocol)) == needed
    index.index_details.type_url = "/lance.index.pb.BTreeIndexDetails"
    assert list(files_of(index, protocol)) == [("page_lookup.lance", 0)]
