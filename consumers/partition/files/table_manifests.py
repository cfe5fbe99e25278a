"""One table's manifests, followed from change to change as the log makes them, without a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from commitlog.codecs.manifest_file import parse_manifest_name
from commitlog.core.decisions import ENDS, Change, ChangeKind
from commitlog.core.manifest.manifest_state import ManifestState, apply_delta
from commitlog.core.tables.creation import empty_state
from commitlog.model.table import Policy, TableId


@dataclass(slots=True)
class TableManifests:
    """One incarnation of a table as far as its manifests go."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy
    state: ManifestState = field(default_factory=empty_state)
    """The newest version that was applied here."""
    naming_scheme: str = ""
    """How its manifests are named; empty: the log doesn't say."""
    is_live: bool = True

    @classmethod
    def begun(cls, change: Change, **more: Any) -> Self:
        """Return a table before the first change to it."""
        scheme = "V2" if change.kind is ChangeKind.CREATED else ""
        return cls(
            table=change.table,
            incarnation=change.incarnation,
            location=change.location,
            policy=change.policy,
            naming_scheme=scheme,
            **more,
        )

    def apply(self, change: Change) -> bool:
        """Take the next change into the state; return True if it makes a version."""
        self.table, self.policy = change.table, change.policy
        if change.kind in ENDS:
            self.is_live = False
        if change.delta is None:
            return False
        if change.kind is ChangeKind.REGISTERED:
            # It may come back after it was deregistered, and be told of once more.
            self.state, self.is_live = empty_state(), True
        if change.staged_path and not self.state.version:
            staged = parse_manifest_name(change.staged_path.rsplit("/", 1)[-1])
            self.naming_scheme = staged.scheme if staged is not None else self.naming_scheme
        apply_delta(self.state, change.delta)
        return True
