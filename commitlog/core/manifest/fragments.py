"""A version's fragments by id, ascending, as bytes, with their joined wire form kept at hand.

A fragment is a serialized `lance.table.DataFragment`, stored without decoding it. Adding one
costs its own size; replacing or removing one costs the size of its block in the joined form, which
exists only after its first use. A fork sees its parent's fragments and keeps its changes
to itself; the parent must not change while the fork lives.

The joined form is kept because a manifest holds all fragments: joining 100,000 of them again for
each version takes ten times as long as copying the joined form.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping

from commitlog.codecs.lanes import IS_PLAIN_FRAGMENT
from commitlog.core.manifest.feature_flags import (
    FLAG_DATA_OVERLAY_FILES,
    FLAG_DELETION_FILES,
    FLAG_SPILLED_ROW_LINEAGE,
)
from commitlog.core.manifest.wire import varint
from commitlog.lancepb.table_pb2 import DataFragment

CHUNK_FRAGMENTS = 1024
"""How many neighbouring ids form a chunk."""
_FRAGMENT_KEY = b"\x12"
_BLOCK_FRAGMENTS = 256
_FEATURES = (FLAG_DELETION_FILES, FLAG_DATA_OVERLAY_FILES, FLAG_SPILLED_ROW_LINEAGE)


def features(fragment: DataFragment) -> int:
    """Return the feature flags that a fragment requires."""
    flags = FLAG_DELETION_FILES if fragment.HasField("deletion_file") else 0
    if fragment.overlays:
        flags |= FLAG_DATA_OVERLAY_FILES
    if (
        fragment.HasField("column_row_ids")
        or fragment.HasField("column_created_at_versions")
        or fragment.HasField("column_last_updated_at_versions")
    ):
        flags |= FLAG_SPILLED_ROW_LINEAGE
    return flags


def _features_in(encoded: bytes) -> int:
    is_plain = IS_PLAIN_FRAGMENT is not None and IS_PLAIN_FRAGMENT(encoded)
    return 0 if is_plain else features(DataFragment.FromString(encoded))


def joined(fragments: Iterable[bytes]) -> bytearray:
    """Return fragments as a manifest's field holds them."""
    wire = bytearray()
    for fragment in fragments:
        wire += _FRAGMENT_KEY
        wire += varint(len(fragment))
        wire += fragment
    return wire


class _Block:
    __slots__ = ("ids", "wire")

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids
        self.wire: bytearray | None = None


