"""Rewrite: fragments are replaced by others that hold the same rows, as a compaction does.

A compaction keeps the order of the rows that live, so a row's rank among the live rows of its
group is its position in the group's new fragments. Rows that newer Deletes and Updates took out of
the old fragments get deletion vectors over the new ones. Lance refuses the Rewrite here, so a
table with busy writers is never compacted.

A Rewrite may also sort rows, so one is carried only if its writer vouches for the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.conflicts.write_sets import Writes
from commitlog.core.decisions import FileToWrite, Found, Refused, rejected
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.data_files import check_new_fragment
from commitlog.core.manifest.deletion_vectors import (
    MergedDeletions,
    deletion_file_of,
    merge_deletions,
    portable,
)
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
from commitlog.core.operations.operation import Claims, LanceOperation, ManifestChange
from commitlog.core.operations.references import REMOVED_BY, References
from commitlog.core.rebase.deletions import CHANGED_BY, NOT_NEEDED, Rebased, written
from commitlog.core.rebase.vectors import observed, vector_in
from commitlog.core.refusals import conflict_refused
from commitlog.core.schema_check.messages import fragments_problem
from commitlog.lancepb.table_pb2 import DataFragment, IndexMetadata, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import REWRITES_BUILT_HERE_SINCE, REWRITES_CARRIED_SINCE, Rules
from commitlog.model.names import NameProblem
from commitlog.model.operations import ROW_ORDER, ROW_ORDER_KEPT
from commitlog.model.records import Code, FileWritten, FragmentImage

_BY_ROW_ID = (
    *("BTreeIndexDetails", "BitmapIndexDetails", "LabelListIndexDetails"),
    *("InvertedIndexDetails", "VectorIndexDetails"),
)
"""Kinds of indices that find stable row ids; others may hold addresses, and go stale."""

_ROWS_MAX = 2**32
"""Of a group of fragments: positions in it have 32 bits."""


class RewriteOperation(LanceOperation[Transaction.Rewrite]):
    """Replaces fragments by others with the same rows."""

    field = "rewrite"
    keeps_rows = True
    built_here_since = REWRITES_BUILT_HERE_SINCE

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

    def rebase(
        self,
        draft: Draft,
        view: View,
        candidate: Candidate,
        affected: Mapping[int, BitMap],
        read_version: int,
    ) -> Rebased:
        if not candidate.keeps_row_order:
            return NOT_NEEDED
        return _rebase(draft, view, candidate, read_version)

    def check_references(self, references: References, transaction: Transaction) -> None:
        body = _without_gone(transaction, references.images).rewrite
        state = references.state
        references.check_fragments(self.changed_fragments(body))
        maximum = state.max_fragment_id
        last = state.fragments.last_id if maximum is None else maximum
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
        removed = _removed(state, groups)
        maximum = state.max_fragment_id
        next_id = (state.fragments.last_id if maximum is None else maximum) + 1
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
    rewritten: Iterable[Transaction.Rewrite.RewrittenIndex],
    covers: Sequence[tuple[BitMap, BitMap]],
) -> bytes | None:
    """Return the indices once groups of fragments are replaced by others, None if all stay.

    Where row ids are stable, an index finds the rows that it had. Elsewhere it doesn't, unless its
    writer remapped it to a new one, of which `rewritten` has the id and the files.
    """
    if not state.index_section:
        return None
    section = IndexSection.FromString(state.index_section)
    is_stable = bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS)
    remapped = {one.old_id.uuid: one for one in rewritten}
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
            _cover(index, covers)
    after = section.SerializeToString(deterministic=True)
    return None if after == state.index_section else after


def _cover(index: IndexMetadata, covers: Sequence[tuple[BitMap, BitMap]]) -> None:
    """Have an index cover what took the place of fragments that it covers."""
    covered = covered_fragments(index)
    if covered is None:
        raise NotDirect(f"index {index.name!r} doesn't say what it covers")
    after = covered.copy()
    for old, new in covers:
        if old <= covered:
            after = (after - old) | new
        elif old & covered:
            raise NotDirect(f"index {index.name!r} covers a part of a group")
    if after != covered:
        index.fragment_bitmap = portable(after)


class _Old(NamedTuple):
    """A fragment that is replaced, as the Rewrite read it and as it is at the head."""

    fragment: DataFragment
    read: str
    """Its deletion file then; empty: none."""
    latest: str | None
    """Its deletion file at the head; None: the fragment is gone."""

    @property
    def is_changed(self) -> bool:
        return self.latest != self.read

    @property
    def live_rows(self) -> int:
        deletion_file = self.fragment.deletion_file
        return self.fragment.physical_rows - deletion_file.num_deleted_rows


class _Group(NamedTuple):
    olds: list[_Old]
    new: Sequence[DataFragment]

    @property
    def is_changed(self) -> bool:
        return any(old.is_changed for old in self.olds)


def _rebase(draft: Draft, view: View, candidate: Candidate, read_version: int) -> Rebased:
    """Return the new fragments without the rows that are gone, as `put_images` wants them."""
    groups = [
        _Group([_old(view, old, read_version) for old in group.old_fragments], group.new_fragments)
        for group in candidate.operation.groups
    ]
    changed = [old for group in groups for old in group.olds if old.is_changed]
    if not changed:
        return NOT_NEEDED
    for group in groups:
        _check_rows(view, candidate, group, read_version)
    paths = [path for old in changed for path in (old.read, old.latest) if path]
    vectors = observed(draft, view, paths)
    images: list[FragmentImage] = []
    files: list[FileWritten] = []
    to_write: list[FileToWrite] = []
    fragment_ids = _ids(view)
    for group in groups:
        gone, start = _positions_gone(view, group, vectors), 0
        for fragment in group.new:
            end = start + fragment.physical_rows
            rows = (gone & BitMap(range(start, end))).shift(-start)
            fragment_id = fragment.id or next(fragment_ids)
            merged = _without(draft, view, fragment, fragment_id, rows)
            images.append(FragmentImage(fragment_id, merged.fragment))
            if merged.data:
                file, content = written(view, merged)
                files.append(file)
                to_write.append(content)
            start = end
    if all(image.image is None for image in images):
        raise _refused(view, candidate, groups[0], read_version, "no_row_left")
    images += [FragmentImage(old.fragment.id, None) for old in changed if old.latest is None]
    return Rebased(tuple(images), tuple(files), tuple(to_write))


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


def _old(view: View, fragment: DataFragment, read_version: int) -> _Old:
    assert view.state is not None
    current = view.state.fragments.get(fragment.id)
    latest = None if current is None else deletion_file_of(DataFragment.FromString(current))
    return _Old(fragment, deletion_file_of(fragment), latest)


def _check_rows(view: View, candidate: Candidate, group: _Group, read_version: int) -> None:
    """Refuse a group whose rows cannot be matched with those of its new fragments."""
    if not group.is_changed:
        return
    history = view.table.history
    for old in group.olds:
        known = history.deletion_file_at(old.fragment.id, read_version)
        if known is not None and known != old.read:
            raise _refused(view, candidate, group, read_version, "rows_unknown")
    has_vectors = any(fragment.HasField("deletion_file") for fragment in group.new)
    live, new = sum(o.live_rows for o in group.olds), sum(f.physical_rows for f in group.new)
    if live != new or live > _ROWS_MAX or has_vectors:
        raise _refused(view, candidate, group, read_version, "rows_unknown")


def _positions_gone(view: View, group: _Group, vectors: Mapping[str, Found]) -> BitMap:
    """Return which of a group's live rows are deleted by now, counted through its fragments."""
    gone, start = BitMap(), 0
    for old in group.olds:
        if old.is_changed:
            read = vector_in(view, old.read, vectors)
            if old.latest is None:
                gone |= BitMap(range(start, start + old.live_rows))
            else:
                newly = vector_in(view, old.latest, vectors) - read
                ranks = newly if not read else BitMap(_ranks(newly, read))
                gone |= ranks.shift(start)
        start += old.live_rows
    return gone


