"""The tables of a partition that were ever there, folded from its outcomes: what `undrop` finds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from commitlog.client.commits.names import like_known
from commitlog.client.history.folds import Fold, TableAt
from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.model.operations import (
    CreateTable,
    DeclareTable,
    DeleteTableVersions,
    Operation,
    RegisterTable,
)
from commitlog.model.table import Policy, TableId


@dataclass(frozen=True, slots=True)
class Life(TableAt):
    """One incarnation of a table, as the log tells it."""

    policy: Policy = Policy.EVERY
    primary_key: tuple[str, ...] = ()
    deleted: VersionRanges = ()
    dropped_at: int = 0
    """The sequence of the outcome that dropped it; 0: it stands, or was only deregistered, which
    for Iceberg's clients is a drop."""


class Lives(Fold):
    """All tables that a partition ever had."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[tuple[str, ...], Life] = {}
        """By incarnation, and the name if it is Iceberg's: two names of a table may have one."""

    def dropped(self, name: str) -> list[Life]:
        """Return what was dropped under a name, the last one last."""
        found = [one for one in self._ended.values() if one.dropped_at and one.name == name]
        return sorted(found, key=lambda one: one.dropped_at)

    def like_dropped(self, name: str) -> str:
        """Return a sentence that names what was dropped under a name like this one."""
        dropped = {one.name for one in self._ended.values() if one.dropped_at}
        return like_known(name, dropped, "dropped tables")

    def _begun(self, name: str, incarnation: str) -> Life:
        before = self._ended.pop((incarnation,), None)
        if before is None:
            return Life(name, incarnation)
        return Life(name, incarnation, before.version, deleted=before.deleted)

    def _end(self, table: TableId, sequence: int, *, is_drop: bool) -> None:
        life = self.tables.get(table)
        if isinstance(life, Life):
            key = (life.incarnation, *([life.name] if life.is_iceberg else []))
            is_dropped = is_drop or life.is_iceberg
            self._ended.pop(key, None)
            self._ended[key] = replace(life, dropped_at=sequence if is_dropped else 0)
        super()._end(table, sequence, is_drop=is_drop)

    def _altered(self, known: TableAt, operation: Operation) -> TableAt:
        made = super()._altered(known, operation)
        assert isinstance(made, Life)
        if isinstance(operation, DeleteTableVersions):
            return replace(made, deleted=merged(made.deleted, operation.ranges))
        if made is known or not isinstance(operation, CreateTable | DeclareTable | RegisterTable):
            return made
        key = () if isinstance(operation, DeclareTable) else operation.primary_key
        return replace(made, policy=operation.policy, primary_key=key)
