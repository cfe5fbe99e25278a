"""Are the best rows by an index those that a search of all rows finds, in the long run?"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from tests.service import service

WIDTH, ROWS, NEAREST = 16, 600, 6
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.list_(pa.float32(), WIDTH))])
T = "a$t"


def rows(first: int, end: int) -> pa.Table:
    """Return rows whose vectors are as far from each other as their ids."""
    vectors = np.zeros((end - first, WIDTH), np.float32)
    vectors[:, 0] = np.arange(first, end)
    arrays = [
        pa.array(range(first, end), pa.int64()),
        pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH),
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def nearest(dataset: lance.LanceDataset, to: int, **how: Any) -> list[int]:
    query = np.zeros(WIDTH, np.float32)
    query[0] = to + 0.1
    wanted = {"column": "v", "q": query, "k": NEAREST, **how}
    found = dataset.to_table(nearest=wanted, columns=["id", "_distance"])
    return sorted(found["id"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("by", ["client", "handle"])
def test_rows_that_a_compaction_removed_take_no_place_among_the_nearest(
    tmp_path: Path, by: str
) -> None:
    """Plain Lance finds none here: the index still has the removed rows, which are the nearest."""
    with service(tmp_path) as world:
        log = world.client

        def compact() -> None:
            work = log.open(T).optimize.compact_files if by == "handle" else partial(log.compact, T)
            work(materialize_deletions_threshold=0.01)

        def check(to: int) -> None:
            dataset = log.open(T)
            assert nearest(dataset, to) == nearest(dataset, to, use_index=False)

        log.create_table(T, SCHEMA, stable_row_ids=True)
        for first in range(0, ROWS, 200):
            log.append(T, rows(first, first + 200))
        log.create_index(T, "v", "IVF_FLAT", num_partitions=1)
        log.delete(T, "id >= 100 AND id < 110")
        check(105)
        compact()
        assert len(log.open(T).get_fragments()) == 1
        check(105)
        index = log.open(T).stats.index_stats("v_idx")
        assert (index["num_indexed_rows"], index["num_unindexed_rows"]) == (ROWS - 10, 0)
        log.append(T, rows(ROWS, ROWS + 200))
        log.optimize(T)
        log.delete(T, "id >= 300 AND id < 320")
        versions = log.table(T).version
        compact()
        # The ids are reserved, and the Rewrite commits: the index is as it has to be.
        assert log.table(T).version == versions + 2
        for to in (105, 310, ROWS + 100):
            check(to)
        log.create_index(T, "v", "IVF_FLAT", num_partitions=1, replace=True)
        log.delete(T, "id >= 400 AND id < 420")
        compact()
        check(410)


@pytest.mark.slow
def test_rows_with_new_vectors_are_found_by_these_alone_after_a_compaction(tmp_path: Path) -> None:
    with service(tmp_path) as world:
        log = world.client

        def check() -> None:
            dataset = log.open(T)
            for to in (105, 305, 9_000):
                assert nearest(dataset, to) == nearest(dataset, to, use_index=False)

        log.create_table(T, SCHEMA, primary_key="id", stable_row_ids=True)
        for first in range(0, ROWS, 200):
            log.append(T, rows(first, first + 200))
        log.create_index(T, "v", "IVF_FLAT", num_partitions=1)
        moved = rows(9_000, 9_010).set_column(0, SCHEMA.field(0), [pa.array(range(100, 110))])
        log.merge_insert(T, moved, "id")
        log.delete(T, "id >= 300 AND id < 310")
        check()
        for size in (200, 1_000_000):
            log.compact(T, materialize_deletions_threshold=0.01, target_rows_per_fragment=size)
            check()
        log.optimize(T, num_indices_to_merge=10)
        check()
        log.compact(T)
        assert len(log.open(T).get_fragments()) == 1
        check()


@pytest.mark.slow
def test_rows_that_a_compaction_removed_take_no_place_among_the_best_texts(tmp_path: Path) -> None:
    with service(tmp_path) as world:
        log = world.client
        log.create_table(
            T, pa.schema([("id", pa.int64()), ("t", pa.string())]), stable_row_ids=True
        )
        for first in range(0, ROWS, 200):
            texts = ["dog " * (1 + (i < 10)) + f"w{i}" for i in range(first, first + 200)]
            log.append(T, {"id": list(range(first, first + 200)), "t": texts})
        log.create_index(T, "t", "INVERTED")

        def best() -> list[int]:
            found = log.open(T).to_table(full_text_query="dog", limit=NEAREST, columns=["id"])
            ids: list[int] = found["id"].to_pylist()
            return ids

        assert max(best()) < 10
        log.delete(T, "id < 10")
        left = best()
        log.compact(T, materialize_deletions_threshold=0.01)
        assert len(log.open(T).get_fragments()) == 1
        assert len(best()) == len(left) == NEAREST
        log.append(T, {"id": [ROWS], "t": ["dog dog dog"]})
        log.optimize(T)
        assert best()[0] == ROWS
        assert len(best()) == NEAREST
