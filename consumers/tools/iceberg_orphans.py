"""Unneeded files of Iceberg tables: no outcome or snapshot names them, or a purge left them.

A metadata file is written before its outcome, under a name that follows from the transaction. If
the leader died in between, the next one decides the transaction again and the file gets its
outcome. So a file is an orphan only as of the log's current end. A table that was dropped with its
files keeps its last metadata file until all others are gone; the files that it refers to remain.

Each metadata file of an existing table refers to snapshots, past ones too, and
these to manifests and data. Other files in its `data` and `metadata` were written for a commit
that was refused, or never made; or their snapshots are gone with the metadata that had them.
Files of other programs in the way of the log's own are beside them, under another name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from commitlog.adapters.reading import read_on
from commitlog.core.iceberg.errors import Invalid
from commitlog.core.iceberg.iceberg_table import IcebergTable
from commitlog.core.iceberg.metadata_references import read_table
from commitlog.core.log.chain import Chain
from commitlog.core.tables.lance_tables import normalize_location
from commitlog.model.records import Answered, OperationResult, Outcome, Status
from commitlog.model.table import TableId
from commitlog.ports import Log, Reader
from consumers.partition.iceberg_files import IcebergFiles, below, contents
from consumers.partition.obstacles import MARK
from consumers.tools.file_ledger import Why
from consumers.tools.iceberg_reached import Reached
from consumers.tools.leftover import GONE

OURS = re.compile(
    r"(?P<folder>.*)/\d{5,}-[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"(\.gz)?\.metadata\.json"
)
"""The names that the log gives (uuid version 5); metadata files of others are ignored."""
_ASIDE = re.compile(rf".*{re.escape(MARK)}[0-9a-f]{{8}}(/.*)?")
_METADATA = re.compile(rf".*\.metadata\.json(\.gz)?({re.escape(GONE)})?|{_ASIDE.pattern}")
ENDINGS = frozenset({"DropTable", "DropNamespace"})
DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orphan:
    """An unneeded file."""

    location: str
    reason: str
    why: Why
    since_ms: int = 0
    """When the file that needed it was superseded; 0: nothing ever needed it."""
    table: TableId = ()
    """Its table; empty: no existing one."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """That table's."""


@dataclass(slots=True)
class _Named:
    """The metadata files that committed outcomes name."""

    all: dict[str, TableId]
    """With their tables, in the order of the log."""
    ended: set[str]
    """Those of tables that were dropped, with or without their files."""
    purged: dict[str, None]
    """The last ones of tables that were dropped with their files."""
    heads: dict[TableId, str]
    """Those of the tables that exist, second names included."""
    missing: set[str] = field(default_factory=set)
    """Those that were missing when they were looked for; if they come back, they are listed."""


def find_orphans(log: Log, tables_root: str) -> list[Orphan]:
    """Compare the files below the tables root with the log's outcomes, to their present ends."""
    with closing(IcebergOrphans(log, tables_root)) as orphans:
        return orphans.find()


class IcebergOrphans:
    """Follows the outcomes of all partitions; close it."""

    def __init__(self, log: Log, tables_root: str) -> None:
        """Begin before the first record."""
        self._files = IcebergFiles(tables_root)
        self._reached = Reached(self._files)
        partitions = range(log.partitions())
        self._outcomes = [(log.read_outcomes(one, 0), Chain()) for one in partitions]
        self._named = _Named({}, set(), {}, {})

    def close(self) -> None:
        """Stop reading."""
        for reader, _ in self._outcomes:
            reader.close()

    def rest(self) -> None:
        """Release all connections until the next search."""
        for reader, _ in self._outcomes:
            reader.rest()

    def find(self) -> list[Orphan]:
        """Compare the files below the tables root with the outcomes, to their present ends."""
        files, named = self._files, self._named
        # In this order: a file that is there now has its outcome later, if it gets one.
        there, aside, everything = [], [], list(files.walk())
        for place in everything:
            if _ASIDE.fullmatch(place):
                aside.append(normalize_location(place))
            elif OURS.fullmatch(place):
                there.append(normalize_location(place))
        for reader, chain in self._outcomes:
            _read_outcomes(reader, chain, named)
        found = [
            Orphan(place, "no outcome names it", Why.ABANDONED)
            for place in sorted(there)
            if place not in named.all
        ]
        for last in list(named.purged):
            if left := _left(files, last):
                found += left
            else:
                del named.purged[last]  # nothing is left of it, and a log has ever more of those
        found += self._fell_out()
        found += self._unreachable({normalize_location(place) for place in everything})
        was_in_the_way = "it was in the way of a file of the log"
        found += [Orphan(place, was_in_the_way, Why.FOREIGN) for place in aside]
        return list({one.location: one for one in found}.values())

    def _fell_out(self) -> Iterator[Orphan]:
        """Yield old metadata files of tables that share their locations with no other."""
        heads = self._named.heads
        for name, head in heads.items():
            try:
                table = self._reached.table(head)
            except (OSError, Invalid) as error:
                logger.warning("%s cannot be read: %s", head, error)
                continue
            found = list(superseded(table, self._files))
            others = (place for other, place in heads.items() if other != name)
            if found and any(below(place, table.location) is not None for place in others):
                continue
            for place, since_ms in found:
                yield Orphan(
                    location=normalize_location(place),
                    reason="it fell out of its table's metadata log",
                    why=Why.EXPIRED,
                    since_ms=since_ms,
                    table=name,
                    properties=table.properties,
                )

    def _unreachable(self, there: Collection[str]) -> list[Orphan]:
        """Return files of existing tables to which none of their metadata refers.

        None if something can't be read: it may refer to any file.
        """
        named = self._named
        standing = [place for place in named.all if self._is_there(place, there)]
        try:
            known = self._reached.look(standing, there)
        except (OSError, Invalid):
            return []
        if known is None:
            return []
        unknown = sorted(place for place in there if hash(place) not in known)
        listed = []
        # What is registered from elsewhere, and wasn't changed since, may have another owner.
        for place in self._reached.newest(standing):
            if place in named.ended or not OURS.fullmatch(place):
                continue
            table = self._reached.table(place)
            home = normalize_location(table.location)
            judged = tuple(f"{home}/{folder}/" for folder in ("data", "metadata"))
            below_it = [one for one in unknown if one.startswith(judged)]
            if below_it and self._reached.is_whole(table, there):
                listed += [
                    Orphan(
                        location=one,
                        reason="no snapshot leads to it",
                        why=Why.ABANDONED,
                        table=named.all[place],
                        properties=table.properties,
                    )
                    for one in below_it
                    if not _METADATA.fullmatch(one)
                ]
        return listed

    def _is_there(self, place: str, there: Collection[str]) -> bool:
        """Return True if a metadata file is there; one that was missed before is on the list."""
        if place in there:
            return True
        missing = self._named.missing
        if place not in missing and self._files.exists(place):
            return True
        missing.add(place)
        return False


