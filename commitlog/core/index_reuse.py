"""The fragment reuse index: which fragments a compaction replaced that left indices as they are.

Lance finds rows of such fragments by what this index says of them, so an index that was built
before the compaction still fits behind it. Its details may lie in a file of their own, or be those
of a tagged one; then nothing is known of it here, and an index is asked for again.
"""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from commitlog.core.indices import FRAGMENT_REUSE_INDEX
from commitlog.lancepb.table_pb2 import FragmentReuseIndexDetails, IndexMetadata, IndexSection

NGRAM_DETAILS = "NGramIndexDetails"


@lru_cache(maxsize=256)
def reuse_groups(index_section: bytes) -> tuple[frozenset[int], ...]:
    """Return the groups of fragments that compactions replaced, oldest first, as far as is said."""
    groups: list[frozenset[int]] = []
    for index in IndexSection.FromString(index_section).indices:
        if index.name == FRAGMENT_REUSE_INDEX:
            try:
                details = FragmentReuseIndexDetails.FromString(index.index_details.value)
            except DecodeError:
                continue
            for version in details.inline.legacy_versions:
                groups.extend(frozenset(f.id for f in g.old_fragments) for g in version.groups)
    return tuple(groups)


def reused_fragments(index_section: bytes | None) -> BitMap:
    """Return the fragments that a fragment reuse index tells of."""
    return BitMap(f for group in reuse_groups(index_section or b"") for f in group)


def is_mixed(indices: list[IndexMetadata]) -> bool:
    """Say whether a fragment reuse index is written together with others."""
    names = [index.name for index in indices]
    return FRAGMENT_REUSE_INDEX in names and len(names) > 1


def needs_addresses(index: IndexMetadata) -> bool:
    """Say whether an index cannot be read through a fragment reuse index."""
    return index.index_details.type_url.endswith(NGRAM_DETAILS)
