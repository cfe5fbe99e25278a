"""Whether the files are there that a version brings: data, deletions, indices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from google.protobuf.message import DecodeError
from pyroaring import BitMap

from commitlog.core.decisions import (
    BytesWanted,
    FileWanted,
    Found,
    Refused,
    VectorWanted,
    rejected,
)
from commitlog.core.draft import Draft, View
from commitlog.core.manifest.data_files import data_files
from commitlog.core.manifest.deletion_vectors import deletion_file_of
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.indices import FRAGMENT_REUSE_INDEX
from commitlog.core.manifest.manifest_state import ManifestDelta, ManifestState
from commitlog.core.schema_check.index_entries import content_problem, files_of
from commitlog.lancepb.table_pb2 import (
    DataFragment,
    FragmentReuseIndexDetails,
    IndexMetadata,
    IndexSection,
)
from commitlog.model.records import Code


def check_index_files(
    draft: Draft,
    view: View,
    state: ManifestState,
    header: ManifestHeader,
    new: Iterable[IndexMetadata],
) -> None:
    """Look whether the files of new indices are there; those of a known uuid were looked at.

    `header` has the base paths by which they are named.
    """
    seen = {index.uuid.uuid for index in indices_in(state.index_section)}
    # When pylance remaps an index of a clone, it writes the files there, but names the source.
    own = view.table.location
    wanted: list[tuple[FileWanted, FileWanted, int]] = []
    details: list[tuple[BytesWanted, int, int]] = []
    for index in new:
        if index.uuid.uuid in seen:
            continue
        base_id = index.base_id if index.HasField("base_id") else None
        location = view.location_of(base_id, header)
        folder = f"_indices/{UUID(bytes=index.uuid.uuid)}"
        for name, size in files_of(index, draft.rules.protocol):
            path = f"{folder}/{name}"
            wanted.append((FileWanted(location, path), FileWanted(own, path), size))
        if index.name == FRAGMENT_REUSE_INDEX:
            file = FragmentReuseIndexDetails.FromString(index.index_details.value).external
            if file.path:
                place = BytesWanted(location, f"{folder}/{file.path}")
                details.append((place, file.offset, file.size))
    places = [place for at_base, here, _ in wanted for place in (at_base, here)]
    found = draft.want_all([*places, *(place for place, _, _ in details)])
    for i, (at_base, _, size) in enumerate(wanted):
        sizes = {one.observation.size for one in found[2 * i : 2 * i + 2]}
        if sizes == {-1}:
            raise _missing("index_file_missing", at_base)
        if found[2 * i].observation.size < 0:
            raise _missing("index_file_at_clone", at_base, own=own)
        if size and size not in sizes:
            raise _missing("index_file_cut", at_base, seen=max(sizes), size=size)
    for (place, offset, size), one in zip(details, found[len(places) :], strict=True):
        if one.data is None:
            raise _missing("index_file_missing", place)
        if not _is_content(one.data[offset:][: size or None]):
            raise _missing("index_file_unreadable", place)


def _is_content(data: bytes) -> bool:
    try:
        content = FragmentReuseIndexDetails.InlineContent.FromString(data)
    except DecodeError:
        return False
    return content_problem(content) is None


def _missing(
    reason: str, place: FileWanted | BytesWanted | VectorWanted, **arguments: object
) -> Refused:
    where = {"path": place.path, "location": place.location}
    return rejected(Code.MISSING_FILE, reason, **where, **arguments)


def check_brought_files(
    draft: Draft, view: View, state: ManifestState, header: ManifestHeader, delta: ManifestDelta
) -> None:
    """Refuse a version whose new data files aren't there, or not all of them."""
    wanted: dict[FileWanted, int] = {}
    for fragment_id, encoded in delta.fragments:
        known = state.fragments.get(fragment_id)
        before = data_files(DataFragment.FromString(known)) if known is not None else ()
        seen = {(file.path, file.base_id) for file in before}
        for file in data_files(DataFragment.FromString(encoded)):
            if (file.path, file.base_id) in seen:
                continue
            place = FileWanted(*header.place_of(view.table.location, file, file.path, "data"))
            wanted[place] = file.file_size_bytes
    for (place, size), one in zip(wanted.items(), draft.want_all(wanted), strict=True):
        check_data_file(place, one, size)


def check_data_file(place: FileWanted, found: Found, size: int) -> None:
    """Refuse a data file that isn't there, or has another size than `size` (0: unknown)."""
    seen = found.observation.size
    if seen < 0:
        raise _missing("data_file_missing", place)
    if size and size != seen:
        raise _missing("data_file_cut", place, size=seen, expected=size)


def _deletion_files(before: Mapping[int, bytes], delta: ManifestDelta) -> dict[int, DataFragment]:
    """Return the changed fragments whose deletion file is another one than before."""
    found: dict[int, DataFragment] = {}
    for fragment_id, encoded in delta.fragments:
        fragment = DataFragment.FromString(encoded)
        if not fragment.HasField("deletion_file"):
            continue
        known = before.get(fragment_id)
        before_it = DataFragment.FromString(known or b"")
        is_same = before_it.deletion_file == fragment.deletion_file
        if not (is_same and before_it.HasField("deletion_file")):
            found[fragment_id] = fragment
    return found


def check_deletions(
    draft: Draft, view: View, state: ManifestState, header: ManifestHeader, delta: ManifestDelta
) -> None:
    """Refuse deletion files that aren't there, or hold other rows than the fragment says."""
    written = {(file.location, file.path) for file in draft.files}
    changed = _deletion_files(state.fragments, delta)
    places = {i: view.deletion_file(deletion_file_of(f), header) for i, f in changed.items()}
    looked = {i: at for i, at in places.items() if (at.location, at.path) not in written}
    found = draft.want_all(looked.values())
    for (fragment_id, place), one in zip(looked.items(), found, strict=True):
        _check_vector(changed[fragment_id], place, one.vector)


def _check_vector(fragment: DataFragment, place: VectorWanted, vector: BitMap | None) -> None:
    if vector is None:
        raise _missing("deletion_file_unreadable", place)
    said, rows = fragment.deletion_file.num_deleted_rows, fragment.physical_rows
    if said != len(vector) or (rows and vector and vector.max() >= rows):
        counts = {"rows": len(vector), "said": said, "of": rows}
        raise _missing("deletion_file_differs", place, **counts)


def indices_in(section: bytes | None) -> list[IndexMetadata]:
    """Return the entries of an index section."""
    return list(IndexSection.FromString(section or b"").indices)
