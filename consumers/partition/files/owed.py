"""What a checkpoint owes: decided versions of one table that had no files when it was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.log.chain import ChainPlace
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.model.table import Policy, TableId


@dataclass(frozen=True, slots=True)
class Owed:
    """Changes of one table, in the order of the log, as far as making their files needs them."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy
    changes: int
    """How many they are; some make no version."""
    first: int
    last: int
    """The oldest and the newest version among them, 0 if they made none."""
    base: int
    """The newest version that had its file, 0 if none had."""
    sequence: int
    """The outcome of the oldest one."""
    place: ChainPlace
    """Before that outcome."""
    deleted: VersionRanges = ()
    """Versions that they deleted."""
    end: ChangeKind | None = None
    """How the table left the log, if it did."""

    @property
    def has_versions(self) -> bool:
        """Whether versions are owed, not only what was deleted."""
        return 0 < self.first <= self.last

    def change(self, kind: ChangeKind) -> Change:
        """Return a change of the table that makes no version, with what was deleted."""
        return Change(
            table=self.table,
            incarnation=self.incarnation,
            kind=kind,
            location=self.location,
            policy=self.policy,
            deleted=self.deleted,
        )


def owed_to_json(owed: Owed) -> dict[str, Any]:
    """Return what a checkpoint's head says of it."""
    place = owed.place
    return {
        "table": list(owed.table),
        "incarnation": owed.incarnation,
        "location": owed.location,
        "policy": str(owed.policy),
        "changes": owed.changes,
        "versions": [owed.first, owed.last],
        "base": owed.base,
        "sequence": owed.sequence,
        "place": [place.sequence, place.outcomes_offset, place.epoch, place.hash.hex()],
        "deleted": [list(one) for one in owed.deleted],
        "end": str(owed.end or ""),
    }


def owed_from_json(data: Mapping[str, Any]) -> Owed:
    """Read it."""
    sequence, offset, epoch, digest = data["place"]
    return Owed(
        table=tuple(data["table"]),
        incarnation=data["incarnation"],
        location=data["location"],
        policy=Policy(data["policy"]),
        changes=data["changes"],
        first=data["versions"][0],
        last=data["versions"][1],
        base=data["base"],
        sequence=data["sequence"],
        place=ChainPlace(sequence, offset, epoch, bytes.fromhex(digest)),
        deleted=tuple((first, last) for first, last in data["deleted"]),
        end=ChangeKind(data["end"]) if data["end"] else None,
    )
