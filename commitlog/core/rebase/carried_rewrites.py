"""A compaction's Rewrite, carried over deletions that it didn't see.

A compaction keeps the order of the rows that live, so a row's rank among the live rows of its
group is its position in the group's new fragments. Rows that newer Deletes and Updates took out of
the old fragments get deletion vectors over the new ones. Lance refuses the Rewrite here, so a
table with busy writers is never compacted.

A Rewrite may also sort rows, so one is carried only if its writer vouches for the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.decisions import FileToWrite, Found, Refused
from commitlog.core.draft import View
from commitlog.core.manifest.deletion_vectors import (
    MergedDeletions,
    deletion_file_of,
    merge_deletions,
)
from commitlog.core.manifest.roaring import runs
from commitlog.core.rebase.deletions import CHANGED_BY, NOT_NEEDED, Rebased, written
from commitlog.core.rebase.late import Late, observed, vector_in
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.limits import INT64_MAX, OLD_FRAGMENTS_KNOWN_SINCE
from commitlog.model.records import FileWritten, FragmentImage

_REMOVED_BY = tuple(how for how in CHANGED_BY if how.endswith(".removed"))
"""A Rewrite isn't carried over any other removal of its fragments."""
_ROWS_MAX = 2**32
"""The most rows of a group of fragments: positions in it have 32 bits."""


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


def rebase_rewrite(late: Late, candidate: Candidate) -> Rebased:
    """Return the images of the new fragments, without the rows that are gone."""
    draft, view = late.draft, late.view
    groups = [
        _Group([_old(late, old) for old in group.old_fragments], group.new_fragments)
        for group in candidate.operation.groups
    ]
    changed = [old for group in groups for old in group.olds if old.is_changed]
    if not changed or _has_unknown(late, changed):
        return NOT_NEEDED
    for group in groups:
        _check_rows(late, candidate, group)
    paths = [path for old in changed for path in (old.read, old.latest) if path]
    vectors = observed(draft, view, paths)
    images: list[FragmentImage] = []
    files: list[FileWritten] = []
    to_write: list[FileToWrite] = []
    # The ids that Lance would give the new fragments.
    fragment_ids = count(late.state.last_fragment_id + 1)
    for group in groups:
        gone, start = _positions_gone(view, group, vectors), 0
        for fragment in group.new:
            end = start + fragment.physical_rows
            # Where nothing is gone, nobody compared the counts of rows.
            rows = (gone & BitMap(range(start, end))).shift(-start) if gone else gone
            fragment_id = fragment.id or next(fragment_ids)
            merged = _without(late, fragment, fragment_id, rows)
            images.append(FragmentImage(fragment_id, merged.fragment))
            if merged.data:
                file, content = written(view, merged)
                files.append(file)
                to_write.append(content)
            start = end
    if all(image.image is None for image in images):
        emptied = next(group for group in groups if group.is_changed)
        raise _refused(late, candidate, emptied, "no_row_left")
    images += [FragmentImage(old.fragment.id, None) for old in changed if old.latest is None]
    return Rebased(tuple(images), tuple(files), tuple(to_write))


def _old(late: Late, fragment: DataFragment) -> _Old:
    current = late.state.fragments.get(fragment.id)
    latest = None if current is None else deletion_file_of(DataFragment.FromString(current))
    return _Old(fragment, deletion_file_of(fragment), latest)


def _has_unknown(late: Late, olds: Sequence[_Old]) -> bool:
    """Return True if a fragment is missing that no commit removed; it is refused as unknown.

    Under older protocols this holds only for a number that no outcome can hold.
    """
    history, is_known = late.history, late.draft.rules.protocol >= OLD_FRAGMENTS_KNOWN_SINCE
    gone = (old.fragment.id for old in olds if old.latest is None)
    return any(
        (is_known or fragment_id > INT64_MAX)
        and not any(history.first(how, fragment_id, late.read_version) for how in _REMOVED_BY)
        for fragment_id in gone
    )


def _check_rows(late: Late, candidate: Candidate, group: _Group) -> None:
    """Refuse a group whose rows cannot be matched with those of its new fragments."""
    if not group.is_changed:
        return
    for old in group.olds:
        known = late.history.deletion_file_at(old.fragment.id, late.read_version)
        if known is not None and known != old.read:
            raise _refused(late, candidate, group, "rows_unknown")
    has_vectors = any(fragment.HasField("deletion_file") for fragment in group.new)
    live, new = sum(o.live_rows for o in group.olds), sum(f.physical_rows for f in group.new)
    if live != new or live > _ROWS_MAX or has_vectors:
        raise _refused(late, candidate, group, "rows_unknown")


def _positions_gone(view: View, group: _Group, vectors: Mapping[str, Found]) -> BitMap:
    """Return which of a group's live rows are deleted by now, counted through its fragments."""
    gone, start = BitMap(), 0
    for old in group.olds:
        if old.is_changed:
            read = vector_in(view, old.read, vectors)
            if old.latest is None:
                gone |= BitMap(range(_position(start), _position(start + old.live_rows)))
            else:
                newly = vector_in(view, old.latest, vectors) - read
                ranks = newly if not read else _ranks(newly, read)
                gone |= ranks.shift(_position(start) - _position(-start))
        start += old.live_rows
    return gone


def _position(number: int) -> int:
    """Return a number as a position: a record may claim more deleted rows than there are rows."""
    return min(max(number, 0), _ROWS_MAX)


def _ranks(rows: BitMap, deleted: BitMap) -> BitMap:
    """Return each row's rank among those that aren't `deleted`, none of which is one of `rows`."""
    ranks, before, last = BitMap(), 0, 0
    for start, end in runs(rows):
        before += deleted.range_cardinality(last, start)
        last = end
        ranks.add_range(start - before, end - before)
    return ranks


def _without(late: Late, fragment: DataFragment, fragment_id: int, rows: BitMap) -> MergedDeletions:
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
        read_version=late.state.version,
        transaction_id=late.draft.transaction.transaction_id,
    )


def _refused(late: Late, candidate: Candidate, group: _Group, rule: str) -> Refused:
    changed = tuple(old.fragment.id for old in group.olds if old.is_changed)
    history = late.history
    version = max(history.last(how, fragment_id) for how in CHANGED_BY for fragment_id in changed)
    return late.refused(candidate, Finding(version, Verdict.RETRYABLE, rule, changed[:10]))
