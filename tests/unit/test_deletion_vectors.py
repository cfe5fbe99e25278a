"""Deletion vectors: merging them, and the files that hold them."""

from __future__ import annotations

import struct
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from commitlog.codecs.deletion_file import decode_deletion_file, found_deletions
from commitlog.core.manifest.deletion_vectors import deletion_file_id, merge_deletions
from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.manifest.roaring import canonical, from_portable, portable
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile
from tests.unit.manifest_examples import UUID, fragment

ROWS = st.sets(st.integers(min_value=0, max_value=200_000), max_size=300)


def merged(rows: int, deleted: BitMap, affected: BitMap) -> tuple[DataFragment | None, str, bytes]:
    before = fragment(3, rows=rows, deleted=len(deleted)).SerializeToString()
    result = merge_deletions(before, deleted, affected, read_version=8, transaction_id=UUID)
    image = None if result.fragment is None else DataFragment.FromString(result.fragment)
    return image, result.path, result.data


def test_a_merged_vector_holds_both() -> None:
    image, path, data = merged(10, BitMap([1, 2]), BitMap([5]))
    assert image is not None
    assert image.deletion_file == DeletionFile(
        file_type=DeletionFile.BITMAP,
        read_version=8,
        id=deletion_file_id(UUID, 3),
        num_deleted_rows=3,
    )
    assert path == f"_deletions/3-8-{deletion_file_id(UUID, 3)}.bin"
    assert decode_deletion_file(data, DeletionFile.BITMAP) == BitMap([1, 2, 5])


def test_a_fragment_without_rows_left_has_no_image() -> None:
    assert merged(3, BitMap([0, 1]), BitMap([2])) == (None, "", b"")


def test_a_row_beyond_the_fragment_is_refused() -> None:
    with pytest.raises(DeltaRefused) as refused:
        merged(3, BitMap(), BitMap([3]))
    assert refused.value.code == "row_out_of_range"


def test_an_id_tells_transactions_and_fragments_apart() -> None:
    ids = {deletion_file_id(UUID, 1), deletion_file_id(UUID, 2), deletion_file_id("other", 1)}
    assert len(ids) == 3
    assert all(0 <= i < 2**63 for i in ids)


RANGES = st.lists(st.tuples(st.integers(0, 200_000), st.sampled_from([1, 2, 3, 4, 900, 70_000])))


@given(ROWS, ROWS, RANGES)
def test_bytes_follow_from_the_rows_alone(
    left: set[int], right: set[int], ranges: list[tuple[int, int]]
) -> None:
    by_union = BitMap(left) | BitMap(right)
    for start, rows in ranges:
        by_union.add_range(start, start + rows)
    by_runs = BitMap(by_union)
    by_runs.run_optimize()
    by_rows = BitMap(by_union.to_array())
    assert portable(by_union) == portable(by_runs) == by_rows.serialize()
    assert canonical(by_union) == canonical(by_runs) == by_rows.serialize()
    assert decode_deletion_file(portable(by_union), DeletionFile.BITMAP) == by_union


@given(RANGES, st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2))
def test_what_is_read_of_damaged_bytes_is_in_order(
    ranges: list[tuple[int, int]], damages: list[tuple[int, int]]
) -> None:
    made = BitMap([1, 3, 70_000, 70_001, 140_000])
    for start, count in ranges:
        made.add_range(start, start + count)
    made.run_optimize()
    data = bytearray(made.serialize())
    for at, byte in damages:
        data[at % min(len(data), 60)] = byte
    try:
        read = from_portable(bytes(data))
    except UnsupportedFormat:
        return
    # One by one: an array of them is as long as the damaged bytes say, and may be overrun.
    rows = list(read)
    assert len(rows) == len(read)
    assert all(a < b for a, b in pairwise(rows))
    assert BitMap(rows) == read  # which an empty container would prevent
    assert portable(read) == BitMap(rows).serialize()


def bitmap_of(*containers: tuple[int, int, bytes]) -> bytes:
    """Return a bitmap without runs: of each container its key, how many rows it says, its bytes."""
    heads = b"".join(struct.pack("<HH", key, rows - 1) for key, rows, _ in containers)
    offsets = bytes(4 * len(containers))  # nobody reads them
    bodies = b"".join(body for _, _, body in containers)
    return struct.pack("<II", 12346, len(containers)) + heads + offsets + bodies


