"""The fragment reuse index: which fragments a compaction replaced that left indices as they are.

It tells Lance where rows of such fragments are now, so an index that was built before the
compaction is still right after it. Tagged details aren't read here; then the writer is asked to
build its index again.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from google.protobuf.message import DecodeError

from commitlog.core.decisions import BytesWanted
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX, UUID_BYTES
from commitlog.lancepb.table_pb2 import FragmentReuseIndexDetails, IndexMetadata, IndexSection
from commitlog.model.limits import FRAGMENT_REUSE_SINCE

Groups = tuple[frozenset[int], ...]
"""Fragments that were replaced together."""


def reused_since(draft: Draft, view: View, read_version: int) -> Groups:
    """Return the groups of fragments that the reuse index says were replaced.

    Empty if no Rewrite came after the version that was read, and under older protocols.
    """
    state = view.state
    if state is None or draft.rules.protocol < FRAGMENT_REUSE_SINCE:
        return ()
    if not view.table.history.first_of_kind("Rewrite", read_version):
        return ()
    groups: list[frozenset[int]] = []
    for index in IndexSection.FromString(state.index_section or b"").indices:
        if index.name == FRAGMENT_REUSE_INDEX:
            groups.extend(_groups(draft, view, index))
    return tuple(groups)


def _groups(draft: Draft, view: View, index: IndexMetadata) -> Groups:
    details = FragmentReuseIndexDetails()
    try:
        details.ParseFromString(index.index_details.value)
    except DecodeError:
        return ()
    if details.WhichOneof("content") != "external":
        return groups_in(details.inline.SerializeToString(deterministic=True))
    # Large ones lie in a file of their own.
    file = details.external
    location = view.location_of(index.base_id if index.HasField("base_id") else None)
    if not location or len(index.uuid.uuid) != UUID_BYTES or "/" in file.path:
        return ()
    path = f"_indices/{UUID(bytes=index.uuid.uuid)}/{file.path}"
    data = (draft.want(BytesWanted(location, path)).data or b"")[file.offset :]
    return groups_in(data[: file.size] if file.size else data)


@lru_cache(maxsize=16)
def groups_in(content: bytes) -> Groups:
    """Return the groups that the content of untagged details names, oldest first."""
    try:
        versions = FragmentReuseIndexDetails.InlineContent.FromString(content).legacy_versions
    except DecodeError:
        return ()
    return tuple(frozenset(f.id for f in g.old_fragments) for v in versions for g in v.groups)
