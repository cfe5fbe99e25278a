"""Rewrite: fragments are replaced by others that hold the same rows, as a compaction does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.decisions import rejected
from commitlog.core.manifest.data_files import check_new_fragment
from commitlog.core.manifest.feature_flags import FLAG_DATA_OVERLAY_FILES, FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragment_changes import FRAGMENT_ID_MAX, ids_exhausted, under_id
from commitlog.core.manifest.fragments import features
from commitlog.core.manifest.indices import coverable, covered_fragments
from commitlog.core.manifest.manifest_state import (
    DeltaRefused,
    ManifestState,
    NotDirect,
    change_indices,
)
from commitlog.core.manifest.roaring import portable
from commitlog.core.operations.operation import Claims, LanceOperation, ManifestChange
from commitlog.core.operations.references import REMOVED_BY, References
from commitlog.core.rebase.carried_rewrites import rebase_rewrite
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased
from commitlog.core.rebase.late import Late
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.lancepb.table_pb2 import DataFragment, IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import REWRITES_BUILT_HERE_SINCE, REWRITES_CARRIED_SINCE, Rules
from commitlog.model.names import NameProblem
from commitlog.model.operations import ROW_ORDER, ROW_ORDER_KEPT
from commitlog.model.records import Code, FragmentImage

_BY_ROW_ID = (
    *("BTreeIndexDetails", "BitmapIndexDetails", "LabelListIndexDetails"),
    *("InvertedIndexDetails", "VectorIndexDetails"),
)
"""Kinds of indices that find stable row ids; others may hold addresses, and go stale."""


class RewriteOperation(LanceOperation[Transaction.Rewrite]):
    """Replaces fragments by others with the same rows."""

    field = "rewrite"
    keeps_rows = True
    built_here_since = REWRITES_BUILT_HERE_SINCE
    is_recorded = True

    def problem(self, body: Transaction.Rewrite) -> NameProblem | None:
        return fragments_problem(self.new_fragments(body))

    def writes(self, body: Transaction.Rewrite, before: ManifestState) -> Writes:
        return Writes(tuple(("Rewrite.old", f) for f in self.changed_fragments(body)))

    def changed_fragments(self, body: Transaction.Rewrite) -> list[int]:
        groups = (group.old_fragments for group in body.groups)
        return [fragment.id for fragment in chain(body.old_fragments, *groups)]

    def keeps_row_order(self, transaction: Transaction, rules: Rules) -> bool:
        body = transaction.rewrite
        if rules.protocol < REWRITES_CARRIED_SINCE or body.old_fragments or body.new_fragments:
            return False
        return transaction.transaction_properties.get(ROW_ORDER) == ROW_ORDER_KEPT

    def new_fragments(self, body: Transaction.Rewrite) -> list[DataFragment]:
        groups = (group.new_fragments for group in body.groups)
        return list(chain(body.new_fragments, *groups))

    def rebase(self, late: Late, candidate: Candidate) -> Rebased:
        if not candidate.keeps_row_order:
            return NOT_NEEDED
        return rebase_rewrite(late, candidate)

    def check_references(self, references: References, transaction: Transaction) -> None:
        body = _without_gone(transaction, references.images).rewrite
        state = references.state
        references.check_fragments(self.changed_fragments(body))
        last = state.last_fragment_id
        ids = [fragment.id for fragment in self.new_fragments(body) if fragment.id]
        references.check_distinct(ids)
        history = references.view.table.history
        for fragment_id in ids:
            is_used = any(history.last(how, fragment_id) for how in REMOVED_BY)
            if fragment_id > last or fragment_id in state.fragments or is_used:
                raise rejected(
                    Code.DUPLICATE_FRAGMENT,
                    "fragment_id_taken",
                    kind=references.kind,
                    table=references.table_name,
                    fragment=fragment_id,
                )

    def put_images(self, body: Transaction.Rewrite, images: Sequence[FragmentImage]) -> None:
        """Put a rebased Rewrite's fragments in the place of its own.

        The images are those of all new fragments, in order (None: no row of it is left), and then
        one for each old fragment that is gone.
        """
        news = iter(images)
        for group in body.groups:
            new = [next(news).image for _ in group.new_fragments]
            del group.new_fragments[:]
            group.new_fragments.extend(DataFragment.FromString(image) for image in new if image)
        _drop_old(body, {image.fragment_id for image in news})

    def build(self, state: ManifestState, transaction: Transaction) -> ManifestChange:
        body = transaction.rewrite
        groups = _groups(body)
        if state.index_section and not all(f.id for one in groups for f in one.new_fragments):
            raise NotDirect("indices could cover a new fragment by the id that it doesn't have yet")
        removed = _removed(state, groups)
        next_id = state.last_fragment_id + 1
        added: list[tuple[int, bytes]] = []
        covers: list[tuple[BitMap, BitMap]] = []
        asked, is_mixed = 0, False
        for group in groups:
            new_ids: list[int] = []
            for fragment in group.new_fragments:
                is_mixed |= check_new_fragment(state.header, fragment, is_current=False)
                asked |= features(fragment)
                fragment_id = fragment.id or next_id
                next_id += not fragment.id
                if not next_id - 1 <= FRAGMENT_ID_MAX >= fragment_id:
                    raise ids_exhausted(max(fragment_id, next_id - 1))
                added.append((fragment_id, under_id(fragment, fragment_id)))
                new_ids.append(fragment_id)
            if state.index_section:
                covers.append((coverable(o.id for o in group.old_fragments), BitMap(new_ids)))
        added.sort()
        kept = state.fragments.features_after((fragment_id, None) for fragment_id in removed)
        return ManifestChange(
            removed=removed,
            fragments=tuple(added),
            features=kept | asked,
            is_mixed=is_mixed,
            max_fragment_id=max(next_id - 1, *(i for i, _ in added)) if added else None,
            index_section=_indices_after(state, body.rewritten_indices, covers),
        )

    def leave_unsaid(self, body: Transaction.Rewrite) -> bool:
        for index in body.rewritten_indices:
            del index.new_index_files[:]
        groups = _groups(body)
        if len(groups) > len(body.groups):
            body.groups.append(groups[-1])
            del body.old_fragments[:], body.new_fragments[:]
        return True

    def complete(self, built: ManifestState, transaction: Transaction) -> None:
        rewritten = transaction.rewrite.rewritten_indices
        files = {index.new_id.uuid: index.new_index_files for index in rewritten}

        def with_files(index: IndexMetadata) -> None:
            if files.get(index.uuid.uuid):
                del index.files[:]
                index.files.extend(files[index.uuid.uuid])

        if any(files.values()):
            change_indices(built, with_files)

    def claims(self, body: Transaction.Rewrite) -> Claims:
        return Claims(removed=frozenset(self.changed_fragments(body)))

    def reserved_fragments(self, body: Transaction.Rewrite) -> Iterable[int]:
        return [fragment.id for fragment in self.new_fragments(body)]


def _groups(body: Transaction.Rewrite) -> list[Transaction.Rewrite.RewriteGroup]:
    """Return the groups; the older form, which names fragments itself, is one more."""
    groups = list(body.groups)
    if body.old_fragments or body.new_fragments:
        older = Transaction.Rewrite.RewriteGroup(
            old_fragments=body.old_fragments, new_fragments=body.new_fragments
        )
        groups.append(older)
    return groups


def _removed(
    state: ManifestState, groups: Iterable[Transaction.Rewrite.RewriteGroup]
) -> tuple[int, ...]:
    """Return the ids that are replaced; leave to pylance what isn't a plain compaction."""
    has_overlays = state.fragments.features() & FLAG_DATA_OVERLAY_FILES
    removed: list[int] = []
    for group in groups:
        if not group.old_fragments:
            raise NotDirect("a group replaces no fragment")
        for old in group.old_fragments:
            current = state.fragments.get(old.id)
            if current is None:
                raise DeltaRefused(
                    "unknown_fragment", field="old_fragments", value=old.id, version=state.version
                )
            if old.overlays or (has_overlays and DataFragment.FromString(current).overlays):
                raise NotDirect(f"fragment {old.id} has data overlays, which indices may not know")
            removed.append(old.id)
    return tuple(sorted(removed))


