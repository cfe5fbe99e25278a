"""Deletion vectors in a fragment's history: what a rebased Delete leaves of a fragment.

The new deletion file's id follows from transaction and fragment, and its bytes from the set of
rows alone, so deciding again writes the same file to the same place.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from pyroaring import BitMap

from commitlog.core.manifest.manifest_state import DeltaRefused
from commitlog.core.manifest.roaring import portable
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile

# Ids stay within a signed integer, the only one that Avro and SQL have.
_ID_BYTES = 8


class MergedDeletions(NamedTuple):
    """A fragment after more of its rows were deleted."""

    fragment: bytes | None
    """The post-image; None if no row is left, and then there is no file either."""
    path: str = ""
    """The new deletion file, relative to the table's root."""
    data: bytes = b""
    """The new deletion file's bytes."""
    rows: BitMap | None = None
    """The rows that it names."""


def deletion_file_path(fragment_id: int, deletion_file: DeletionFile) -> str:
    """Return where a fragment's deletion file is, relative to its root."""
    is_bitmap = deletion_file.file_type == DeletionFile.BITMAP
    return (
        f"_deletions/{fragment_id}-{deletion_file.read_version}-{deletion_file.id}."
        f"{'bin' if is_bitmap else 'arrow'}"
    )


def deletion_file_id(transaction_id: str, fragment_id: int) -> int:
    """Return the id of the deletion file that a transaction writes for a fragment."""
    digest = sha256(f"{transaction_id}/{fragment_id}".encode()).digest()
    return int.from_bytes(digest[:_ID_BYTES]) >> 1


def merge_deletions(
    fragment: bytes, deleted: BitMap, affected: BitMap, *, read_version: int, transaction_id: str
) -> MergedDeletions:
    """Delete `affected` rows of a fragment of which `deleted` rows are deleted already.

    `read_version` is the version whose deletion vector `deleted` is.
    """
    image = DataFragment.FromString(fragment)
    union = deleted | affected
    if union and union.max() >= image.physical_rows:
        raise DeltaRefused(
            "row_out_of_range",
            field=f"affected_rows[{image.id}]",
            value=union.max(),
            physical_rows=image.physical_rows,
        )
    if len(union) == image.physical_rows:
        return MergedDeletions(None)
    deletion_file = DeletionFile(
        file_type=DeletionFile.BITMAP,
        read_version=read_version,
        id=deletion_file_id(transaction_id, image.id),
        num_deleted_rows=len(union),
    )
    image.deletion_file.CopyFrom(deletion_file)
    return MergedDeletions(
        image.SerializeToString(deterministic=True),
        deletion_file_path(image.id, deletion_file),
        portable(union),
        union,
    )


def deletion_file_of(fragment: DataFragment) -> str:
    """Return the path of a fragment's deletion file, empty if it has none.

    A file that is at one of the table's bases has the base's id and a colon before its path.
    """
    if not fragment.HasField("deletion_file"):
        return ""
    path = deletion_file_path(fragment.id, fragment.deletion_file)
    is_here = not fragment.deletion_file.HasField("base_id")
    return path if is_here else f"{fragment.deletion_file.base_id}:{path}"
