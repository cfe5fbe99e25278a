"""Compares what the log says of tables with what stands in storage.

Under policy `every` each version has to have its manifest; under `latest` the newest, and whatever
older ones there are have to be right too. Each version's own data and deletion files are looked at
as the log comes to it, so every version is covered and no file is asked for twice.

What is missing is judged at the end: files of a table that was dropped meanwhile may be gone, and
a version that was committed a moment ago may be about to be written.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator

from commitlog.adapters.storage import ObjectStore
from commitlog.codecs.deletion_file import decode_deletion_file
from commitlog.codecs.manifest_file import (
    TRANSACTIONS_DIRECTORY,
    VERSIONS_DIRECTORY,
    decode_manifest,
    parse_manifest_name,
    transaction_path,
)
from commitlog.core.manifest.data_files import data_files
from commitlog.core.manifest.deletion_vectors import deletion_file_path
from commitlog.core.manifest.header import ManifestHeader
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import DataFragment, DeletionFile, IndexSection
from commitlog.model.table import Policy, format_table_id
from consumers.partition.files.events import in_words
from consumers.tools.verify.findings import Problem, ProblemKind
from consumers.tools.verify.missing import AllMissing, Missing
from consumers.tools.verify.versions import LifeManifests, Made, Versions, manifest_paths

SETTLE_SECONDS = 10.0
"""How long a version that was just committed may take to get its file."""
REMEMBERED_MAX = 1_000_000
"""Files that are known to be there; beyond this some are looked at twice."""


class PartitionFiles:
    """The files of one partition's tables."""

    def __init__(
        self,
        versions: Versions,
        open_store: Callable[[str], ObjectStore],
        only: str = "",
        *,
        is_seen: Callable[[str], bool] = lambda location: True,
    ) -> None:
        """Look at all tables, or at the one of this name, where `is_seen` says of a location."""
        self.versions = versions
        self._open_store = open_store
        self._only = only
        self._is_seen = is_seen
        self._stores: dict[str, ObjectStore] = {}
        self._names: dict[tuple[str, str], frozenset[str]] = {}
        """Of the files in folders, as they were listed once."""
        self._listed: dict[str, frozenset[str] | OSError] = {}
        self._seen: set[tuple[str, str]] = set()
        self.missing = AllMissing()
        """What an interrupted run has to remember."""
        self.manifests_equal = 0
        """Byte for byte."""
        self.manifests_alike = 0
        """Registered ones: in every field."""
        self.files_looked_at = 0

    def look(self, made: Made) -> Iterator[Problem]:
        """Look at a version that the log just made, and at the files that it brings."""
        if not self._is_wanted(made.life):
            return
        self.missing.follow(made)
        try:
            yield from self._manifest(made)
            yield from self._data(made)
        except OSError as error:
            yield _problem(ProblemKind.FILE, made, f"{made.life.location} cannot be read: {error}")

    def list_again(self) -> None:
        """List the manifests that exist now; afterwards the log is read to a later end.

        Whatever is listed then, and is of a version that the log doesn't make up to that end, was
        written around the log: the log's own come after their outcomes.
        """
        for life in self.versions.lives.values():
            if life.is_live and self._is_wanted(life):
                try:
                    names = frozenset(self._store(life.location).names(VERSIONS_DIRECTORY))
                    self._listed[life.incarnation] = names
                except OSError as error:
                    self._listed[life.incarnation] = error  # a finding about this table

    def finish(self, names: Collection[str] | None = None) -> Iterator[Problem]:
        """Judge what was missing, and what stands at the heads of all tables, or of some."""
        shown = (one for one in self.versions.lives.values() if one.is_shown(names))
        lives = {one.incarnation: one for one in shown if self._is_wanted(one)}
        noted = {(missing.incarnation, missing.version) for missing in self.missing.files}
        deadline = time.monotonic() + SETTLE_SECONDS
        for missing in self.missing.files:
            life = lives.get(missing.incarnation)
            if life is not None and missing.hurts(life):
                yield from _apart(life, self._again(life, missing, deadline))
        for life in lives.values():
            is_noted = (life.incarnation, life.state.version) in noted
            yield from _apart(life, self._head(life, deadline, is_noted=is_noted))

    def _is_wanted(self, life: LifeManifests) -> bool:
        is_meant = not self._only or format_table_id(life.table) == self._only
        return is_meant and self._is_seen(life.location)

    def _store(self, location: str) -> ObjectStore:
        store = self._stores.get(location)
        if store is None:
            store = self._stores[location] = self._open_store(location)
        return store

    def _is_there(self, location: str, path: str) -> bool:
        """Return True if a file is there; most of a folder's are known from one listing."""
        folder, _, name = path.rpartition("/")
        names = self._names.get((location, folder))
        if names is None:
            names = frozenset(self._store(location).names(folder))
            self._names[location, folder] = names
        return name in names or self._store(location).size(path) >= 0

    def _manifest(self, made: Made) -> Iterator[Problem]:
        """Compare a version's manifest with the log, byte by byte."""
        location = made.life.location
        path = next((p for p in made.paths() if self._is_there(location, p)), "")
        if not path:
            if made.life.policy is Policy.EVERY:
                self._note(ProblemKind.MANIFEST, made, made.paths()[0])
            return
        try:
            data = self._store(location).read(path)
        except FileNotFoundError:
            # It was there a moment ago: under `latest`, maintenance thins manifests at any time.
            if made.life.policy is Policy.EVERY:
                self._note(ProblemKind.MANIFEST, made, path)
            return
        if made.is_foreign:
            difference = _differs_in_content(data, made)
            self.manifests_alike += not difference
        else:
            difference = "" if data == made.encode() else "it isn't what the log says, byte by byte"
            self.manifests_equal += not difference
        if difference:
            yield _problem(ProblemKind.MANIFEST, made, f"{location}/{path}: {difference}")
        beside = transaction_path(made.life.state) if made.life.message else ""
        if beside and not self._is_there(location, beside):
            self._note(ProblemKind.FILE, made, beside)

    def _data(self, made: Made) -> Iterator[Problem]:
        """Look for the data, deletion and index files that a version brings."""
        header, root = made.life.state.header, made.life.location
        for fragment_id, encoded in made.delta.fragments:
            fragment = DataFragment.FromString(encoded)
            for file in data_files(fragment):
                location, path = header.place_of(root, file, file.path, "data")
                yield from self._file(made, location, path, file.file_size_bytes, fragment_id)
            if fragment.HasField("deletion_file"):
                yield from self._deletions(made, header, fragment_id, fragment.deletion_file)
        for index in IndexSection.FromString(made.delta.index_section or b"").indices:
            folder = f"_indices/{uuid.UUID(bytes=index.uuid.uuid)}"
            for part in index.files:
                location, path = header.place_of(root, index, part.path, folder)
                yield from self._file(made, location, path, part.size_bytes)

    def _file(
        self, made: Made, location: str, path: str, size: int, fragment_id: int = -1
    ) -> Iterator[Problem]:
        if not self._is_new(location, path):
            return
        seen = self._store(location).size(path)
        if seen < 0:
            self._note_gone(made, location, path, fragment_id)
        elif size and size != seen:
            text = f"the file {location}/{path} has {seen} bytes instead of {size}"
            yield _problem(ProblemKind.FILE, made, text)

    def _deletions(
        self, made: Made, header: ManifestHeader, fragment_id: int, deletion_file: DeletionFile
    ) -> Iterator[Problem]:
        name = deletion_file_path(fragment_id, deletion_file)
        location, path = header.place_of(made.life.location, deletion_file, name)
        if not self._is_new(location, path):
            return
        try:
            data = self._store(location).read(path)
        except FileNotFoundError:
            self._note_gone(made, location, path, fragment_id)
            return
        try:
            rows = len(decode_deletion_file(data, deletion_file.file_type))
        except CommitLogError as error:
            yield _problem(ProblemKind.FILE, made, f"the deletion file {location}/{path}: {error}")
            return
        expected = deletion_file.num_deleted_rows
        if expected and rows != expected:
            text = f"the deletion file {location}/{path} has {rows} rows instead of {expected}"
            yield _problem(ProblemKind.FILE, made, text)

    def _is_new(self, location: str, path: str) -> bool:
        key = (location, path)
        if key in self._seen:
            return False
        if len(self._seen) >= REMEMBERED_MAX:
            self._seen.clear()
        self._seen.add(key)
        self.files_looked_at += 1
        return True

    def _note_gone(self, made: Made, location: str, path: str, fragment_id: int) -> None:
        is_own = location == made.life.location
        self._note(ProblemKind.FILE, made, path if is_own else "", fragment_id)

    def _note(self, kind: ProblemKind, made: Made, path: str, fragment_id: int = -1) -> None:
        version, is_followed = made.change.version, bool(path) and fragment_id >= 0
        self.missing.note(
            Missing(
                kind=kind,
                incarnation=made.life.incarnation,
                path=path,
                sequence=made.sequence,
                version=version,
                fragment=fragment_id if is_followed else -1,
                since=version if is_followed else 0,
            )
        )

    def _is_there_by(self, deadline: float, life: LifeManifests, missing: Missing) -> bool:
        """Look again, for a while if it is the newest version's manifest."""
        store = self._store(life.location)
        paths: tuple[str, ...] = (missing.path,)
        is_newest = missing.kind == ProblemKind.MANIFEST and missing.version == life.state.version
        if missing.kind == ProblemKind.MANIFEST:
            paths = manifest_paths(missing.version, life.naming_scheme)
        while True:
            if missing.path and any(store.size(path) >= 0 for path in paths):
                return True
            if not is_newest or time.monotonic() > deadline:
                return False
            time.sleep(0.1)

    def _again(self, life: LifeManifests, missing: Missing, deadline: float) -> Iterator[Problem]:
        """Look once more for a file that was missing."""
        if not self._is_there_by(deadline, life, missing):
            yield self._gone(life, missing)

    def _gone(self, life: LifeManifests, missing: Missing) -> Problem:
        name, kind = format_table_id(life.table), ProblemKind(missing.kind)
        what = "the manifest" if kind is ProblemKind.MANIFEST else "the file"
        where = f"{life.location}/{missing.path}" if missing.path else "a file outside its location"
        text = f"{what} {where} of {name}, version {missing.version}, is missing"
        hurts = in_words(missing.hurts(life))
        if missing.fragment >= 0:
            noun = "version" if hurts.isdecimal() else "versions"
            text = f"{text}: {noun} {hurts} can't be read without it"
        elif kind is ProblemKind.MANIFEST or missing.path.startswith(TRANSACTIONS_DIRECTORY):
            text = f"{text}; a leader makes it again from the log"
        version = missing.version
        return Problem(kind, text, missing.sequence, table=name, version=version, hurts=hurts)

    def _head(self, life: LifeManifests, deadline: float, *, is_noted: bool) -> Iterator[Problem]:
        """Look at a table's newest version, and for versions that the log doesn't know."""
        name, version = format_table_id(life.table), life.state.version
        if life.policy is Policy.LATEST and not is_noted:
            paths = manifest_paths(version, life.naming_scheme)
            newest = Missing(
                kind=ProblemKind.MANIFEST,
                incarnation=life.incarnation,
                path=paths[0],
                sequence=0,
                version=version,
            )
            if not self._is_there_by(deadline, life, newest):
                text = f"the newest manifest {life.location}/{paths[0]} of {name} is missing"
                yield Problem(ProblemKind.MANIFEST, text, table=name, version=version)
        listed = self._listed.get(life.incarnation, frozenset())
        if isinstance(listed, OSError):
            raise listed
        for found in sorted(listed):
            parsed = parse_manifest_name(found)
            if parsed is None or parsed.staged_by or parsed.is_detached:
                continue
            if parsed.version > version:
                text = (
                    f"{life.location}/{VERSIONS_DIRECTORY}/{found} is a version of {name} that the "
                    f"log doesn't know: it was written around the log, or the log lost it"
                )
                yield Problem(ProblemKind.BYPASS, text, table=name, version=parsed.version)


def _apart(life: LifeManifests, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Yield a table's problems; that it can't be read is one of them, and not the run's end."""
    try:
        yield from problems
    except OSError as error:
        text = f"{life.location} cannot be read: {error}"
        yield Problem(ProblemKind.FILE, text, table=format_table_id(life.table))


def _differs_in_content(data: bytes, made: Made) -> str:
    try:
        state, _ = decode_manifest(data)
    except CommitLogError as error:
        return f"it cannot be read: {error}"
    return "" if state == made.life.state else "it isn't the manifest that was registered"


def _problem(kind: ProblemKind, made: Made, message: str) -> Problem:
    name, version = format_table_id(made.life.table), made.change.version
    return Problem(kind, message, made.sequence, table=name, version=version)