def _indices_after(
    state: ManifestState,
    rewritten: Sequence[Transaction.Rewrite.RewrittenIndex],
    covers: Sequence[tuple[BitMap, BitMap]],
) -> bytes | None:
    """Return the indices once groups of fragments are replaced by others, None if all stay.

    Where row ids are stable, an index finds the rows that it had. Elsewhere it doesn't, unless its
    writer remapped it to a new one, of which `rewritten` has the id and the files.
    """
    if not state.index_section:
        return None
    section = IndexSection.FromString(state.index_section)
    groups = _merged(covers)
    is_stable = bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS)
    remapped = {one.old_id.uuid: one for one in rewritten}
    if len(remapped) < len(rewritten):
        raise NotDirect("an index is remapped twice, which pylance refuses")
    for index in section.indices:
        one = remapped.get(index.uuid.uuid)
        if one is not None:
            index.uuid.CopyFrom(one.new_id)
            index.ClearField("base_id")  # It is written beside the table, also beside a clone.
            del index.files[:]
            index.files.extend(one.new_index_files)
        elif is_stable and not index.index_details.type_url.endswith(_BY_ROW_ID):
            raise NotDirect(f"index {index.name!r} may hold addresses of rows")
        if is_stable or one is not None:
            _cover(index, groups)
    after = section.SerializeToString(deterministic=True)
    return None if after == state.index_section else after


