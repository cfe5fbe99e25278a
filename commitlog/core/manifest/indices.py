"""What a direct change does to a table's list of indices.

Append, ReserveFragments, UpdateConfig and UpdateBases carry the list over as it is; Delete drops
what it leaves pointless. Lists that need more than the manifest to be judged are left to pylance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.manifest.roaring import from_portable
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection

NGRAM_DETAILS = "NGramIndexDetails"
FRAGMENT_REUSE_INDEX = "__lance_frag_reuse"
MEM_WAL_INDEX = "__lance_mem_wal"
UUID_BYTES = 16
_SYSTEM_INDICES = (FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX)


class IndexList(NamedTuple):
    """What a direct change has to know of an index section."""

    has_covering_fields: bool
    needs_pylance: str
    """Why only pylance can carry this list over; empty if we can."""


NO_INDICES = IndexList(has_covering_fields=False, needs_pylance="")


@lru_cache(maxsize=4096)
def index_list(index_section: bytes) -> IndexList:
    """Look an index section through, once as long as it doesn't change."""
    indices = IndexSection.FromString(index_section).indices
    reason = ""
    for index in indices:
        if index.name == MEM_WAL_INDEX:
            reason = "the coverage of indices by a MemWAL is derived at each commit"
        elif index.name == FRAGMENT_REUSE_INDEX:
            reason = "a fragment reuse index is carried over by Lance"
    return IndexList(any(index.covering_fields for index in indices), reason)


class _Segment(NamedTuple):
    """One of several indices of one name."""

    uuid: bytes
    covered: BitMap
    age: tuple[bool, int, int]


def retain_relevant(
    index_section: bytes,
    field_ids: Container[int],
    fragments: Collection[int],
    removed: Collection[int] = (),
) -> bytes | None:
    """Return the section without indices that a Delete leaves pointless, None if all stay.

    The Delete removes some of the fragments. An index on a field that is gone goes. Of several
    segments of one index, those without a fragment go; when none has one, the oldest stays,
    because the definition is still wanted.
    """
    fields, same_names = _looked_through(index_section)
    gone = frozenset(removed)
    if all(field in field_ids for field in fields):
        dropped = _without_fragments(same_names, fragments, gone)
        if not dropped:
            return None
        kept = list(IndexSection.FromString(index_section).indices)
    else:
        whole = IndexSection.FromString(index_section).indices
        kept = [index for index in whole if _has_fields(index, field_ids)]
        dropped = _without_fragments(_segments(kept), fragments, gone)
    left = [index for index in kept if index.uuid.uuid not in dropped]
    return IndexSection(indices=left).SerializeToString(deterministic=True)


@lru_cache(maxsize=16)
def _looked_through(index_section: bytes) -> tuple[frozenset[int], list[list[_Segment]]]:
    """Return the fields of a section's indices, and the segments of each name that has several.

    A record may hold many Deletes, and most leave the section as it is.
    """
    indices = IndexSection.FromString(index_section).indices
    fields = (index.fields for index in indices if index.name not in _SYSTEM_INDICES)
    return frozenset(chain.from_iterable(fields)), _segments(indices)


def _has_fields(index: IndexMetadata, field_ids: Container[int]) -> bool:
    return index.name in _SYSTEM_INDICES or all(field in field_ids for field in index.fields)


def _segments(indices: Iterable[IndexMetadata]) -> list[list[_Segment]]:
    by_name: defaultdict[str, list[IndexMetadata]] = defaultdict(list)
    for index in indices:
        if index.name != FRAGMENT_REUSE_INDEX and index.fragment_bitmap:
            by_name[index.name].append(index)
    return [
        [_Segment(one.uuid.uuid, covered_fragments(one) or BitMap(), _age(one)) for one in same]
        for same in by_name.values()
        if len(same) > 1
    ]


def _without_fragments(
    same_names: list[list[_Segment]], fragments: Collection[int], removed: frozenset[int]
) -> set[bytes]:
    """Return the uuids of the segments that go because they cover none of what is left."""
    left: BitMap | None = None
    dropped: set[bytes] = set()
    for same_name in same_names:
        empty: list[_Segment] = []
        for segment in same_name:
            covered = segment.covered
            # A bitmap may claim billions, but one look at either end answers most questions.
            ends = (covered.max(), covered.min()) if covered else ()
            if any(end in fragments and end not in removed for end in ends):
                continue
            if left is None:
                left = coverable(fragments) - coverable(removed)
            if not covered.intersect(left):
                empty.append(segment)
        if len(empty) == len(same_name):
            empty.sort(key=lambda segment: segment.age)
            empty = empty[1:]
        dropped.update(segment.uuid for segment in empty)
    return dropped


def _age(index: IndexMetadata) -> tuple[bool, int, int]:
    return (not index.HasField("created_at"), index.created_at, index.dataset_version)


def is_mixed(indices: list[IndexMetadata]) -> bool:
    """Return True if a fragment reuse index is written together with others."""
    names = [index.name for index in indices]
    return FRAGMENT_REUSE_INDEX in names and len(names) > 1


def needs_addresses(index: IndexMetadata) -> bool:
    """Return True if an index cannot be read through a fragment reuse index."""
    return index.index_details.type_url.endswith(NGRAM_DETAILS)


def coverable(fragment_ids: Iterable[int]) -> BitMap:
    """Return those of some fragments that an index can cover: their ids have 32 bits."""
    return BitMap(one for one in fragment_ids if one < 2**32)


def covered_fragments(index: IndexMetadata) -> BitMap | None:
    """Return the fragments that an index covers, None if it doesn't say, or can't be read."""
    try:
        return from_portable(index.fragment_bitmap)
    except UnsupportedFormat:
        return None
