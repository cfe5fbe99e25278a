"""Base paths: the places besides its own location where a table's files may be.

A base path lets the table's readers read files of another place. So a new one has to be the
location of a table of this log, or a place that the leader's policy allows: the leader looks that
up once, and its outcome holds the answer.
"""

from __future__ import annotations

from collections.abc import Container

from commitlog.core.decisions import PlaceWanted, Refused, rejected
from commitlog.core.draft import Draft
from commitlog.core.manifest.data_files import check_address, data_files
from commitlog.core.manifest.header import ManifestHeader, header_in
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestDelta, ManifestState
from commitlog.core.schema_check.file_presence import indices_in
from commitlog.core.tables.lance_tables import location_parts, normalize_location
from commitlog.lancepb.table_pb2 import (
    BasePath,
    DataFile,
    DataFragment,
    DeletionFile,
    IndexMetadata,
)
from commitlog.model.limits import BASES_CHECKED_SINCE
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id


def check_bases(
    draft: Draft, table: TableId, location: str, before: ManifestState | None, after: bytes | None
) -> None:
    """Refuse base paths that are neither in the version before nor allowed."""
    if after is None or draft.rules.protocol < BASES_CHECKED_SINCE:
        return
    known = before.header.message.base_paths if before is not None else ()
    new = {base.path for base in header_in(after).message.base_paths}
    name, wanted = format_table_id(table), []
    for path in sorted(new.difference(base.path for base in known)):
        try:
            place = normalize_location(path)
        except Refused as error:
            code = Code.LOCATION_NOT_ALLOWED
            raise rejected(code, "base_path_invalid", table=name, problem=error.phrase) from error
        if not (_is_inside(place, location) or draft.table_at(place)):
            wanted.append(PlaceWanted(location, place))
    for place_wanted, found in zip(wanted, draft.want_all(wanted), strict=True):
        if found.observation.size < 0:
            raise rejected(
                Code.LOCATION_NOT_ALLOWED,
                "base_path_not_allowed",
                path=place_wanted.path,
                table=name,
            )


def check_bases_kept(state: ManifestState, header: ManifestHeader, delta: ManifestDelta) -> None:
    """Refuse a version in which a base path that its files need is missing, or another place.

    Files that a version brings may be at another place: they are looked for there.
    """
    bases, after = state.header.bases, header.bases
    moved = {i for i, base in bases.items() if i in after and _place(after[i]) != _place(base)}
    if not moved and bases.keys() <= after.keys():
        return
    replaced = {*delta.removed, *(fragment_id for fragment_id, _ in delta.fragments)}
    for fragment_id, encoded in state.fragments.items():
        if fragment_id not in replaced:
            _check_fragment(header, moved, encoded, encoded)
    for fragment_id, encoded in delta.fragments:
        _check_fragment(header, moved, encoded, state.fragments.get(fragment_id, b""))
    section = state.index_section if delta.index_section is None else delta.index_section
    known = {index.uuid.uuid for index in indices_in(state.index_section)}
    for index in indices_in(section):
        what = Phrase("the_index", {"name": index.name})
        _check_base(header, moved if index.uuid.uuid in known else (), what, index)


def _place(base: BasePath) -> tuple[str, bool]:
    return base.path, base.is_dataset_root


def _check_fragment(
    header: ManifestHeader, moved: Container[int], encoded: bytes, before: bytes
) -> None:
    fragment, known = DataFragment.FromString(encoded), DataFragment.FromString(before)
    where = f"fragments[{fragment.id}]"
    stay = {(file.path, file.base_id) for file in data_files(known)}
    for file in data_files(fragment):
        check_address(header, file)
        if (file.path, file.base_id) in stay:
            _check_base(header, moved, f"{where}.files", file)
    stays = fragment.deletion_file == known.deletion_file
    what = f"{where}.deletion_file"
    _check_base(header, moved if stays else (), what, fragment.deletion_file)


def _check_base(
    header: ManifestHeader,
    moved: Container[int],
    what: str | Phrase,
    holder: DataFile | DeletionFile | IndexMetadata,
) -> None:
    if not holder.HasField("base_id"):
        return
    if holder.base_id not in header.bases:
        raise DeltaRefused("unknown_base_path", field=what, value=holder.base_id)
    if holder.base_id in moved:
        path = header.bases[holder.base_id].path
        raise DeltaRefused("base_path_moved", field=what, value=holder.base_id, path=path)


def _is_inside(place: str, location: str) -> bool:
    parts, above = location_parts(place), location_parts(location)
    return parts[: len(above)] == above
