"""Where files of tables may be: below the tables root, and where the operator allows it.

Paths of this machine are resolved before they are compared: a symbolic link stands for the place
that it leads to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from commitlog.adapters.places import bound
from commitlog.adapters.storage import local_path
from commitlog.core.decisions import Refused
from commitlog.core.tables.lance_tables import LocationParts, location_parts, normalize_location

_SAME_SCHEMES = {"s3a": "s3", "abfss": "abfs"}


class AllowedPlaces:
    """The places of one log, as its operator set them. Thread-safe."""

    def __init__(self, root: str, allowed: Iterable[str] = ()) -> None:
        """Allow what is below the tables root and below these prefixes."""
        self.root = root
        self._allowed = tuple(allowed)

    def holds(self, place: str) -> bool:
        """Return True if files of a table may be there."""
        return any(lies_in(place, prefix) for prefix in (self.root, *self._allowed))

    def is_allowed(self, place: str) -> bool:
        """Return True if the operator named a prefix of it, besides the tables root."""
        return any(lies_in(place, prefix) for prefix in self._allowed)


def lies_in(place: str, prefix: str) -> bool:
    """Return True if a place is below a prefix, or is the prefix itself."""
    if _is_plainly_below(place, prefix):
        return True
    inner, outer = _parts(place), _parts(prefix)
    return bool(inner and outer) and inner[: len(outer)] == outer


def meet(one: str, other: str) -> bool:
    """Return True if one of two places is or contains the other."""
    return lies_in(one, other) or lies_in(other, one)


def _is_plainly_below(place: str, prefix: str) -> bool:
    """Return True for a path below another one with no link in between: both resolve alike."""
    place, at = bound(place), bound(prefix)
    if not at.startswith("/") or not place.startswith(f"{at}/") or "\0" in place:
        return False
    for part in place[len(at) + 1 :].split("/"):
        at = f"{at}/{part}"
        try:
            if part in ("", ".", "..") or stat.S_ISLNK(os.lstat(at).st_mode):
                return False
        except OSError:
            return False
    return True


def _parts(place: str) -> LocationParts:
    """Return the parts of a place that are compared; () if it is ambiguous."""
    path = local_path(place)
    if path is not None:
        if not path.is_absolute() or "\0" in place:
            return ()
        place = os.path.realpath(path)
        return ("",) if place == "/" else location_parts(place)
    place = bound(place)
    if "%" in place or "?" in place or "#" in place:
        return ()  # stores differ in what they make of these
    try:
        scheme, *rest = location_parts(normalize_location(place))
    except Refused:
        return ()
    return (_SAME_SCHEMES.get(scheme, scheme), *rest)
