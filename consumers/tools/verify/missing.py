"""Files that weren't there when the log came to them, and which versions need them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from commitlog.core.catalogue.version_deletion import without
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.tables.lance_tables import VersionRanges
from commitlog.lancepb.table_pb2 import DataFragment
from consumers.tools.verify.versions import LifeManifests, Made


@dataclass(slots=True)
class Missing:
    """A file that wasn't there when the log came to it."""

    kind: str
    incarnation: str
    path: str
    sequence: int
    version: int
    """The one that brought it."""
    fragment: int = -1
    """The fragment that it belongs to; -1: it belongs to a version as a whole."""
    since: int = 0
    """The version from which on it has been needed; 0: the newest version doesn't need it."""
    needed: list[tuple[int, int]] = field(default_factory=list)
    """The versions before that needed it: first and last ones."""

    def hurts(self, life: LifeManifests) -> VersionRanges:
        """Return the versions that can't be read without it."""
        if self.fragment < 0:
            return without([(self.version, self.version)], life.deleted)
        now = [(self.since, life.state.version)] if self.since else []
        return without([*((a, b) for a, b in self.needed), *now], life.deleted)


class AllMissing:
    """What was missing in one partition's tables, followed from version to version."""

    def __init__(self) -> None:
        """Miss nothing."""
        self.files: list[Missing] = []
        self._of_fragments: dict[str, list[Missing]] = defaultdict(list)

    def note(self, missing: Missing) -> None:
        """Note a file that isn't there."""
        self.files.append(missing)
        if missing.fragment >= 0:
            self._of_fragments[missing.incarnation].append(missing)

    def follow(self, made: Made) -> None:
        """See which of the files a table's next version needs."""
        followed = self._of_fragments.get(made.life.incarnation)
        if not followed:
            return
        after = dict(made.delta.fragments)
        removed, version = set(made.delta.removed), made.change.version
        for one in followed:
            if one.fragment not in after and one.fragment not in removed:
                continue
            is_needed = one.path in paths_of(after.get(one.fragment))
            if is_needed and not one.since:
                one.since = version
            elif not is_needed and one.since:
                one.needed.append((one.since, version - 1))
                one.since = 0

    def to_json(self) -> list[dict[str, Any]]:
        """Return what an interrupted run has to remember."""
        return [asdict(one) for one in self.files]

    def restore(
        self, data: Iterable[Mapping[str, Any]], lives: Mapping[str, LifeManifests]
    ) -> None:
        """Take back what `to_json` returned."""
        for one in data:
            if one["incarnation"] in lives:
                self.note(Missing(**one))


def paths_of(encoded: bytes | None) -> set[str]:
    """Return the files that a fragment names, as seen from its table's own location."""
    if encoded is None:
        return set()
    fragment = DataFragment.FromString(encoded)
    paths = {f"data/{file.path}" for file in fragment.files}
    paths |= {f"data/{overlay.data_file.path}" for overlay in fragment.overlays}
    if fragment.HasField("deletion_file"):
        paths.add(deletion_file_path(fragment.id, fragment.deletion_file))
    return paths


def said(ranges: VersionRanges) -> str:
    """Return ranges of versions in words."""
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in ranges)
