"""CreateIndex: indices come and go, segment by segment.

One is carried over what was committed since it read the table, as Lance does. A fragment whose
indexed column was rewritten in place goes out of the index's coverage and is scanned until somebody
indexes it again. So do those that a compaction replaced, leaving a fragment reuse index, if it took
in an overlay of that column which the index doesn't know. The MemWAL's own index takes in the
generations that shards came to meanwhile, and takes the place of the one that is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from commitlog.core.conflicts.history import Aspect, History
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.indices import (
    FRAGMENT_REUSE_INDEX,
    MEM_WAL_INDEX,
    coverable,
    covered_fragments,
)
from commitlog.core.manifest.manifest_state import ManifestState, change_indices
from commitlog.core.manifest.mem_wal import raise_generations
from commitlog.core.manifest.roaring import is_bitmap, portable
from commitlog.core.operations.operation import LanceOperation
from commitlog.core.operations.references import References
from commitlog.core.operations.update_mem_wal_state import generations
from commitlog.core.rebase.reused_fragments import Groups, reused_since
from commitlog.core.schema_check.index_entries import index_problem
from commitlog.core.schema_check.messages import unreadable
from commitlog.lancepb.table_pb2 import IndexMetadata, IndexSection, MemWalIndexDetails
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.names import NameProblem
from commitlog.model.reasons import Phrase

_SINGLE = (FRAGMENT_REUSE_INDEX, MEM_WAL_INDEX)


class CreateIndexOperation(LanceOperation[Transaction.CreateIndex]):
    """Adds and removes segments of indices."""

    field = "create_index"
    keeps_rows = True

    def problem(self, body: Transaction.CreateIndex) -> NameProblem | None:
        for index in body.new_indices:
            problem = index_problem(index)
            if problem:
                return NameProblem("index", index.name, problem)
        for index in body.removed_indices:
            if index.fragment_bitmap and not is_bitmap(index.fragment_bitmap):
                return unreadable("removed_indices.fragment_bitmap", "a Roaring bitmap")
        return None

    def writes(self, body: Transaction.CreateIndex, before: ManifestState) -> Writes:
        """Return names, segments, fields, and the fragments that are covered."""
        created = dict.fromkeys(index.name for index in body.new_indices)
        removed = dict.fromkeys(index.name for index in body.removed_indices)
        aspects: list[Aspect] = [("CreateIndex.created", name) for name in created]
        aspects.extend(("CreateIndex.added", name) for name in created if name not in removed)
        aspects.extend(("CreateIndex.removed", name) for name in removed)
        for index in body.removed_indices:
            aspects.append(("CreateIndex.uuid", index.uuid.uuid))
            if index.name in created:
                aspects.append(("CreateIndex.replaced_uuid", index.uuid.uuid))
        for index in body.new_indices:
            aspects.extend(("CreateIndex.field", field_id) for field_id in index.fields)
        if FRAGMENT_REUSE_INDEX in created and (
            len(body.new_indices) != 1 or len(body.removed_indices) != 1
        ):
            aspects.append(("CreateIndex.reuse_mixed", ""))
        notes: list[tuple[Aspect, Any]] = []
        for index in body.new_indices:
            if index.name == MEM_WAL_INDEX:
                details = _mem_wal_details(index)
                notes.extend(generations("CreateIndex", details.compacted_sstables))
        aspects.extend(aspect for aspect, _ in notes)
        if created and FRAGMENT_REUSE_INDEX not in created:
            covers = [covered_fragments(index) for index in body.new_indices]
            bitmaps = [bitmap for bitmap in covers if bitmap is not None]
            union = BitMap.union(*bitmaps) if bitmaps else BitMap()
            covered = None if len(bitmaps) < len(covers) else union.serialize().hex()
            notes.append((("CreateIndex.covers", ""), covered))
            aspects.append(("CreateIndex.covers", ""))
        return Writes(tuple(dict.fromkeys(aspects)), tuple(notes))

    def reused_fragments(self, draft: Draft, view: View, read_version: int) -> Groups:
        return reused_since(draft, view, read_version)

    def check_references(self, references: References, transaction: Transaction) -> None:
        for index in transaction.create_index.new_indices:
            if not index.name.startswith("__lance_"):
                references.check_fields(Phrase("the_index", {"name": index.name}), index.fields)

    def for_pylance(
        self, draft: Draft, view: View, transaction: Transaction, read_version: int
    ) -> Transaction:
        assert view.state is not None
        reused = reused_since(draft, view, read_version)
        section, history = view.state.index_section, view.table.history
        return rebased_indices(transaction, history, section, read_version, reused)

    def as_built(
        self, transaction: Transaction, before: bytes | None, after: bytes | None
    ) -> Transaction:
        """Return it as it shows in the index section that was made of the one before.

        That is what `rebased_indices` made of it, known without the history: a replay has the
        sections alone.
        """
        if after is None:
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

    def leave_unsaid(self, body: Transaction.CreateIndex) -> bool:
        for index in (*body.new_indices, *body.removed_indices):
            covered = covered_fragments(index) if index.fragment_bitmap else BitMap()
            if covered is not None:  # pylance's Python has a set, which it encodes in its own way
                index.fragment_bitmap = portable(covered)
        return True

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        new = transaction.create_index.new_indices
        unknown = {index.uuid.uuid for index in new if not index.fragment_bitmap}

        def without_bitmap(index: IndexMetadata) -> None:
            if index.uuid.uuid in unknown:
                index.ClearField("fragment_bitmap")

        if unknown:
            change_indices(built, without_bitmap)


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
    patched = _patched(operation.new_indices, history, read_version)
    for index in operation.new_indices:
        _prune(index, history, read_version, reused, patched)
        if index.name == MEM_WAL_INDEX:
            _take_generations(index, history, read_version)
    created = {index.name for index in operation.new_indices}.intersection(_SINGLE)
    removed = {index.uuid.uuid for index in operation.removed_indices}
    if created:
        standing = IndexSection.FromString(index_section or b"").indices
        gone = (i for i in standing if i.name in created and i.uuid.uuid not in removed)
        operation.removed_indices.extend(gone)
    return rebased


def _patched(
    indices: Iterable[IndexMetadata], history: History, read_version: int
) -> dict[int, BitMap]:
    """Return the fragments in which a column was patched since, by each indexed column.

    What an index covers may be a billion fragments, in a few bytes: none goes through them.
    """
    fields = {field_id for index in indices for field_id in index.fields}
    fields = {one for one in fields if history.first("Update.patched_field", one, read_version)}
    found: dict[int, list[int]] = {field_id: [] for field_id in fields}
    pairs = history.every_after("Update", "Update.patched", read_version) if fields else ()
    for fragment_id, field_id in pairs:
        if field_id in fields:
            found[field_id].append(fragment_id)
    return {field_id: coverable(fragment_ids) for field_id, fragment_ids in found.items()}


def _prune(
    index: IndexMetadata,
    history: History,
    read_version: int,
    reused: Groups,
    patched: Mapping[int, BitMap],
) -> None:
    covered = covered_fragments(index)
    if covered is None:
        return
    stale = covered & BitMap.union(BitMap(), *(patched[f] for f in index.fields if f in patched))
    for group in reused:
        if any(_took_overlay(index, history, f, read_version) for f in group):
            stale |= covered & coverable(group)
    if stale:
        index.fragment_bitmap = portable(covered - stale)


def _took_overlay(
    index: IndexMetadata, history: History, fragment_id: int, read_version: int
) -> bool:
    """Return True if a fragment was replaced after its indexed column was overlaid, all unseen."""
    return bool(history.first("Rewrite.old", fragment_id, read_version)) and any(
        history.first("DataOverlay.cell", (fragment_id, field_id), read_version)
        for field_id in index.fields
    )


def _take_generations(index: IndexMetadata, history: History, read_version: int) -> None:
    details = _mem_wal_details(index)
    for kind in ("UpdateMemWalState", "Update"):
        how = f"{kind}.compacted"
        for version in history.all_after(how, "", read_version):
            encoded = bytes.fromhex(history.note(how, "", version))
            compacted = Transaction.UpdateMemWalState.FromString(encoded).compacted_sstables
            raise_generations(details, compacted)
    index.index_details.value = details.SerializeToString(deterministic=True)


def _mem_wal_details(index: IndexMetadata) -> MemWalIndexDetails:
    """Return an entry's details; none if they can't be read, which old protocols don't refuse."""
    try:
        return MemWalIndexDetails.FromString(index.index_details.value)
    except DecodeError:
        return MemWalIndexDetails()
