"""A deletion file of Arrow's costs its bytes, whatever it claims to hold."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from commitlog.codecs.arrow_claims import claimed_bytes
from commitlog.codecs.deletion_file import found_deletions


def written(batches: Sequence[Any], compression: str | None, **more: bool) -> bytes:
    sink, schema = io.BytesIO(), pa.schema([("row_id", pa.uint32())])
    options = pa.ipc.IpcWriteOptions(compression=compression, **more)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for rows in batches:
            writer.write_batch(pa.record_batch([pa.array(rows, pa.uint32())], schema=schema))
    return sink.getvalue()


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("batches", [[], [[]], [[1, 2, 3]], [range(1000), range(5000, 9000)]])
@pytest.mark.parametrize("is_old", [True, False])
def test_rows_are_counted_without_being_decompressed(
    compression: str | None, batches: list[Sequence[int]], is_old: bool
) -> None:
    data = written(batches, compression, use_legacy_format=is_old)
    assert claimed_bytes(data) == 4 * sum(map(len, batches))
    found = found_deletions("a.arrow", data).vector
    assert found is not None
    assert list(found) == [row for rows in batches for row in rows]


def test_rows_that_are_named_millions_of_times_are_refused_unread() -> None:
    """Of 31 KB came a gigabyte, and a minute's work for the leader."""
    zeros = np.zeros(1_000_000, np.uint32)
    for data in (written([zeros], "zstd"), written([zeros] * 3, "zstd")):
        began = time.thread_time()
        assert "it has rows many times" in str(found_deletions("a.arrow", data).error)
        assert time.thread_time() - began < 0.05
    data = written([np.arange(300_000, dtype=np.uint32)], "zstd")
    assert not found_deletions("a.arrow", data).error


def test_a_damaged_file_is_refused_with_its_reason(seed: int) -> None:
    chance, data = random.Random(seed), written([range(500)], "zstd")
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        cut = chance.choice([len(data), chance.randrange(len(data))])
        found = found_deletions("a.arrow", bytes(damaged[:cut]))
        assert found.error or found.vector is not None
