"""Carries a Delete or Update over newer deletion vectors of the fragments that it touches.

The rows that it deleted are its affected rows, or the difference between the deletion file that it
staged and the vector that it read. If all of them are still there, the fragment's new vector is the
union. If one is gone, somebody else deleted it first, and the operation has to be done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.decisions import FileToWrite, Found, Refused, rejected
from commitlog.core.draft import View
from commitlog.core.manifest.deletion_vectors import (
    MergedDeletions,
    deletion_file_of,
    merge_deletions,
)
from commitlog.core.manifest.roaring import from_portable
from commitlog.core.rebase.late import Late, observed, sample_of, vector_in
from commitlog.errors import UnsupportedFormat
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.operations import LanceCommit
from commitlog.model.records import Code, FileWritten, FragmentImage


class Rebased(NamedTuple):
    """What a rebase made."""

    images: tuple[FragmentImage, ...] = ()
    files: tuple[FileWritten, ...] = ()
    to_write: tuple[FileToWrite, ...] = ()


NOT_NEEDED = Rebased()
CHANGED_BY = ("Delete.updated", "Delete.removed", "Update.updated", "Update.removed")


class _Flagged(NamedTuple):
    """A fragment whose deletion file changed since the candidate read it."""

    image: DataFragment
    read: str
    """Its deletion file as the candidate read it; empty if it had none."""
    latest: str


def affected_rows(operation: LanceCommit) -> dict[int, BitMap]:
    """Decode the rows that a writer says it deleted, per fragment."""
    rows: dict[int, BitMap] = {}
    for affected in operation.affected_rows:
        try:
            bitmap = from_portable(affected.rows)
        except UnsupportedFormat as error:
            raise rejected(
                Code.MALFORMED_RECORD, "affected_rows_not_a_bitmap", fragment=affected.fragment_id
            ) from error
        if affected.fragment_id in rows:
            raise rejected(
                Code.DUPLICATE_FRAGMENT, "affected_rows_twice", fragment=affected.fragment_id
            )
        if bitmap:
            rows[affected.fragment_id] = bitmap
    return rows


def images_with_known_rows(images: Iterable[DataFragment], late: Late) -> frozenset[int]:
    """Return the fragments whose deleted rows are known or can be derived."""
    return frozenset(
        image.id for image in images if image.id in late.affected or _is_derivable(image, late)
    )


def _is_derivable(image: DataFragment, late: Late) -> bool:
    """Return True if a fragment's staged deletion file holds more than the one that was read."""
    staged = deletion_file_of(image)
    if not staged or _is_elsewhere(image):
        return False
    read = late.history.deletion_file_at(image.id, late.read_version)
    if read is None:
        current = late.state.fragments.get(image.id)
        read = deletion_file_of(DataFragment.FromString(current)) if current else ""
    return staged != read


def _is_elsewhere(image: DataFragment) -> bool:
    return image.deletion_file.HasField("base_id")


def rebase_deletions(late: Late, candidate: Candidate, *, only_deletes: bool) -> Rebased:
    """Return what a candidate has to change on top of the head; refuse conflicts on rows.

    If it `only_deletes`, a fragment stays as in the head, except for the deleted rows.
    """
    history, state = late.history, late.state
    flagged: list[_Flagged] = []
    for image in candidate.operation.updated_fragments:
        read = history.deletion_file_at(image.id, late.read_version)
        if read is None:
            continue
        current = state.fragments.get(image.id)
        if current is None:
            raise _refused(late, candidate, image.id, "fragment_removed")
        latest = deletion_file_of(DataFragment.FromString(current))
        if latest != read:
            flagged.append(_Flagged(image, read, latest))
    if not flagged:
        return NOT_NEEDED
    vectors = _observe(late, flagged)
    merged = [_merge(late, candidate, one, vectors, only_deletes) for one in flagged]
    return Rebased(
        tuple(m.images[0] for m in merged),
        tuple(file for m in merged for file in m.files),
        tuple(file for m in merged for file in m.to_write),
    )


def _observe(late: Late, flagged: list[_Flagged]) -> dict[str, Found]:
    paths: dict[str, None] = {}
    for one in flagged:
        if one.latest:
            paths[one.latest] = None
        if one.image.id not in late.affected:
            paths[deletion_file_of(one.image)] = None
            if one.read:
                paths[one.read] = None
    return observed(late.draft, late.view, paths)


def _merge(
    late: Late,
    candidate: Candidate,
    flagged: _Flagged,
    vectors: dict[str, Found],
    only_deletes: bool,
) -> Rebased:
    image, view, state = flagged.image, late.view, late.state
    deleted = vector_in(view, flagged.latest, vectors)
    rows = late.affected.get(image.id)
    if rows is None:
        staged = vector_in(view, deletion_file_of(image), vectors)
        rows = staged - vector_in(view, flagged.read, vectors)
    both = deleted & rows
    if both or not rows:
        rule = "same_rows" if both else "rows_unknown"
        raise _refused(late, candidate, image.id, rule, sample_of(image.id, both))
    base = state.fragments[image.id] if only_deletes else image.SerializeToString()
    merged = merge_deletions(
        base,
        deleted,
        rows,
        read_version=state.version,
        transaction_id=late.draft.transaction.transaction_id,
    )
    images = (FragmentImage(image.id, merged.fragment),)
    if merged.fragment is None:
        return Rebased(images)
    file, content = written(view, merged)
    return Rebased(images, (file,), (content,))


def written(view: View, merged: MergedDeletions) -> tuple[FileWritten, FileToWrite]:
    """Return a new deletion file, as an outcome names it and as it is to be written."""
    file = FileToWrite(view.table.location, merged.path, merged.data, vector=merged.rows)
    return FileWritten(merged.path, len(merged.data), file.digest), file


def _refused(
    late: Late, candidate: Candidate, fragment_id: int, rule: str, sample: tuple[str, ...] = ()
) -> Refused:
    version = max(late.history.last(how, fragment_id) for how in CHANGED_BY)
    finding = Finding(version, Verdict.RETRYABLE, rule, (fragment_id,), sample)
    return late.refused(candidate, finding)
