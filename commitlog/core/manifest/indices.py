"""What a direct change does to a table's list of indices.

Append, ReserveFragments, UpdateConfig and UpdateBases carry the list over as it is; Delete drops
what it leaves pointless. Lists that need more than the manifest to be judged are left to pylance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable
from functools import lru_cache
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection

NGRAM_DETAILS = "NGramIndexDetails"
FRAGMENT_REUSE_INDEX = "__lance_frag_reuse"
MEM_WAL_INDEX = "__lance_mem_wal"
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


def retain_relevant(
    index_section: bytes, field_ids: Container[int], fragments: Collection[int]
) -> bytes | None:
    """Return the section without indices that a Delete leaves pointless, None if all stay.

    An index on a field that is gone goes. Of several segments of one index, those without a
    fragment go; when none has one, the oldest stays, because the definition is still wanted.
    """
    section = IndexSection.FromString(index_section)
    kept = [
        index
        for index in section.indices
        if index.name in _SYSTEM_INDICES or all(field in field_ids for field in index.fields)
    ]
    segments: defaultdict[str, list[IndexMetadata]] = defaultdict(list)
    for index in kept:
        if index.name != FRAGMENT_REUSE_INDEX and index.fragment_bitmap:
            segments[index.name].append(index)
    dropped: set[bytes] = set()
    for same_name in segments.values():
        if len(same_name) == 1:
            continue
        empty = [index for index in same_name if not _covers_any(index, fragments)]
        if len(empty) == len(same_name):
            empty.sort(key=_age)
            empty = empty[1:]
        dropped.update(index.uuid.uuid for index in empty)
    kept = [index for index in kept if index.uuid.uuid not in dropped]
    if len(kept) == len(section.indices):
        return None
    return IndexSection(indices=kept).SerializeToString(deterministic=True)


def _covers_any(index: IndexMetadata, fragments: Collection[int]) -> bool:
    # Either may be the larger by far: a few bytes of a bitmap name a billion.
    covered = covered_fragments(index) or BitMap()
    if len(covered) <= len(fragments):
        return any(fragment_id in fragments for fragment_id in covered)
    return covered.intersect(coverable(fragments))


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
        return BitMap.deserialize(index.fragment_bitmap)
    except (ValueError, IndexError):
        return None
