"""What maintenance does to a table, as properties say: its own, its namespaces', the log's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from commitlog.client.tables import TableInfo
from commitlog.errors import InvalidSettings
from commitlog.model.limits import GRACE_DAYS

PREFIX = "commitlog.maintain."


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """What is done to a table, as its properties `commitlog.maintain.NAME` say."""

    mode: str = "on"
    """`off` leaves the table alone."""
    target_rows: int = 1_048_576
    """Rows of a full fragment."""
    small_fragments: int = 16
    """How many fragments of one size are merged."""
    deleted_share: float = 0.2
    """Fragments with more dead rows than this are rewritten, once that many of the table's are."""
    unindexed_share: float = 0.1
    """Indices are brought up to date when they miss more rows than this."""
    keep_manifests: int = 64
    """How many of the newest manifests stay under the policy `latest`; 0: all."""
    expire_days: float = 0.0
    """Versions older than this are deleted by a record; 0: none."""
    retain_versions: int = 0
    """Versions behind so many newer ones are deleted by a record; 0: none."""
    remove_after_days: float = GRACE_DAYS
    """Files that nobody has needed for so long are removed, by a record; 0: none."""
    guard: str = "on"
    """Whether a tag on the oldest version has Lance's own cleanup refuse to delete versions."""

    @classmethod
    def of(cls, info: TableInfo, inherited: Mapping[str, str] | None = None) -> MaintenancePolicy:
        """Read a table's policy, where it says nothing that of the properties it inherits.

        InvalidSettings names a property that isn't one, or its value.
        """
        return cls.of_properties(info.name, {**(inherited or {}), **info.properties})

    @classmethod
    def of_properties(cls, whose: str, properties: Mapping[str, str]) -> MaintenancePolicy:
        """Read a policy among properties; InvalidSettings says whose is wrong."""
        given = {
            name.removeprefix(PREFIX).replace("-", "_"): (name, text)
            for name, text in properties.items()
            if name.startswith(PREFIX)
        }
        defaults = cls()
        known = {one.name: type(getattr(defaults, one.name)) for one in fields(cls)}
        values: dict[str, Any] = {}
        for name, (written, text) in given.items():
            kind = known.get(name)
            if kind is None:
                names = ", ".join(PREFIX + one.replace("_", "-") for one in known)
                raise InvalidSettings(f"{whose}: unknown property {written}; known are {names}")
            try:
                values[name] = kind(text)
            except ValueError:
                raise InvalidSettings(
                    f"{whose}: {written} cannot be {text!r}; it is a {kind.__name__}"
                ) from None
        policy = cls(**values)
        switches = {policy.mode, policy.guard}
        numbers = (getattr(policy, name) for name in known if known[name] is not str)
        if not switches <= {"on", "off"} or any(number < 0 for number in numbers):
            raise InvalidSettings(
                f"{whose}: {policy} is not a policy; `mode` and `guard` are on or off"
            )
        return policy


def parse_defaults(pairs: Sequence[str]) -> dict[str, str]:
    """Read NAME=VALUE as properties; InvalidSettings names what is no policy."""
    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidSettings(f"--policy takes NAME=VALUE, not {pair!r}")
        given[PREFIX + name.removeprefix(PREFIX)] = value
    MaintenancePolicy.of_properties("--policy", given)
    return given


def properties_of(policy: Mapping[str, object]) -> dict[str, str]:
    """Return a policy's settings as table properties."""
    return {PREFIX + name.replace("_", "-"): str(value) for name, value in policy.items()}
