"""Where an Iceberg table of a record may be, and whether its name may be committed to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commitlog.core.decisions import FileWanted, PlaceWanted, Refused, rejected
from commitlog.core.draft import Draft
from commitlog.core.iceberg.domain import IcebergResult
from commitlog.core.iceberg.metadata_draft import POSITION
from commitlog.core.iceberg.named_places import named_places
from commitlog.core.iceberg.requests import registers_read_only
from commitlog.core.tables.lance_tables import location_parts, normalize_location, path_below
from commitlog.model.limits import (
    ICEBERG_COPIES_ELSEWHERE_SINCE,
    ICEBERG_COPIES_SINCE,
    ICEBERG_NAMED_PLACES_SINCE,
    ICEBERG_PLACES_SINCE,
    ICEBERG_READ_ONLY_SINCE,
)
from commitlog.model.operations import IcebergChange
from commitlog.model.reasons import Phrase
from commitlog.model.records import Code
from commitlog.model.table import TableId, format_table_id

_PART_BYTES_MAX = 200
_LOCATION_BYTES_MAX = 2_000
"""What any file system takes, with room for a temporary file's name."""


def check_writable(
    draft: Draft, operations: Sequence[IcebergChange], decided: Sequence[IcebergResult]
) -> None:
    """Refuse commits to second names of tables; note the second names that are to be made."""
    if draft.rules.protocol < ICEBERG_READ_ONLY_SINCE:
        return
    for result in decided:
        if result.before is not None and draft.is_read_only(result.table):
            raise _not_at_all(
                Code.UNSUPPORTED_OPERATION, "iceberg_read_only", table=format_table_id(result.table)
            )
    draft.read_only_made = {one.table for one in operations if registers_read_only(one)}


def check_named(draft: Draft, decided: Sequence[IcebergResult], root: str) -> None:
    """Refuse places outside of the tables root that the leader's policy doesn't allow.

    The table's readers follow them. The outcome holds what the leader's policy said.
    """
    if draft.rules.protocol < ICEBERG_NAMED_PLACES_SINCE:
        return
    wanted: dict[PlaceWanted, TableId] = {}
    for result in decided:
        for place in named_places(result):
            if path_below(place, root):
                continue
            if len(place) > _LOCATION_BYTES_MAX:
                raise _place_refused(result.table, place)
            wanted.setdefault(PlaceWanted(result.after.location, place), result.table)
    for (one, table), found in zip(wanted.items(), draft.want_all(wanted), strict=True):
        if found.observation.size < 0:
            raise _place_refused(table, one.path)


def _place_refused(table: TableId, place: str) -> Refused:
    named = {"table": format_table_id(table), "location": place}
    return _not_at_all(Code.LOCATION_NOT_ALLOWED, "iceberg_place_not_allowed", **named)


def _not_at_all(code: Code, reason: str, **arguments: Any) -> Refused:
    """Return a refusal of the whole record."""
    refusal = rejected(code, reason, **arguments)
    refusal.is_of_all = True
    return refusal


def checked_place(
    draft: Draft, table: TableId, location: str, root: str, *, is_shared: bool = False
) -> str:
    """Return a location as it is compared; refuse one where the leader must not write.

    A place that is only read may be another table's.
    """
    name = format_table_id(table)
    place = normalize_location(location)
    parts, root_parts = location_parts(place), location_parts(root) if root else ("\0",)
    depth = len(root_parts)
    is_uri = "://" in location or location.startswith("file:")
    problem: Phrase | None = None
    if len(parts) <= depth or parts[:depth] != root_parts or parts[depth] == "_commitlog":
        problem = Phrase("iceberg_outside_root", {"root": root or "(it has none)"})
    elif is_uri and any(mark in location for mark in "%?#"):
        problem = Phrase("iceberg_uri_character")
    elif max(len(part.encode()) for part in parts) > _PART_BYTES_MAX:
        problem = Phrase("iceberg_part_too_long", {"bytes_max": _PART_BYTES_MAX})
    elif len(place.encode()) > _LOCATION_BYTES_MAX:
        problem = Phrase("iceberg_location_too_long", {"bytes_max": _LOCATION_BYTES_MAX})
    if problem:
        refused = {"table": name, "location": location, "problem": problem}
        raise _not_at_all(Code.LOCATION_NOT_ALLOWED, "iceberg_location_not_allowed", **refused)
    taken = None if is_shared else draft.clash_with_others(place)
    if taken is not None:
        raise place_taken(table, location, taken.table_id)
    return place


def place_taken(table: TableId, location: str, owner: TableId) -> Refused:
    """Return the refusal of a place that is another table's."""
    named = {"table": format_table_id(table), "location": location}
    return _not_at_all(
        Code.LOCATION_TAKEN, "iceberg_location_taken", **named, owner=format_table_id(owner)
    )


def check_alone(draft: Draft, result: IcebergResult, places: Sequence[str]) -> None:
    """Refuse metadata or a place of another table: each would change the other's files.

    Copies of one metadata file may be registered under many names as long as no commit changes
    them, if no log wrote it. A copy at a place of its own is a table like any other.
    """
    if draft.rules.protocol < ICEBERG_PLACES_SINCE:
        return
    for place in places:
        for owner in draft.clash_in_iceberg(place):
            if owner != result.table and not _is_copy(draft, result, owner):
                raise place_taken(result.table, place, owner)
    if draft.rules.protocol >= ICEBERG_COPIES_ELSEWHERE_SINCE:
        return
    uuid = result.after.uuid
    if result.before is None or result.before.uuid != uuid:
        for owner in draft.iceberg_named(uuid):
            if owner != result.table and not _is_copy(draft, result, owner):
                named = {"table": format_table_id(result.table), "uuid": uuid}
                named["owner"] = format_table_id(owner)
                raise _not_at_all(Code.LOCATION_TAKEN, "iceberg_uuid_taken", **named)


def _is_copy(draft: Draft, result: IcebergResult, owner: TableId) -> bool:
    other = draft.iceberg(owner)
    assert other is not None
    after = result.after
    is_same = other.metadata_location == after.metadata_location
    if draft.rules.protocol >= ICEBERG_COPIES_SINCE and POSITION in other.properties:
        # The first name of a table comes back beside its second names.
        return result.is_registered and other.uuid == after.uuid and draft.is_read_only(owner)
    return result.is_registered and is_same and draft.is_as_registered(owner)


def check_free(draft: Draft, root: str, files: Sequence[tuple[TableId, str]]) -> None:
    """Refuse metadata files that a file on their path keeps from ever being written."""
    if not root.startswith("/"):
        return  # an object store: it has no folders
    above: dict[str, tuple[TableId, str]] = {}
    for table, path in files:
        folders = path.split("/")[:-1]
        for depth in range(len(folders)):
            above.setdefault("/".join(folders[: depth + 1]), (table, path))
    found = draft.want_all(FileWanted(root, folder) for folder in above)
    for (folder, (table, path)), there in zip(above.items(), found, strict=True):
        if there.observation.size >= 0:
            name = format_table_id(table)
            refused = {"table": name, "root": root, "path": path, "folder": folder}
            raise _not_at_all(Code.LOCATION_NOT_ALLOWED, "iceberg_metadata_behind_file", **refused)
