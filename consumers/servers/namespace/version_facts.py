"""What is known of versions: what their manifests say and what their writers said of them.

It never changes, so it is read once and remembered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlog.adapters.lance_namespace import object_path
from commitlog.adapters.storage import local_path, store_for
from commitlog.client.leader.tables import TableInfo
from commitlog.client.rows.opening import canonical_path
from commitlog.codecs.manifest_file import (
    decode_manifest,
)
from commitlog.core.decisions import Noted
from commitlog.lancepb.table_pb2 import DataFragment
from commitlog.model.records import Outcome
from commitlog.newest import Newest

REMEMBERED_MAX = 100_000
COUNTED_BYTES_MAX = 128 * 1024
"""Of a manifest of which rows are counted here: the fragments of a larger one take long."""


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is told of one version."""

    size: int
    e_tag: str
    """As its writer gave it, else the file's own."""
    timestamp_millis: int
    metadata: Mapping[str, str]
    transaction_id: str = ""
    """What made it, where this process had it made."""

    def entry(self, location: str, version: int, path: str) -> dict[str, Any]:
        """Describe the version as the protocol does."""
        entry: dict[str, Any] = {
            "version": version,
            "manifest_path": object_path(location, path),
            "manifest_size": self.size,
            "e_tag": self.e_tag,
            "timestamp_millis": self.timestamp_millis,
        }
        return {**entry, "metadata": dict(self.metadata)} if self.metadata else entry


class KnownVersions:
    """Facts by incarnation and version. Thread-safe."""

    def __init__(self) -> None:
        """Know nothing."""
        self._lock = threading.Lock()
        self._facts: Newest[tuple[str, int], VersionFacts] = Newest(REMEMBERED_MAX)
        self._rows: Newest[tuple[str, int], int | None] = Newest(REMEMBERED_MAX)

    def get(self, incarnation: str, version: int) -> VersionFacts | None:
        """Return what is known of a version."""
        return self._facts.get((incarnation, version))

    def entry(self, info: TableInfo, version: int) -> dict[str, Any] | None:
        """Describe a version from its complete facts; None if its file isn't there."""
        facts, path = self.get(info.incarnation, version), canonical_path(info.location, version)
        if facts is None or path is None:
            return None
        return facts.entry(info.location, version, path)

    def note_built(self, info: TableInfo, version: int, outcome: Outcome) -> None:
        """Remember a version that the leader built just now, if its file is there."""
        path = canonical_path(info.location, version)
        if path is not None and outcome.answers is None:
            self.note(info.location, (info.incarnation, version), path, None, outcome)

    def learn(
        self,
        location: str,
        key: tuple[str, int],
        path: str,
        e_tag: str,
        metadata: Mapping[str, str],
    ) -> VersionFacts:
        """Read a version's manifest, and remember that with what its writer said."""
        data = store_for(location).read(path)
        state, _ = decode_manifest(data)
        milliseconds = state.timestamp_nanos // 1_000_000
        e_tag = e_tag or _e_tag(location, path)
        return self._remember(key, VersionFacts(len(data), e_tag, milliseconds, metadata))

    def note(
        self,
        location: str,
        key: tuple[str, int],
        path: str,
        said: Noted | None,
        outcome: Outcome,
    ) -> VersionFacts | None:
        """Remember a version that an outcome made just now; None if its file isn't there."""
        size = store_for(location).size(path)
        if size < 0:
            return None
        metadata = dict(said.metadata) if said else {}
        e_tag = (said.e_tag if said else "") or _e_tag(location, path)
        facts = VersionFacts(
            size=size,
            e_tag=e_tag,
            timestamp_millis=outcome.time_ms,
            metadata=metadata,
            transaction_id=outcome.transaction_id,
        )
        return self._remember(key, facts)

    def rows(self, info: TableInfo, version: int, path: str) -> int | None:
        """Count the rows of a version as its manifest does; None if that doesn't tell, or is large.

        `path` is the manifest's, below the table's location.
        """
        key = (info.incarnation, version)
        if key not in self._rows:
            counted = _counted(info.location, path)
            with self._lock:
                self._rows[key] = counted
            return counted
        return self._rows.get(key)

    def _remember(self, key: tuple[str, int], facts: VersionFacts) -> VersionFacts:
        with self._lock:
            self._facts[key] = facts
        return facts


def _counted(location: str, path: str) -> int | None:
    store = store_for(location)
    if store.size(path) > COUNTED_BYTES_MAX:
        return None
    state, _ = decode_manifest(store.read(path))
    if state.header.bases:
        return None  # not every caller may read what is there
    rows = 0
    for fragment in map(DataFragment.FromString, state.fragments.values()):
        deletions = fragment.deletion_file
        # Lance's first releases noted neither.
        is_untold = fragment.HasField("deletion_file") and not deletions.num_deleted_rows
        if is_untold or not fragment.physical_rows:
            return None
        rows += fragment.physical_rows - deletions.num_deleted_rows
    return rows


def _e_tag(location: str, path: str) -> str:
    """Return what tells a local file from another one that takes its place."""
    root = local_path(location)
    if root is None:
        return ""
    found = os.stat(os.path.join(root, path))
    return f'"{found.st_ino:x}-{found.st_mtime_ns // 1000:x}-{found.st_size:x}"'


def written(info: TableInfo, version: int) -> str | None:
    """Return the path of a version's file, if the version is known to be written.

    None too if the file is called otherwise than it should be, or isn't there any more.
    """
    return canonical_path(info.location, version) if version <= info.readable_version else None
