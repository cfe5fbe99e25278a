"""One table's files as the materializer keeps them: how far they are, and what readers find by.

The names are Lance's.
"""

from __future__ import annotations

import json
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from commitlog.adapters.storage import ObjectStore
from commitlog.codecs.manifest_file import VERSIONS_DIRECTORY, parse_manifest_name
from commitlog.core.decisions import Change
from commitlog.core.manifest import ManifestState
from commitlog.core.tables import is_in
from commitlog.model.table import Policy, TableId
from consumers.events import Event

HINT = f"{VERSIONS_DIRECTORY}/latest_version_hint.json"
UNHINTED_MAX = 8
"""A reader looks for later versions than the hint's one by one, so it doesn't stay far behind."""


@dataclass(slots=True)
class TableFiles:
    """One incarnation of a table as far as its files go."""

    table: TableId
    incarnation: str
    location: str
    policy: Policy
    store: ObjectStore
    state: ManifestState
    """The newest version that was applied here; its file follows."""
    naming_scheme: str = "V2"
    """Empty: as the store's own manifests are named, once it answers."""
    written_version: int = 0
    reported_version: int = 0
    """The newest version that was reported as written."""
    hinted_version: int = 0
    pending: deque[tuple[Change, Event | None]] = field(default_factory=deque)
    applied: int = 0
    """How many of `pending` are in `state` already (a write failed after them)."""
    failures: int = 0
    retry_at: float = 0.0
    gather_until: float = 0.0
    took_seconds: float = 0.0
    """How long the last manifest took under `latest`."""
    writing: Future[None] | None = None
    """Its changes that are being written; nobody else may touch its state and its pending ones."""
    dropped: bool = False


def hint_at(files: TableFiles, version: int) -> None:
    """Have a reader find a version, whose file comes next."""
    is_gap = version != files.written_version + 1
    if is_gap or version >= files.hinted_version + UNHINTED_MAX:
        files.store.write(HINT, json.dumps({"version": version}).encode())
        files.hinted_version = version


def delete_versions(files: TableFiles, change: Change) -> None:
    """Remove the manifests of versions that were deleted; their data files are vacuum's."""
    if not change.deleted or files.dropped:
        return
    for name in files.store.names(VERSIONS_DIRECTORY):
        parsed = parse_manifest_name(name)
        if parsed is None or parsed.staged_by or parsed.is_detached:
            continue
        if is_in(parsed.version, change.deleted):
            files.store.delete(f"{VERSIONS_DIRECTORY}/{name}")


def naming_scheme(store: ObjectStore) -> str:
    """Return how a location's manifests are named: "V1" or "V2" (also where there are none)."""
    for name in store.names(VERSIONS_DIRECTORY):
        stem, _, ending = name.partition(".")
        if ending == "manifest" and stem.isdigit():
            return "V2" if len(stem) == 20 else "V1"
    return "V2"
