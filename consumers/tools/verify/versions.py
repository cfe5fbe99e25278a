"""The manifests that a log makes, version by version, as they have to stand in storage.

What the materializer does with acknowledged outcomes is done here again without a store, from the
changes that follow from the log alone.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from commitlog.codecs.manifest_file import (
    encode_manifest,
    manifest_path,
    parse_manifest_name,
)
from commitlog.core.catalogue.version_deletion import merged
from commitlog.core.decisions import Change, ChangeKind
from commitlog.core.manifest.manifest_state import ManifestDelta
from commitlog.core.tables.lance_tables import Table, VersionRanges
from commitlog.model.operations import Operation, RegisterTable
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.table_manifests import TableManifests


@dataclass(slots=True)
class LifeManifests(TableManifests):
    """One incarnation of a table, with what verification says of its manifests."""

    message: bytes = b""
    """The transaction in its newest manifest."""
    first_version: int = 0
    """The first version that the log made or took over; what is older is not the log's."""
    deleted: VersionRanges = ()
    """Versions that were deleted, by a transaction; in order, as `without` takes them."""

    def apply(self, change: Change) -> bool:
        """Take the next change into the state; return True if it makes a version."""
        self.deleted = merged(self.deleted, change.deleted)
        is_made = TableManifests.apply(self, change)
        if is_made:
            is_back = change.kind is ChangeKind.REGISTERED
            self.first_version = (not is_back and self.first_version) or change.version
            self.message = change.message
        return is_made

    def is_shown(self, names: Collection[str] | None) -> bool:
        """Return True if it stands, has a version and is among tables of some names, or of all."""
        is_meant = names is None or format_table_id(self.table) in names
        return is_meant and self.is_live and bool(self.state.version)

    def encode(self) -> bytes:
        """Return the manifest file of its newest version."""
        return encode_manifest(self.state, self.message or None)


@dataclass(frozen=True, slots=True)
class Made:
    """A version, right after the log made it."""

    life: LifeManifests
    change: Change
    delta: ManifestDelta
    sequence: int

    @property
    def is_foreign(self) -> bool:
        """Whether its manifest is a file that was found, not one that the log writes."""
        return self.change.kind is ChangeKind.REGISTERED

    def encode(self) -> bytes:
        """Return the manifest file."""
        return self.life.encode()

    def paths(self) -> tuple[str, ...]:
        """Return where the file may be, below the location: one path, or one per way of naming."""
        return manifest_paths(self.change.version, self.life.naming_scheme)


def manifest_paths(version: int, scheme: str) -> tuple[str, ...]:
    """Return where a version's file may stand, below its table's location.

    Lance renames the files of "V1" where it is asked to.
    """
    schemes = {"V1": ("V1", "V2"), "V2": ("V2",)}.get(scheme, ("V2", "V1"))
    return tuple(manifest_path(version, one) for one in schemes)


class Versions:
    """All lives of tables, followed from change to change."""

    def __init__(self, tables: Mapping[TableId, Table]) -> None:
        """Begin with the tables of a machine that continues from a checkpoint."""
        self.lives: dict[str, LifeManifests] = {}
        for table in tables.values():
            if table.manifest is not None:
                self.lives[table.incarnation] = LifeManifests(
                    table=table.table_id,
                    incarnation=table.incarnation,
                    location=table.location,
                    policy=table.policy,
                    state=table.manifest.copy(),
                    deleted=table.deleted,
                )

    def take(
        self, changes: tuple[Change, ...], operations: Sequence[Operation], sequence: int
    ) -> Iterator[Made]:
        """Take what one outcome does of `operations`; yield each version while its state stands."""
        for change in changes:
            if change.iceberg is not None:
                continue
            life = self.lives.get(change.incarnation)
            if life is None:
                life = self.lives[change.incarnation] = LifeManifests.begun(change)
            if change.kind is ChangeKind.REGISTERED:
                life.naming_scheme = _registered_scheme(operations, change.table)
            if life.apply(change) and change.delta is not None:
                yield Made(life, change, change.delta, sequence)

    def to_json(self) -> dict[str, Any]:
        """Return what a machine doesn't know of its tables' manifests."""
        return {
            life.incarnation: [
                life.naming_scheme,
                life.first_version,
                base64.b64encode(life.message).decode(),
            ]
            for life in self.lives.values()
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Take back what `to_json` returned."""
        for incarnation, (scheme, first_version, message) in data.items():
            life = self.lives.get(incarnation)
            if life is not None:
                life.naming_scheme, life.first_version = scheme, first_version
                life.message = base64.b64decode(message)


def _registered_scheme(operations: Sequence[Operation], table: TableId) -> str:
    for operation in operations:
        if isinstance(operation, RegisterTable) and operation.table == table:
            named = parse_manifest_name(operation.manifest_path.rsplit("/", 1)[-1])
            return str(named.scheme) if named is not None else ""
    return ""
