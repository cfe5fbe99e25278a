"""Base paths: the places besides its own location where a table's files may be.

A base path lets the table's readers read files of another place. So a new one has to be the
location of a table of this log, or a place that the leader's policy allows: the leader looks that
up once, and its outcome holds the answer.
"""

from __future__ import annotations

from itertools import chain

from commitlog.core.decisions import PlaceWanted, Refused, rejected
from commitlog.core.draft import Draft
from commitlog.core.manifest.data_files import check_address, data_files
from commitlog.core.manifest.header import ManifestHeader, header_in
from commitlog.core.manifest.manifest_state import DeltaRefused, ManifestDelta, ManifestState
from commitlog.core.schema_check.file_presence import indices_in
from commitlog.core.tables.lance_tables import location_parts, normalize_location
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile, IndexMetadata
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
    """Refuse a version that is without a base path that the head had and its files need."""
    if state.header.bases.keys() <= header.bases.keys():
        return
    replaced = {*delta.removed, *(fragment_id for fragment_id, _ in delta.fragments)}
    kept = (encoded for i, encoded in state.fragments.items() if i not in replaced)
    for encoded in chain(kept, (encoded for _, encoded in delta.fragments)):
        fragment = DataFragment.FromString(encoded)
        for file in data_files(fragment):
            check_address(header, file)
        _check_known(header, f"fragments[{fragment.id}].deletion_file", fragment.deletion_file)
    section = state.index_section if delta.index_section is None else delta.index_section
    for index in indices_in(section):
        _check_known(header, Phrase("the_index", {"name": index.name}), index)


def _check_known(
    header: ManifestHeader, what: str | Phrase, holder: DeletionFile | IndexMetadata
) -> None:
    if holder.HasField("base_id") and holder.base_id not in header.bases:
        raise DeltaRefused("unknown_base_path", field=what, value=holder.base_id)


def _is_inside(place: str, location: str) -> bool:
    parts, above = location_parts(place), location_parts(location)
    return parts[: len(above)] == above
