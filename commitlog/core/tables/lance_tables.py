"""The tables that exist, and which locations are taken.

A location belongs to one incarnation of a table for ever, dropped or not, and no table's location
equals, contains or is in another's: path components are compared, not characters.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from commitlog.core.conflicts.history import History
from commitlog.core.decisions import Noted, Refused, rejected
from commitlog.core.log.applications import Applications
from commitlog.core.manifest.feature_flags import FLAG_STABLE_ROW_IDS
from commitlog.core.manifest.manifest_state import ManifestState
from commitlog.core.tables.row_writes import RowQueue
from commitlog.model.limits import PLACES_SORTED_SINCE, Rules
from commitlog.model.operations import Properties
from commitlog.model.records import Code
from commitlog.model.table import Policy, TableId, format_table_id

VersionRanges = tuple[tuple[int, int], ...]
"""Versions from first to last, both included: sorted, and none touching another."""


def is_in(version: int, ranges: VersionRanges) -> bool:
    """Return True if a version is in one of the ranges, which are in order."""
    return has_any(version, version, ranges)


def has_any(first: int, last: int, ranges: Sequence[tuple[int, int]]) -> bool:
    """Return True if one of the versions from first to last is in one of the ranges, in order."""
    at = bisect_left(ranges, first, key=itemgetter(1))
    return at < len(ranges) and ranges[at][0] <= last


class Table:
    """A table as of the last outcome that was applied."""

    __slots__ = (
        "applications",
        "changed_at",
        "deleted",
        "history",
        "incarnation",
        "location",
        "manifest",
        "noted",
        "policy",
        "primary_key",
        "properties",
        "rows",
        "table_id",
    )

    def __init__(
        self,
        table_id: TableId,
        incarnation: str,
        location: str,
        policy: Policy,
        manifest: ManifestState | None,
        *,
        primary_key: tuple[str, ...] = (),
        properties: Properties = (),
    ) -> None:
        self.table_id = table_id
        self.incarnation = incarnation
        self.location = location
        self.policy = policy
        self.manifest = manifest
        """None: declared, without a version yet."""
        self.primary_key = primary_key
        self.properties = properties
        self.history = History(manifest.version if manifest is not None else 0)
        self.applications: Applications = {}
        self.deleted: VersionRanges = ()
        """Versions that were deleted: their numbers aren't given again."""
        self.noted: dict[int, Noted] = {}
        """What clients said about the versions that they offered: e_tags of late ones only."""
        self.rows: RowQueue | None = None
        """The writes of rows that it has accepted; None if it never did."""
        self.changed_at = 0
        """The sequence of the last outcome that changed it."""

    @property
    def version(self) -> int:
        """Its newest version; 0 if it has none yet."""
        return self.manifest.version if self.manifest is not None else 0

    @property
    def declares_key(self) -> bool:
        """Return True if it promises the log, or in its schema, that no key is there twice."""
        return bool(self.primary_key) or (
            self.manifest is not None and self.manifest.header.declares_key
        )

    @property
    def stable_row_ids(self) -> bool:
        """Return True if its rows keep their ids when they move."""
        manifest = self.manifest
        return manifest is not None and bool(manifest.reader_feature_flags & FLAG_STABLE_ROW_IDS)


class Place(NamedTuple):
    """Who has a location."""

    table_id: TableId
    incarnation: str
    is_live: bool
    version: int = 0
    """Of a table that ended: its newest version. 0: it had none, or nobody noted it, as before
    `LAST_VERSIONS_SINCE`."""


LocationParts = tuple[str, ...]


def normalize_location(location: str) -> str:
    """Return a location without what doesn't change its meaning; refuse what has no clear one."""
    scheme, separator, path = location.partition("://")
    if not separator:
        # As Java writes the URI of a local file.
        scheme, path = "", location.removeprefix("file:")
    parts = [part for part in path.split("/") if part not in {"", "."}]
    is_rooted = bool(scheme) or path.startswith("/")
    if not is_rooted or not parts or ".." in parts or "\0" in location or "\\" in location:
        raise rejected(Code.LOCATION_NOT_ALLOWED, "not_a_location", location=location)
    joined = "/".join(parts)
    if scheme.lower() in {"", "file"}:
        return f"/{joined}"
    return f"{scheme.lower()}://{joined}"