def _ranks(rows: BitMap, deleted: BitMap) -> Iterator[int]:
    """Yield each row's rank among those that aren't `deleted`."""
    before, others = 0, iter(deleted)
    other = next(others, None)
    for row in rows:
        while other is not None and other < row:
            before += 1
            other = next(others, None)
        yield row - before


def _ids(view: View) -> Iterator[int]:
    """Yield the ids that Lance would give to new fragments."""
    assert view.state is not None
    maximum = view.state.max_fragment_id
    fragment_id = view.state.fragments.last_id if maximum is None else maximum
    while True:
        fragment_id += 1
        yield fragment_id


def _without(
    draft: Draft, view: View, fragment: DataFragment, fragment_id: int, rows: BitMap
) -> MergedDeletions:
    assert view.state is not None
    named = DataFragment()
    named.CopyFrom(fragment)
    named.id = fragment_id
    encoded = named.SerializeToString(deterministic=True)
    if not rows:
        return MergedDeletions(encoded)
    return merge_deletions(
        encoded,
        BitMap(),
        rows,
        read_version=view.state.version,
        transaction_id=draft.transaction.transaction_id,
    )


def _refused(
    view: View, candidate: Candidate, group: _Group, read_version: int, rule: str
) -> Refused:
    changed = tuple(old.fragment.id for old in group.olds if old.is_changed)
    history = view.table.history
    version = max(history.last(how, fragment_id) for how in CHANGED_BY for fragment_id in changed)
    finding = Finding(version, Verdict.RETRYABLE, rule, changed[:10])
    return conflict_refused(view.table, candidate.kind, finding, read_version, view.version)
