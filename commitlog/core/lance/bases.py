"""Base paths: the places besides its own location where a table's files may be.

A base path lets the table's readers read files of another place. So a new one has to be the
location of a table of this log, or a place that the leader's policy allows: the leader looks that
up once, and its outcome holds the answer.
"""

from __future__ import annotations

from commitlog.core.decisions import PlaceWanted, Refused, rejected
from commitlog.core.draft import Draft
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.tables.lance_tables import location_parts, normalize_location
from commitlog.model.limits import BASES_CHECKED_SINCE
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id


def check_bases(
    draft: Draft, table: TableId, location: str, before: ManifestState | None, after: bytes | None
) -> None:
    """Refuse base paths that are neither in the version before nor allowed."""
    if after is None or draft.rules.protocol < BASES_CHECKED_SINCE:
        return
    known = before.header.message.base_paths if before is not None else ()
    new = {base.path for base in ManifestHeader(after).message.base_paths}
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


def _is_inside(place: str, location: str) -> bool:
    parts, above = location_parts(place), location_parts(location)
    return parts[: len(above)] == above
