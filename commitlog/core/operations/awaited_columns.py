"""Completes a Merge at the head: its writer computes its columns for what others brought meanwhile.

What the writer computed for a fragment holds as long as the fragment has the same rows and values;
that some rows are dead by now makes no difference. Other fragments are named in a file that the
writer puts as soon as the head stays what it is, which it does while the Merge has its turn at the
table: later ones wait. So the writer has to be fast once, not faster than all others.

A Project after which a column may not be null waits in the same way for a file that says that its
writer found no null in what others brought.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from google.protobuf.message import DecodeError

from commitlog.core.conflicts.candidate import Candidate, Finding, Verdict
from commitlog.core.decisions import BytesWanted, Refused
from commitlog.core.rebase.deletions import NOT_NEEDED, Rebased
from commitlog.core.rebase.late import Late
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.lancepb.transaction_pb2 import Transaction
from commitlog.model.limits import COLUMNS_AWAITED_SINCE, OUTCOME_INLINE_SUM_MAX, Rules
from commitlog.model.operations import COLUMNS, COLUMNS_AWAITED
from commitlog.model.records import FragmentImage

PRIVATE_DIRECTORY = "_commitlog-private"
"""A table's folder for files that writers need only while they work."""
NO_NULLS = b"no nulls"
"""What a writer delivers that found no null in what others brought. Its size alone distinguishes it
from the empty file of a writer that gave up."""
_BRING_VALUES = ("Append", "Update", "DataReplacement", "DataOverlay")


class MergeGap(NamedTuple):
    """What a Merge doesn't have of a version's fragments."""

    changed: tuple[FragmentImage, ...]
    """Fragments whose dead rows are others by now, or that are gone."""
    missing: tuple[int, ...]
    """Fragments that came since, or whose values changed."""


def compare(merge: Transaction.Merge, fragments: Mapping[int, bytes]) -> MergeGap:
    """Return what a Merge lacks of a version's fragments."""
    listed = {fragment.id: fragment for fragment in merge.fragments}
    changed, missing = [], []
    for fragment_id, encoded in fragments.items():
        ours, head = listed.pop(fragment_id, None), DataFragment.FromString(encoded)
        completed = None if ours is None else _with_new_files(head, ours)
        if completed is None:
            missing.append(fragment_id)
        elif completed != ours:
            changed.append(FragmentImage(fragment_id, _encoded(completed)))
    changed += [FragmentImage(fragment_id, None) for fragment_id in sorted(listed)]
    return MergeGap(tuple(changed), tuple(missing))


def delivery_path(transaction_id: str, version: int) -> str:
    """Return where a writer puts what his Merge lacks of a version."""
    name = hashlib.sha256(transaction_id.encode()).hexdigest()[:32]
    return f"{PRIVATE_DIRECTORY}/{name}-{version}.columns"


def delivery(fragments: Iterable[DataFragment]) -> bytes:
    """Encode fragments with their new columns."""
    message = Transaction()
    message.merge.fragments.extend(fragments)
    return message.SerializeToString(deterministic=True)


def delivered_again(message: Transaction, images: Iterable[FragmentImage]) -> bytes:
    """Return the file that a Merge's images were made of."""
    listed = {fragment.id: fragment for fragment in message.merge.fragments}
    new = []
    for one in images:
        image = DataFragment.FromString(one.image) if one.image is not None else None
        if image is not None and not _is_same(image, listed.get(one.fragment_id)):
            new.append(image)
    return delivery(new)


def awaits_columns(transaction: Transaction, rules: Rules) -> bool:
    """Return True if a transaction's writer completes it when its turn has come."""
    if rules.protocol < COLUMNS_AWAITED_SINCE:
        return False
    return transaction.transaction_properties.get(COLUMNS) == COLUMNS_AWAITED


def check_for_nulls(late: Late, candidate: Candidate) -> None:
    """Refuse a Project that forbids nulls, unless its writer looked for them in the head."""
    newer = (late.history.first_of_kind(kind, late.read_version) for kind in _BRING_VALUES)
    first = min(filter(None, newer), default=0)
    if not first:
        return
    if late.draft.want(_delivery_wanted(late, bytes_max=1)).observation.size != len(NO_NULLS):
        finding = Finding(first, Verdict.RETRYABLE, "nullability_not_preserved")
        raise late.refused(candidate, finding)


def _delivery_wanted(late: Late, bytes_max: int) -> BytesWanted:
    path = delivery_path(late.draft.transaction.transaction_id, late.state.version)
    return BytesWanted(late.view.table.location, path, bytes_max, is_awaited=True)


def complete_columns(late: Late, candidate: Candidate) -> Rebased:
    """Return a Merge's fragments as of the head, where they differ; refuse what isn't complete."""
    fragments = late.state.fragments
    changed, missing = compare(candidate.operation, fragments)
    images = changed
    if missing:
        data = late.draft.want(_delivery_wanted(late, OUTCOME_INLINE_SUM_MAX)).data
        new = _delivered(data, {one: fragments[one] for one in missing})
        if new is None:
            raise _refused(late, candidate, missing)
        images = (*changed, *new)
    if sum(len(one.image or b"") for one in images) > OUTCOME_INLINE_SUM_MAX:
        raise _refused(late, candidate, tuple(one.fragment_id for one in images))
    return Rebased(images) if images else NOT_NEEDED


def _delivered(
    data: bytes | None, missing: Mapping[int, bytes]
) -> tuple[FragmentImage, ...] | None:
    """Return fragments as their writer completed them, None if these aren't the missing ones."""
    try:
        message = Transaction.FromString(data or b"")
    except DecodeError:
        return None
    fragments = list(message.merge.fragments)
    if delivery(fragments) != data or [one.id for one in fragments] != sorted(missing):
        return None
    images = []
    for fragment in fragments:
        head = DataFragment.FromString(missing[fragment.id])
        if _with_new_files(head, fragment) != fragment:
            return None
        images.append(FragmentImage(fragment.id, _encoded(fragment)))
    return tuple(images)


def _with_new_files(head: DataFragment, ours: DataFragment) -> DataFragment | None:
    """Return a fragment with our new columns' files; None if ours has other values."""
    completed = DataFragment()
    completed.CopyFrom(head)
    completed.files.extend(ours.files[len(head.files) :])
    return completed if _is_same(completed, ours) else None


def _is_same(one: DataFragment, other: DataFragment | None) -> bool:
    """Return True if two fragments have the same values, whatever rows of them are dead."""
    if other is None:
        return False
    alike = DataFragment()
    alike.CopyFrom(other)
    alike.ClearField("deletion_file")
    if one.HasField("deletion_file"):
        alike.deletion_file.CopyFrom(one.deletion_file)
    return alike == one


def _encoded(fragment: DataFragment) -> bytes:
    return fragment.SerializeToString(deterministic=True)


def _refused(late: Late, candidate: Candidate, fragments: tuple[int, ...]) -> Refused:
    version = late.view.version
    finding = Finding(version, Verdict.RETRYABLE, "columns_not_delivered", fragments[:10])
    return late.refused(candidate, finding)