class Fragments(Mapping[int, bytes]):
    """Fragments by id; iterates in ascending order."""

    __slots__ = ("_blocks", "_by_id", "_chunks", "_counts", "_features", "_last_id", "digests")

    def __init__(self, fragments: Iterable[bytes] = ()) -> None:
        self.digests: dict[int, bytes] = {}
        """Hashes of chunks that didn't change since they were taken, by number."""
        self._chunks: Counter[int] | None = None
        """How many fragments each chunk has; None until the first use."""
        self._features: dict[int, int] = {}
        self._counts = dict.fromkeys(_FEATURES, 0)
        self._blocks: list[_Block] | None = None
        by_id: dict[int, bytes] = {}
        for encoded in fragments:
            fragment = DataFragment.FromString(encoded)
            by_id[fragment.id] = encoded
            self._note(fragment.id, features(fragment))
        self._by_id = dict(sorted(by_id.items()))
        self._last_id = next(reversed(self._by_id), -1)

    @classmethod
    def known(
        cls, fragments: Iterable[tuple[int, bytes]], features: Mapping[int, int]
    ) -> Fragments:
        """Make them of fragments by id, ascending, whose features are known without a look."""
        made = cls()
        made._by_id = dict(fragments)
        made._last_id = next(reversed(made._by_id), -1)
        for fragment_id, asked in features.items():
            made._note(fragment_id, asked)
        return made

    def copy(self) -> Fragments:
        """Return the same fragments, independent of these."""
        return Fragments.known(self.items(), self.features_by_id())

    def features_by_id(self) -> Mapping[int, int]:
        """Return the feature flags of those fragments that require some."""
        return self._features

    def __getitem__(self, fragment_id: int) -> bytes:
        return self._by_id[fragment_id]

    def __contains__(self, fragment_id: object) -> bool:
        return fragment_id in self._by_id

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_id)

    def items(self) -> ItemsView[int, bytes]:
        """Return the fragments with their ids."""
        return self._by_id.items()

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def last_id(self) -> int:
        """The highest id that is present, -1 if there is none."""
        return self._last_id

    def fork(self) -> Fragments:
        """Return fragments that start as these and change independently."""
        return _Fork(self)

    def features_after(self, changes: Iterable[tuple[int, int | None]]) -> int:
        """Return the required feature flags once each (id, features) has replaced its predecessor.

        Features of None stand for a removed fragment.
        """
        counts = dict(self._counts)
        for fragment_id, after in changes:
            before = self._features_of(fragment_id)
            if before == (after or 0):
                continue
            for feature in _FEATURES:
                counts[feature] += bool((after or 0) & feature) - bool(before & feature)
        return sum(feature for feature, count in counts.items() if count)

    def features(self) -> int:
        """Return the feature flags that these fragments require."""
        if not any(self._counts.values()):
            return 0
        return sum(feature for feature, count in self._counts.items() if count)

    def put(self, fragments: Iterable[tuple[int, bytes]]) -> None:
        """Add fragments by id, or replace existing ones."""
        is_sorted = True
        for fragment_id, encoded in fragments:
            asked = _features_in(encoded)
            if asked or self._features:
                self._note(fragment_id, asked)
            is_new = fragment_id not in self._by_id
            self._by_id[fragment_id] = encoded
            self._changed(fragment_id, more=is_new)
            if is_new and fragment_id > self._last_id:
                self._last_id = fragment_id
                if self._blocks is not None:
                    self._extend(self._blocks, fragment_id, encoded)
                continue
            is_sorted &= not is_new  # A compaction reserves ids, and others append before it lands.
            if self._blocks is not None:
                block = self._block_of(self._blocks, fragment_id)
                block.wire = None
                if is_new:
                    insort(block.ids, fragment_id)
        if not is_sorted:
            self._by_id = dict(sorted(self._by_id.items()))

    def remove(self, fragment_id: int) -> None:
        """Remove a fragment, which must be there."""
        del self._by_id[fragment_id]
        self._note(fragment_id, 0)
        self._changed(fragment_id, more=-1)
        if fragment_id == self._last_id:
            self._last_id = next(reversed(self._by_id), -1)
        if self._blocks is not None:
            block = self._block_of(self._blocks, fragment_id)
            block.ids.remove(fragment_id)
            block.wire = None
            if not block.ids:
                self._blocks.remove(block)

    def chunks(self) -> list[int]:
        """Return the numbers of the chunks that have fragments, ascending."""
        if self._chunks is None:
            self._chunks = Counter(fragment_id // CHUNK_FRAGMENTS for fragment_id in self._by_id)
        return sorted(chunk for chunk, count in self._chunks.items() if count)

    def in_chunk(self, chunk: int) -> list[tuple[int, bytes]]:
        """Return a chunk's fragments with their ids, ascending."""
        ids = range(chunk * CHUNK_FRAGMENTS, (chunk + 1) * CHUNK_FRAGMENTS)
        return [(i, self._by_id[i]) for i in ids if i in self._by_id]

    def _changed(self, fragment_id: int, *, more: int) -> None:
        chunk = fragment_id // CHUNK_FRAGMENTS
        self.digests.pop(chunk, None)
        if self._chunks is not None:
            self._chunks[chunk] += more

    def wire(self) -> list[bytearray]:
        """Return the pieces of the joined form, to be copied before the next change."""
        return [wire for _, wire in self._joined()]

    def repeated_in(self, message: bytes, position: int) -> tuple[int, int]:
        """Return how many of these fragments, from the first on, stand at a position of a message.

        The second result is the position after them. Whole blocks are compared, so it may be fewer
        than really do.
        """
        count = 0
        for ids, wire in self._joined():
            if not message.startswith(wire, position):
                break
            count += len(ids)
            position += len(wire)
        return count, position

    def _joined(self) -> Iterator[tuple[list[int], bytearray]]:
        if self._blocks is None:
            ids = list(self._by_id)
            self._blocks = [
                _Block(ids[start : start + _BLOCK_FRAGMENTS])
                for start in range(0, len(ids), _BLOCK_FRAGMENTS)
            ]
        for block in self._blocks:
            if block.wire is None:
                block.wire = joined([self._by_id[fragment_id] for fragment_id in block.ids])
            yield block.ids, block.wire

    def _features_of(self, fragment_id: int) -> int:
        return self._features.get(fragment_id, 0)

    def _note(self, fragment_id: int, after: int) -> None:
        before = self._features_of(fragment_id)
        if before == after:
            return
        for feature in _FEATURES:
            self._counts[feature] += bool(after & feature) - bool(before & feature)
        self._remember(fragment_id, after)

    def _remember(self, fragment_id: int, after: int) -> None:
        if after:
            self._features[fragment_id] = after
        else:
            self._features.pop(fragment_id, None)

    @staticmethod
    def _block_of(blocks: list[_Block], fragment_id: int) -> _Block:
        after = bisect_right(blocks, fragment_id, key=lambda block: block.ids[0])
        return blocks[max(after - 1, 0)]

    @staticmethod
    def _extend(blocks: list[_Block], fragment_id: int, encoded: bytes) -> None:
        if not blocks or len(blocks[-1].ids) >= _BLOCK_FRAGMENTS:
            blocks.append(_Block([]))
            blocks[-1].wire = bytearray()
        last = blocks[-1]
        last.ids.append(fragment_id)
        if last.wire is not None:
            last.wire += _FRAGMENT_KEY
            last.wire += varint(len(encoded))
            last.wire += encoded


class _Fork(Fragments):
    __slots__ = ("_base", "_changes", "_size")

    def __init__(self, base: Fragments) -> None:
        super().__init__()
        self._base = base
        self._changes: dict[int, bytes | None] = {}
        self._counts = dict(base._counts)
        self._size = len(base)
        self._last_id = base.last_id

    def __getitem__(self, fragment_id: int) -> bytes:
        if fragment_id not in self._changes:
            return self._base[fragment_id]
        encoded = self._changes[fragment_id]
        if encoded is None:
            raise KeyError(fragment_id)
        return encoded

    def __contains__(self, fragment_id: object) -> bool:
        if fragment_id in self._changes:
            return self._changes[fragment_id] is not None
        return fragment_id in self._base

    def items(self) -> ItemsView[int, bytes]:
        return ItemsView(self)

    def features_by_id(self) -> Mapping[int, int]:
        noted = {**self._base.features_by_id(), **self._features}
        return {fragment_id: asked for fragment_id, asked in noted.items() if asked}

    def __iter__(self) -> Iterator[int]:
        added = (i for i, encoded in self._changes.items() if encoded is not None)
        return iter(sorted({*(i for i in self._base if i not in self._changes), *added}))

    def __len__(self) -> int:
        return self._size

    def put(self, fragments: Iterable[tuple[int, bytes]]) -> None:
        for fragment_id, encoded in fragments:
            self._size += fragment_id not in self
            self._note(fragment_id, _features_in(encoded))
            self._changes[fragment_id] = encoded
            self._last_id = max(self._last_id, fragment_id)

    def remove(self, fragment_id: int) -> None:
        if fragment_id not in self:
            raise KeyError(fragment_id)
        self._note(fragment_id, 0)
        self._changes[fragment_id] = None
        self._size -= 1
        if fragment_id == self._last_id:
            self._last_id = max(self, default=-1)

    def wire(self) -> list[bytearray]:
        return [joined(self[fragment_id] for fragment_id in self)]

    def repeated_in(self, message: bytes, position: int) -> tuple[int, int]:
        return 0, position

    def _features_of(self, fragment_id: int) -> int:
        noted = self._features.get(fragment_id)
        return self._base._features_of(fragment_id) if noted is None else noted

    def _remember(self, fragment_id: int, after: int) -> None:
        self._features[fragment_id] = after
