"""What Lance keeps beside a table's versions: tags, branches, and the time of each manifest.

They aren't part of the log: any program that can write to the table's folder can move tags.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from commitlog.adapters.storage import ObjectStore, store_for
from commitlog.codecs.manifest_file import (
    VERSIONS_DIRECTORY,
    decode_manifest,
    manifest_places,
    parse_manifest_name,
)
from commitlog.core.tables.branch_names import FOLDER

GUARD_TAG = "kept-by-commitlog"
"""The tag that maintenance gives the oldest version: Lance's own cleanup refuses to delete versions
while one of them has a tag, and what expires is the log's to say."""
_AUTO_CLEANUP = "lance.auto_cleanup.interval"
"""A table's configuration that has Lance delete old versions once it has committed one."""
_TAGS = "_refs/tags"
_BRANCHES = "_refs/branches"
_SUFFIX = ".json"
_NANOS = 1_000_000_000
_HOUR_SECONDS, _DAY_SECONDS, _MONTH_SECONDS = 3_600, 86_400, 31 * 86_400

logger = logging.getLogger(__name__)


def lance_tags(location: str) -> dict[str, int]:
    """Return the versions of a table by the tags that name them now; raise OSError.

    The tags of a branch are beside its table, and name the branch. The guard isn't among them: it
    keeps no version from the log.
    """
    found = _tags(*line_of(location))
    found.pop(GUARD_TAG, None)
    return found


def guarded_version(location: str) -> int:
    """Return the version that the guard names, 0 if there is no guard; raise OSError."""
    return _tags(location).get(GUARD_TAG, 0)


def guard_from_cleanup(location: str, config: Mapping[str, str]) -> None:
    """Set the guard if the configuration of what is committed asks for Lance's cleanup after it.

    Maintenance looks at a table once a minute, which is too late then, or doesn't run. A branch has
    none: a table has each tag once, and all its branches share them.
    """
    if _AUTO_CLEANUP not in config or line_of(location)[1] or guarded_version(location):
        return
    oldest = next(iter(versions_with_files(location)), 0)
    if not oldest:
        return
    from commitlog.adapters.lance_datasets import open_dataset  # rarely needed

    try:
        open_dataset(location, oldest).tags.create(GUARD_TAG, oldest)
    except (OSError, ValueError):
        if not guarded_version(location):  # else somebody else has just set it
            raise


def line_of(location: str) -> tuple[str, str]:
    """Return the place with a table's references, and its branch there; "" for the main branch."""
    home, *rest = location.split(FOLDER)
    while rest:
        branch = FOLDER.join(rest)
        if f"{quote(branch, safe='')}{_SUFFIX}" in store_for(home).names(_BRANCHES):
            return home, branch
        home = f"{home}{FOLDER}{rest.pop(0)}"
    return location, ""


def _tags(home: str, branch: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for name, tag in _references(home, _TAGS):
        try:
            if (tag.get("branch") or "") == branch:
                found[name] = int(tag["version"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("the tag %s of %s cannot be read: %s", name, home, error)
    return found


def referenced_versions(location: str) -> set[int]:
    """Return the versions that a tag names or a branch begins with; raise OSError."""
    found = set(lance_tags(location).values())
    home, line = line_of(location)
    for _, branch in _references(home, _BRANCHES):
        if isinstance(branch, dict) and (branch.get("parentBranch") or "") == line:
            version = branch.get("parentVersion")
            if isinstance(version, int):
                found.add(version)
    return found


def versions_with_files(location: str) -> dict[int, str]:
    """Return the paths of published manifests by version, ascending; raise OSError."""
    return versions_in(store_for(location))


def versions_in(store: ObjectStore) -> dict[int, str]:
    """Return what `versions_with_files` does, of a location that is open."""
    return dict(sorted(manifests_in(store)))


def manifests_in(store: ObjectStore, folder: str = VERSIONS_DIRECTORY) -> Iterator[tuple[int, str]]:
    """Yield the version and the path of each published manifest in a folder; raise OSError."""
    for name in store.names(folder):
        parsed = parse_manifest_name(name)
        if parsed is not None and not parsed.staged_by and not parsed.is_detached:
            yield parsed.version, f"{folder}/{name}"


def manifest_in(store: ObjectStore, version: int) -> str | None:
    """Return the path of a version's file, by whichever name it has; None if there is none."""
    return next((path for path in manifest_places(version) if store.size(path) >= 0), None)


class Published:
    """The versions of a table that have a file, and when each was made; raises OSError."""

    def __init__(self, location: str) -> None:
        self._store = store_for(location)
        self.paths = versions_with_files(location)
        self._times: dict[int, float] = {}

    def made_at(self, version: int) -> float:
        """Return when a version was made, in seconds; reads its manifest once.

        Of one whose file has gone meanwhile: when the one before it was made.
        """
        if version not in self._times:
            try:
                state, _ = decode_manifest(self._store.read(self.paths[version]))
                self._times[version] = state.timestamp_nanos / _NANOS
            except FileNotFoundError:
                before = max((one for one in self.paths if one < version), default=0)
                self._times[version] = self.made_at(before) if before else 0.0
        return self._times[version]

    def last_before(self, seconds: float) -> int:
        """Return the newest version that was made before a time, 0 if there is none.

        Reads as many manifests as a binary search needs.
        """
        versions = list(self.paths)
        count = bisect_left(versions, seconds, key=self.made_at)
        return versions[count - 1] if count else 0

    def milestones(self, now: float) -> set[int]:
        """Return the last version of each hour of the last day, day of the last month, and month.

        Reads as many manifests as a binary search for each of them needs.
        """
        versions, found = list(self.paths), set[int]()
        count = len(versions)
        while count:
            found.add(versions[count - 1])
            began = _period_of(self.made_at(versions[count - 1]), now)
            # At least by one, even if a registered table's clock went back.
            count = min(bisect_left(versions, began, 0, count, key=self.made_at), count - 1)
        return found


def _period_of(seconds: float, now: float) -> float:
    """Return when the hour, the day or the month of a moment began, in UTC, by how old it is."""
    if now - seconds < _DAY_SECONDS:
        return seconds - seconds % _HOUR_SECONDS
    if now - seconds < _MONTH_SECONDS:
        return seconds - seconds % _DAY_SECONDS
    day = datetime.fromtimestamp(seconds, UTC)
    return datetime(day.year, day.month, 1, tzinfo=UTC).timestamp()


def _references(location: str, folder: str) -> Iterator[tuple[str, Any]]:
    store = store_for(location)
    for name in store.names(folder):
        if not name.endswith(_SUFFIX):
            continue
        try:
            yield name.removesuffix(_SUFFIX), json.loads(store.read(f"{folder}/{name}"))
        except FileNotFoundError:
            continue  # deleted meanwhile
        except ValueError as error:
            logger.warning("%s of %s cannot be read: %s", name, location, error)
