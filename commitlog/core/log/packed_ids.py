"""Ids that were decided long ago, in about 80 bytes each instead of 450.

Most of what is remembered of an id can't be made smaller: 16 bytes of its UUID, 32 of its
payload's hash. These are kept as they are, in columns; the text around them repeats from row to
row and is compressed, a block of rows at a time, so that looking one up reads one block.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b

from commitlog.core.log.canonical import to_json

_BLOCK_ROWS = 128
_KEY_BYTES = 16
_HASH_BYTES = 32
_LEVEL = 1
"""Of zlib: a higher one takes several times as long for a few bytes per row."""

# A row of canonical JSON has no control characters: they are free to stand for what was taken out.
_ID, _HASH, _END = b"\1", b"\2", b"\n"
_NO_HASH = bytes(_HASH_BYTES)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ROW = re.compile(
    rb"\["
    rb'"(?:([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})|((?:[^"\\]|\\.)*))"'
    rb'(,\d+,"[a-z]+",\d+,)"(?:([0-9a-f]{64})")?'
)


class PackedIds:
    """The rows of a chunk by id, in their order; once they are all there, rows can be taken out."""

    __slots__ = ("_blocks", "_gone", "_hashes", "_keys", "_texts", "count")

    def __init__(self, ids: Iterable[tuple[str, bytes]] = ()) -> None:
        """Take ids with their rows, each of which is canonical JSON that begins with the id."""
        self.count = 0
        """Of the rows that are still there."""
        self._keys, self._hashes = bytearray(), bytearray()
        self._blocks: list[bytes] = []
        self._gone: bytearray | None = None
        self._texts: list[bytes] = []
        """Of rows that aren't compressed yet."""
        self.add(ids)
        self.end()

    def add(self, ids: Iterable[tuple[str, bytes]]) -> None:
        """Take more of them; `end` says that there are no more."""
        for transaction_id, row in ids:
            found = _ROW.match(row)
            assert found is not None
            of_uuid, _, between, of_hash = found.groups()
            self._keys += _key(transaction_id)
            self._hashes += bytes.fromhex(of_hash.decode()) if of_hash else _NO_HASH
            named = _ID if of_uuid else row[1 : found.start(3)]
            digest = _HASH if of_hash else b'"'
            self._texts.append(named + between + digest + row[found.end() :])
            self.count += 1
            if len(self._texts) == _BLOCK_ROWS:
                self.end()

    def end(self) -> None:
        """Compress the rows that aren't."""
        if self._texts:
            self._blocks.append(zlib.compress(_END.join(self._texts), _LEVEL))
            self._texts = []

    def get(self, transaction_id: str) -> bytes | None:
        """Return the row of an id; None if it isn't here."""
        at = self._place_of(transaction_id)
        return None if at is None else self._row(at)

    def take_out(self, transaction_id: str) -> None:
        """Remove the row of an id that is here."""
        at = self._place_of(transaction_id)
        assert at is not None
        if self._gone is None:
            self._gone = bytearray(len(self._keys) // _KEY_BYTES)
        self._gone[at] = 1
        self.count -= 1

    def rows(self) -> Iterator[bytes]:
        """Return all rows in their order."""
        keys, hashes = self._keys.hex(), self._hashes.hex()
        for number, block in enumerate(self._blocks):
            for i, text in enumerate(zlib.decompress(block).split(_END), number * _BLOCK_ROWS):
                if self._gone is None or not self._gone[i]:
                    key, digest = i * 2 * _KEY_BYTES, i * 2 * _HASH_BYTES
                    yield _whole(
                        text,
                        keys[key : key + 2 * _KEY_BYTES],
                        hashes[digest : digest + 2 * _HASH_BYTES],
                    )

    def _place_of(self, transaction_id: str) -> int | None:
        key = _key(transaction_id)
        at = self._keys.find(key)
        while at >= 0:
            place, within = divmod(at, _KEY_BYTES)
            is_there = not within and (self._gone is None or not self._gone[place])
            # Two ids that are made for it can have one key.
            if is_there and self._row(place).startswith(b"[" + to_json(transaction_id) + b","):
                return place
            at = self._keys.find(key, at + 1)
        return None

    def _row(self, place: int) -> bytes:
        number, within = divmod(place, _BLOCK_ROWS)
        text = zlib.decompress(self._blocks[number]).split(_END)[within]
        key = self._keys[place * _KEY_BYTES : (place + 1) * _KEY_BYTES]
        digest = self._hashes[place * _HASH_BYTES : (place + 1) * _HASH_BYTES]
        return _whole(text, key.hex(), digest.hex())


class IdIndex:
    """Which chunks may have an id: 10 bytes for each, in buckets that are split as they fill.

    It grows a bucket at a time (linear hashing), so no addition waits for all of it to move.
    """

    __slots__ = ("_buckets", "_count", "_split_at", "_top")

    def __init__(self) -> None:
        self._buckets = [b""]
        self._count = 0
        self._top = 1
        """A power of two: how many buckets there were when the present round of splits began."""
        self._split_at = 0
        """The next bucket to split in this round."""

    def add(self, transaction_id: str, chunk: int) -> None:
        """Note that a chunk has an id."""
        mark = hash(transaction_id) & _MARK_BITS
        self._buckets[self._bucket_of(mark)] += _entry(mark, chunk)
        self._count += 1
        if self._count > len(self._buckets) * _BUCKET_ENTRIES:
            self._split()

    def expect(self, count: int) -> None:
        """Make as many buckets as so many ids will need, as long as there are none."""
        if not self._count and (buckets := count // _BUCKET_ENTRIES):
            self._buckets = [b""] * buckets
            self._top = 1 << (buckets.bit_length() - 1)
            self._split_at = buckets - self._top

    def add_all(self, ids: Collection[str], chunk: int) -> None:
        """Note that a chunk has these ids, which is quicker than one by one."""
        self._count += len(ids)
        while self._count > len(self._buckets) * _BUCKET_ENTRIES:
            self._split()
        buckets, split_at, now, then = (
            self._buckets,
            self._split_at,
            self._top - 1,
            2 * self._top - 1,
        )
        for mark in map(hash, ids):
            number = mark & now
            if number < split_at:
                number = mark & then
            buckets[number] += ((mark & _MARK_BITS) << 32 | chunk).to_bytes(_ENTRY_BYTES)

    def remove(self, transaction_id: str, chunk: int) -> None:
        """Forget that a chunk has an id, which was noted."""
        mark = hash(transaction_id) & _MARK_BITS
        number, entry = self._bucket_of(mark), _entry(mark, chunk)
        bucket = self._buckets[number]
        at = bucket.index(entry)
        while at % _ENTRY_BYTES:
            at = bucket.index(entry, at + 1)
        self._buckets[number] = bucket[:at] + bucket[at + _ENTRY_BYTES :]
        self._count -= 1

    def find(self, transaction_id: str) -> list[int]:
        """Return the chunks that may have an id; rarely another than the one that has it."""
        mark = hash(transaction_id) & _MARK_BITS
        bucket, sought = self._buckets[self._bucket_of(mark)], mark.to_bytes(_MARK_BYTES)
        found: list[int] = []
        at = bucket.find(sought)
        while at >= 0:
            if not at % _ENTRY_BYTES:
                found.append(int.from_bytes(bucket[at + _MARK_BYTES : at + _ENTRY_BYTES]))
            at = bucket.find(sought, at + 1)
        return found

    def _bucket_of(self, mark: int) -> int:
        number = mark & (self._top - 1)
        return number if number >= self._split_at else mark & (2 * self._top - 1)

    def _split(self) -> None:
        bucket = self._buckets[self._split_at]
        stay: list[bytes] = []
        move: list[bytes] = []
        for at in range(0, len(bucket), _ENTRY_BYTES):
            entry = bucket[at : at + _ENTRY_BYTES]
            (move if int.from_bytes(entry[:_MARK_BYTES]) & self._top else stay).append(entry)
        self._buckets[self._split_at] = b"".join(stay)
        self._buckets.append(b"".join(move))
        self._split_at += 1
        if self._split_at == self._top:
            self._top, self._split_at = 2 * self._top, 0


_BUCKET_ENTRIES = 64
_MARK_BYTES = 6
_MARK_BITS = (1 << 8 * _MARK_BYTES) - 1
_ENTRY_BYTES = _MARK_BYTES + 4


def _entry(mark: int, chunk: int) -> bytes:
    return (mark << 32 | chunk).to_bytes(_ENTRY_BYTES)


def _whole(text: bytes, key: str, digest: str) -> bytes:
    """Return a row, of which its text, its id's key and its hash are kept."""
    if text.startswith(_ID):
        named = f'["{key[:8]}-{key[8:12]}-{key[12:16]}-{key[16:20]}-{key[20:]}"'.encode()
        text = text[1:]
    else:
        named = b"["
    return named + text.replace(_HASH, f'"{digest}"'.encode(), 1)


def _key(transaction_id: str) -> bytes:
    if _UUID.fullmatch(transaction_id):
        return bytes.fromhex(transaction_id.replace("-", ""))
    return blake2b(transaction_id.encode(), digest_size=_KEY_BYTES).digest()