def _read_outcomes(reader: Reader[Answered], chain: Chain, named: _Named) -> None:
    for answered in read_on(reader):
        record = answered.record
        is_valid = not chain.admit(record)
        if is_valid and isinstance(record, Outcome):
            _take(record, named)


def metadata_named(outcome: Outcome) -> Iterator[tuple[str, OperationResult]]:
    """Yield the metadata files that a commit names, each with the change of its table."""
    if outcome.status is Status.COMMITTED and outcome.answers is None:
        for result in outcome.results:
            if result.metadata_location:
                yield normalize_location(result.metadata_location), result


def _take(outcome: Outcome, named: _Named) -> None:
    for place, result in metadata_named(outcome):
        named.all[place] = result.table
        named.ended.discard(place)
        named.missing.discard(place)
        named.heads.pop(result.table, None)
        if result.operation == "RenameTable":
            old = (name for name, head in named.heads.items() if head == place)
            named.heads.pop(next(old, result.table), None)
        if result.operation in {*ENDINGS, "DeregisterTable"}:
            named.ended.add(place)
        else:
            named.heads[result.table] = place
        if result.operation in ENDINGS:
            named.purged[place] = None
        else:
            named.purged.pop(place, None)


def _left(files: IcebergFiles, last: str) -> list[Orphan]:
    # Once more at the end: a purge may just have moved it back.
    place = next((one for one in (last, last + GONE, last) if files.exists(one)), "")
    if not place:
        return []
    reason = "its table was dropped with its files"
    try:
        table = read_table(files.read(place), last)
        found = contents(replace(table, metadata_location=place), files)
    except (OSError, Invalid) as error:
        return [Orphan(place, f"{reason}, but cannot be read: {error}", Why.DROPPED)]
    places = dict.fromkeys(place for layer in found.layers() for place in layer)
    return [Orphan(place, reason, Why.DROPPED) for place in places if files.exists(place)]


def superseded(table: IcebergTable, files: IcebergFiles) -> Iterator[tuple[str, int]]:
    """Yield the log's own metadata files that are older than all that a table lists.

    Only if its properties allow it, and only in its own location. Each comes with the time in
    milliseconds at which the next one replaced it: until then its snapshots were the table's.
    """
    if table.properties.get(DELETE_AFTER_COMMIT, "").lower() != "true":
        return
    listed = [str(entry.value["metadata-file"]) for entry in table.metadata_log]
    listed.append(table.metadata_location)
    versions = [_version(place) for place in listed if OURS.fullmatch(place)]
    for folder in sorted({place.rpartition("/")[0] for place in listed}):
        if not versions or below(folder, table.location) is None:
            continue
        ours = (f"{folder}/{name}" for name in files.names(folder))
        places = sorted((one for one in ours if OURS.fullmatch(one)), key=_version)
        if not places or _version(places[0]) >= min(versions):
            continue
        written = {one.path.rpartition("/")[2]: one.modified_ms for one in files.files(folder)}
        for place, newer in zip_longest(places, places[1:]):
            since_ms = written.get(newer.rpartition("/")[2], 0) if newer else 0
            if _version(place) < min(versions):
                yield place, since_ms or table.last_updated_ms


def _version(place: str) -> int:
    return int(place.rpartition("/")[2].partition("-")[0])
