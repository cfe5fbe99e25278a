"""Files that weren't there when the log came to them, and which versions need them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from commitlog.core.catalogue.version_deletion import without
from commitlog.core.manifest.data_files import data_files
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.header import InBase
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
        self.files: list[Missing] = []
        self._of_fragments: dict[tuple[str, int], dict[str, Missing]] = defaultdict(dict)
        """By incarnation and fragment, then by path. A table that expires its versions misses
        files of nearly all of them, so a version looks at those of its own fragments only."""
        self._needed_now: dict[tuple[str, int], list[Missing]] = defaultdict(list)
        self._incarnations: set[str] = set()

    def note(self, missing: Missing) -> None:
        """Note a file that isn't there."""
        self.files.append(missing)
        if missing.fragment < 0:
            return
        key = (missing.incarnation, missing.fragment)
        self._of_fragments[key][missing.path] = missing
        self._incarnations.add(missing.incarnation)
        if missing.since:
            self._needed_now[key].append(missing)

    def follow(self, made: Made) -> None:
        """See which of the files a table's next version needs."""
        incarnation, version = made.life.incarnation, made.change.version
        if incarnation not in self._incarnations:
            return
        after: dict[int, bytes | None] = dict.fromkeys(made.delta.removed)
        after |= dict(made.delta.fragments)
        for fragment, encoded in after.items():
            followed = self._of_fragments.get((incarnation, fragment))
            if followed is None:
                continue
            needed = paths_of(encoded)
            for one in self._needed_now.pop((incarnation, fragment), ()):
                if one.path not in needed:
                    one.needed.append((one.since, version - 1))
                    one.since = 0
            now = [followed[path] for path in needed if path in followed]
            for one in now:
                one.since = one.since or version
            if now:
                self._needed_now[incarnation, fragment] = now

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


def files_of(fragment: DataFragment) -> Iterator[tuple[InBase, str, str]]:
    """Yield what names each data and deletion file of a fragment, its path, and the folder of that.

    Without a folder, the path has it: a base keeps the files of some folders only.
    """
    for file in data_files(fragment):
        yield file, file.path, "data"
    if fragment.HasField("deletion_file"):
        deleted = fragment.deletion_file
        yield deleted, deletion_file_path(fragment.id, deleted), ""


def own_files(fragment: DataFragment) -> set[str]:
    """Return the files of a fragment that are in its table's own location, by their paths."""
    return {
        _inside(folder, path)
        for named, path, folder in files_of(fragment)
        if not named.HasField("base_id")
    }


def paths_of(encoded: bytes | None) -> set[str]:
    """Return the files that a fragment names, as seen from its table's own location."""
    fragment = DataFragment.FromString(encoded or b"")
    return {_inside(folder, path) for _, path, folder in files_of(fragment)}


def _inside(folder: str, path: str) -> str:
    return f"{folder}/{path}" if folder else path
