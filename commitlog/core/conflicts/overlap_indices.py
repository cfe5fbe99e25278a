"""Rules of the grid about indices."""

from __future__ import annotations

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Verdict
from commitlog.core.conflicts.rule import Missed, rule
from commitlog.core.manifest.indices import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    coverable,
    covered_fragments,
    is_mixed,
    needs_addresses,
)


@rule("indexed_field_dropped")
def indexed_field_dropped(missed: Missed) -> None:
    """A new index over a Project or Merge that dropped its field, and MemWAL over Merge.

    Stricter than Lance, which publishes an index that breaks every filtered read.
    """
    for index in missed.candidate.operation.new_indices:
        if index.name == MEM_WAL_INDEX and missed.kind == "Merge":
            missed.offer_any(rule="mem_wal_over_merge")
        for field_id in index.fields:
            missed.offer_first(f"{missed.kind}.dropped", field_id, key=field_id)


@rule("indexed_field_replaced")
def indexed_field_replaced(missed: Missed) -> None:
    """A new index over a DataReplacement of its field, in any fragment."""
    for index in missed.candidate.operation.new_indices:
        for field_id in index.fields:
            missed.offer_first("DataReplacement.field", field_id, key=field_id)


@rule("replaced_field_indexed")
def replaced_field_indexed(missed: Missed) -> None:
    """A DataReplacement over a new index on its field, in any fragment."""
    for group in missed.candidate.operation.replacements:
        for field_id in group.new_file.fields:
            missed.offer_first("CreateIndex.field", field_id, key=field_id)


@rule("index_coverage_unknown")
def indexed_fragment_patched(missed: Missed) -> None:
    """A new index over an Update that patched its field, where it doesn't say what it covers.

    If it does, `rebased_indices` takes the patched fragments out of its coverage. Stricter than
    Lance, which finds out what the index covers and answers queries with what was patched.
    """
    for index in missed.candidate.operation.new_indices:
        if covered_fragments(index) is None:
            for field_id in index.fields:
                missed.offer_first("Update.patched_field", field_id, key=field_id)


@rule("same_index_name")
def index_over_index(missed: Missed) -> None:
    """CreateIndex over CreateIndex of the same name."""
    operation = missed.candidate.operation
    created = dict.fromkeys(index.name for index in operation.new_indices)
    removed = dict.fromkeys(index.name for index in operation.removed_indices)
    for name in created:
        missed.offer_first("CreateIndex.created", name, key=name)
        if name not in removed:
            missed.offer_first("CreateIndex.removed", name, key=name)
    for name in removed:
        missed.offer_first("CreateIndex.added", name, key=name)
    for index in operation.removed_indices:
        how = "CreateIndex.uuid" if index.name in created else "CreateIndex.replaced_uuid"
        missed.offer_first(how, index.uuid.uuid, rule="same_segment_removed", key=index.name)


@rule("indexed_fragment_rewritten")
def index_over_rewrite(missed: Missed) -> None:
    """A new index over a Rewrite of a fragment that it covers.

    Both commit if a fragment reuse index tells what became of the fragment.
    """
    new = [i for i in missed.candidate.operation.new_indices if i.name != FRAGMENT_REUSE_INDEX]
    covers = [covered_fragments(index) for index in new]
    if any(covered is None for covered in covers):
        missed.offer_any(rule="index_coverage_unknown")
        return
    lost = BitMap.union(
        BitMap(), *(c for c, i in zip(covers, new, strict=True) if c and needs_addresses(i))
    )
    mixed = Verdict.INCOMPATIBLE if is_mixed(missed.candidate.operation.new_indices) else None
    # A few bytes may say that an index covers a billion fragments.
    missed_by = coverable(missed.history.every_after("Rewrite", "Rewrite.old", missed.after))
    for fragment_id in missed_by & BitMap.union(BitMap(), *(c for c in covers if c is not None)):
        rewritten = missed.first("Rewrite.old", fragment_id)
        if fragment_id not in missed.candidate.reused or fragment_id in lost:
            missed.offer(rewritten, fragment=fragment_id)
        elif mixed:
            missed.offer(rewritten, rule="fragment_reuse_mixed", verdict=mixed)


@rule("mem_wal_changed", Verdict.INCOMPATIBLE)
def mem_wal_index(missed: Missed) -> None:
    """A new index over UpdateMemWalState: only the MemWAL's own index takes it in."""
    if all(index.name != MEM_WAL_INDEX for index in missed.candidate.operation.new_indices):
        missed.offer_any()


@rule("merge_over_mem_wal")
def merge_over_index(missed: Missed) -> None:
    """A Merge over the MemWAL's index."""
    missed.offer_first("CreateIndex.created", MEM_WAL_INDEX)
