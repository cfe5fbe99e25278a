"""Which versions stand, and the files that they need: nothing else may be removed.

Read off the log by the auditor, and off the tags that lie beside tables. A version stands until a
record deletes it; one that had a tag when its deletion was planned may not be deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commitlog.core.decisions import Change
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.names import REASON
from commitlog.model.records import Transaction
from commitlog.model.table import Policy
from consumers.partition.files.events import Event
from consumers.tools.orphans.leftover import GONE
from tests.simulation.disk import STALE_SECONDS
from tests.simulation.rows import Intent

if TYPE_CHECKING:
    from tests.simulation.auditor import Auditor, TableLog

REMOVED = ("data", "_deletions")
"""Folders of files that versions need."""


class Standing:
    """What maintenance has to leave alone."""

    def __init__(self, auditor: Auditor) -> None:
        """Begin with no table."""
        self._auditor = auditor
        self.tags: dict[tuple[str, str], tuple[int, float]] = {}
        """Version and when it was tagged, by the table's location and the tag's name."""
        self.expired: dict[str, set[int]] = {}
        """By incarnation: the versions that a record deleted."""
        self.began = 0
        """The sequence that was the last one when maintenance began to look."""
        self.began_at = 0.0
        self.overtaken: set[tuple[str, int]] = set()
        """Locations and versions that got a tag while their manifests were being removed."""
        self._now: dict[str, dict[int, tuple[str, ...]]] = {}
        """Paths of each fragment of the newest version, by incarnation."""
        self._files: dict[str, dict[int, frozenset[str]]] = {}
        self._removals: dict[str, int] = {}
        """The last sequence that announced a removal, by incarnation."""

    def note(self, change: Change) -> None:
        """Take what a change makes or deletes."""
        expired = self.expired.setdefault(change.incarnation, set())
        expired.update(v for first, last in change.deleted for v in range(first, last + 1))
        if change.delta is None:
            return
        now = self._now.setdefault(change.incarnation, {})
        for fragment_id in change.delta.removed:
            now.pop(fragment_id, None)
        for fragment_id, encoded in change.delta.fragments:
            fragment = DataFragment.FromString(encoded)
            paths = [f"data/{file.path}" for file in fragment.files]
            if fragment.HasField("deletion_file"):
                paths.append(deletion_file_path(fragment_id, fragment.deletion_file))
            now[fragment_id] = tuple(f"{change.location}/{path}" for path in paths)
        found = frozenset(path for paths in now.values() for path in paths)
        self._files.setdefault(change.incarnation, {})[change.version] = found

    def announced(self, event: Event) -> None:
        """Note a record that says that files are removed."""
        record = event.submitted.record
        said = dict(record.properties) if isinstance(record, Transaction) else {}
        if said.get(REASON, "").startswith("removes "):
            for result in event.outcome.results:
                self._removals[result.incarnation] = event.outcome.sequence

    def deleted(self, intent: Intent, location: str) -> None:
        """I21: versions are deleted by a record that was planned when they had no tag."""
        for (place, name), (version, tagged_at) in self.tags.items():
            is_kept = place == location and tagged_at + STALE_SECONDS < intent.planned_at
            self._auditor.expect(
                not is_kept or version not in intent.expires,
                f"I21 version {version} of {intent.table}, tagged {name}, was deleted",
            )

    def removed(self, path: str) -> None:
        """I21: maintenance removes a file that no version needs, behind the record that says so."""
        location, folder, _ = path.rsplit("/", 2)
        if folder not in REMOVED:
            return
        aside, path = path.endswith(GONE), path.removesuffix(GONE)
        if self._auditor.stores(path if aside else path + GONE):
            return  # it has its other name
        expect = self._auditor.expect
        self._auditor.follow()
        incarnation = self._auditor.by_location[location]
        table = self._auditor.tables[incarnation]
        if table.is_dropped:
            return
        announced = self._removals.get(incarnation, 0)
        expect(announced > self.began, f"I21 {path} was removed before the record")
        for version, files in self.needed(incarnation, table):
            expect(path not in files, f"I21 {path} was removed, and version {version} needs it")

    def needed(self, incarnation: str, table: TableLog) -> Iterator[tuple[int, frozenset[str]]]:
        """Yield the versions of a table that stand, and their files."""
        expired = self.expired.get(incarnation, set())
        tagged = {v for (place, _), (v, _) in self.tags.items() if place == table.location}
        for version, files in self._files.get(incarnation, {}).items():
            if version not in expired or version in tagged:
                yield version, files

    def may_go(self, incarnation: str, version: int) -> bool:
        """Say whether a version's manifest may be removed: the log makes any of them again.

        Under `every` only those of versions that were deleted are, under `latest` not the newest.
        """
        table = self._auditor.tables[incarnation]
        if table.is_dropped or self.is_expired(incarnation, version):
            return True
        if table.policy is not Policy.LATEST or version >= table.state.version:
            return False
        tagged = [
            at
            for (place, _), (v, at) in self.tags.items()
            if (place, v) == (table.location, version)
        ]
        if not tagged:
            return True
        # Tagged since maintenance looked for tags: who opens it asks the log for it.
        self.overtaken.add((table.location, version))
        return min(tagged) + STALE_SECONDS >= self.began_at

    def is_expired(self, incarnation: str, version: int) -> bool:
        """Say whether a record deleted a version."""
        return version in self.expired.get(incarnation, ())
