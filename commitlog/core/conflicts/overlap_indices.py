"""The rules that the grid's lower-case cells name, for indices."""

from __future__ import annotations

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Nearest, Verdict
from commitlog.core.conflicts.history import History
from commitlog.core.manifest.indices import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    covered_fragments,
    is_mixed,
    needs_addresses,
)


def indexed_field_dropped(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A new index over a Project or Merge that dropped its field, and MemWAL over Merge.

    Stricter than Lance, which publishes an index that breaks every filtered read.
    """
    nearest = Nearest("indexed_field_dropped")
    for index in candidate.operation.new_indices:
        if index.name == MEM_WAL_INDEX and kind == "Merge":
            version = history.first_of_kind(kind, after)
            nearest.offer(version, rule="mem_wal_over_merge")
        for field_id in index.fields:
            version = history.first(f"{kind}.dropped", field_id, after)
            nearest.offer(version, key=field_id)
    return nearest.finding


def indexed_field_replaced(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A new index over a DataReplacement of its field, in any fragment."""
    nearest = Nearest("indexed_field_replaced")
    for index in candidate.operation.new_indices:
        for field_id in index.fields:
            version = history.first("DataReplacement.field", field_id, after)
            nearest.offer(version, key=field_id)
    return nearest.finding


def replaced_field_indexed(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A DataReplacement over a new index on its field, in any fragment."""
    nearest = Nearest("replaced_field_indexed")
    for group in candidate.operation.replacements:
        for field_id in group.new_file.fields:
            nearest.offer(history.first("CreateIndex.field", field_id, after), key=field_id)
    return nearest.finding


def indexed_fragment_patched(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A new index over an Update that patched its field, where it doesn't say what it covers.

    If it does, the patched fragments are taken out of its coverage (`index_rebase`). Stricter than
    Lance, which finds out what the index covers and answers queries with what was patched.
    """
    nearest = Nearest("index_coverage_unknown")
    for index in candidate.operation.new_indices:
        if covered_fragments(index) is None:
            for field_id in index.fields:
                version = history.first("Update.patched_field", field_id, after)
                nearest.offer(version, key=field_id)
    return nearest.finding


def index_over_index(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """CreateIndex over CreateIndex: one name, one maker."""
    nearest = Nearest("same_index_name")
    operation = candidate.operation
    created = dict.fromkeys(index.name for index in operation.new_indices)
    removed = dict.fromkeys(index.name for index in operation.removed_indices)
    for name in created:
        nearest.offer(history.first("CreateIndex.created", name, after), key=name)
        if name not in removed:
            nearest.offer(history.first("CreateIndex.removed", name, after), key=name)
    for name in removed:
        nearest.offer(history.first("CreateIndex.added", name, after), key=name)
    for index in operation.removed_indices:
        how = "CreateIndex.uuid" if index.name in created else "CreateIndex.replaced_uuid"
        version = history.first(how, index.uuid.uuid, after)
        nearest.offer(version, rule="same_segment_removed", key=index.name)
    return nearest.finding


def index_over_rewrite(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A new index over a Rewrite of a fragment that it covers.

    They go together where a fragment reuse index tells what became of the fragment.
    """
    nearest = Nearest("indexed_fragment_rewritten")
    new = [i for i in candidate.operation.new_indices if i.name != FRAGMENT_REUSE_INDEX]
    covers = [covered_fragments(index) for index in new]
    if any(covered is None for covered in covers):
        nearest.offer(history.first_of_kind(kind, after), rule="index_coverage_unknown")
        return nearest.finding
    lost = BitMap.union(
        BitMap(), *(c for c, i in zip(covers, new, strict=True) if c and needs_addresses(i))
    )
    mixed = Verdict.INCOMPATIBLE if is_mixed(candidate.operation.new_indices) else None
    for fragment_id in BitMap.union(BitMap(), *(c for c in covers if c is not None)):
        rewritten = history.first("Rewrite.old", fragment_id, after)
        if fragment_id not in candidate.reused or fragment_id in lost:
            nearest.offer(rewritten, fragment=fragment_id)
        elif mixed:
            nearest.offer(rewritten, rule="fragment_reuse_mixed", verdict=mixed)
    return nearest.finding


def mem_wal_index(candidate: Candidate, history: History, after: int, kind: str) -> Finding | None:
    """A new index over UpdateMemWalState: only the MemWAL's own index takes it in."""
    nearest = Nearest("mem_wal_changed", Verdict.INCOMPATIBLE)
    if all(index.name != MEM_WAL_INDEX for index in candidate.operation.new_indices):
        nearest.offer(history.first_of_kind(kind, after))
    return nearest.finding


def merge_over_index(
    candidate: Candidate, history: History, after: int, kind: str
) -> Finding | None:
    """A Merge over the MemWAL's index."""
    nearest = Nearest("merge_over_mem_wal")
    nearest.offer(history.first("CreateIndex.created", MEM_WAL_INDEX, after))
    return nearest.finding
