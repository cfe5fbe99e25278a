"""The portable form of Roaring bitmaps, one container after another.

A container holds the rows that share their upper 16 bits: a sorted array of up to 4,096 of them, a
bitmap of 65,536 bits, or runs. A few bytes of runs name 65,536 rows, so what is done here takes as
long as the bytes are many, not as the rows are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from pyroaring import BitMap, BitMap64

from commitlog.errors import UnsupportedFormat

_WITHOUT_RUNS, _WITH_RUNS = 12346, 12347
_CONTAINER_ROWS = 2**16
_ARRAY_MAX = 4096
_BITMAP_BYTES = _CONTAINER_ROWS // 8
_OFFSETS_FROM = 4
"""So many containers have a list of offsets, even if some have runs."""
_FEW_ROWS = 4_096
"""To write out so many rows costs a few calls. More may be any number, in a few bytes."""


class _Container(NamedTuple):
    key: int
    rows: int
    is_runs: bool
    data: bytes
    """Without the number of runs."""


def _containers(portable: bytes) -> Iterator[_Container]:
    """Yield the containers of a bitmap that pyroaring has just made."""
    (cookie,) = struct.unpack_from("<I", portable)
    has_runs = cookie & 0xFFFF == _WITH_RUNS
    if has_runs:
        count, at = (cookie >> 16) + 1, 4
        flags = portable[at : at + (count + 7) // 8]
        at += len(flags)
    else:
        count, at = struct.unpack_from("<I", portable, 4)[0], 8
        flags = bytes((count + 7) // 8)
    heads = struct.unpack_from(f"<{2 * count}H", portable, at)
    at += 4 * count
    if not has_runs or count >= _OFFSETS_FROM:
        at += 4 * count
    for i in range(count):
        key, rows = heads[2 * i], heads[2 * i + 1] + 1
        is_runs = bool(flags[i // 8] >> i % 8 & 1)
        size = 2 * rows if rows <= _ARRAY_MAX else _BITMAP_BYTES
        if is_runs:
            size = 4 * struct.unpack_from("<H", portable, at)[0]
            at += 2
        yield _Container(key, rows, is_runs, portable[at : at + size])
        at += size


def runs(rows: BitMap) -> Iterator[tuple[int, int]]:
    """Yield the ranges of rows that follow each other, each with the row after it."""
    if not rows:
        return
    start, last = rows.min(), rows.max()
    holes = rows.flip(start, last + 1) - rows
    while holes and holes.max() > start:
        end = holes.next_set_bit(start)
        yield start, end
        start = rows.next_set_bit(end)
    yield start, last + 1


def from_portable(data: bytes) -> BitMap:
    """Decode a portable Roaring bitmap that somebody else encoded.

    Raises UnsupportedFormat.
    """
    try:
        # It takes only a set in order: one that isn't would answer wrongly.
        return BitMap.deserialize(data)
    except (ValueError, IndexError) as error:
        raise UnsupportedFormat("not a portable Roaring bitmap") from error


def is_bitmap(encoded: bytes, kind: type[BitMap] | type[BitMap64] = BitMap) -> bool:
    """Return True if bytes are a portable Roaring bitmap, or a treemap."""
    try:
        kind.deserialize(encoded)
    except (ValueError, IndexError):
        return False
    return True


def portable(rows: BitMap) -> bytes:
    """Encode rows as a portable Roaring bitmap, the same bytes for the same rows."""
    return canonical(rows) if len(rows) > _FEW_ROWS else BitMap(rows.to_array()).serialize()


def canonical(rows: BitMap) -> bytes:
    """Encode rows, the same bytes for the same rows: each container as what is smallest.

    What CRoaring makes of a set depends on how it came to be: it keeps runs that lie side by side,
    and those that are no smaller than an array.
    """
    optimized = rows.copy()
    optimized.run_optimize()
    encoded: bytes = optimized.serialize()
    containers = list(_containers(encoded))
    smallest = [_smallest(container) for container in containers]
    return encoded if smallest == containers else _joined(smallest)


def _smallest(container: _Container) -> _Container:
    if not container.is_runs:
        return container
    merged: list[int] = []
    for start, more in _runs_in(container):
        if merged and merged[-2] + merged[-1] + 1 == start:
            merged[-1] += more + 1
        else:
            merged += (start, more)
    if 2 * len(merged) + 2 < min(2 * container.rows, _BITMAP_BYTES):
        return container._replace(data=struct.pack(f"<{len(merged)}H", *merged))
    return container._replace(is_runs=False, data=_spread(container))


def _joined(containers: list[_Container]) -> bytes:
    count, has_runs = len(containers), any(container.is_runs for container in containers)
    flags = sum(container.is_runs << i for i, container in enumerate(containers))
    parts = [struct.pack("<II", _WITHOUT_RUNS, count)]
    if has_runs:
        start = struct.pack("<HH", _WITH_RUNS, count - 1)
        parts = [start + flags.to_bytes((count + 7) // 8, "little")]
    parts += [struct.pack("<HH", container.key, container.rows - 1) for container in containers]
    bodies = [
        struct.pack("<H", len(c.data) // 4) + c.data if c.is_runs else c.data for c in containers
    ]
    if not has_runs or count >= _OFFSETS_FROM:
        at = sum(map(len, parts)) + 4 * count
        for body in bodies:
            parts.append(struct.pack("<I", at))
            at += len(body)
    return b"".join(parts + bodies)


def _spread(container: _Container) -> bytes:
    """Return runs as the array or bitmap of their rows."""
    if container.rows <= _ARRAY_MAX:
        rows = [
            row for start, more in _runs_in(container) for row in range(start, start + more + 1)
        ]
        return struct.pack(f"<{len(rows)}H", *rows)
    bits = bytearray(_BITMAP_BYTES)
    for start, more in _runs_in(container):
        first, last = start >> 3, (start + more) >> 3
        head, tail = 0xFF << (start & 7) & 0xFF, 0xFF >> (7 - (start + more & 7))
        if first == last:
            bits[first] |= head & tail
        else:
            bits[first] |= head
            bits[first + 1 : last] = b"\xff" * (last - first - 1)
            bits[last] |= tail
    return bytes(bits)


def _runs_in(container: _Container) -> Iterator[tuple[int, int]]:
    """Yield the first row of each run, and how many rows follow it."""
    return struct.iter_unpack("<HH", container.data)
