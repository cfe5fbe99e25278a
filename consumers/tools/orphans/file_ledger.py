"""Which files of Lance tables are needed, and since when the others are not.

Read from one partition of the log: each version names the files that it reads, and a file is needed
while a version that reads it exists. A version exists unless a record deleted or dropped it; tags,
branches and holds keep versions too. A file that no committed transaction names was written for a
refused transaction, for an undecided one, or for none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from uuid import UUID

from google.protobuf.message import DecodeError

from commitlog.adapters.lance_refs import referenced_versions
from commitlog.codecs.manifest_file import TRANSACTIONS_DIRECTORY
from commitlog.core.catalogue.version_deletion import held_versions, merged, without
from commitlog.core.decisions import Change, ChangeKind, Refused
from commitlog.core.manifest.header import ManifestHeader
from commitlog.core.operations.awaited_columns import PRIVATE_DIRECTORY
from commitlog.core.rows.deciding import ROWS_DIRECTORY
from commitlog.core.tables.lance_tables import VersionRanges, normalize_location
from commitlog.errors import CommitLogError
from commitlog.lancepb.table_pb2 import BasePath, DataFragment, IndexSection
from commitlog.lancepb.transaction_pb2 import Transaction as LanceMessage
from commitlog.model.operations import (
    ApplyRows,
    CreateTableVersion,
    LanceCommit,
    Properties,
    WriteRows,
)
from commitlog.model.records import Outcome, Transaction, is_commit
from commitlog.model.table import TableId, format_table_id
from consumers.partition.files.events import Event, in_words
from consumers.tools.orphans.named_files import DATA, index_folder, paths_in
from consumers.tools.orphans.nested_places import below

JUDGED = frozenset({DATA, "_deletions", ROWS_DIRECTORY.rstrip("/"), PRIVATE_DIRECTORY})
"""Folders in which a file that the log doesn't name is unneeded."""
DELETIONS_KEPT = 200
"""Versions of a table may be deleted each hour for years: so many of these records are told apart.
Those before count as one, of the time of the last one."""


class Why(StrEnum):
    """Why a file is unneeded."""

    EXPIRED = "expired"
    """Only versions that a record deleted read it."""
    DROPPED = "dropped"
    """Its table was dropped."""
    REFUSED = "refused"
    """It was written for a transaction that was refused, or that repeated another."""
    ABANDONED = "abandoned"
    """No transaction names it."""
    APPLIED = "applied"
    """Its rows are in a version, or were refused."""
    FOREIGN = "foreign"
    """A manifest that was written around the log names it."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record that ended something: what, when, and by which principal."""

    what: str
    time_ms: int
    transaction_id: str
    principal: str
    sequence: int

    def __str__(self) -> str:
        by = f" by {self.principal}" if self.principal else ""
        return f"{self.what}{by} as record {self.sequence} ({self.transaction_id})"


Standing = Callable[[str], VersionRanges]
"""Returns the versions of an incarnation that readers may still read."""


@dataclass(slots=True)
class _Use:
    """The versions of one incarnation that read a file."""

    incarnation: str
    first: int
    last: int | None = None
    """None: up to the newest."""


@dataclass(slots=True)
class LifeFiles:
    """One incarnation of a table: its files."""

    table: TableId
    incarnation: str
    location: str
    version: int = 0
    dropped: Record | None = None
    is_live: bool = True
    is_registered: bool = False
    """Whether it has, or had, versions that the log didn't make."""
    came_back: bool = False
    """Whether it was dropped and registered again."""
    deleted: list[tuple[VersionRanges, Record]] = field(default_factory=list)
    bases: dict[int, BasePath] = field(default_factory=dict)
    parts: dict[int | str, frozenset[str]] = field(default_factory=dict)
    """What each fragment and index of the newest version reads."""
    readers: Counter[str] = field(default_factory=Counter)
    """How many of these read a file."""
    is_forgotten: bool = False
    """Whether its files were forgotten: if it comes back, only the log says what they are."""

    @property
    def name(self) -> str:
        """Its table's name."""
        return format_table_id(self.table)

    def place(self, path: str, base_id: int | None = None, folder: str = "") -> str:
        """Return the whole path of a file, below its location or one of its bases."""
        base = self.bases.get(base_id) if base_id is not None else None
        if base_id is not None and base is None:
            return ""
        root = self.location if base is None else _normalized(base.path)
        in_folder = folder and (base is None or base.is_dataset_root)
        return f"{root}/{folder}/{path}" if in_folder else f"{root}/{path}"

    def standing(self, properties: Properties, now_ms: int) -> VersionRanges:
        """Return the versions that readers may still read."""
        if not self.is_live or not self.version:
            return ()
        gone = merged(*(ranges for ranges, _ in self.deleted))
        kept = [(v, v) for v in referenced_versions(self.location) if v <= self.version]
        kept += held_versions(properties, self.version, now_ms)
        return merged(without([(1, self.version)], gone), kept)


