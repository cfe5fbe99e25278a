"""What an operation does to a table's fragments: some are added, some lose rows or go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from commitlog.core.manifest.data_files import check_new_fragment
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.fragments import features
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestState, NotDirect
from commitlog.core.manifest.row_lineage import new_row_lineage
from commitlog.core.manifest.wire import varint
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.limits import INT64_MAX

FRAGMENT_ID_MAX = 2**32 - 1


class Added(NamedTuple):
    """New fragments under their ids."""

    fragments: tuple[tuple[int, bytes], ...]
    features: int
    is_mixed: bool
    max_fragment_id: int | None
    next_row_id: int


def with_ids(state: ManifestState, fragments: Iterable[DataFragment], *, is_current: bool) -> Added:
    """Give new fragments their ids, and their rows' lineage where row ids are stable.

    `is_current` says that their writer read this version, so it knew each field of the table.
    """
    header = state.header
    is_stable = bool(state.reader_feature_flags & FLAG_STABLE_ROW_IDS)
    fragment_id = state.last_fragment_id + 1
    next_row_id, version = state.next_row_id, state.version + 1
    asked, is_mixed = 0, False
    added: list[tuple[int, bytes]] = []
    for fragment in fragments:
        is_mixed |= check_new_fragment(header, fragment, is_current=is_current)
        _check_lineage(fragment, is_stable)
        # Lance keeps an id that a writer invented, and may give one fragment's id to another.
        encoded = under_id(fragment, fragment_id)
        if is_stable:
            rows = fragment.physical_rows
            encoded += new_row_lineage(next_row_id, rows, version)
            next_row_id += rows
        added.append((fragment_id, encoded))
        asked |= features(fragment)
        fragment_id += 1
    if fragment_id - 1 > FRAGMENT_ID_MAX:
        raise ids_exhausted(fragment_id - 1)
    if next_row_id > state.next_row_id and not _fit(state.next_row_id, next_row_id):
        raise DeltaRefused("row_ids_exhausted", field="next_row_id", id_max=INT64_MAX)
    return Added(
        fragments=tuple(added),
        features=asked,
        is_mixed=is_mixed,
        max_fragment_id=fragment_id - 1 if added else None,
        next_row_id=next_row_id,
    )


def _fit(first_row_id: int, next_row_id: int) -> bool:
    """Return True if an outcome can name the first of new rows, and a manifest what follows."""
    return first_row_id <= INT64_MAX and next_row_id < 2**64


def under_id(fragment: DataFragment, fragment_id: int) -> bytes:
    """Return a fragment under an id, as a manifest holds it."""
    if fragment.id:
        unnamed = DataFragment()
        unnamed.CopyFrom(fragment)
        unnamed.id = 0
        fragment = unnamed
    encoded = fragment.SerializeToString(deterministic=True)
    return b"\x08" + varint(fragment_id) + encoded if fragment_id else encoded


def _check_lineage(fragment: DataFragment, is_stable: bool) -> None:
    if fragment.HasField("deletion_file"):
        raise DeltaRefused(
            "deletion_file_in_append", field="deletion_file", value=fragment.deletion_file.id
        )
    if fragment.WhichOneof("row_id_sequence") is not None:
        if is_stable:
            raise NotDirect("the fragment brings row ids")
        raise DeltaRefused("unexpected_row_ids", field="row_id_sequence", value="given")
    if is_stable and (
        fragment.WhichOneof("created_at_version_sequence") is not None
        or fragment.WhichOneof("last_updated_at_version_sequence") is not None
    ):
        raise NotDirect("the fragment brings row versions")


class Taken(NamedTuple):
    """What is left of fragments that lose rows."""

    removed: tuple[int, ...]
    fragments: tuple[tuple[int, bytes], ...]
    features: int


def fragments_after(
    state: ManifestState,
    gone: tuple[str, Iterable[int]],
    updated: Iterable[DataFragment],
    after: Callable[[DataFragment, DataFragment], DataFragment],
) -> Taken:
    """Return fragments after `updated`, each as `after` makes it of what it was and its image."""
    images: dict[int, DataFragment] = {}
    for image in updated:
        if image.id in images:
            raise DeltaRefused("duplicate_fragment", field="updated_fragments", value=image.id)
        images[image.id] = image
    field, ids = gone
    removed = dict.fromkeys(ids)
    for fragment_id in removed:
        _known_fragment(state, field, fragment_id)
        if fragment_id in images:
            raise DeltaRefused("updated_and_deleted", field="updated_fragments", value=fragment_id)
    replaced: list[tuple[int, bytes]] = []
    changes: list[tuple[int, int | None]] = []
    for fragment_id in sorted(images):
        known = _known_fragment(state, "updated_fragments", fragment_id)
        before, image = DataFragment.FromString(known), images[fragment_id]
        if _is_emptied(before, image):
            removed[fragment_id] = None
        else:
            fragment = after(before, image)
            replaced.append((fragment_id, fragment.SerializeToString(deterministic=True)))
            changes.append((fragment_id, features(fragment)))
    changes += [(fragment_id, None) for fragment_id in removed]
    return Taken(tuple(sorted(removed)), tuple(replaced), state.fragments.features_after(changes))


def _is_emptied(before: DataFragment, image: DataFragment) -> bool:
    """Return True if no row is left in a fragment's image; refuse an image that cannot be."""
    where = f"updated_fragments[{before.id}].deletion_file"
    deleted = image.deletion_file.num_deleted_rows
    if image.HasField("deletion_file") and not deleted:
        raise NotDirect(f"the number of rows deleted in fragment {before.id} is not given")
    if deleted < before.deletion_file.num_deleted_rows:
        raise DeltaRefused(
            "rows_come_back",
            field=where,
            value=deleted,
            num_deleted_rows=before.deletion_file.num_deleted_rows,
        )
    if deleted > before.physical_rows:
        raise DeltaRefused(
            "too_many_deleted_rows", field=where, value=deleted, physical_rows=before.physical_rows
        )
    return bool(deleted) and deleted == before.physical_rows


def with_deletion_file(before: DataFragment, image: DataFragment) -> DataFragment:
    """A Delete's image: files that a DataReplacement brought meanwhile stay."""
    if image.HasField("deletion_file"):
        before.deletion_file.CopyFrom(image.deletion_file)
    return before


def post_image(before: DataFragment, image: DataFragment) -> DataFragment:
    """An Update's image replaces the fragment."""
    if before.overlays or image.overlays:
        raise NotDirect(f"fragment {before.id} has data overlays, which Lance carries over")
    if before.physical_rows != image.physical_rows:
        raise NotDirect(f"fragment {before.id} had {before.physical_rows} rows")
    return image


def _known_fragment(state: ManifestState, field: str, fragment_id: int) -> bytes:
    fragment = state.fragments.get(fragment_id)
    if fragment is None:
        raise DeltaRefused(
            "unknown_fragment", field=field, value=fragment_id, version=state.version
        )
    return fragment


def ids_exhausted(fragment_id: int) -> DeltaRefused:
    """Return the refusal of an id above the last one."""
    return DeltaRefused(
        "fragment_ids_exhausted", field="max_fragment_id", value=fragment_id, id_max=FRAGMENT_ID_MAX
    )
