"""What is known of versions: what their manifests say and what their writers said of them.

It never changes, so it is read once and remembered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from commitlog.adapters.lance_namespace import object_path
from commitlog.adapters.storage import local_path, store_for
from commitlog.codecs.manifest_file import decode_manifest

REMEMBERED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What is told of one version."""

    size: int
    e_tag: str
    """As its writer gave it, else the file's own."""
    timestamp_millis: int
    metadata: Mapping[str, str]

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
        self._facts: OrderedDict[tuple[str, int], VersionFacts] = OrderedDict()

    def get(self, incarnation: str, version: int) -> VersionFacts | None:
        """Return what is known of a version."""
        return self._facts.get((incarnation, version))

    def learn(
        self,
        location: str,
        key: tuple[str, int],
        path: str,
        e_tag: str,
        metadata: Mapping[str, str],
    ) -> VersionFacts:
        """Read a version's manifest, and remember that with what its writer said."""
        root = local_path(location)
        data = store_for(location).read(path)
        state, _ = decode_manifest(data)
        if root is not None and not e_tag:
            stat = (root / path).stat()
            e_tag = f'"{stat.st_ino:x}-{stat.st_mtime_ns // 1000:x}-{stat.st_size:x}"'
        milliseconds = state.timestamp_nanos // 1_000_000
        facts = VersionFacts(len(data), e_tag, milliseconds, metadata)
        with self._lock:
            self._facts[key] = facts
            if len(self._facts) > REMEMBERED_MAX:
                self._facts.popitem(last=False)
        return facts
