"""Whether Lance can open an index's entry in a manifest.

One entry that it can't open makes Lance fail at each later operation on the table, by way of the
list of indices that it reads first: a uuid of another length, a set of fragments that isn't one,
a system index without its details.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from google.protobuf.message import DecodeError
from pyroaring import BitMap64

from commitlog.core.manifest.indices import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    UUID_BYTES,
    covered_fragments,
)
from commitlog.core.manifest.roaring import is_bitmap
from commitlog.lancepb.table_pb2 import FragmentReuseIndexDetails, IndexMetadata, MemWalIndexDetails
from commitlog.model.limits import UNTRAINED_INDICES_SINCE
from commitlog.model.names import label_problem
from commitlog.model.reasons import Phrase

_VECTOR = "VectorIndexDetails"
_CREATED_AT_MAX = 253_402_300_799_999
_MAIN_FILE = {
    "BTreeIndexDetails": "page_lookup.lance",
    "BitmapIndexDetails": "bitmap_page_lookup.lance",
    "LabelListIndexDetails": "bitmap_page_lookup.lance",
    "InvertedIndexDetails": "metadata.lance",
    "NGramIndexDetails": "ngram_postings.lance",
    "ZoneMapIndexDetails": "zonemap.lance",
    "BloomFilterIndexDetails": "bloomfilter.lance",
    _VECTOR: "index.idx",
}
"""What an index of a type can't be opened without, where its entry lists no files."""


def index_problem(index: IndexMetadata) -> Phrase | None:
    """Return why Lance couldn't open an entry, None if it can."""
    if len(index.uuid.uuid) != UUID_BYTES:
        return Phrase("index_uuid_unusable", {"bytes": len(index.uuid.uuid)})
    if problem := label_problem(index.name):
        return problem
    if index.created_at > _CREATED_AT_MAX:
        return Phrase("index_created_late", {"time_ms": index.created_at})
    if index.fragment_bitmap and not is_bitmap(index.fragment_bitmap):
        return Phrase("index_bitmap_unreadable")
    strange = [field for field in index.covering_fields if field not in index.fields]
    if strange:
        return Phrase("index_covers_others", {"fields": strange})
    if index.covering_fields and len(index.covering_fields) >= len(index.fields):
        return Phrase("index_covers_all", {"fields": list(index.covering_fields)})
    if index.name == FRAGMENT_REUSE_INDEX:
        return _reuse_problem(index)
    if index.name == MEM_WAL_INDEX:
        return _mem_wal_problem(index)
    return None if index.fields else Phrase("index_without_fields")


def _reuse_problem(index: IndexMetadata) -> Phrase | None:
    details = FragmentReuseIndexDetails()
    if problem := _details_problem(index, details):
        return problem
    content = details.WhichOneof("content")
    if content is None:
        return Phrase("index_details_empty")
    return content_problem(details.inline) if content == "inline" else None


def content_problem(content: FragmentReuseIndexDetails.InlineContent) -> Phrase | None:
    """Return why Lance couldn't read which fragments were replaced, None if it can."""
    for version in content.legacy_versions:
        for group in version.groups:
            if not is_bitmap(group.changed_row_addrs, BitMap64):
                return Phrase("index_rows_unreadable")
    for transition in content.transitions:
        if transition.WhichOneof("mapping") is None:
            return Phrase("index_rows_unreadable")
    return None


def _mem_wal_problem(index: IndexMetadata) -> Phrase | None:
    return _details_problem(index, MemWalIndexDetails())


def _details_problem(
    index: IndexMetadata, details: FragmentReuseIndexDetails | MemWalIndexDetails
) -> Phrase | None:
    name = details.DESCRIPTOR.name
    if not index.index_details.type_url.endswith(f".{name}"):
        return Phrase("index_details_missing", {"details": name})
    try:
        details.ParseFromString(index.index_details.value)
    except DecodeError:
        return Phrase("index_details_broken", {"details": name})
    return None


def section_problem(
    indices: Sequence[IndexMetadata], fields: Collection[int]
) -> tuple[str, Phrase | None]:
    """Return the index that doesn't fit a schema or the others, and why; None if each does."""
    by_name: dict[str, list[int]] = {}
    uuids: set[bytes] = set()
    for index in indices:
        if index.uuid.uuid in uuids:
            return index.name, Phrase("index_uuid_twice")
        uuids.add(index.uuid.uuid)
        missing = [field for field in index.fields if field not in fields]
        if missing:
            return index.name, Phrase("index_fields_missing", {"fields": missing})
        own = by_name.setdefault(index.name, list(index.fields))
        if own != list(index.fields):
            return index.name, Phrase("index_segments_differ")
    return "", None


def files_of(index: IndexMetadata, protocol: int) -> Iterable[tuple[str, int]]:
    """Return the files, by name, that an index can't be opened without, with sizes (0: unknown)."""
    if index.files:
        return [(file.path, file.size_bytes) for file in index.files]
    kind = index.index_details.type_url.rpartition(".")[2]
    if kind == _VECTOR and protocol >= UNTRAINED_INDICES_SINCE and _covers_nothing(index):
        return []
    return [(_MAIN_FILE[kind], 0)] if kind in _MAIN_FILE else []


def _covers_nothing(index: IndexMetadata) -> bool:
    """Return True if an index says which fragments it covers, and that these are none."""
    covered = covered_fragments(index)
    return covered is not None and not covered