class FileLedger:
    """One partition's files, event by event."""

    def __init__(self) -> None:
        """Begin before the first record."""
        self.lives: dict[str, LifeFiles] = {}
        """By incarnation."""
        self._named: dict[TableId, LifeFiles] = {}
        """Those that exist, by their tables."""
        self._uses: dict[str, list[_Use]] = {}
        self._refused: dict[str, Record] = {}
        self._rows_waiting: dict[str, dict[str, int]] = {}
        """By incarnation: files of rows that aren't applied, with their writes' positions."""
        self._rows_applied: dict[str, Record] = {}

    def take(self, event: Event) -> None:
        """Note the effects of an outcome."""
        outcome = event.outcome
        record = event.submitted.record
        principal = event.submitted.principal

        def ended(what: str) -> Record:
            return Record(
                what=what,
                time_ms=outcome.time_ms,
                transaction_id=outcome.transaction_id,
                principal=principal,
                sequence=outcome.sequence,
            )

        for change in event.changes:
            if change.iceberg is None:
                self._take(change, ended)
        if isinstance(record, Transaction) and is_commit(outcome):
            self._take_rows(record, outcome, ended)
        elif isinstance(record, Transaction):
            self._refused.update(dict.fromkeys(self._named_by(record), ended(_refusal(outcome))))

    def undecided(self, records: Iterable[object]) -> set[str]:
        """Return the files that undecided transactions name."""
        return {
            path
            for record in records
            if isinstance(record, Transaction)
            for path in self._named_by(record)
        }

    def standing(
        self,
        properties: Callable[[LifeFiles], Properties],
        now_ms: int,
        unreachable: Collection[str],
    ) -> Standing:
        """Return what tells the versions of an incarnation that readers may still read.

        `properties` returns those of a table that exists. The tags of tables that are `unreachable`
        can't be asked for, so that they may name any version.
        """

        @cache
        def standing(incarnation: str) -> VersionRanges:
            life = self.lives[incarnation]
            if incarnation in unreachable and life.is_live:
                return ((1, life.version),)
            try:
                return life.standing(properties(life), now_ms)
            except (CommitLogError, OSError):
                return ((1, life.version),)  # it may have any tag

        return standing

    def needed(self, paths: Iterable[str], standing: Standing) -> set[str]:
        """Return those of some files and folders of indices that a version reads which stands."""
        waiting = [w for name, w in self._rows_waiting.items() if self.lives[name].is_live]
        return {
            path
            for path in paths
            if any(True for _ in self.readers(path, standing))
            or any(path in one for one in waiting)
        }

    def readers(self, path: str, standing: Standing) -> Iterator[LifeFiles]:
        """Yield the tables of which a version that stands reads a file or folder."""
        for use in self._uses.get(path, ()):
            life = self.lives[use.incarnation]
            last = life.version if use.last is None else use.last
            if any(first <= last and use.first <= end for first, end in standing(use.incarnation)):
                yield life

    def ended(self, path: str) -> tuple[Why, Record] | None:
        """Return why a file isn't needed, and the record that says so; None if none does."""
        last: Record | None = None
        why = Why.EXPIRED
        for use in self._uses.get(path, ()):
            life = self.lives[use.incarnation]
            newest = (
                record
                for ranges, record in reversed(life.deleted)
                if any(a <= (use.last or life.version) and use.first <= b for a, b in ranges)
            )
            for record in (next(newest, None), life.dropped):
                if record is not None and (last is None or record.sequence > last.sequence):
                    last, why = record, Why.DROPPED if record is life.dropped else Why.EXPIRED
        if last is not None:
            return why, last
        if (applied := self._rows_applied.get(path)) is not None:
            return Why.APPLIED, applied
        refused = self._refused.get(path)
        return None if refused is None else (Why.REFUSED, refused)

    def known_of(self, lives: Iterable[LifeFiles]) -> KeysView[str]:
        """Return the known files of tables, including unneeded ones, in the log's order."""
        is_below = below([life.location for life in lives])
        known: list[Mapping[str, object]] = [self._uses, self._refused, self._rows_applied]
        known += self._rows_waiting.values()
        return dict.fromkeys(path for paths in known for path in paths if is_below(path)).keys()

    def forget_tables(self, lives: Collection[LifeFiles]) -> None:
        """Forget the files of dropped tables of which nothing is left."""
        gone = {life.incarnation for life in lives}
        for path in self.known_of(lives) if gone else ():
            if all(use.incarnation in gone for use in self._uses.get(path, ())):
                self.forget([path])
        for life in lives:
            life.is_forgotten = True
            self._rows_waiting.pop(life.incarnation, None)
            for known in (life.parts, life.readers, life.deleted):
                known.clear()

    def forget(self, paths: Iterable[str]) -> None:
        """Forget unneeded files that were removed."""
        for path in paths:
            for known in (self._uses, self._refused, self._rows_applied):
                known.pop(path, None)

    def _take_rows(
        self, record: Transaction, outcome: Outcome, ended: Callable[[str], Record]
    ) -> None:
        """Note files of rows that were accepted, and those that were applied."""
        for operation, result in zip(record.operations, outcome.results, strict=False):
            if isinstance(operation, WriteRows) and operation.path:
                path = self.lives[result.incarnation].place(operation.path)
                self._rows_waiting.setdefault(result.incarnation, {})[path] = outcome.sequence
            elif isinstance(operation, ApplyRows):
                waiting = self._rows_waiting.get(result.incarnation, {})
                for path in [p for p, sequence in waiting.items() if sequence <= operation.through]:
                    del waiting[path]
                    said = f"rows through position {operation.through} were applied"
                    self._rows_applied[path] = ended(said)

    def _take(self, change: Change, ended: Callable[[str], Record]) -> None:
        life = self.lives.get(change.incarnation)
        if life is None:
            life = LifeFiles(change.table, change.incarnation, change.location)
            self.lives[change.incarnation] = life
        if change.kind in {ChangeKind.DROPPED, ChangeKind.DEREGISTERED}:
            self._stand(life, life.table, is_live=False)
            # Files of a table that was only deregistered are somebody's.
            if change.kind is ChangeKind.DROPPED:
                life.dropped = ended(f"{life.name} was dropped")
            return
        self._stand(life, change.table, is_live=True)
        life.dropped = None
        if change.deleted:
            what = f"versions {in_words(change.deleted)} were deleted"
            life.deleted.append((change.deleted, ended(what)))
            if len(life.deleted) > DELETIONS_KEPT:
                (oldest, _), (next_oldest, record), *others = life.deleted
                life.deleted = [(merged(oldest, next_oldest), record), *others]
        if change.delta is None:
            return
        if change.kind is ChangeKind.REGISTERED:
            life.came_back = bool(life.version)
            for part in list(life.parts):
                self._read(life, part, frozenset(), change.version)
            life.is_registered = True
        life.version = change.version
        if named := change.delta.transaction_file:
            use = _Use(life.incarnation, change.version, change.version)
            self._uses.setdefault(life.place(f"{TRANSACTIONS_DIRECTORY}/{named}"), []).append(use)
        if change.delta.header is not None:
            bases = ManifestHeader(change.delta.header).message.base_paths
            life.bases = {base.id: base for base in bases}
        for fragment_id in change.delta.removed:
            self._read(life, fragment_id, frozenset(), change.version)
        for fragment_id, encoded in change.delta.fragments:
            found = paths_in(life, DataFragment.FromString(encoded))
            self._read(life, fragment_id, frozenset(found), change.version)
        if change.delta.index_section is not None:
            indices = IndexSection.FromString(change.delta.index_section).indices
            new = {str(UUID(bytes=one.uuid.uuid)): one for one in indices}
            for part in [p for p in life.parts if isinstance(p, str) and p not in new]:
                self._read(life, part, frozenset(), change.version)
            for name, index in new.items():
                self._read(life, name, frozenset(index_folder(life, index)), change.version)

    def _stand(self, life: LifeFiles, table: TableId, *, is_live: bool) -> None:
        if self._named.get(life.table) is life:
            del self._named[life.table]
        life.table, life.is_live = table, is_live
        if is_live:
            self._named[table] = life

    def _read(self, life: LifeFiles, part: int | str, files: frozenset[str], version: int) -> None:
        """Note what a fragment or an index reads from a version on."""
        before = life.parts.pop(part, frozenset())
        if files:
            life.parts[part] = files
        for path in files - before:
            life.readers[path] += 1
            if life.readers[path] == 1:
                self._uses.setdefault(path, []).append(_Use(life.incarnation, version))
        for path in before - files:
            life.readers[path] -= 1
            if not life.readers[path]:
                del life.readers[path]
                for use in self._uses.get(path, ()):
                    if use.incarnation == life.incarnation and use.last is None:
                        use.last = version - 1

    def _named_by(self, record: Transaction) -> Iterator[str]:
        """Yield the files that a transaction's operations name."""
        for operation in record.operations:
            if not isinstance(operation, LanceCommit | CreateTableVersion | WriteRows):
                continue
            life = self._named.get(operation.table)
            if life is None:
                continue
            if isinstance(operation, WriteRows):
                if operation.path:
                    yield life.place(operation.path)
                continue
            if isinstance(operation, CreateTableVersion):
                yield life.place(operation.manifest_path)
            try:
                message = LanceMessage.FromString(operation.message)
            except DecodeError:
                continue
            named = f"{message.read_version}-{message.uuid}.txn"
            yield life.place(f"{TRANSACTIONS_DIRECTORY}/{named}")
            yield from paths_in(life, message)


def _normalized(path: str) -> str:
    try:
        return normalize_location(path)
    except Refused:
        return path.rstrip("/")


def _refusal(outcome: Outcome) -> str:
    if outcome.answers is not None:
        return f"{outcome.transaction_id} repeated what outcome {outcome.answers} had committed"
    return f"{outcome.transaction_id} was {outcome.status}"
