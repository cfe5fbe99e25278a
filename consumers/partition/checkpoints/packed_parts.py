"""Parts of a checkpoint that are compressed on the disk: the ids, of which there are millions.

A checkpoint's head says what a packed part is: the hash of its bytes names its file, and what they
are before they are packed has the hash that the state is made of. So no hash that programs compare
depends on a library's compression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING

from commitlog.adapters.storage import sha256_of
from commitlog.core.partition.snapshot import IDS
from commitlog.model.limits import IDS_PACKED_SINCE

if TYPE_CHECKING:
    import pyarrow as pa

PACKED_BYTES_MAX = 256 * 1024 * 1024
"""What a part unpacks to at most; a larger one isn't packed. 4,096 ids have a megabyte."""


@cache
def _codec() -> pa.Codec:
    """Return what packs; higher levels take several times as long for 4 %, as ids are hashes."""
    import pyarrow as pa  # loaded here: what starts the parts looks at a checkpoint's head alone

    return pa.Codec("zstd", compression_level=1)


def is_packed(name: str, protocol: int, size: int) -> bool:
    """Return True if a part of so many bytes is packed under a protocol."""
    return name.startswith(IDS) and protocol >= IDS_PACKED_SINCE and size <= PACKED_BYTES_MAX


def pack(pieces: Iterable[bytes]) -> bytes:
    """Return a part and its hint, compressed."""
    packed: bytes = _codec().compress(b"".join(pieces), asbytes=True)
    return packed


def unpack(data: bytes, wanted: Iterable[tuple[str, int]]) -> list[bytes]:
    """Return the pieces that were packed, which have these hashes and sizes, in their order.

    Raises ValueError if these bytes hold anything else. Not more is unpacked than the sizes say.
    """
    named = list(wanted)
    size = sum(size for _, size in named)
    if not 0 <= size <= PACKED_BYTES_MAX:
        raise ValueError(f"it should unpack to {size} bytes; {PACKED_BYTES_MAX} are the most")
    try:
        unpacked: bytes = _codec().decompress(data, decompressed_size=size, asbytes=True)
    except OSError as error:
        raise ValueError(str(error)) from error
    pieces: list[bytes] = []
    at = 0
    for digest, length in named:
        piece = unpacked[at : at + length]
        if sha256_of(piece) != digest:
            raise ValueError("it holds other bytes than the head says")
        pieces.append(piece)
        at += length
    return pieces


def unpacking(
    name: str, packed: bytes, wanted: Iterable[tuple[str, int]], corrupt: Callable[[str], Exception]
) -> Callable[[], tuple[bytes, bytes]]:
    """Return what unpacks a part and its hint each time; it raises `corrupt` if it can't."""
    named = list(wanted)

    def unpacked() -> tuple[bytes, bytes]:
        try:
            data, hint = unpack(packed, named)
        except ValueError as error:
            raise corrupt(f"{name} is damaged: {error}") from error
        return data, hint

    return unpacked