def runs_of(*runs: tuple[int, int]) -> bytes:
    """Return a bitmap of one container of runs: of each its first and its last row."""
    body = b"".join(struct.pack("<HH", start, (end - start) & 0xFFFF) for start, end in runs)
    return struct.pack("<HHBHHH", 12347, 0, 1, 0, 0, len(runs)) + body


@pytest.mark.parametrize(
    "data",
    [
        bitmap_of((0, 2, struct.pack("<2H", 5, 4))),
        bitmap_of((0, 2, struct.pack("<2H", 5, 5))),
        bitmap_of((1, 1, b"\0\0"), (0, 1, b"\0\0")),
        bitmap_of((1, 1, b"\0\0"), (1, 1, b"\1\0")),
        bitmap_of((0, 4097, bytes(8192))),
        bitmap_of((0, 65_536, b"\xff" * 8191 + b"\x7f")),
        runs_of(),
        runs_of((7, 9), (1, 2)),
        runs_of((1, 9), (5, 12)),
        runs_of((1, 4), (5, 9)),
        runs_of((65_000, 66_000)),
        runs_of((1, 2))[:-1],
        bitmap_of((0, 4096, bytes(8191))),
    ],
)
def test_a_set_out_of_order_is_refused(data: bytes) -> None:
    with pytest.raises(UnsupportedFormat):
        from_portable(data)


@pytest.mark.parametrize("count", [1, 3, 4, 2**16])
@pytest.mark.parametrize("shares", [(1,), (4095,), (4096,), (4097,), (1, 65_536)])
def test_every_form_of_a_bitmap_is_encoded_as_its_rows_alone(
    count: int, shares: tuple[int, ...]
) -> None:
    """Of one container and of so many; below four, those with runs have no offsets."""
    keys = range(count) if shares == (1,) else range(min(count, 5))
    rows = BitMap([(key << 16) + 3 for key in keys])
    for key, share in enumerate(shares):
        step = 2**16 // share
        rows |= BitMap(range(key << 16, (key << 16) + share * step, step))
    by_rows = BitMap(rows.to_array()).serialize()
    assert canonical(rows) == portable(rows) == by_rows
    assert from_portable(by_rows) == rows


def test_a_file_of_runs_costs_its_bytes_and_not_the_rows_that_it_claims() -> None:
    claimed = BitMap()
    claimed.add_range(1, 2**30)
    claimed.run_optimize()
    data = claimed.serialize()
    assert len(data) < 2**18  # and an array of these rows takes 4 GiB
    assert len(decode_deletion_file(data, DeletionFile.BITMAP)) == 2**30 - 1
    image, _, joined = merged(2**30 + 1, claimed, BitMap([0]))
    assert image is not None
    assert image.deletion_file.num_deleted_rows == 2**30
    assert len(joined) < 2**18


@pytest.mark.parametrize("file_type", [DeletionFile.BITMAP, DeletionFile.ARROW_ARRAY])
@pytest.mark.parametrize("data", [b"", b"not a bitmap", b"ARROW1\0\0"])
def test_a_damaged_file_is_refused(data: bytes, file_type: DeletionFile.DeletionFileType) -> None:
    with pytest.raises(UnsupportedFormat):
        decode_deletion_file(data, file_type)


def arrow_file(rows: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"row_id": rows})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("rows", [[-1, 2], [None, 2]])
def test_an_arrow_file_of_no_rows_offsets_is_unreadable(rows: list[int | None]) -> None:
    found = found_deletions("_deletions/0-1-1.arrow", arrow_file(pa.array(rows, pa.int32())))
    assert found.vector is None
    assert "deletion file" in str(found.error)


@given(st.integers(0), st.integers(0, 255))
def test_a_damaged_arrow_file_is_no_failure_of_its_store(at: int, byte: int) -> None:
    data = bytearray(arrow_file(pa.array([1, 5], pa.uint32())))
    data[at % len(data)] = byte
    found = found_deletions("_deletions/0-1-1.arrow", bytes(data))
    assert (found.vector is None) == bool(found.error)
