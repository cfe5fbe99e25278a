"""The maintenance policy of a table, from its properties `commitlog.maintain.NAME`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from commitlog.errors import InvalidSettings
from commitlog.model.limits import GRACE_DAYS

PREFIX = "commitlog.maintain."
COUNT_MAX, SHARE_MAX = 2**31 - 1, 1e9
"""Larger numbers mean the same, and some could not be computed with."""
DAYS_MAX, HOURS_MAX = 36_500.0, 24 * 36_500.0


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """What maintenance does to a table, by its properties `commitlog.maintain.NAME`."""

    mode: str = "on"
    """`off` leaves the table alone."""
    target_rows: int = 1_048_576
    """Rows of a full fragment."""
    small_fragments: int = 16
    """How many fragments of one size are merged."""
    deleted_share: float = 0.2
    """Fragments with more dead rows are rewritten, once the table has this share of them."""
    unindexed_share: float = 0.1
    """Indices are updated when they lack more rows than this share."""
    keep_manifests: int = 64
    """How many of the newest manifests stay under the policy `latest`; 0: all."""
    expire_days: float = 0.0
    """Versions older than this are deleted by a record; 0: none."""
    retain_versions: int = 0
    """Versions with this many newer ones are deleted by a record; 0: none."""
    expire_rows_days: float = 0.0
    """Rows of applied writes leave the archive when they are this many days old; 0: never."""
    history_share: float = 10.0
    """Old versions are thinned out once the files that only they need take this many times the
    bytes of the newest version; 0: never."""
    history_hours: float = 1.0
    """Versions younger than this are never thinned out."""
    history_versions: int = 256
    """How many of the newest versions aren't thinned out; fewer if they take too much."""
    remove_after_days: float = GRACE_DAYS
    """Files unneeded for this many days are removed, by a record; 0: none."""
    remove_expired_after_hours: float = 6.0
    """The same for files that only expired versions need; if only `remove_after_days` is set, that
    applies to them too."""
    guard: str = "on"
    """Whether a tag on the oldest version makes Lance's own cleanup refuse to delete versions."""

    @classmethod
    def of_properties(cls, whose: str, properties: Mapping[str, str]) -> MaintenancePolicy:
        """Read a policy among properties; InvalidSettings says whose is wrong."""
        given = {
            name.removeprefix(PREFIX).replace("-", "_"): (name, text)
            for name, text in properties.items()
            if name.startswith(PREFIX)
        }
        defaults = cls()
        known = {one.name: getattr(defaults, one.name) for one in fields(cls)}
        values: dict[str, Any] = {}
        for name, (written, text) in given.items():
            if name not in known:
                names = ", ".join(PREFIX + one.replace("_", "-") for one in known)
                raise InvalidSettings(f"{whose}: unknown property {written}; known are {names}")
            values[name] = _value(f"{whose}: {written}", name, text, type(known[name]))
        if "remove_after_days" in values:
            values.setdefault("remove_expired_after_hours", values["remove_after_days"] * 24)
        return cls(**values)


def _value(what: str, name: str, text: str, kind: type[Any]) -> Any:
    """Return a property's value; InvalidSettings says what it can be."""
    if kind is str:
        if text not in {"on", "off"}:
            raise InvalidSettings(f"{what} cannot be {text!r}; it is on or off")
        return text
    least, most = _bounds(name, kind)
    try:
        value = kind(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:  # nor is what is no number
        number = "a whole number" if kind is int else "a number"
        between = f"{number} from {least:g} to {most:,.0f}"
        raise InvalidSettings(f"{what} cannot be {text!r}; it is {between}")
    return value


def _bounds(name: str, kind: type[Any]) -> tuple[float, float]:
    if kind is int:
        return 1 if name == "target_rows" else 0, COUNT_MAX
    if name.endswith("_days"):
        return 0, DAYS_MAX
    if name.endswith("_hours"):
        return 0, HOURS_MAX
    return 0, 1 if name == "deleted_share" else SHARE_MAX
