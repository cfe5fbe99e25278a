"""Carries a CreateIndex over what was committed since it read the table, as Lance does.

A fragment whose indexed column was rewritten in place goes out of the index's coverage and is
scanned until somebody indexes it again. So do those that a compaction replaced, leaving a fragment
reuse index, if it took in an overlay of that column which the index doesn't know. The MemWAL's own
index takes in the generations that shards came to meanwhile, and takes the place of the one that
stands.
"""

from __future__ import annotations

from pyroaring import BitMap

from commitlog.core.conflicts.history import History
from commitlog.core.conflicts.metadata_write_sets import covered_fragments
from commitlog.core.manifest.deletion_vectors import portable
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX
from commitlog.core.manifest.mem_wal import raise_generations
from commitlog.core.rebase.reused_fragments import Groups
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection, MemWalIndexDetails
from commitlog.lancepb.transaction_pb2 import Transaction

_SINGLE = (FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX)


def rebased_indices(
    transaction: Transaction,
    history: History,
    index_section: bytes | None,
    read_version: int,
    reused: Groups = (),
) -> Transaction:
    """Return a CreateIndex as it has to be on top of a head with this index section.

    `reused` are the fragments that a fragment reuse index tells of, by what replaced them together.
    """
    rebased = Transaction()
    rebased.CopyFrom(transaction)
    operation = rebased.create_index
    for index in operation.new_indices:
        _prune(index, history, read_version, reused)
        if index.name == MEM_WAL_INDEX:
            _take_generations(index, history, read_version)
    created = {index.name for index in operation.new_indices}.intersection(_SINGLE)
    removed = {index.uuid.uuid for index in operation.removed_indices}
    if created:
        standing = IndexSection.FromString(index_section or b"").indices
        gone = (i for i in standing if i.name in created and i.uuid.uuid not in removed)
        operation.removed_indices.extend(gone)
    return rebased


def as_built(transaction: Transaction, before: bytes | None, after: bytes | None) -> Transaction:
    """Return a CreateIndex as it shows in the index section that was made of the one before.

    That is what `rebased_indices` made of it, known without the history: a replay has the sections
    alone. Any other transaction is returned as it is.
    """
    if not transaction.HasField("create_index") or after is None:
        return transaction
    stands = {index.uuid.uuid: index for index in IndexSection.FromString(after).indices}
    rebased = Transaction()
    rebased.CopyFrom(transaction)
    operation = rebased.create_index
    for index in operation.new_indices:
        found = stands.get(index.uuid.uuid, index)
        if covered_fragments(index) != covered_fragments(found):
            index.fragment_bitmap = found.fragment_bitmap
        if index.name == MEM_WAL_INDEX:
            index.index_details.CopyFrom(found.index_details)
    created = {index.name for index in operation.new_indices}.intersection(_SINGLE)
    removed = {index.uuid.uuid for index in operation.removed_indices}
    for index in IndexSection.FromString(before or b"").indices if created else ():
        if index.name in created and index.uuid.uuid not in removed | stands.keys():
            operation.removed_indices.append(index)
    return transaction if rebased == transaction else rebased


def _prune(index: IndexMetadata, history: History, read_version: int, reused: Groups) -> None:
    covered = covered_fragments(index)
    if covered is None:
        return
    patched = [f for f in index.fields if history.first("Update.patched_field", f, read_version)]
    stale = BitMap(
        fragment_id
        for field_id in patched
        for fragment_id in covered
        if history.first("Update.patched", (fragment_id, field_id), read_version)
    )
    for group in reused:
        if any(_took_overlay(index, history, f, read_version) for f in group):
            stale |= covered & BitMap(group)
    if stale:
        index.fragment_bitmap = portable(covered - stale)


def _took_overlay(
    index: IndexMetadata, history: History, fragment_id: int, read_version: int
) -> bool:
    """Say whether a fragment was replaced after its indexed column was overlaid, all unseen."""
    return bool(history.first("Rewrite.old", fragment_id, read_version)) and any(
        history.first("DataOverlay.cell", (fragment_id, field_id), read_version)
        for field_id in index.fields
    )


def _take_generations(index: IndexMetadata, history: History, read_version: int) -> None:
    details = MemWalIndexDetails.FromString(index.index_details.value)
    for kind in ("UpdateMemWalState", "Update"):
        how = f"{kind}.compacted"
        for version in history.all_after(how, "", read_version):
            encoded = bytes.fromhex(history.note(how, "", version))
            compacted = Transaction.UpdateMemWalState.FromString(encoded).compacted_sstables
            raise_generations(details, compacted)
    index.index_details.value = details.SerializeToString(deterministic=True)