def path_below(location: str, root: str) -> str:
    """Return a location's path below a normalized root; empty if it is elsewhere, or unclear."""
    try:
        place = normalize_location(location)
    except Refused:
        return ""
    is_below = bool(root) and place.startswith(f"{root}/")
    return place.removeprefix(f"{root}/") if is_below else ""


def location_parts(location: str) -> LocationParts:
    """Split a normalized location into what is compared."""
    scheme, separator, path = location.partition("://")
    return (scheme, *path.split("/")) if separator else ("", *location[1:].split("/"))


class Locations:
    """Which locations are taken, in order: what is in a location follows it at once."""

    def __init__(self) -> None:
        self._places: dict[LocationParts, Place] = {}
        self._of: dict[str, LocationParts] = {}
        self._sorted: list[LocationParts] = []
        self._encoded: list[bytes | None] = []
        """What `encoded` made of each, in the same order, until it changes."""

    def clash(self, location: str, rules: Rules, home: str = "") -> Place | None:
        """Return who has a location that is, contains or is in this one.

        A branch is in its table's location, `home`, and clashes with others only.
        """
        parts = location_parts(location)
        at_home = len(location_parts(home)) if home else 0
        for length in range(2, len(parts) + 1):
            place = self._places.get(parts[:length])
            if place is not None and length != at_home:
                return place
        return next(self._below(parts, rules), None)

    def clashes(self, location: str, rules: Rules) -> Iterator[Place]:
        """Yield who has a location that is, contains or is in this one."""
        parts = location_parts(location)
        for length in range(2, len(parts) + 1):
            place = self._places.get(parts[:length])
            if place is not None:
                yield place
        yield from self._below(parts, rules)

    def _below(self, parts: LocationParts, rules: Rules) -> Iterator[Place]:
        """Yield who has a location that is in this one."""
        first, end = self._range(parts)
        if end - first > 1 and rules.protocol < PLACES_SORTED_SINCE:
            depth = len(parts)
            inside = (at for at in self._places if at[:depth] == parts and at != parts)
            yield from (self._places[at] for at in inside)
            return
        for number in range(first, end):
            yield self._places[self._sorted[number]]

    def _range(self, parts: LocationParts) -> tuple[int, int]:
        """Return from where to where those that are in a location stand in the order."""
        end = bisect_left(self._sorted, (*parts[:-1], parts[-1] + "\0"))
        return bisect_right(self._sorted, parts, hi=end), end

    def at(self, location: str) -> Place | None:
        """Return who has exactly this location."""
        return self._places.get(location_parts(location))

    def of(self, incarnation: str) -> tuple[LocationParts, Place] | None:
        """Return the place that an incarnation took last, None if it took none."""
        parts = self._of.get(incarnation)
        return (parts, self._places[parts]) if parts is not None else None

    def is_above(self, location: str) -> bool:
        """Return True if this is, or contains, a location that is taken, and is in none."""
        parts = location_parts(location)
        if any(parts[:length] in self._places for length in range(2, len(parts))):
            return False
        first, end = self._range(parts)
        return parts in self._places or first < end

    def take(self, location: str, place: Place) -> None:
        """Note who has a location.

        Nothing is let go of when a table ends: incarnations are ids that clients choose, so a late
        record could name an old one again, with its location, and meet files that are still there.
        """
        parts = location_parts(location)
        number = bisect_left(self._sorted, parts)
        if parts in self._places:
            parts = self._sorted[number]
            self._encoded[number] = None
        else:
            for beside in self._sorted[max(number - 1, 0) : number + 1]:
                # The names of folders are kept once.
                shared = zip(parts, beside, strict=False)
                parts = tuple(b if a == b else a for a, b in shared) + parts[len(beside) :]
            self._sorted.insert(number, parts)
            self._encoded.insert(number, None)
        self._places[parts] = place
        self._of[place.incarnation] = parts

    def items(self) -> Mapping[LocationParts, Place]:
        """Return all that are taken."""
        return self._places

    def encoded(self, encode: Callable[[LocationParts, Place], bytes]) -> list[bytes]:
        """Return what `encode` makes of each, sorted by location; it is asked only of new ones."""
        rows: Any = self._encoded
        for number, row in enumerate(rows):
            if row is None:
                parts = self._sorted[number]
                rows[number] = encode(parts, self._places[parts])
        return list(rows)


def no_such_table(table: TableId) -> Exception:
    """Return the refusal of a transaction on a table that isn't there."""
    return rejected(Code.NO_SUCH_TABLE, "no_such_table", table=format_table_id(table))
