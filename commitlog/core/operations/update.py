"""Update: rows move to new fragments with new values, or columns are rewritten in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, moves_rows
from commitlog.core.conflicts.write_sets import (
    HASHES_OF_LANCE,
    UNKNOWN_KEYS,
    Keys,
    Writes,
    explicit_keys,
)
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragment_changes import fragments_after, post_image, with_ids
from commitlog.core.manifest.manifest_state import ManifestState, NotDirect
from commitlog.core.manifest.roaring import is_bitmap, portable
from commitlog.core.operations.fragment_images import image_aspects, put_rebased, retained_indices
from commitlog.core.operations.operation import Claims, LanceOperation, ManifestChange
from commitlog.core.operations.references import References
from commitlog.core.operations.update_mem_wal_state import (
    check_compacted,
    complete_compacted,
    generations,
)
from commitlog.core.rebase.deletions import Rebased, images_with_known_rows, rebase_deletions
from commitlog.core.rebase.late import Late, observed, vector_in
from commitlog.core.rebase.overlay_rows import coverage, deletion_file_read, refuse_overlaid
from commitlog.core.schema_check.messages import fragments_problem, unreadable
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import UPDATES_BUILT_HERE_SINCE
from commitlog.model.names import NameProblem
from commitlog.model.operations import KeyHashes
from commitlog.model.records import FragmentImage


class UpdateOperation(LanceOperation[Transaction.Update]):
    """Changes rows, and adds some: an upsert is one, too."""

    field = "update"
    read_at_head = True
    built_here_since = UPDATES_BUILT_HERE_SINCE

    def problem(self, body: Transaction.Update) -> NameProblem | None:
        for encoded in body.updated_fragment_offset_bitmaps.values():
            if not is_bitmap(encoded):
                return unreadable("updated_fragment_offset_bitmaps", "a Roaring bitmap")
        return fragments_problem(chain(body.new_fragments, body.updated_fragments))

    def named_fragments(self, body: Transaction.Update) -> list[int]:
        return [*(fragment.id for fragment in body.updated_fragments), *body.removed_fragment_ids]

    def writes(self, body: Transaction.Update, before: ManifestState) -> Writes:
        updated = body.updated_fragments
        aspects, deletion_files = image_aspects("Update", updated, before)
        aspects.extend(("Update.removed", f) for f in body.removed_fragment_ids)
        if moves_rows(body):
            aspects.extend(("Update.moved", image.id) for image in updated)
        for field_id in _with_descendants(body.fields_modified, before):
            aspects.append(("Update.patched_field", field_id))
            aspects.extend(("Update.patched", (image.id, field_id)) for image in updated)
        notes = generations("Update", body.compacted_sstables)
        aspects.extend(aspect for aspect, _ in notes)
        return Writes(tuple(aspects), notes, tuple(deletion_files))

    def keys(self, body: Transaction.Update, explicit: KeyHashes | None) -> Keys | None:
        if explicit is not None:
            return explicit_keys(explicit)
        if body.HasField("inserted_rows"):
            return _keys_of_filter(body.inserted_rows)
        return UNKNOWN_KEYS if body.new_fragments else None

    def changed_fragments(self, body: Transaction.Update) -> Iterable[int]:
        return chain((f.id for f in body.updated_fragments), body.removed_fragment_ids)

    def fragments_with_known_rows(self, body: Transaction.Update, late: Late) -> frozenset[int]:
        # A column patch deletes nothing, which isn't the same as deleting other rows.
        if body.update_mode != Transaction.REWRITE_ROWS:
            return frozenset()
        images = body.updated_fragments
        return images_with_known_rows(images, late)

    def new_fragments(self, body: Transaction.Update) -> Iterable[DataFragment]:
        return body.new_fragments

    def images(self, body: Transaction.Update) -> Sequence[DataFragment]:
        is_patch = body.update_mode == Transaction.REWRITE_COLUMNS
        return body.updated_fragments if is_patch else ()

    def check_overlaid_rows(self, late: Late, candidate: Candidate) -> None:
        """Refuse an Update of rows that were overlaid meanwhile: it took the old values along."""
        if not candidate.moves_rows:
            return
        history, state, read_version = late.history, late.state, late.read_version
        overlaid = {
            fragment_id: DataFragment.FromString(state.fragments[fragment_id])
            for fragment_id in candidate.fragments
            if history.first("DataOverlay.fragment", fragment_id, read_version)
            and fragment_id in state.fragments
        }
        if not overlaid:
            return
        staged = {f.id: deletion_file_of(f) for f in candidate.operation.updated_fragments}
        read = {
            f: deletion_file_read(late, overlaid[f]) for f in overlaid if f not in late.affected
        }
        paths = (path for f in read for path in (staged.get(f, ""), read[f]))
        vectors = observed(late.draft, late.view, filter(None, paths))
        for fragment_id, fragment in overlaid.items():
            rows = late.affected.get(fragment_id)
            if rows is None:
                staged_rows = vector_in(late.view, staged[fragment_id], vectors)
                rows = staged_rows - vector_in(late.view, read[fragment_id], vectors)
            newer = (o for o in fragment.overlays if o.committed_version > read_version)
            both = rows & coverage(newer)
            if both:
                version = history.first("DataOverlay.fragment", fragment_id, read_version)
                refuse_overlaid(late, candidate, version, fragment_id, both)

    def less_rows(self, body: Transaction.Update) -> Sequence[DataFragment]:
        return body.updated_fragments

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        return rebase_deletions(late, candidate, only_deletes=False)

    def check_references(self, references: References, transaction: Transaction) -> None:
        check_compacted(references, transaction, transaction.update.compacted_sstables)

    def put_images(self, body: Transaction.Update, images: Sequence[FragmentImage]) -> None:
        put_rebased(body.updated_fragments, body.removed_fragment_ids, images)

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        body = transaction.update
        _check_moves_rows(state, body)
        taken = fragments_after(
            state,
            ("removed_fragment_ids", body.removed_fragment_ids),
            body.updated_fragments,
            post_image,
        )
        # An Update is recorded as read at the head, whatever its writer read.
        added = with_ids(state, body.new_fragments, is_current=False)
        return ManifestChange(
            removed=taken.removed,
            fragments=taken.fragments + added.fragments,
            features=taken.features | added.features,
            is_mixed=added.is_mixed,
            max_fragment_id=added.max_fragment_id,
            index_section=retained_indices(state, taken.removed),
        )

    def leave_unsaid(self, body: Transaction.Update) -> bool:
        del body.compacted_sstables[:]
        body.ClearField("inserted_rows")
        for fragment_id, offsets in body.updated_fragment_offsets.items():
            bitmap = portable(BitMap(offsets.values))
            body.updated_fragment_offset_bitmaps.setdefault(fragment_id, bitmap)
        body.updated_fragment_offsets.clear()
        return True

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        complete_compacted(built, transaction, transaction.update.compacted_sstables)

    def claims(self, body: Transaction.Update) -> Claims:
        changed = frozenset(f.id for f in body.updated_fragments)
        return Claims(changed, changed.union(body.removed_fragment_ids))


def _keys_of_filter(rows: Transaction.KeyExistenceFilter) -> Keys:
    fields = ",".join(map(str, rows.field_ids))
    if rows.WhichOneof("data") == "exact":
        hashes = tuple(h.to_bytes(8) for h in rows.exact.key_hashes)
        return Keys(f"{HASHES_OF_LANCE}:{fields}", hashes)
    # A bloom filter compares with nothing for sure.
    return Keys(f"bloom:{fields}")


def _with_descendants(fields: Iterable[int], before: ManifestState) -> list[int]:
    """Return fields and what is in them: an index may be on the child of a packed struct."""
    found = dict.fromkeys(fields)
    if found:
        for field_id, field in before.header.fields.items():  # parents come before children
            if field.parent_id in found:
                found[field_id] = None
    return list(found)


def _check_moves_rows(state: ManifestState, body: Transaction.Update) -> None:
    """Leave to pylance whatever is more than rows that moved to new fragments."""
    if body.update_mode != Transaction.REWRITE_ROWS or body.fields_modified:
        raise NotDirect("columns are rewritten in place")
    if body.compacted_sstables:
        raise NotDirect("the MemWAL advances")
    if state.reader_feature_flags & FLAG_STABLE_ROW_IDS:
        raise NotDirect("moved rows keep their ids and the versions that they were made in")