class _Groups(NamedTuple):
    """Sets of fragments, each with what replaces it."""

    each: Sequence[tuple[BitMap, BitMap]]
    old: BitMap
    """Of all groups; empty if they have to be looked at one by one."""
    new: BitMap


def _merged(covers: Sequence[tuple[BitMap, BitMap]]) -> _Groups:
    """Return groups with all of them as one, since most indices cover all of them, or none.

    Each has to be looked at where one replaces nothing, or a new fragment has an old one's id.
    """
    old = BitMap.union(BitMap(), *(one for one, _ in covers))
    new = BitMap.union(BitMap(), *(one for _, one in covers))
    is_one = old.isdisjoint(new) and all(one for one, _ in covers)
    return _Groups(covers, old if is_one else BitMap(), new)


def _cover(index: IndexMetadata, groups: _Groups) -> None:
    """Have an index cover what took the place of fragments that it covers."""
    covered = covered_fragments(index)
    if covered is None:
        raise NotDirect(f"index {index.name!r} doesn't say what it covers")
    after, each = covered.copy(), groups.each
    if groups.old and groups.old <= covered:
        after, each = (covered - groups.old) | groups.new, ()
    elif groups.old and groups.old.isdisjoint(covered):
        each = ()
    for old, new in each:
        if old <= covered:
            after = (after - old) | new
        elif old & covered:
            raise NotDirect(f"index {index.name!r} covers a part of a group")
    if after != covered:
        index.fragment_bitmap = portable(after)


def _without_gone(transaction: Transaction, images: Sequence[FragmentImage]) -> Transaction:
    """Return a rebased Rewrite's transaction without the old fragments that are gone."""
    if not images:
        return transaction
    count = sum(len(group.new_fragments) for group in transaction.rewrite.groups)
    left = Transaction()
    left.CopyFrom(transaction)
    _drop_old(left.rewrite, {image.fragment_id for image in images[count:]})
    return left


def _drop_old(rewrite: Transaction.Rewrite, gone: set[int]) -> None:
    """Take old fragments, and groups that become empty, out of a Rewrite."""
    for group in rewrite.groups:
        left = [fragment for fragment in group.old_fragments if fragment.id not in gone]
        del group.old_fragments[:]
        group.old_fragments.extend(left)
    groups = [group for group in rewrite.groups if group.old_fragments or group.new_fragments]
    del rewrite.groups[:]
    rewrite.groups.extend(groups)
